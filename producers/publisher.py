"""Publishing: payload -> sealed message -> record -> outcome.

Owns the three outcomes (a `Receipt`, `PublishRejected`, `PublishUnknown`) and creating topics on first use. Does not own sealing
(`producers.sealer`), batching (`producers.batcher`), streams (`producers.stream`) or opening a log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TypeAlias

import msgspec

from bus import native
from bus.clock import Clock
from bus.errors import (
    AppendUnknownError,
    BusError,
    PublishRejected,
    PublishUnknown,
    TopicMissingError,
)
from bus.metrics import Metrics
from bus.settings import Settings
from bus.signing import Signer
from bus.topics import dead_letter_topic, read_topic
from bus.topology import creates_topics, message_topics, reply_topics
from bus.transports.base import Appended, Failure, Outcome, Transport
from producers.batcher import Batcher, size_of
from producers.draft import Draft, Origin
from producers.sealer import Sealed, Sealer

__all__ = ["Publisher", "Receipt", "Result", "check_timeout"]

_type_of = attrgetter("message_type")


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The message is durably in the log, here."""

    message_id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


Result: TypeAlias = Receipt | PublishRejected | PublishUnknown


class Publisher(Sealer):
    """Seals in the name of one agent and appends to one log."""

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        *,
        origin: Origin,
        clock: Clock,
        metrics: Metrics,
        signer: Signer | None = None,
        entropy: Callable[[int], bytes] | None = None,
    ) -> None:
        super().__init__(settings, origin=origin, clock=clock, signer=signer, entropy=entropy)
        self.metrics = metrics
        self.batcher = Batcher(transport, clock, buffer_bytes=settings.publish.buffer_bytes)
        self._transport = transport
        self._known_topics: set[str] = set()
        self._preparing = asyncio.Lock()
        self._creates = creates_topics(settings, transport.features)
        self._receipts = None if native.core is None else native.core.Receipts(Receipt, Sealed, Appended)

    async def publish(self, draft: Draft, *, timeout_s: float | None = None) -> Receipt:
        """Publish and wait for the outcome; raises PublishRejected or PublishUnknown."""
        return await self.send(self.seal(draft), timeout_s=timeout_s)

    async def send(self, sealed: Sealed, *, timeout_s: float | None = None) -> Receipt:
        """Append what was sealed before; sending the same again is safe. Raises PublishRejected or PublishUnknown."""
        started_s = self.clock.monotonic_s()
        timeout_s = self.settings.publish.timeout_s if timeout_s is None else timeout_s
        waiting: asyncio.Future[Sequence[Outcome]] | None = None
        if timeout_s > 0 and sealed.record.topic in self._known_topics:
            waiting = self.batcher.submit_now((sealed.record,), deadline_s=started_s + timeout_s, size=size_of(sealed.record))
        outcomes = await (waiting or await self.submit(sealed, timeout_s=timeout_s))
        (outcome,) = outcomes
        accepted = self.metrics.accepted(sealed.message_type)
        accepted.seconds.observe(self.clock.monotonic_s() - started_s)
        if not isinstance(outcome, Appended):
            raise self._failure_of(sealed, outcome)
        accepted.count += 1
        return Receipt(sealed.message_id, outcome.topic, outcome.partition, outcome.offset, outcome.timestamp_ms)

    async def submit(self, sealed: Sealed, *, timeout_s: float) -> asyncio.Future[Sequence[Outcome]]:
        """Queue *sealed* as soon as there is room; what comes of it is for `results_of`. Raises PublishRejected."""
        check_timeout(timeout_s)
        try:
            await self.prepare_topics([sealed.record.topic])
        except BusError as error:
            raise PublishRejected(f"not sent: {error}", error) from error
        return await self.batcher.submit((sealed.record,), timeout_s=timeout_s)

    def results_of(self, sealed: Sequence[Sealed], outcomes: Sequence[Outcome]) -> list[Result]:
        """What the log's *outcomes* mean for each of *sealed*, counted."""
        results: list[Result] | None = None if self._receipts is None else self._receipts.of(sealed, outcomes)
        if results is None:
            results = [
                Receipt(each.message_id, outcome.topic, outcome.partition, outcome.offset, outcome.timestamp_ms)
                if isinstance(outcome, Appended)
                else self._failure_of(each, outcome)
                for each, outcome in zip(sealed, outcomes, strict=True)
            ]
        if {*map(type, results)} == {Receipt}:
            accepted = Counter(map(_type_of, sealed))
        else:
            accepted = Counter(each.message_type for each, result in zip(sealed, results, strict=True) if isinstance(result, Receipt))
        for message_type, count in accepted.items():
            self.metrics.accepted(message_type).count += count
        return results

    def _failure_of(self, sealed: Sealed, outcome: Failure) -> PublishRejected | PublishUnknown:
        if isinstance(outcome, AppendUnknownError):
            self.metrics.published.labels(sealed.message_type, "unknown").inc()
            return PublishUnknown(f"may or may not be in the log: {outcome}", sealed.message, outcome)
        self.metrics.published.labels(sealed.message_type, "rejected").inc()
        return PublishRejected(f"not in the log: {outcome}", outcome)

    async def prepare_topics(self, topics: Iterable[str]) -> None:
        """Create a type's topics on first use where that is wanted (`topics.create`); a typo can't, it has no registered type."""
        topics = tuple(topics)
        if self._known_topics.issuperset(topics):
            return
        if not self._creates:
            self._known_topics.update(topics)
            return
        # One at a time: whoever comes while the log is being asked finds the answer afterwards.
        async with self._preparing:
            missing = [topic for topic in topics if topic not in self._known_topics]
            if missing:
                existing = await self._transport.admin.topics()
                await self._create([topic for topic in missing if topic not in existing])
                self._known_topics.update(missing)

    async def _create(self, topics: Sequence[str]) -> None:
        names = [read_topic(topic) for topic in topics]
        for topic, name in zip(topics, names, strict=True):
            if name is None or name.kind not in ("message", "reply") or name.namespace != self.origin.namespace:
                raise TopicMissingError(f"there is no topic {topic}")
        if topics:
            types = [name.message_type for name in names if name and name.kind == "message"]
            replies = [topic for topic, name in zip(topics, names, strict=True) if name and name.kind == "reply"]
            await self._transport.admin.create_topics([*message_topics(self.settings, types), *reply_topics(self.settings, replies)])
            self._known_topics.update(dead_letter_topic(topic) for topic in topics)

    async def close(self) -> None:
        """Finish what was accepted."""
        await self.batcher.close()


def check_timeout(timeout_s: float) -> None:
    """Raise PublishRejected for a deadline that does not lie in the future."""
    if not timeout_s > 0:
        raise PublishRejected(f"timeout_s: {timeout_s} is not more than 0")
