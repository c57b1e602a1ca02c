"""Sealing in the name of one agent: payload -> sealed message -> the record that carries it.

Owns refusing at the door what receivers would refuse, and the choice between the three ways to the same bytes: one
compiled step, a template, and the general way. Does not own appending (`producers.publisher`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bus import native
from bus.clock import Clock
from bus.errors import ContractError, SigningError, UnknownTypeError
from bus.payloads.payload_types import PayloadType, encode_payload, payload_type
from bus.protocol import sealing
from bus.protocol.identifiers import Entropy, uuid7
from bus.protocol.sealing import Message
from bus.protocol.signatures import Signer
from bus.settings.schema import Settings
from bus.topics.names import message_topic
from bus.transports.base import Headers, NewRecord
from producers.outcomes import PublishRejected
from producers.sealing.envelope_template import Prepared, PreparedTemplates, shared_options
from producers.sealing.inherited_fields import heritage_of
from producers.sealing.options import Draft, Origin, compose
from producers.sealing.sealed_record import Sealed, sealed_as

__all__ = ["Sealer"]

_ENTROPY_BYTES = 10
_MOST_AT_ONCE = 400


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
        self._templates = PreparedTemplates(origin, settings.publish.max_message_bytes)

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

        *topic* overrides the type's own, *origin* who this publisher publishes as, *data* what the payload is by now:
        its canonical form from
        `encode_payload`.
        """
        sealed = None
        if origin is None and cause is not None:
            sealed = self._seal_caused(draft, cause, data, topic, answers=answers)
        elif origin is None and topic is None and data is None and not answers:
            sealed = self._seal_alike(draft)
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
        layers = compose(
            draft, kind, origin or self.origin, now_ms=now_ms, message_id=identity, cause=cause, answers=answers
        )
        message = sealing.seal(
            data,
            layers.metadata,
            layers.routing,
            parents=layers.parents,
            proof_chain=layers.proof_chain,
            signer=self._signer if kind.sign or kind.risk != "low" else None,
        )
        if len(message.value) > (limit := self.settings.publish.max_message_bytes):
            raise ContractError(
                f"the message takes {len(message.value)} bytes, at most {limit} are allowed", "/data", "oversized"
            )
        return sealed_as(message, topic or message_topic(self.origin.namespace, kind.name))

    def seal_plain(self, payload: msgspec.Struct) -> Sealed:
        """`seal` for a payload without any options, which is most of a stream: the same bytes, by a template."""
        template = self._templates.plain.get(payload.__class__)
        if template is None and self._signer is None:
            template = self._templates.of(payload)
        sealed = None if template is None else self._seal_at_once(template, payload) or self._fill(template, payload)
        return sealed or self.seal(Draft(payload=payload))

    def seal_run(
        self, items: Sequence[object], start: int, *, most: int, room: int
    ) -> tuple[list[Sealed], list[NewRecord], int]:
        """Seal what comes from *start* on as long as it goes in one step: their Sealed, their records, and what they
        take of *room* bytes.

        At most *most*; none where the next one has to go through `seal` or `seal_plain`.
        """
        item = items[start]
        payload, options = (item.payload, shared_options(item)) if isinstance(item, Draft) else (item, ())
        template = None if options is None else self._templates.known(payload.__class__, options)
        if template is None or template.sealer is None or native.core is None:
            return [], [], 0
        count = min(most, len(items) - start, _MOST_AT_ONCE)
        run: tuple[list[Sealed], list[NewRecord], int] = template.sealer.many(
            items, start, room, self.clock.now_ms(), self._entropy(_ENTROPY_BYTES * count)
        )
        return run

    def _seal_alike(self, draft: Draft) -> Sealed | None:
        """By the template of *draft*; None for what none seals."""
        # Most have keys at most, which the compiled step sees quicker than Python does.
        plain = self._templates.plain.get(draft.payload.__class__)
        if plain is not None and (sealed := self._seal_at_once(plain, draft)) is not None:
            return sealed
        template = self._template_of(draft)
        if template is None:
            return None
        filled = {"conversation_id": draft.conversation_id, "idempotency_key": draft.idempotency_key, "key": draft.key}
        sealed = self._seal_at_once(template, draft) if template is not plain else None
        return sealed or self._fill(template, draft.payload, ttl_s=draft.ttl_s, **filled)

    def _seal_caused(
        self, draft: Draft, cause: Message, data: bytes | None, topic: str | None, *, answers: bool
    ) -> Sealed | None:
        """The same for what *cause* has caused."""
        template = self._template_of(draft) if draft.conversation_id is None else None
        if template is None:
            return None
        data = self._data(template, draft.payload) if data is None else data
        heritage = heritage_of(cause, answers=answers)
        keys = {"idempotency_key": draft.idempotency_key, "key": draft.key}
        sealed = template.seal_caused(
            data, self.clock.now_ms(), self._entropy(_ENTROPY_BYTES), heritage, ttl_s=draft.ttl_s, **keys
        )
        traced: Headers = () if heritage.traceparent is None else (("traceparent", heritage.traceparent.encode()),)
        return self._sealed(template, sealed, topic or template.topic, traced)

    def _template_of(self, draft: Draft) -> Prepared | None:
        options = shared_options(draft)
        return (
            None if options is None or self._signer is not None else self._templates.of(draft.payload, options, draft)
        )

    def _seal_at_once(self, template: Prepared, item: msgspec.Struct) -> Sealed | None:
        """*item*, a payload or its Draft, in one compiled step; None where it takes more."""
        if template.sealer is None or native.core is None:
            return None
        sealed: Sealed | None = template.sealer.one(item, self.clock.now_ms(), self._entropy(_ENTROPY_BYTES))
        return sealed

    def _fill(
        self, template: Prepared, payload: msgspec.Struct, *, ttl_s: float | None = None, **keys: str | None
    ) -> Sealed | None:
        """None for what *template* can't seal."""
        data = self._data(template, payload)
        sealed = template.seal(data, self.clock.now_ms(), self._entropy(_ENTROPY_BYTES), ttl_s=ttl_s, **keys)
        return self._sealed(template, sealed, template.topic, ())

    def _data(self, template: Prepared, payload: msgspec.Struct) -> bytes:
        try:
            return template.encode(payload)
        except ContractError as error:
            raise _refused(payload, error) from error

    def _sealed(
        self, template: Prepared, sealed: tuple[str, bytes, bytes] | None, topic: str, traced: Headers
    ) -> Sealed | None:
        if sealed is None or len(sealed[2]) > self.settings.publish.max_message_bytes:
            return None
        identity, record_key, value = sealed
        headers = (*template.headers, ("sb-id", identity.encode()), *template.further_headers, *traced)
        return Sealed(identity, template.message_type, NewRecord(topic, record_key, value, headers))


def _refused(payload: msgspec.Struct, error: ContractError) -> PublishRejected:
    if isinstance(payload, Draft):
        error = UnknownTypeError("a Draft is for publish_many: give publish its payload, and its options by name")
    return PublishRejected(f"refused before sending: {error}", error)
