"""Sealing in the name of one agent: payload -> sealed message -> the record that carries it.

Owns refusing at the door what receivers would refuse, the record's key and headers (design section 3), and the choice between the three
ways to the same bytes: one compiled step, a template, and the general way. Does not own appending (`producers.publisher`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bus import native, sealing
from bus.clock import Clock
from bus.errors import ContractError, PublishRejected, SigningError, UnknownTypeError
from bus.names import Entropy, is_traceparent, uuid7
from bus.payloads import PayloadType, encode_payload, payload_type
from bus.sealing import Message
from bus.settings import Settings
from bus.signing import Signer
from bus.topics import message_topic
from bus.transports.base import Headers, NewRecord
from producers.draft import Draft, Origin, compose
from producers.template import OTHER_OPTIONS, Template, has_only_keys

__all__ = ["CONTENT_TYPE", "Sealed", "Sealer", "record_of", "sealed_as"]

CONTENT_TYPE = b"application/vnd.sealbus.v1+json"
_ENTROPY_BYTES = 10
_MOST_AT_ONCE = 400


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


class Sealer:
    """Seals in the name of one agent."""

    def __init__(
        self,
        settings: Settings,
        *,
        origin: Origin,
        clock: Clock,
        signer: Signer | None = None,
        entropy: Callable[[int], bytes] | None = None,
    ) -> None:
        self.origin = origin
        self.clock = clock
        self.settings = settings
        self._signer = signer
        self._entropy = entropy or Entropy()
        self._templates: dict[type, _Prepared] = {}

    def seal(
        self,
        draft: Draft,
        *,
        cause: Message | None = None,
        answers: bool = False,
        topic: str | None = None,
        origin: Origin | None = None,
        data: bytes | None = None,
    ) -> Sealed:
        """Seal *draft* now; raises PublishRejected naming the field that receivers would refuse.

        *topic* overrides the type's own, *origin* who this publisher publishes as, *data* what the payload is by now: its canonical form from
        `encode_payload`.
        """
        if cause is None and topic is None and origin is None and data is None and not answers:
            sealed = self._seal_at_once(draft, draft.payload)
            if sealed is None and has_only_keys(draft):
                sealed = self._seal_by_template(
                    draft.payload, conversation_id=draft.conversation_id, idempotency_key=draft.idempotency_key, key=draft.key
                )
            if sealed is not None:
                return sealed
        try:
            kind = payload_type(draft.payload)
            data = encode_payload(draft.payload) if data is None else data
            sealed = self.seal_data(draft, kind, data, cause=cause, answers=answers, topic=topic, origin=origin)
            if draft.critical_fields:
                kind.check_critical(draft.critical_fields)
        except ContractError as error:
            raise _refused(draft.payload, error) from error
        except SigningError as error:
            raise PublishRejected(f"not sent: {error}", error) from error
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
        """Seal canonical *data* as type *kind*; raises ContractError, SigningError."""
        if kind.risk == "high" and self._signer is None:
            text = f"{kind.name} is of high risk, which nobody accepts unsigned: give `connect` or the App a signer"
            raise ContractError(text, "/verification/signature", "signature_missing")
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
        return self._seal_at_once(payload, payload) or self._seal_by_template(payload) or self.seal(Draft(payload=payload))

    def seal_run(self, items: Sequence[object], start: int, *, most: int, room: int) -> tuple[list[Sealed], list[NewRecord], int]:
        """Seal what comes from *start* on as long as it goes in one step: their Sealed, their records, and what they take of *room* bytes.

        At most *most*; none where the next one has to go through `seal` or `seal_plain`.
        """
        item = items[start]
        template = self._templates.get((item.payload if isinstance(item, Draft) else item).__class__)
        if template is None or template.sealer is None or native.core is None:
            return [], [], 0
        count = min(most, len(items) - start, _MOST_AT_ONCE)
        run: tuple[list[Sealed], list[NewRecord], int] = template.sealer.many(
            items, start, room, self.clock.now_ms(), self._entropy(_ENTROPY_BYTES * count)
        )
        return run

    def _seal_at_once(self, item: msgspec.Struct, payload: msgspec.Struct) -> Sealed | None:
        """*item*, a payload or its Draft, in one compiled step; None where it takes more."""
        template = self._templates.get(payload.__class__)
        if template is None or template.sealer is None or native.core is None:
            return None
        sealed: Sealed | None = template.sealer.one(item, self.clock.now_ms(), self._entropy(_ENTROPY_BYTES))
        return sealed

    def _seal_by_template(self, payload: msgspec.Struct, **keys: str | None) -> Sealed | None:
        """None for what no template seals."""
        template = self._templates.get(payload.__class__)
        try:
            if template is None:
                kind = payload_type(payload)
                if self._signer is not None or kind.risk == "high":
                    return None
                template = _Prepared(kind, self.origin, self.settings.publish.max_message_bytes)
                self._templates[payload.__class__] = template
            data = template.encode(payload)
        except ContractError as error:
            raise _refused(payload, error) from error
        sealed = template.seal(data, self.clock.now_ms(), self._entropy(_ENTROPY_BYTES), **keys)
        if sealed is None or len(sealed[2]) > self.settings.publish.max_message_bytes:
            return None
        identity, record_key, value = sealed
        return Sealed(
            identity, template.message_type, NewRecord(template.topic, record_key, value, (*template.headers, ("sb-id", identity.encode())))
        )


def _refused(payload: msgspec.Struct, error: ContractError) -> PublishRejected:
    if isinstance(payload, Draft):
        error = UnknownTypeError("a Draft is for publish_many: give publish its payload, and its options by name")
    return PublishRejected(f"refused before sending: {error}", error)


class _Prepared(Template):
    """A template with what its records have in common."""

    __slots__ = ("encode", "headers", "message_type", "sealer", "topic")

    def __init__(self, kind: PayloadType, origin: Origin, max_message_bytes: int) -> None:
        super().__init__(kind, origin)
        self.encode = kind.encode
        self.message_type = kind.name
        self.topic = message_topic(origin.namespace, kind.name)
        self.headers: Headers = (("content-type", CONTENT_TYPE), ("sb-type", kind.name.encode()))
        self.sealer = None
        if native.core is not None and (compiled := kind.encoder.compiled) is not None:
            kinds, common = (Sealed, NewRecord, Draft), (self.message_type, self.topic, self.headers)
            self.sealer = native.core.Sealer(compiled, self.identity, self.stated, self.ttl_ms, max_message_bytes, *common, kinds, OTHER_OPTIONS)
