"""Publishing: payload -> sealed message -> record -> outcome.

Owns the three outcomes (a `Receipt`, `PublishRejected`, `PublishUnknown`), refusing at the door what receivers would refuse, and the
record's key and headers (design section 3). Does not own batching (`producers.batcher`), streams (`producers.stream`) or opening a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from bus import sealing
from bus.clock import Clock
from bus.errors import (
    AppendUnknownError,
    BusError,
    ContractError,
    PublishError,
    PublishRejected,
    PublishUnknown,
    TopicMissingError,
)
from bus.metrics import Metrics
from bus.names import Entropy, is_traceparent, uuid7
from bus.payloads import PayloadType, encode_payload, payload_type
from bus.sealing import Message
from bus.settings import Settings
from bus.signing import Signer
from bus.topics import dead_letter_topic, message_topic, read_topic
from bus.topology import creates_topics, message_topics, reply_topics
from bus.transports.base import Appended, Failure, Headers, NewRecord, Outcome, Transport
from producers.batcher import Batcher, size_of
from producers.draft import Draft, Origin, compose
from producers.template import Template, has_only_keys

__all__ = ["CONTENT_TYPE", "Publisher", "Receipt", "Result", "Sealed", "record_of", "sealed_as"]

CONTENT_TYPE = b"application/vnd.sealbus.v1+json"
_ENTROPY_BYTES = 10


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The message is durably in the log, here."""

    message_id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


Result: TypeAlias = Receipt | PublishRejected | PublishUnknown


class Sealed(msgspec.Struct, frozen=True, gc=False):
    """A sealed message as the record that carries it."""

    message_id: str
    message_type: str
    record: NewRecord
    made: Message | None = None

    @property
    def message(self) -> Message:
        """The message in full; read back from the record where it was made by a template."""
        return self.made or sealing.parse(self.record.value)


def record_of(message: Message, topic: str) -> NewRecord:
    """The record of *message* for *topic*; headers are hints, gates judge only the value."""
    metadata = message.metadata
    headers: list[tuple[str, bytes]] = [
        ("content-type", CONTENT_TYPE),
        ("sb-type", metadata.message_type.encode()),
        ("sb-id", metadata.message_id.encode()),
    ]
    if metadata.recipient is not None:
        headers.append(("sb-to", (metadata.recipient.id or metadata.recipient.role or "").encode()))
    if metadata.traceparent is not None and is_traceparent(metadata.traceparent):
        headers.append(("traceparent", metadata.traceparent.encode()))
    return NewRecord(topic, message.key, message.value, tuple(headers))


def sealed_as(message: Message, topic: str) -> Sealed:
    """*message* with its record for *topic*."""
    return Sealed(message.message_id, message.message_type, record_of(message, topic), message)


class Publisher:
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
        self.origin = origin
        self.metrics = metrics
        self.clock = clock
        self.settings = settings
        self.batcher = Batcher(transport, clock, buffer_bytes=settings.publish.buffer_bytes)
        self._transport = transport
        self._signer = signer
        self._entropy = entropy or Entropy()
        self._known_topics: set[str] = set()
        self._preparing = asyncio.Lock()
        self._templates: dict[type, _Prepared] = {}
        self._creates = creates_topics(settings, transport.features)

    def seal(
        self,
        draft: Draft,
        *,
        cause: Message | None = None,
        answers: bool = False,
        topic: str | None = None,
        origin: Origin | None = None,
    ) -> Sealed:
        """Seal *draft* now; raises PublishRejected naming the field that receivers would refuse.

        *topic* overrides the type's own, *origin* who this publisher publishes as.
        """
        if cause is None and topic is None and origin is None and not answers and has_only_keys(draft):
            sealed = self._seal_by_template(
                draft.payload, conversation_id=draft.conversation_id, idempotency_key=draft.idempotency_key, key=draft.key
            )
            if sealed is not None:
                return sealed
        return self._seal(draft, cause=cause, answers=answers, topic=topic, origin=origin)

    def _seal(
        self,
        draft: Draft,
        *,
        cause: Message | None = None,
        answers: bool = False,
        topic: str | None = None,
        origin: Origin | None = None,
    ) -> Sealed:
        try:
            kind = payload_type(draft.payload)
            sealed = self.seal_data(draft, kind, encode_payload(draft.payload), cause=cause, answers=answers, topic=topic, origin=origin)
            if draft.critical_fields:
                kind.check_critical(draft.critical_fields)
        except ContractError as error:
            raise PublishRejected(f"refused before sending: {error}", error) from error
        return sealed

    def seal_data(
        self,
        draft: Draft,
        kind: PayloadType,
        data: bytes,
        *,
        cause: Message | None = None,
        answers: bool = False,
        topic: str | None = None,
        origin: Origin | None = None,
    ) -> Sealed:
        """Seal canonical *data* as type *kind*; raises ContractError."""
        now_ms = self.clock.now_ms()
        identity = uuid7(now_ms, self._entropy(_ENTROPY_BYTES))
        layers = compose(draft, kind, origin or self.origin, now_ms=now_ms, message_id=identity, cause=cause, answers=answers)
        message = sealing.seal(
            data,
            layers.metadata,
            layers.routing,
            parents=layers.parents,
            proof_chain=layers.proof_chain,
            signer=self._signer if kind.sign or kind.risk != "low" else None,
        )
        if len(message.value) > (limit := self.settings.publish.max_message_bytes):
            raise ContractError(f"the message takes {len(message.value)} bytes, at most {limit} are allowed", "/data", "oversized")
        return sealed_as(message, topic or message_topic(self.origin.namespace, kind.name))

    def seal_plain(self, payload: msgspec.Struct) -> Sealed:
        """`seal` for a payload without any options, which is most of a stream: the same bytes, by a template."""
        return self._seal_by_template(payload) or self._seal(Draft(payload=payload))

    def _seal_by_template(self, payload: msgspec.Struct, **keys: str | None) -> Sealed | None:
        """None for what no template seals."""
        template = self._templates.get(payload.__class__)
        try:
            if template is None:
                if self._signer is not None:
                    return None
                template = self._templates[payload.__class__] = _Prepared(payload_type(payload), self.origin)
            data = template.encode(payload)
        except ContractError as error:
            raise PublishRejected(f"refused before sending: {error}", error) from error
        sealed = template.seal(data, self.clock.now_ms(), self._entropy(_ENTROPY_BYTES), **keys)
        if sealed is None or len(sealed[2]) > self.settings.publish.max_message_bytes:
            return None
        identity, record_key, value = sealed
        return Sealed(
            identity, template.message_type, NewRecord(template.topic, record_key, value, (*template.headers, ("sb-id", identity.encode())))
        )

    async def publish(self, draft: Draft, *, timeout_s: float | None = None) -> Receipt:
        """Publish and wait for the outcome; raises PublishRejected or PublishUnknown."""
        return await self.send(self.seal(draft), timeout_s=timeout_s)

    async def send(self, sealed: Sealed, *, timeout_s: float | None = None) -> Receipt:
        """Append what was sealed before; sending the same again is safe. Raises PublishRejected or PublishUnknown."""
        started_s = self.clock.monotonic_s()
        timeout_s = self.settings.publish.timeout_s if timeout_s is None else timeout_s
        size = size_of(sealed.record)
        if timeout_s > 0 and sealed.record.topic in self._known_topics and self.batcher.has_room(size):
            outcomes = await self.batcher.submit_now((sealed.record,), timeout_s=timeout_s, size=size)
        else:
            outcomes = await (await self.submit(sealed, timeout_s=timeout_s))
        (result,) = self.results_of((sealed,), outcomes)
        self.metrics.publish_seconds.of(sealed.message_type).observe(self.clock.monotonic_s() - started_s)
        if isinstance(result, PublishError):
            raise result
        return result

    async def submit(self, sealed: Sealed, *, timeout_s: float) -> asyncio.Future[Sequence[Outcome]]:
        """Queue *sealed* as soon as there is room; what comes of it is for `results_of`. Raises PublishRejected."""
        if not timeout_s > 0:
            raise PublishRejected(f"timeout_s: {timeout_s} is not more than 0")
        try:
            await self.prepare_topics([sealed.record.topic])
        except BusError as error:
            raise PublishRejected(f"not sent: {error}", error) from error
        return await self.batcher.submit((sealed.record,), timeout_s=timeout_s)

    def results_of(self, sealed: Sequence[Sealed], outcomes: Sequence[Outcome]) -> list[Result]:
        """What the log's *outcomes* mean for each of *sealed*, counted."""
        results: list[Result] = []
        accepted: dict[str, int] = {}
        for each, outcome in zip(sealed, outcomes, strict=True):
            if isinstance(outcome, Appended):
                accepted[each.message_type] = accepted.get(each.message_type, 0) + 1
                results.append(Receipt(each.message_id, outcome.topic, outcome.partition, outcome.offset, outcome.timestamp_ms))
            else:
                results.append(self._failure_of(each, outcome))
        for message_type, count in accepted.items():
            self.metrics.accepted(message_type).inc(count)
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


class _Prepared(Template):
    """A template with what its records have in common."""

    __slots__ = ("encode", "headers", "message_type", "topic")

    def __init__(self, kind: PayloadType, origin: Origin) -> None:
        super().__init__(kind, origin)
        self.encode = kind.encode
        self.message_type = kind.name
        self.topic = message_topic(origin.namespace, kind.name)
        self.headers: Headers = (("content-type", CONTENT_TYPE), ("sb-type", kind.name.encode()))
