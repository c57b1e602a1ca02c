"""Seal payloads in the name of one agent, and wrap the sealed messages as records.

There are two ways to the same bytes. The exact way (`seal_data`) builds the envelope from its parts and is the
specification. The compiled way fills in a template for most messages, and returns None for all others; without compiled
code it does not exist. A property test compares both. `producers.publisher` appends the records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from bus import native
from bus.clock import Clock
from bus.errors import ConfigurationError, ContractError, SigningError, UnknownTypeError
from bus.payloads.class_forms import Payload
from bus.payloads.dual_write import DualWrite, in_share
from bus.payloads.payload_types import PayloadType, encode_payload, payload_type, raised_risk
from bus.protocol import sealing
from bus.protocol.envelope import Agent, OtherVersion
from bus.protocol.identifiers import Entropy, is_text_id, uuid7
from bus.protocol.signatures import Signer, Verifier
from bus.protocol.signatures import sign as sign_statement
from bus.settings.schema import Settings
from bus.topics.names import check_namespace, message_topic
from bus.transports.base import Headers, NewRecord
from bus.trust.admission import Admission, Party
from bus.trust.keys.key_pairing import KeyFault, KeyGuard
from bus.trust.policy.policy import NO_POLICY, Policy
from producers.outcomes import PublishRejected
from producers.sealing.envelope_template import EnvelopeTemplate, TemplateCache, shared_options
from producers.sealing.inherited_fields import heritage_of
from producers.sealing.options import Outgoing, PairedOutgoing, PublisherIdentity, check_struct, compose
from producers.sealing.run_labels import CURRENT_RUN, labelled, labelled_first, type_name
from producers.sealing.seal_request import PLAIN_REQUEST, SealRequest
from producers.sealing.sealed_record import SealedRecord, sealed_as

__all__ = ["Sealer", "make_sealer", "sender_of"]

_ENTROPY_BYTES = 10
_MAX_AT_ONCE = 400


class Sealer:
    """Seals in the name of one agent."""

    def __init__(
        self,
        settings: Settings,
        *,
        origin: PublisherIdentity,
        clock: Clock,
        signer: Signer | None = None,
        verifier: Verifier | None = None,
        policy: Policy = NO_POLICY,
        entropy: Callable[[int], bytes] | None = None,
    ) -> None:
        self.origin = origin
        party = Party(agent_id=origin.sender.id or "", namespace=origin.namespace, group="")
        self.admission = Admission(party, verifier=verifier, policy=policy, now_ms=clock.now_ms)
        self._clock = clock
        self._max_message_bytes = settings.publish.max_message_bytes
        self._signer = signer
        self.keys = None if signer is None else KeyGuard(signer, verifier, clock.now_ms)
        """Judges the key before it signs; None where nothing is signed."""
        self._entropy = entropy or Entropy()
        # Templates ask no policy.
        compiled = native.core is not None and not self.admission.has_rules
        sign_as = None if signer is None else (lambda name: partial(self._sign_checked, name, signer))
        self._make_cache = partial(TemplateCache, max_message_bytes=self._max_message_bytes, sign_as=sign_as)
        self._templates = self._make_cache(origin) if compiled else None
        self._session: tuple[PublisherIdentity, TemplateCache] | None = None
        """The origin of the last request, which names the session that its answer is for, with its templates."""

    @property
    def proves(self) -> bool:
        """Whether this sealer signs and verifies, so that a message with an unsigned cause is invalid."""
        return self.signs and self.admission.has_keys

    @property
    def signs(self) -> bool:
        """Whether there is a key to sign with."""
        return self._signer is not None

    def key_fault(self, message_type: str | None = None) -> KeyFault | None:
        """Return why nothing, or nothing of *message_type*, can be signed now; None where it can, or need not be."""
        if self.keys is None:
            return None
        return self.keys.fault(self.origin.sender.id or "", self.origin.namespace, message_type)

    def signer_for(self, agent_id: str, message_type: str) -> Signer | None:
        """Return the signer for messages of *message_type* from *agent_id*; None if that is not this agent.

        For messages that are sealed elsewhere. Raises KeyRefusedError.
        """
        if agent_id != self.origin.sender.id:
            return None
        self._check_key(message_type)
        return self._signer

    def _check_key(self, message_type: str) -> None:
        if self.keys is not None:
            self.keys.check(self.origin.sender.id or "", self.origin.namespace, message_type)

    def _sign_checked(self, message_type: str, signer: Signer, statement: bytes) -> str:
        self._check_key(message_type)
        return sign_statement(statement, signer)

    def seal(self, draft: Outgoing, request: SealRequest = PLAIN_REQUEST) -> SealedRecord:
        """Seal *draft* now, as *request* says. Raises PublishRejected, which names the field that receivers would
        refuse.
        """
        try:
            if request.cause is not None:
                draft = labelled(draft, request.cause, self.admission, request.run)
            elif request.run is not None:
                draft = labelled_first(draft, self.admission, request.run)
            # A template has no place for the other version.
            if not isinstance(draft, PairedOutgoing) and (templates := self._templates_for(request)) is not None:
                sealed = self._seal_by_template(templates, draft, request)
                if sealed is not None:
                    return sealed
            kind = payload_type(draft.payload)
            data = request.data
            if kind.dual_write is not None and request.both_versions and not isinstance(draft, PairedOutgoing):
                # What was queued is sent, whatever its payload holds by now.
                queued = draft if data is None else msgspec.structs.replace(draft, payload=kind.decode(data))
                return self._seal_versions(queued, kind, kind.dual_write, request)
            sealed = self.seal_data(draft, kind, encode_payload(draft.payload) if data is None else data, request)
            if draft.critical_fields:
                kind.check_critical(draft.critical_fields)
        except ContractError as error:
            raise _refused(draft.payload, error) from error
        except SigningError as error:
            raise PublishRejected(f"not sent: {error}", error) from error
        return sealed

    def seal_here(
        self, draft: Outgoing, *, detached: bool = False, request: SealRequest = PLAIN_REQUEST
    ) -> SealedRecord:
        """Seal *draft*, caused by the message of the run in which this is called, if it is in one (security S13).

        *detached*: as the first message of a conversation all the same. *request* has no cause yet. Raises
        PublishRejected.
        """
        run = CURRENT_RUN.get()
        if run is None or run.over:
            return self.seal(draft, request)
        if detached:
            return self.seal_detached(draft)
        if (self.origin.sender.id, self.origin.namespace) == (run.agent_id, run.message.metadata.namespace):
            return self.seal(draft, msgspec.structs.replace(request, cause=run.message, run=run))
        # Nobody believes that another agent, or one in another namespace, goes on with the message.
        return self.seal(draft, msgspec.structs.replace(request, run=run))

    def seal_detached(self, draft: Outgoing) -> SealedRecord:
        """Seal *draft* as the first message of a conversation, although a run publishes it. Raises PublishRejected."""
        try:
            self.admission.check_detached(type_name(draft))
        except ContractError as error:
            raise _refused(draft.payload, error) from error
        return self.seal(draft)

    def seal_data(
        self, draft: Outgoing, kind: PayloadType, data: bytes, request: SealRequest = PLAIN_REQUEST
    ) -> SealedRecord:
        """Seal canonical *data* as type *kind*, the exact way. Raises ContractError, SigningError."""
        cause = request.cause
        risk = raised_risk(kind, self.origin.high_risk)
        if risk == "high" and self._signer is None:
            text = (
                f"{kind.name} is of high risk, which no receiver accepts unsigned. Keys come with a signer: give "
                '`connect` or the App a signer; as long as you have no keys, write @payload(..., risk="medium")'
            )
            raise ContractError(text, "/verification/signature", "signature_missing")
        if self.proves and risk != "low" and cause is not None and not cause.verification.signature:
            text = f"{kind.name} carries the proof of its cause, and {cause.message_type} {cause.message_id} has none"
            raise ContractError(text, "/verification/proof_chain", "proof_invalid")
        is_signed = kind.sign or risk != "low"
        if is_signed:
            self._check_key(kind.name)
        now_ms = self._clock.now_ms() if request.now_ms is None else request.now_ms
        identity = uuid7(now_ms, self._entropy(_ENTROPY_BYTES))
        layers = compose(
            draft,
            kind,
            request.origin or self.origin,
            now_ms=now_ms,
            message_id=identity,
            cause=cause,
            answers=request.answers,
        )
        routing = layers.routing
        if request.accepts_progress or request.progress:
            marks = {"accepts_progress": request.accepts_progress or None, "progress": request.progress or None}
            routing = msgspec.structs.replace(routing, **marks)
        kind.check(draft.payload, data, layers.metadata, routing)
        message = sealing.seal(
            data,
            layers.metadata,
            routing,
            parents=layers.parents,
            proof_chain=layers.proof_chain,
            signer=self._signer if is_signed else None,
        )
        self.admission.check_outgoing(message, kind, draft.payload)
        if len(message.value) > (limit := self._max_message_bytes):
            raise ContractError(
                f"the message takes {len(message.value)} bytes, at most {limit} are allowed", "/data", "oversized"
            )
        return sealed_as(message, request.topic or message_topic(self.origin.namespace, kind.name))

    # Two versions.

    def _seal_versions(
        self, draft: Outgoing, kind: PayloadType, also: DualWrite[Any], request: SealRequest
    ) -> SealedRecord:
        """Seal *draft* in the older version, and in its own as well where both are sent.

        A conversation goes on in the version it began with.
        """
        kind_of_older = payload_type(also.older)
        identity = draft.idempotency_key or f"versions-{self._entropy(_ENTROPY_BYTES).hex()}"
        old = msgspec.structs.replace(draft, payload=also.convert(draft.payload), message_id=None)
        cause, request = request.cause, msgspec.structs.replace(request, data=None, run=None)
        began_older = (
            cause is not None
            and cause.message_type == kind.name
            and cause.metadata.schema_version.partition(".")[0] == str(kind_of_older.major)
        )
        both = not began_older and in_share(identity, also.share)
        if both:
            old = _paired(old, identity, OtherVersion(schema_version=kind.version))
        older = self.seal(old, request)
        if not both:
            return older
        # Both fall into one partition, in this order.
        together = msgspec.structs.replace(draft, conversation_id=older.message.metadata.conversation_id)
        content_hash = older.message.verification.content_hash
        other = OtherVersion(content_hash=content_hash, schema_version=kind_of_older.version)
        newer = self.seal(_paired(together, identity, other), request)
        return msgspec.structs.replace(newer, older=older)

    # The compiled way.

    def seal_plain(self, payload: Payload) -> SealedRecord:
        """Seal a payload without options, which is most of a stream."""
        if self._templates is not None:
            template = self._templates.plain.get(payload.__class__) or self._templates.of(payload)
            try:
                if template is not None and (sealed := self._in_one_step(template, payload)) is not None:
                    return sealed
            except SigningError as error:
                raise PublishRejected(f"not sent: {error}", error) from error
        return self.seal(Outgoing(payload))

    def seal_run(
        self, items: Sequence[object], start: int, *, max_count: int, room: int
    ) -> tuple[list[SealedRecord], list[NewRecord], int]:
        """Seal *items* from *start* on, as long as compiled code can seal them in one step.

        Seals at most *max_count* items and *room* bytes. Returns the sealed records, their records for the log, and
        their bytes; nothing if the next item needs `seal` or `seal_plain`.
        """
        item = items[start]
        payload, options = (item.payload, shared_options(item)) if isinstance(item, Outgoing) else (item, ())
        if self._templates is None or options is None:
            return [], [], 0
        template = self._templates.known(payload.__class__, options)
        if template is None or template.compiled is None:
            return [], [], 0
        try:
            return self._run_of(template, items, start, max_count=max_count, room=room)
        except SigningError:
            # Each is sealed by itself, and says that it was not signed.
            return [], [], 0

    def _run_of(
        self, template: EnvelopeTemplate, items: Sequence[object], start: int, *, max_count: int, room: int
    ) -> tuple[list[SealedRecord], list[NewRecord], int]:
        count = min(max_count, len(items) - start, _MAX_AT_ONCE)
        run: tuple[list[SealedRecord], list[NewRecord], int] = template.compiled.many(
            items, start, room, self._clock.now_ms(), self._entropy(_ENTROPY_BYTES * count)
        )
        return run

    def _templates_for(self, request: SealRequest) -> TemplateCache | None:
        origin = request.origin
        if request.accepts_progress or request.progress:
            # A template has no place for these marks.
            return None
        if origin is None or self._templates is None:
            return self._templates
        if request.topic is not None:
            return None
        if self._session is None or self._session[0] is not origin:
            self._session = origin, self._make_cache(origin)
        return self._session[1]

    def _seal_by_template(self, templates: TemplateCache, draft: Outgoing, request: SealRequest) -> SealedRecord | None:
        """Seal *draft* by a template; return None if the exact way must decide."""
        cause, data = request.cause, request.data
        plain_call = cause is None and request.topic is None and data is None and not request.answers
        if plain_call:
            # Most drafts have at most keys, which the compiled step detects faster than Python does.
            plain = templates.plain.get(draft.payload.__class__)
            if plain is not None and (sealed := self._in_one_step(plain, draft)) is not None:
                return sealed
        elif cause is None or draft.conversation_id is not None:
            return None
        options = shared_options(draft)
        template = None if options is None else templates.of(draft.payload, options, draft)
        if template is None:
            return None
        if plain_call and (sealed := self._in_one_step(template, draft)) is not None:
            return sealed
        if self._signer is not None:
            # What is filled in without its statement is not signed.
            return None
        data = template.encode(draft.payload) if data is None else data
        now_ms, entropy = self._clock.now_ms(), self._entropy(_ENTROPY_BYTES)
        keys = {"idempotency_key": draft.idempotency_key, "key": draft.key}
        if cause is None:
            talk = draft.conversation_id
            filled = template.seal(data, now_ms, entropy, conversation_id=talk, ttl_s=draft.ttl_s, **keys)
            return self._sealed(template, filled, template.topic, ())
        heritage = heritage_of(cause, answers=request.answers)
        filled = template.seal_caused(data, now_ms, entropy, heritage, ttl_s=draft.ttl_s, **keys)
        traced: Headers = () if heritage.traceparent is None else (("traceparent", heritage.traceparent.encode()),)
        return self._sealed(template, filled, request.topic or template.topic, traced)

    def _in_one_step(self, template: EnvelopeTemplate, item: Payload) -> SealedRecord | None:
        """Encode and seal *item*, a payload or its Outgoing, in one compiled step; return None if not possible."""
        if template.compiled is None:
            return None
        sealed: SealedRecord | None = template.compiled.one(item, self._clock.now_ms(), self._entropy(_ENTROPY_BYTES))
        return sealed

    def _sealed(
        self, template: EnvelopeTemplate, filled: tuple[str, bytes, bytes] | None, topic: str, traced: Headers
    ) -> SealedRecord | None:
        if filled is None or len(filled[2]) > self._max_message_bytes:
            return None
        identity, record_key, value = filled
        headers = (*template.headers, ("sb-id", identity.encode()), *template.further_headers, *traced)
        return SealedRecord(identity, template.message_type, NewRecord(topic, record_key, value, headers))


def _paired(draft: Outgoing, identity: str, other: OtherVersion) -> PairedOutgoing:
    fields = {name: getattr(draft, name) for name in Outgoing.__struct_fields__}
    return PairedOutgoing(**{**fields, "idempotency_key": identity}, other_version=other)


def make_sealer(
    settings: Settings,
    agent: str | Agent,
    *,
    clock: Clock,
    signer: Signer | None = None,
    verifier: Verifier | None = None,
    policy: Policy = NO_POLICY,
) -> Sealer:
    """Build a sealer for *agent*, which asks *policy* before anything leaves.

    Raises ConfigurationError for an illegal agent, NameRefusedError for a namespace.
    """
    sender = sender_of(agent)
    check_namespace(settings.bus.namespace)
    limits = settings.publish
    origin = PublisherIdentity(
        sender=sender,
        namespace=settings.bus.namespace,
        ttl_s=limits.ttl_s,
        max_ttl_s=limits.max_ttl_s,
        max_hops=limits.max_hops,
        high_risk=settings.trust.high_risk,
    )
    return Sealer(settings, origin=origin, clock=clock, signer=signer, verifier=verifier, policy=policy)


def sender_of(agent: object) -> Agent:
    """Return *agent*, an id or an Agent, as a sender. Raises ConfigurationError for an invalid one."""
    sender = Agent(id=agent, type="agent") if isinstance(agent, str) else agent
    if not isinstance(sender, Agent):
        raise ConfigurationError(
            f"agent is {type(agent).__name__} {agent!r:.80}: give the id of the agent that publishes, such as "
            'agent="planner@svc"'
        )
    try:
        check_struct(sender, Agent, "agent")
    except ContractError as error:
        raise ConfigurationError(str(error)) from error
    if sender.id is None or not is_text_id(sender.id):
        raise ConfigurationError(
            f"illegal agent id {sender.id!r:.80}: 1 to 256 characters without control characters, such as "
            'agent="planner@svc"'
        )
    return sender


def _refused(payload: Payload, error: ContractError) -> PublishRejected:
    if isinstance(payload, Outgoing):
        error = UnknownTypeError("an Outgoing is for publish_many: give publish its payload, and its options by name")
    return PublishRejected(f"refused before sending: {error}", error)
