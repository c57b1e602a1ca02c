"""The messages of dialect `evidence`: its envelope, and its short form. Pure.

Owns the table of that envelope. In the short form, members of payload and envelope are siblings. Unknown members are
kept, and an optional member may be null. Every message type is written by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

import msgspec

from bus.dialects import forms
from bus.dialects.carried_message import CARRIED, carried_text, check_same, foreign_of, read_carried
from bus.dialects.data_check import check_data, default_lifetime_ms, known_kind
from bus.dialects.evidence.authority import read_authority, write_authority, write_flags
from bus.dialects.evidence.payloads import NO_NETWORK, kept_handoff, kind_for, read_evidence, write_evidence
from bus.dialects.evidence.spellings import TEXTS, pointer_form, texts_in
from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import NO_ALIASES, NONE, Defaults, Foreign
from bus.dialects.forms import LAST_WRITABLE_MS, LONG, MESSAGE_ID, NAME, TEXT, TIME, Form, matching
from bus.dialects.keeping import ABSENT, ANYTHING, ANYTHING_OR_NULL, Source, Target
from bus.dialects.member_table import KEPT, MemberRow, MemberTable, MessageFacts, Optional, Required
from bus.dialects.message_facts import OpenedMessage, begin_reading, foreign_that_says, open_message, opened_facts
from bus.dialects.strict_json import read_object
from bus.errors import DialectError
from bus.payloads.payload_types import Registry
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.protocol.envelope import Agent, AgentType, Security
from bus.protocol.identifiers import has_control, is_text_id, is_traceparent
from bus.protocol.sealing import Message
from bus.vocabulary import BUILT_IN
from bus.vocabulary.forms import Level

__all__ = ["decode", "encode"]

_NAME: Final = "001"
_VERSION: Final = "agent-msg.v1"
_MAX_INTENT: Final = 200
_LEVELS: Final = frozenset(get_args(Level))
_UNKNOWN_LEVEL: Final = "model_generated"
"""The level used for a foreign level that is not one of the eight."""
_AGENT_TYPES: Final = frozenset(get_args(AgentType))
_EVERYBODY: Final = {"type": "group", "id": "*"}
"""The recipient of a message without one."""
_SHORT: Final = "short"
_NOT_SHORT: Final = ("message_type", "payload", "sender", "recipient")


def _read_level(value: Any) -> str:
    level = TEXT.read(value)
    return level if level in _LEVELS else _UNKNOWN_LEVEL


_INTENT: Final = matching(
    "a text of at most 200 characters without control characters",
    lambda text: len(text) <= _MAX_INTENT and not has_control(text),
)
_AGENT_TYPE: Final = matching("a type of agents", _AGENT_TYPES.__contains__)
_OTHER_TYPE: Final = matching("a text", lambda text: text not in _AGENT_TYPES)
"""The type of an agent that has no such type here."""


# --- rows: *is_short* tells of the short form, *may_lack* whether what the format requires may be missing -------------


class _Either(MemberRow):
    """A member of the *short* form, or of the *full* one."""

    def __init__(self, short: MemberRow, full: MemberRow) -> None:
        self.short, self.full = short, full

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        (self.short if facts["is_short"] else self.full).read(source, data, facts)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        (self.short if facts["is_short"] else self.full).write(target, data, facts)


class _Defaulted(MemberRow):
    """A member that the format requires. The *default* is written where we have no value, and is read as no value.

    *lacking* is the value for a missing member, unless that is the default.
    """

    def __init__(
        self,
        name: str,
        form: Form[str],
        default: Callable[[MessageFacts], Any],
        lacking: Callable[[MessageFacts], Any] | None = None,
    ) -> None:
        self.name, self.form, self.default, self.lacking = name, form, default, lacking or default

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        found = source.required(self.name, self.form_for(facts), self.lacking(facts) if facts["may_lack"] else None)
        data[self.name] = None if found == self.default(facts) and self.name not in facts["needs"] else found

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        value = self.default(facts) if data[self.name] is None else data[self.name]
        target.put(self.name, self.form_for(facts), value, absent=ANYTHING)


class _AgentTypeRow(MemberRow):
    """The type of an agent; a type unknown to us is kept."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        found = source.peek("type")
        if found.__class__ is str and found not in _AGENT_TYPES:
            source.keep("type", _OTHER_TYPE)
        else:
            data["type"] = source.optional("type", _AGENT_TYPE)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        if data["type"] is None and facts["kept"].get(target.location("type")) is not None:
            target.put_kept("type", _OTHER_TYPE)
        else:
            target.put("type", _AGENT_TYPE, data["type"])


_AGENT: Final = MemberTable(_AgentTypeRow(), *(Optional(name, NAME) for name in ("id", "role", "version")), KEPT)


class _AgentRow(MemberRow):
    """An agent, of which the short form has the id. *name*: in the defaults, too."""

    def __init__(self, name: str, short: str, field: str) -> None:
        self.name, self.short, self.field = name, short, field

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        name = self.short if facts["is_short"] else self.name
        default = getattr(facts["defaults"], self.name)
        if name == "recipient" and source.peek(name) == _EVERYBODY:
            source.required(name, forms.OBJECT)
        elif not source.has(name) and default is not None:
            source.note_absent(name)
            data[self.field] = default
        elif facts["is_short"]:
            data[self.field] = Agent(id=source.required(name, NAME))
        else:
            part = source.inside(name)
            agent = data[self.field] = Agent(**_AGENT.read(part, {}, facts))
            if agent.id is None and (agent.role is None or name == "sender"):
                raise part.fault("id", MISSING, NAME.expected)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        agent: Agent | None = data[self.name]
        identity = agent.id if agent is not None else None
        identity = facts["aliases"].get(identity or "", identity)
        if facts["is_short"]:
            target.put(self.short, NAME, identity, absent=ANYTHING)
        elif agent is None:
            target.put_plain(self.name, dict(_EVERYBODY))
        else:
            part = target.inside(self.name, may_lack=True, is_open=True)
            members = {"id": identity, "role": agent.role, "version": agent.version, "type": agent.type}
            _AGENT.write(part, members, facts)


def _conversation(facts: MessageFacts) -> Any:
    return facts["conversation_id"]


def _own_task(facts: MessageFacts) -> Any:
    """Return the task of a message that names none: that of the defaults, or its conversation."""
    return (facts["defaults"].task_id or facts["conversation_id"]) if "defaults" in facts else ANYTHING_OR_NULL


_CORRELATION: Final = _Either(Optional("correlation_id", NAME), _Defaulted("correlation_id", NAME, _conversation))


class _Conversation(MemberRow):
    """The conversation and the correlation. A correlation that only repeats the conversation, as the format requires,
    is dropped."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        correlation_id = source.peek("correlation_id")
        absent = facts["defaults"].conversation_id or facts["message_id"]
        if correlation_id.__class__ is str and is_text_id(correlation_id):
            absent = correlation_id
        elif facts["is_short"] and facts["is_whole"]:
            absent = facts["message_id"]
        data["conversation_id"] = source.optional("conversation_id", NAME, absent=absent)
        _CORRELATION.read(source, data, facts)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        _CORRELATION.write(target, data, facts)
        # What can be left out without notice means only what a reader makes of its absence.
        facts["is_whole"] = "message_id" in target.members
        own = data["message_id"] if facts["is_short"] and facts["is_whole"] else ANYTHING_OR_NULL
        absent = target.members.get("correlation_id") or own
        target.put("conversation_id", NAME, data["conversation_id"], absent=absent)


class _CauseRow(MemberRow):
    """The message that this one follows from. It is kept: only an ingress finds the message."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        if not source.has("causation_id") and not facts["is_short"]:
            source.notes.absent("/causation_id")
        data["cause_id"] = source.keep("causation_id", MESSAGE_ID)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        if data["causation_id"] is not None:
            target.put_plain("causation_id", data["causation_id"])
        else:
            target.put_kept("causation_id", MESSAGE_ID, MISSING if facts["is_short"] else None)


class _RequiredObject(MemberRow):
    """An object that the format requires: written empty without a value, and left out only if it means nothing."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        part = None
        if facts["is_short"]:
            part = source.optional_inside(self.name)
        elif not source.has(self.name) and facts["may_lack"]:
            source.note_absent(self.name)
        else:
            part = source.inside(self.name)
        data[self.name] = self.read_part(part, facts)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        part = target.inside(self.name, may_lack=not facts["is_short"], is_open=True)
        self.write_part(part, data[self.name], facts)
        if part.members:
            part.is_absent = False
        elif not facts["is_short"] and not part.is_absent:
            target.members[self.name] = part.members

    def read_part(self, part: Source | None, facts: MessageFacts) -> Any:
        raise NotImplementedError

    def write_part(self, part: Target, value: Any, facts: MessageFacts) -> None:
        raise NotImplementedError


class _Authority(_RequiredObject):
    name = "authority"

    def read_part(self, part: Source | None, facts: MessageFacts) -> Any:
        return read_authority(part, facts["notes"], facts["handoff"])

    def write_part(self, part: Target, value: Any, facts: MessageFacts) -> None:
        is_same = write_authority(part, value, facts["kept"], kept_handoff(facts))
        if facts["message_type"] == "handoff.request" and not facts["is_short"]:
            write_flags(facts["payload"], facts["base"], facts["kept"], is_same=is_same)


_SECURITY: Final = MemberTable(
    Optional("policy_tags", TEXTS),
    Optional("trust_level", Form("a level of trust", _read_level, forms.same)),
    Optional("contains_untrusted_content", forms.FLAG),
    Optional("data_classification", TEXT),
)


class _Security(_RequiredObject):
    name = "security"

    def read_part(self, part: Source | None, facts: MessageFacts) -> Security | None:
        members: MessageFacts = {}
        if part is not None:
            _SECURITY.read(part, members, facts)
            part.keep_rest()
        tags = members.get("policy_tags")
        members["policy_tags"] = joined = _with_tags(tags, facts["policy_tags"])
        if joined != tags:
            facts["notes"].kept.setdefault("/security/policy_tags", ABSENT if tags is None else list(tags))
        facts["trust_level"] = members.get("trust_level")
        security = Security(**members)
        return None if security == Security() else security

    def write_part(self, part: Target, value: Any, facts: MessageFacts) -> None:
        members = msgspec.structs.asdict(value or Security())
        constraints = facts["payload"].get("constraints")
        is_offline = constraints.__class__ is dict and constraints.get("no_external_network") is True
        kept = facts["kept"].get("/security/policy_tags", MISSING)
        if is_offline and kept is not MISSING:
            provided = texts_in(kept)
            if _with_tags(provided, (NO_NETWORK,)) == members["policy_tags"]:
                members["policy_tags"] = provided
        _SECURITY.write(part, members, facts)


def _with_tags(tags: tuple[str, ...] | None, more: tuple[str, ...]) -> tuple[str, ...] | None:
    new = tuple(tag for tag in more if tag not in (tags or ()))
    return (*(tags or ()), *new) if new else tags


class _Trace(MemberRow):
    """Trace and span. Ids in another form than W3C Trace Context have no canonical field."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        data["traceparent"] = _traceparent(source.peek("trace_id"), source.peek("span_id"))
        for name in ("trace_id", "span_id"):
            if data["traceparent"] is None:
                source.keep(name, LONG)
            else:
                source.required(name, LONG)

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        parent, kept = data["traceparent"], facts["kept"]
        if parent is not None and is_traceparent(parent):
            _, trace, span, _ = parent.split("-")
            target.put_plain("trace_id", trace)
            target.put_plain("span_id", span)
        elif _traceparent(kept.get("/trace_id"), kept.get("/span_id")) is None:
            target.put_kept("trace_id", LONG)
            target.put_kept("span_id", LONG)
        else:
            target.names.update(("trace_id", "span_id"))


def _traceparent(trace: Any, span: Any) -> str | None:
    text = f"00-{trace}-{span}-01"
    both = trace.__class__ is str and span.__class__ is str
    return text if both and len(trace) == 32 and is_traceparent(text) else None  # noqa: PLR2004 - W3C


_VERSIONS: Final = _Either(
    Optional("schema_version", LONG, absent=_VERSION, omit=(_VERSION,)),
    _Defaulted("schema_version", LONG, lambda _stated: _VERSION),
)
_HEAD: Final = MemberTable(
    Required("message_id", MESSAGE_ID, default="message_id"),
    Required("timestamp", TIME, "sent_at_ms", default="sent_at_ms"),
    _Either(Required("type", TEXT, "message_type"), Required("message_type", TEXT)),
)
_AGENTS: Final = MemberTable(_AgentRow("sender", "from", "sender"), _AgentRow("recipient", "to", "to"))
_IDS: Final = MemberTable(
    _Conversation(),
    _Either(Optional("run_id", NAME), _Defaulted("run_id", NAME, _conversation)),
    _Either(
        Optional("task_id", NAME, absent=lambda facts: (_conversation if facts["is_whole"] else _own_task)(facts)),
        _Defaulted("task_id", NAME, _conversation, _own_task),
    ),
    Optional("idempotency_key", NAME),
)
_TAIL: Final = MemberTable(
    _CauseRow(),
    _Authority(),
    _Security(),
    Optional("parent_task_id", NAME),
    Optional("sequence_number", forms.whole_number(0, SAFE_INTEGER), "sequence"),
    _Either(Optional("intent", _INTENT), _Defaulted("intent", _INTENT, lambda facts: facts["message_type"])),
    Optional(
        "critical_fields",
        lambda facts: TEXTS if facts["kind"] is None else pointer_form(facts["kind"]),
        omit=lambda facts: ((),) if "defaults" in facts else (),
    ),
    _Trace(),
    Optional("tenant_id", NAME, "namespace", noted=True),
)
MEMBERS_OF_EVIDENCE: Final = frozenset(
    {
        *("schema_version", "message_id", "run_id", "conversation_id", "task_id", "parent_task_id", "correlation_id"),
        *("causation_id", "timestamp", "sender", "recipient", "tenant_id", "trace_id", "span_id", "sequence_number"),
        *("message_type", "intent", "authority", "security", "critical_fields", "idempotency_key", "payload"),
        *("type", "from", "to", CARRIED),
    }
)
"""Members of the short form that do not belong to the payload."""


# --- messages ---------------------------------------------------------------------------------------------------------


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Decode the message of this dialect in *value*; raise DialectError if it is invalid.

    With *defaults* the message may be a fragment: missing required members are filled in.
    """
    tree = read_object(value)
    if CARRIED in tree:
        message, rest = read_carried(tree[CARRIED], f"/{CARRIED}"), {**tree}
        del rest[CARRIED]
        check_same(encode(message, types=types), rest, f"/{CARRIED}")
        return foreign_of(message)
    is_short = "type" in tree and not any(name in tree for name in _NOT_SHORT)
    source, facts = begin_reading(tree, defaults, types, nulls=True)
    notes, base = source.notes, "" if is_short else "/payload"
    if is_short:
        notes.kept["form"] = _SHORT
    facts |= {"is_short": is_short, "may_lack": is_short or defaults != NONE, "base": base, "needs": ()}
    facts["is_whole"] = "message_id" in tree
    _VERSIONS.read(source, facts, facts)
    if facts["schema_version"] not in (None, _VERSION):
        raise source.fault("schema_version", facts["schema_version"], _VERSION, "unsupported_version")
    _HEAD.read(source, facts, facts)
    if facts["message_type"] not in types:
        name = "type" if is_short else "message_type"
        raise source.fault(name, facts["message_type"], "a type that is known here", "unknown_type")
    _AGENTS.read(source, facts, facts)
    if is_short:
        members = source.rest()
        payload = {name: value for name, value in members.items() if name not in MEMBERS_OF_EVIDENCE}
        envelope = {name: value for name, value in members.items() if name in MEMBERS_OF_EVIDENCE}
        source = Source(envelope, "", notes, nulls=True)
    else:
        payload = source.required("payload", forms.OBJECT)
    kind = facts["kind"] = kind_for(known_kind(types, facts["message_type"]), payload, base, types)
    facts["needs"] = kind.terms.required_options
    _IDS.read(source, facts, facts)
    data, locations = read_evidence(payload, facts)
    _check_key(source, facts)
    _TAIL.read(source, facts, facts)
    source.keep_rest()
    facts["critical_fields"] = facts.get("critical_fields") or None
    opened = check_data(kind, notes.marked(data, _NAME), locations, tree)
    ttl_s = kind.terms.option("ttl_s", opened)
    lifetime_ms = defaults.lifetime_ms if ttl_s is None else round(ttl_s * 1000)
    if facts["sent_at_ms"] + (lifetime_ms or default_lifetime_ms(kind)) > LAST_WRITABLE_MS:
        raise DialectError("/timestamp", shown(tree.get("timestamp")), "a time before the year 9999")
    # The format cannot say the end of a message's life.
    facts["expires_at_ms"] = None if lifetime_ms is None else facts["sent_at_ms"] + lifetime_ms
    return foreign_that_says(facts, kind.name, kind.version, data)


def _check_key(source: Source, facts: MessageFacts) -> None:
    key, kind = facts.get("idempotency_key"), facts["kind"]
    if key is None:
        if "idempotency_key" in kind.terms.required_options:
            expected = f"a key: {kind.name} has an effect, and may come again"
            raise source.fault("idempotency_key", MISSING, expected)
    else:
        NAME.demand(key, f"{facts['base']}/idempotency_key")


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Write *message* in this dialect; raise DialectError for data that would mean something else there."""
    opened = open_message(message, _NAME, types)
    kept, name = opened.kept, opened.metadata.message_type
    if opened.kind is None and name in types:
        # Readers of the newest version would not understand it.
        raise DialectError("/metadata/schema_version", opened.metadata.schema_version, "a version that is known here")
    facts = opened_facts(opened, aliases) | {"aliases": aliases, "kind": opened.kind, "base": ""}
    is_short = kept.get("form") == _SHORT and _has_plain_agents(opened)
    payload = write_evidence(facts) if is_short else {}
    is_short = is_short and not payload.keys() & MEMBERS_OF_EVIDENCE
    if not is_short:
        facts["base"] = "/payload"
        payload = write_evidence(facts)
    facts |= {"is_short": is_short, "payload": payload}
    if facts["critical_fields"] is None and kept.get("/critical_fields") == []:
        facts["critical_fields"] = ()
    is_in_payload = name == "pr.create.request" and not is_short and payload.get("idempotency_key") is not None
    if is_in_payload and kept.get("/idempotency_key") is None:
        facts["idempotency_key"] = None
    target = Target(kept, is_open=False if is_short else _is_unknown, nulls=True)
    target.names.add(CARRIED)
    _VERSIONS.write(target, {"schema_version": _VERSION}, facts)
    for table in (_HEAD, _AGENTS, _IDS, _TAIL):
        table.write(target, facts, facts)
    if not is_short:
        target.put_plain("payload", payload)
    whole = {**target.finish(), **payload} if is_short else target.finish()
    return {**whole, CARRIED: carried_text(message)} if carry else whole


def _has_plain_agents(opened: OpenedMessage) -> bool:
    """Return whether sender and recipient have only ids."""
    sender, recipient = opened.metadata.sender, opened.metadata.recipient
    return recipient is not None and all(
        opened.kept.get(location) == ABSENT or (agent.id and not (agent.role or agent.type or agent.version))
        for location, agent in (("/from", sender), ("/to", recipient))
    )


def _is_unknown(name: str, _value: Any) -> bool:
    return name != CARRIED
