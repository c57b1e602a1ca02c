"""Dialect 001: tasks, evidence, reviews and approvals in an envelope of causes, authority and trust. Pure.

Owns the table of that envelope, and its short form, in which payload and envelope stand side by side. Unknown members
are kept, and an optional member may be null. Every type is said by its name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, get_args

import msgspec

from bus.dialects.carried_message import CARRIED, carried_text, check_same, foreign_of, read_carried
from bus.dialects.data_check import check_data, default_lifetime_ms
from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import NO_ALIASES, NONE, Claims, Defaults, Foreign, ForeignOptions
from bus.dialects.forms import (
    FLAG,
    LAST_MS,
    LONG,
    MESSAGE_ID,
    NAME,
    OBJECT,
    TEXT,
    TIME,
    Form,
    UnfitValueError,
    matching,
    whole,
)
from bus.dialects.keeping import ABSENT, ANYTHING, ANYTHING_OR_NULL, Notes, Source, Target
from bus.dialects.opened_message import OpenedMessage, open_message
from bus.dialects.seed001_authority import read_authority, write_authority, write_flags
from bus.dialects.seed001_forms import TEXTS, pointer_form
from bus.dialects.seed001_payloads import (
    NO_NETWORK,
    MessageAround,
    PayloadAndRest,
    kept_handoff,
    kind_for,
    read_payload,
    write_payload,
)
from bus.dialects.strict_json import read_object
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.protocol.envelope import Agent, AgentType, Security
from bus.protocol.identifiers import has_control, is_text_id, is_traceparent
from bus.protocol.sealing import Message
from bus.vocabulary import BUILT_IN
from bus.vocabulary.forms import Level

__all__ = ["decode", "encode"]

_NAME: Final = "001"
_VERSION: Final = "agent-msg.v1"
_MOST_INTENT: Final = 200
_LEVELS: Final = frozenset(get_args(Level))
_UNKNOWN_LEVEL: Final = "model_generated"
"""What a level counts as that is none of the eight."""
_AGENT_TYPES: Final = frozenset(get_args(AgentType))
_EVERYBODY: Final = {"type": "group", "id": "*"}
"""The recipient of a message without one."""
_ENVELOPE: Final = frozenset(
    {
        *("schema_version", "message_id", "run_id", "conversation_id", "task_id", "parent_task_id", "correlation_id"),
        *("causation_id", "timestamp", "sender", "recipient", "tenant_id", "trace_id", "span_id", "sequence_number"),
        *("message_type", "intent", "authority", "security", "critical_fields", "idempotency_key", "payload"),
        *("type", "from", "to", CARRIED),
    }
)
"""Members that are no payload in the short form."""
_SHORT: Final = "short"
_NOT_SHORT: Final = ("message_type", "payload", "sender", "recipient")


def _read_level(value: Any) -> str:
    level = TEXT.read(value)
    return level if level in _LEVELS else _UNKNOWN_LEVEL


def _read_other_type(value: Any) -> str:
    if value.__class__ is not str or value in _AGENT_TYPES:
        raise UnfitValueError
    return str(value)


_INTENT: Final = matching(
    "a text of at most 200 characters without control characters",
    lambda text: len(text) <= _MOST_INTENT and not has_control(text),
)
_SEQUENCE: Final = whole(0, SAFE_INTEGER)
_LEVEL: Final = Form("a level of trust", _read_level, lambda level: level)
_AGENT_TYPE: Final = matching("a type of agents", _AGENT_TYPES.__contains__)
_OTHER_TYPE: Final = Form("a text", _read_other_type)
"""The type of an agent that has no such type here."""


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Return what the message of dialect 001 in *value* says; raise DialectError.

    With *defaults* the message may be a fragment: what its format requires and nobody gives is made up.
    """
    tree = read_object(value)
    if CARRIED in tree:
        return _decode_carried(tree, types)
    is_short = "type" in tree and not any(name in tree for name in _NOT_SHORT)
    notes = Notes()
    if is_short:
        notes.kept["form"] = _SHORT
    return _EnvelopeReading(Source(tree, "", notes, nulls=True), tree, defaults, types, is_short=is_short).message()


def _decode_carried(tree: dict[str, Any], types: Registry) -> Foreign:
    pointer = f"/{CARRIED}"
    message = read_carried(tree[CARRIED], pointer)
    check_same(encode(message, types=types), {name: value for name, value in tree.items() if name != CARRIED}, pointer)
    return foreign_of(message)


class _MessageIds(msgspec.Struct, frozen=True):
    """The ids of a message."""

    conversation_id: str
    correlation_id: str | None
    run_id: str | None
    task_id: str | None


class _EnvelopeReading:
    """One message being read."""

    def __init__(
        self, source: Source, tree: dict[str, Any], defaults: Defaults, types: Registry, *, is_short: bool
    ) -> None:
        self.source = source
        self.notes = source.notes
        self.tree = tree
        self.defaults = defaults
        self.types = types
        self.is_short = is_short
        self.may_lack = is_short or defaults != NONE
        """Whether members that the format requires may be missing."""

    def message(self) -> Foreign:
        source, defaults = self.source, self.defaults
        self._check_version()
        message_id = source.required("message_id", MESSAGE_ID, defaults.message_id)
        sent_ms = source.required("timestamp", TIME, defaults.sent_at_ms)
        named = self._read_type()
        sender = self._read_agent("from" if self.is_short else "sender", defaults.sender)
        recipient = self._read_recipient()
        payload = self._read_payload()
        source = self.source
        base = "" if self.is_short else "/payload"
        kind = kind_for(named, payload, base, self.types)
        ids = self._read_ids(message_id, kind.terms.needs)
        key = source.optional("idempotency_key", NAME)
        correlation_id = ids.correlation_id or ids.conversation_id
        head = MessageAround(base, self.notes, message_id, sender.id or "", sent_ms, correlation_id, key)
        read = read_payload(kind, payload, head)
        key = read.idempotency_key
        if key is None and "idempotency_key" in kind.terms.needs:
            raise source.fault("idempotency_key", MISSING, f"a key: {kind.name} has an effect, and may come again")
        if key is not None:
            self._check_key(key, base)
        cause_id = self._read_cause()
        authority = read_authority(self._optional_inside("authority"), self.notes, read.handoff)
        security = self._read_security(read)
        options = ForeignOptions(
            message_id=message_id,
            to=recipient,
            idempotency_key=key,
            conversation_id=ids.conversation_id,
            correlation_id=ids.correlation_id,
            task_id=ids.task_id,
            parent_task_id=source.optional("parent_task_id", NAME),
            run_id=ids.run_id,
            sequence=source.optional("sequence_number", _SEQUENCE),
            intent=self._read_defaulted("intent", _INTENT, kind.name, kind.terms.needs),
            authority=authority,
            security=security,
            critical_fields=source.optional("critical_fields", pointer_form(kind), omit=((),)) or None,
            traceparent=self._read_trace(),
        )
        namespace = source.optional("tenant_id", NAME)
        if namespace is None:
            self.notes.kept.setdefault("/tenant_id", ABSENT)
        source.keep_rest()
        data = self.notes.marked(read.data, _NAME)
        opened = check_data(kind, data, read.places, self.tree)
        return Foreign(
            type=kind.name,
            version=kind.version,
            data=data,
            options=msgspec.structs.replace(options, expires_at_ms=self._expires_at_ms(kind, opened, sent_ms)),
            claims=Claims(
                sender=sender,
                namespace=namespace,
                sent_at_ms=sent_ms,
                cause_id=cause_id,
                trust_level=security.trust_level if security is not None else None,
            ),
        )

    def _check_version(self) -> None:
        if self.is_short:
            version = self.source.optional("schema_version", LONG, absent=_VERSION, omit=(_VERSION,))
        else:
            version = self.source.required("schema_version", LONG, _VERSION if self.may_lack else None)
        if version != _VERSION:
            raise self.source.fault("schema_version", version, _VERSION, "unsupported_version")

    def _read_type(self) -> PayloadType:
        member = "type" if self.is_short else "message_type"
        name = self.source.required(member, TEXT)
        kind = self.types.get(name)
        if kind is None:
            raise self.source.fault(member, name, "a type that is known here", "unknown_type")
        return kind

    def _read_agent(self, name: str, default: Agent | None) -> Agent:
        source = self.source
        if not source.has(name) and default is not None:
            source.default_inside(name)
            return default
        if self.is_short:
            return Agent(id=source.required(name, NAME))
        part = source.inside(name)
        kind = _read_agent_type(part)
        identity, role = part.optional("id", NAME), part.optional("role", NAME)
        version = part.optional("version", NAME)
        part.keep_rest()
        if identity is None and (role is None or name == "sender"):
            raise part.fault("id", MISSING, NAME.expected)
        return Agent(id=identity, role=role, type=kind, version=version)

    def _read_recipient(self) -> Agent | None:
        if self.source.peek("recipient") == _EVERYBODY:
            self.source.required("recipient", OBJECT)
            return None
        return self._read_agent("to" if self.is_short else "recipient", self.defaults.recipient)

    def _read_payload(self) -> dict[str, Any]:
        source = self.source
        if not self.is_short:
            payload: dict[str, Any] = source.required("payload", OBJECT)
            return payload
        members = source.rest()
        self.source = Source({name: members[name] for name in members if name in _ENVELOPE}, "", self.notes, nulls=True)
        return {name: value for name, value in members.items() if name not in _ENVELOPE}

    def _read_ids(self, message_id: str, needs: Collection[str]) -> _MessageIds:
        """Read what groups messages. What only repeats the conversation, as the format requires, says nothing."""
        source, defaults = self.source, self.defaults
        correlation_id = source.peek("correlation_id")
        absent = defaults.conversation_id or message_id
        if correlation_id.__class__ is str and is_text_id(correlation_id):
            absent = correlation_id
        elif self.is_short and "message_id" in self.tree:
            absent = message_id
        conversation_id = source.optional("conversation_id", NAME, absent=absent)
        return _MessageIds(
            conversation_id,
            self._read_defaulted("correlation_id", NAME, conversation_id, needs),
            self._read_defaulted("run_id", NAME, conversation_id, needs),
            self._read_task(conversation_id, needs),
        )

    def _read_defaulted(self, name: str, form: Form[str], default: str, needs: Collection[str]) -> str | None:
        """Read the member *name*; None where it says the *default*, and nothing needs it."""
        if self.is_short:
            return self.source.optional(name, form)
        found = self.source.required(name, form, default if self.may_lack else None)
        return None if found == default and name not in needs else found

    def _read_task(self, conversation_id: str, needs: Collection[str]) -> str | None:
        default = self.defaults.task_id or conversation_id
        if self.is_short:
            has_id = "message_id" in self.tree
            return self.source.optional("task_id", NAME, absent=conversation_id if has_id else default)
        found = self.source.required("task_id", NAME, default if self.may_lack else None)
        return None if found == conversation_id and "task_id" not in needs else found

    def _check_key(self, key: str, base: str) -> None:
        try:
            NAME.read(key)
        except UnfitValueError:
            raise DialectError(f"{base}/idempotency_key", shown(key), NAME.expected) from None

    def _read_cause(self) -> str | None:
        """Return the id of the message that this one follows from. It is kept: only an ingress finds the message."""
        if not self.source.has("causation_id"):
            if not self.is_short:
                self.notes.absent("/causation_id")
            return None
        return self.source.keep("causation_id", MESSAGE_ID)

    def _optional_inside(self, name: str) -> Source | None:
        """Take the object *name*, which the format requires."""
        if self.is_short:
            return self.source.optional_inside(name)
        if not self.source.has(name) and self.may_lack:
            self.source.default_inside(name)
            return None
        return self.source.inside(name)

    def _read_security(self, read: PayloadAndRest) -> Security | None:
        part = self._optional_inside("security")
        tags: tuple[str, ...] | None = None
        security = Security()
        if part is not None:
            tags = part.optional("policy_tags", TEXTS)
            security = Security(
                trust_level=part.optional("trust_level", _LEVEL),
                contains_untrusted_content=part.optional("contains_untrusted_content", FLAG),
                data_classification=part.optional("data_classification", TEXT),
            )
            part.keep_rest()
        joined = _with_tags(tags, read.policy_tags)
        if joined != tags:
            self.notes.kept.setdefault("/security/policy_tags", ABSENT if tags is None else list(tags))
        security = msgspec.structs.replace(security, policy_tags=joined)
        return None if security == Security() else security

    def _read_trace(self) -> str | None:
        """Read trace and span. Of another form than that of W3C Trace Context they have no place here."""
        source = self.source
        parent = _traceparent(source.peek("trace_id"), source.peek("span_id"))
        if parent is not None:
            source.required("trace_id", LONG)
            source.required("span_id", LONG)
            return parent
        source.keep("trace_id", LONG)
        source.keep("span_id", LONG)
        return None

    def _expires_at_ms(self, kind: PayloadType, payload: object, sent_ms: int) -> int | None:
        """Return the end of the message's life, which this format cannot say; None: that of its type."""
        ttl_s = kind.terms.option("ttl_s", payload)
        lifetime_ms = self.defaults.lifetime_ms if ttl_s is None else round(ttl_s * 1000)
        if sent_ms + (lifetime_ms or default_lifetime_ms(kind)) > LAST_MS:
            raise DialectError("/timestamp", shown(self.tree.get("timestamp")), "a time before the year 9999")
        return None if lifetime_ms is None else sent_ms + lifetime_ms


def _read_agent_type(part: Source) -> Any:
    """Read the type of an agent; one that is none here is kept."""
    found = part.peek("type")
    if found.__class__ is str and found not in _AGENT_TYPES:
        part.keep("type", _OTHER_TYPE)
        return None
    return part.optional("type", _AGENT_TYPE)


def _with_tags(tags: tuple[str, ...] | None, more: tuple[str, ...]) -> tuple[str, ...] | None:
    new = tuple(tag for tag in more if tag not in (tags or ()))
    return (*(tags or ()), *new) if new else tags


def _traceparent(trace: Any, span: Any) -> str | None:
    text = f"00-{trace}-{span}-01"
    both = trace.__class__ is str and span.__class__ is str
    return text if both and len(trace) == 32 and is_traceparent(text) else None  # noqa: PLR2004 - W3C


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Say *message* in dialect 001; raise DialectError for data that would say something else there.

    *aliases*: agent ids of ours -> ids there. *carry*: the sealed message goes along whole, as `x_sealbus`.
    """
    opened = open_message(message, _NAME, types)
    _check_major(opened, types)
    payload = None
    if opened.kept.get("form") == _SHORT and _has_plain_agents(opened):
        payload = write_payload(opened, "", aliases)
    is_short = payload is not None and not payload.keys() & _ENVELOPE
    if payload is None or not is_short:
        payload = write_payload(opened, "/payload", aliases)
    said = _EnvelopeWriting(opened, payload, aliases, is_short=is_short).message()
    if carry:
        said[CARRIED] = carried_text(message)
    return said


def _check_major(opened: OpenedMessage, types: Registry) -> None:
    """Raise DialectError for data in a version that readers of the newest one would not understand."""
    if opened.kind is None and opened.metadata.message_type in types:
        raise DialectError("/metadata/schema_version", opened.metadata.schema_version, "a version that is known here")


def _has_plain_agents(opened: OpenedMessage) -> bool:
    """Tell whether ids say all of sender and recipient."""
    sender, recipient = opened.metadata.sender, opened.metadata.recipient
    agents = [sender] if recipient is None else [sender, recipient]
    is_absent = {"from": opened.kept.get("/from") == ABSENT, "to": opened.kept.get("/to") == ABSENT}
    if recipient is None:
        return False
    return all(
        is_absent[name] or (agent.id and not (agent.role or agent.type or agent.version))
        for name, agent in zip(("from", "to"), agents, strict=True)
    )


class _EnvelopeWriting:
    """One message being written."""

    def __init__(
        self, opened: OpenedMessage, payload: dict[str, Any], aliases: Mapping[str, str], *, is_short: bool
    ) -> None:
        self.opened = opened
        self.payload = payload
        self.aliases = aliases
        self.is_short = is_short
        self.kept = dict(opened.kept)
        self.target = Target(opened.kept, is_open=False if is_short else _is_unknown, nulls=True)

    def message(self) -> dict[str, Any]:
        target, opened, payload = self.target, self.opened, self.payload
        metadata = opened.metadata
        target.names.add(CARRIED)
        if self.is_short:
            target.put("schema_version", LONG, _VERSION, absent=_VERSION, omit=(_VERSION,))
        else:
            target.put("schema_version", LONG, _VERSION, absent=ANYTHING)
        target.put("message_id", MESSAGE_ID, metadata.message_id, absent=ANYTHING)
        target.put("timestamp", TIME, opened.sent_ms, absent=ANYTHING)
        self._write_ids()
        self._write_cause()
        self._write_agents()
        target.put("tenant_id", NAME, metadata.namespace, absent=ANYTHING_OR_NULL)
        self._write_trace()
        target.put("sequence_number", _SEQUENCE, metadata.sequence)
        target.put_plain("type" if self.is_short else "message_type", metadata.message_type)
        self._write_defaulted("intent", _INTENT, metadata.intent, metadata.message_type)
        self._write_authority()
        self._write_security()
        self._write_critical()
        is_in_payload = metadata.message_type == "pr.create.request" and not self.is_short
        is_there = payload.get("idempotency_key") is not None
        if not is_in_payload or not is_there or self.kept.get("/idempotency_key") is not None:
            target.put("idempotency_key", NAME, opened.routing.idempotency_key)
        else:
            target.put("idempotency_key", NAME, None)
        if not self.is_short:
            target.put_plain("payload", payload)
        return {**target.finish(), **payload} if self.is_short else target.finish()

    def _write_ids(self) -> None:
        target, metadata = self.target, self.opened.metadata
        conversation_id = metadata.conversation_id
        self._write_defaulted("correlation_id", NAME, metadata.correlation_id, conversation_id)
        self._write_defaulted("run_id", NAME, metadata.run_id, conversation_id)
        # What can be left out without notice means only what a reader makes of its absence.
        is_whole = "message_id" in target.members
        if self.is_short:
            target.put("task_id", NAME, metadata.task_id, absent=conversation_id if is_whole else ANYTHING_OR_NULL)
        else:
            self._write_defaulted("task_id", NAME, metadata.task_id, conversation_id)
        target.put("parent_task_id", NAME, metadata.parent_task_id)
        absent = metadata.message_id if self.is_short and is_whole else ANYTHING_OR_NULL
        absent = target.members.get("correlation_id") or absent
        target.put("conversation_id", NAME, conversation_id, absent=absent)

    def _write_defaulted(self, name: str, form: Form[str], value: str | None, default: str) -> None:
        """Write what the format requires: the *default* where nothing is said."""
        if self.is_short:
            self.target.put(name, form, value)
        else:
            self.target.put(name, form, default if value is None else value, absent=ANYTHING)

    def _write_cause(self) -> None:
        cause_id = self.opened.metadata.causation_id
        if cause_id is not None:
            self.target.put_plain("causation_id", cause_id)
        else:
            self.target.put_kept("causation_id", MESSAGE_ID, MISSING if self.is_short else None)

    def _write_agents(self) -> None:
        metadata, target = self.opened.metadata, self.target
        if self.is_short:
            for name, agent in (("from", metadata.sender), ("to", metadata.recipient)):
                identity = agent.id if agent is not None else None
                target.put(name, NAME, self.aliases.get(identity or "", identity), absent=ANYTHING)
            return
        self._write_agent("sender", metadata.sender)
        if metadata.recipient is None:
            target.put_plain("recipient", dict(_EVERYBODY))
        else:
            self._write_agent("recipient", metadata.recipient)

    def _write_agent(self, name: str, agent: Agent) -> None:
        part = self.target.inside(name, may_lack=True, is_open=True)
        part.put("id", NAME, self.aliases.get(agent.id or "", agent.id))
        part.put("role", NAME, agent.role)
        part.put("version", NAME, agent.version)
        if agent.type is None and self.kept.get(part.place("type")) is not None:
            part.put_kept("type", _OTHER_TYPE)
        else:
            part.put("type", _AGENT_TYPE, agent.type)

    def _write_trace(self) -> None:
        target, kept = self.target, self.kept
        parent = self.opened.metadata.traceparent
        if parent is not None and is_traceparent(parent):
            _, trace, span, _ = parent.split("-")
            target.put_plain("trace_id", trace)
            target.put_plain("span_id", span)
        elif _traceparent(kept.get("/trace_id"), kept.get("/span_id")) is None:
            target.put_kept("trace_id", LONG)
            target.put_kept("span_id", LONG)
        else:
            target.names.update(("trace_id", "span_id"))

    def _write_authority(self) -> None:
        metadata = self.opened.metadata
        base = "" if self.is_short else "/payload"
        part = self.target.inside("authority", may_lack=not self.is_short, is_open=True)
        is_same = write_authority(part, metadata.authority, self.kept, kept_handoff(self.opened, base))
        if metadata.message_type == "handoff.request" and not self.is_short:
            write_flags(self.payload, base, self.kept, is_same=is_same)
        self._require(part, "authority")

    def _write_security(self) -> None:
        security = self.opened.metadata.security or Security()
        part = self.target.inside("security", may_lack=not self.is_short, is_open=True)
        part.put("trust_level", _LEVEL, security.trust_level)
        part.put("contains_untrusted_content", FLAG, security.contains_untrusted_content)
        part.put("data_classification", TEXT, security.data_classification)
        constraints = self.payload.get("constraints")
        is_offline = constraints.__class__ is dict and constraints.get("no_external_network") is True
        kept = self.kept.get("/security/policy_tags", MISSING)
        tags = security.policy_tags
        if is_offline and kept is not MISSING:
            given = None if kept is None or kept == ABSENT else _tags(kept)
            tags = given if _with_tags(given, (NO_NETWORK,)) == tags else tags
        part.put("policy_tags", TEXTS, tags)
        self._require(part, "security")

    def _require(self, part: Target, name: str) -> None:
        """Let the object *name* be there, empty if nothing is said; it is left out only where it says nothing."""
        if part.members:
            part.is_absent = False
        elif not self.is_short and not part.is_absent:
            self.target.members[name] = part.members

    def _write_critical(self) -> None:
        metadata = self.opened.metadata
        kind = self.opened.kind
        fields = metadata.critical_fields
        if fields is None and self.kept.get("/critical_fields") == []:
            fields = ()
        if kind is None:
            self.target.put("critical_fields", TEXTS, fields)
        else:
            self.target.put("critical_fields", pointer_form(kind), fields)


def _is_unknown(name: str, _value: Any) -> bool:
    return name != CARRIED


def _tags(value: Any) -> tuple[str, ...] | None:
    try:
        return TEXTS.read(value)
    except UnfitValueError:
        return None
