"""Publish: payload -> sealed message -> record -> outcome.

Owns the three outcomes (a `Receipt`, `PublishRejected`, `PublishUnknown`). Its parts are sealing
(`producers.sealing.sealer`), topic creation (`producers.appending.topic_creation`) and batching
(`producers.appending.batcher`). Streams are in `producers.stream`; `producers.connection` opens the log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from bus import native
from bus.clock import Clock
from bus.errors import AppendUnknownError, BusError, ContractError, DeadlineError
from bus.settings.schema import Settings
from bus.telemetry.metrics import Metrics
from bus.transports.base import Appended, AppendFailure, AppendOutcome, NewRecord, Transport
from producers.appending.batcher import Batcher, buffered_size
from producers.appending.topic_creation import TopicCreation
from producers.outcomes import PublishRejected, PublishUnknown, Receipt, Result
from producers.sealing.options import Outgoing
from producers.sealing.sealed_record import SealedRecord
from producers.sealing.sealer import Sealer

if TYPE_CHECKING:
    from bus.artifacts.store import ArtifactStore

__all__ = ["Publisher", "check_timeout"]

_type_of = attrgetter("message_type")


class Publisher:
    """Appends the messages of its *sealer* to one log."""

    def __init__(
        self, transport: Transport, settings: Settings, *, sealer: Sealer, clock: Clock, metrics: Metrics
    ) -> None:
        self.sealer = sealer
        self.settings = settings
        self.clock = clock
        self.metrics = metrics
        self.batcher = Batcher(transport, clock, buffer_bytes=settings.publish.buffer_bytes)
        self.transport = transport
        self._preparation = TopicCreation(transport, settings, clock)
        self._artifacts: ArtifactStore | None = None
        self._receipts = native.Receipts(Receipt, SealedRecord, Appended)

    @property
    def artifacts(self) -> ArtifactStore:
        """The artifact store of the settings. Raises MissingSetting, ConfigurationError."""
        if self._artifacts is None:
            from bus.artifacts.store import artifact_store

            self._artifacts = artifact_store(self.settings)
        return self._artifacts

    async def publish(self, draft: Outgoing, *, timeout_s: float | None = None) -> Receipt:
        """Publish and wait for the outcome; raise PublishRejected or PublishUnknown."""
        return await self.send(self.sealer.seal(draft), timeout_s=timeout_s)

    async def send(self, sealed: SealedRecord, *, timeout_s: float | None = None) -> Receipt:
        """Append a sealed record; sending it again is safe. Raises PublishRejected or PublishUnknown."""
        started_s = self.clock.monotonic_s()
        timeout_s = self.settings.publish.timeout_s if timeout_s is None else timeout_s
        waiting: asyncio.Future[Sequence[AppendOutcome]] | None = None
        if timeout_s.__class__ in {int, float} and timeout_s > 0 and sealed.record.topic in self._preparation.known:
            size = sum(map(buffered_size, sealed.records))
            waiting = self.batcher.submit_now(sealed.records, deadline_s=started_s + timeout_s, size=size)
        (outcome,) = _merged((sealed,), await (waiting or await self.submit(sealed, timeout_s=timeout_s)))
        accepted = self.metrics.accepted(sealed.message_type)
        accepted.seconds.observe(self.clock.monotonic_s() - started_s)
        if not isinstance(outcome, Appended):
            raise self._failure_of(sealed, outcome)
        accepted.count += 1
        return Receipt(sealed.message_id, outcome.topic, outcome.partition, outcome.offset, outcome.timestamp_ms)

    async def submit(self, sealed: SealedRecord, *, timeout_s: float) -> asyncio.Future[Sequence[AppendOutcome]]:
        """Queue *sealed* once its topic exists and there is room in the buffer.

        Pass the future's outcomes to `results_of`. Raises PublishRejected.
        """
        check_timeout(timeout_s)
        try:
            return await self.queue(sealed.records, (sealed.record.topic,), timeout_s=timeout_s)
        except BusError as error:
            raise PublishRejected(f"not sent: {error}", error) from error

    async def queue(
        self, records: Sequence[NewRecord], topics: Iterable[str], *, timeout_s: float, size: int | None = None
    ) -> asyncio.Future[Sequence[AppendOutcome]]:
        """Queue *records* for *topics* as one unit; the future's result is their outcomes.

        Raises BusError if nothing was sent.
        """
        started_s = self.clock.monotonic_s()
        await self._preparation.prepare(topics, timeout_s=timeout_s)
        left_s = timeout_s - (self.clock.monotonic_s() - started_s)
        if left_s <= 0:
            raise DeadlineError("the deadline passed before the log took the message up")
        return await self.batcher.submit(records, timeout_s=left_s, size=size)

    def results_of(self, sealed: Sequence[SealedRecord], outcomes: Sequence[AppendOutcome]) -> list[Result]:
        """Turn the log's *outcomes* of *sealed* into results, and count them."""
        outcomes = _merged(sealed, outcomes)
        results: list[Result] | None = self._receipts.of(sealed, outcomes)
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
            accepted = Counter(
                each.message_type for each, result in zip(sealed, results, strict=True) if isinstance(result, Receipt)
            )
        for message_type, count in accepted.items():
            self.metrics.accepted(message_type).count += count
        return results

    def _failure_of(self, sealed: SealedRecord, outcome: AppendFailure) -> PublishRejected | PublishUnknown:
        if isinstance(outcome, AppendUnknownError):
            self.metrics.published.labels(sealed.message_type, "unknown").inc()
            return PublishUnknown(f"may or may not be in the log: {outcome}", sealed.message, outcome)
        self.metrics.published.labels(sealed.message_type, "rejected").inc()
        return PublishRejected(f"not in the log: {outcome}", outcome)

    async def prepare_topics(self, topics: Iterable[str]) -> None:
        """Create missing topics as `TopicCreation.prepare` does, without a deadline."""
        await self._preparation.prepare(topics)

    async def close(self) -> None:
        """Finish the accepted appends."""
        await self._preparation.close()
        await self.batcher.close()


def _merged(sealed: Sequence[SealedRecord], outcomes: Sequence[AppendOutcome]) -> Sequence[AppendOutcome]:
    """Return one outcome for each of *sealed*: of two versions that of the newer, or of the one that failed."""
    if len(outcomes) == len(sealed) or all(each.older is None for each in sealed):
        return outcomes
    found, left = [], iter(outcomes)
    for each in sealed:
        own = [next(left) for _ in each.records]
        found.append(next((outcome for outcome in own if not isinstance(outcome, Appended)), own[-1]))
    return found


def check_timeout(timeout_s: object) -> None:
    """Raise PublishRejected unless the timeout is a positive number of seconds."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        error = ContractError(f"is {type(timeout_s).__name__} {timeout_s!r:.80}, not seconds", "timeout_s")
    elif not timeout_s > 0:
        error = ContractError(f"{timeout_s} is not more than 0", "timeout_s")
    else:
        return
    raise PublishRejected(str(error), error)
