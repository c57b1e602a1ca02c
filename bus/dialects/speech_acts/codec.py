"""The tables of dialect `speech-acts`, and the way through them. Pure.

Owns every member of that format. Unknown members are refused, and so is null. Tokens and signatures go to
`Claims.proofs`, for the ingress alone; they are never kept, shown or written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from bus.dialects import forms
from bus.dialects.data_check import Locations, check_data, default_lifetime_ms, known_kind
from bus.dialects.faults import MISSING, kind_shown, shown
from bus.dialects.foreign import NO_ALIASES, NONE, Defaults, Foreign
from bus.dialects.forms import Form
from bus.dialects.keeping import Source, Target
from bus.dialects.member_table import (
    REFUSED,
    AgentId,
    Derived,
    Kept,
    MemberRow,
    MemberTable,
    MessageFacts,
    Optional,
    Required,
    Rest,
)
from bus.dialects.message_facts import (
    addressed_id,
    begin_reading,
    foreign_that_says,
    open_message,
    opened_facts,
    set_end,
)
from bus.dialects.strict_json import read_object
from bus.dialects.typed_content import is_typed, read_typed, states_all, write_typed
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol import canonical
from bus.protocol.envelope import Performative
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms
from bus.vocabulary import BUILT_IN
from bus.vocabulary.error_codes import code_of_class, is_error_class, lookup

__all__ = ["decode", "encode"]

_NAME: Final = "003"
_ACT: Final = "act."
_REPORT: Final = "error.reported"
_VERSION: Final = "1.0.0"
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
_TOOL_ACTS: Final = ("request", "propose", "accept")
_TYPED_LOCATIONS: Final[Locations] = {"": "/content/data"}
_ACT_LOCATIONS: Final[Locations] = {"": "", "/attachments/*/uri": "/attachments/*", "/concludes": "/content/conclude"}


def _is_auth(value: Any) -> bool:
    is_pair = value.__class__ is dict and value.keys() == {"type", "token"}
    return is_pair and value["type"] in ("jwt", "mtls") and forms.TEXT.reads(value["token"]) is not MISSING


_ID: Final = forms.matching("a UUID in lower case", _UUID.match)
_CAUSALITY: Final = Form(
    "an object of in_reply_to alone",
    lambda value: forms.MESSAGE_ID.read(value["in_reply_to"]),
    lambda cause_id: {"in_reply_to": cause_id},
    fits=lambda value: value.__class__ is dict and value.keys() == {"in_reply_to"},
)
_AUTH: Final = Form[Any]("an object of type (jwt or mtls) and token", fits=_is_auth, is_secret=True)


# --- rows -------------------------------------------------------------------------------------------------------------


class _OntologyVersion(Kept):
    """The version of the ontology: required, and kept unless it is the first."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        version = source.required(self.name, forms.TEXT)
        if version != self.otherwise:
            source.notes.kept[source.location(self.name)] = version


class _Cause(MemberRow):
    """The message that this one answers, in one of two places. It is kept: only an ingress can find the message."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        cause_id = source.keep("in_reply_to", forms.MESSAGE_ID)
        nested_id = source.keep("causality", _CAUSALITY)
        if cause_id is not None and nested_id is not None and cause_id != nested_id:
            raise DialectError("/causality/in_reply_to", shown(nested_id), f"{cause_id}, as in /in_reply_to")
        data["cause_id"] = data["correlation_id"] = cause_id or nested_id

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        kept, causation_id = facts["opened"].kept, data["causation_id"]
        answered = causation_id or data["correlation_id"]
        is_nested = kept.get("/causality") == {"in_reply_to": answered}
        # Without a cause, the correlation can be a workflow, which is answered by nobody: only what was kept says more.
        is_stated = kept.get("/in_reply_to") == answered or (causation_id is not None and not is_nested)
        target.put("in_reply_to", forms.MESSAGE_ID, answered if is_stated else None)
        target.put("causality", _CAUSALITY, answered if is_nested else None)


class _Proofs(MemberRow):
    """A token, and a signature with the bytes that it covers."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        proofs = {"auth": source.optional("auth", _AUTH), "signature": source.optional("signature", forms.SECRET)}
        data["proofs"] = {name: proof for name, proof in proofs.items() if proof is not None}
        if "signature" in data["proofs"]:
            data["proofs"]["signed"] = canonical.encode_parsed(facts["tree"].get("content"))


_HEAD: Final = MemberTable(
    Required("message_id", _ID, default="message_id", origin="/metadata/message_id"),
    Required("conversation_id", forms.NAME, default="conversation_id"),
    AgentId("sender", forms.NAME, default="sender"),
    AgentId("receiver", forms.NAME, "to", default="recipient"),
    Required("timestamp", forms.TIME, "sent_at_ms", default="sent_at_ms"),
    Required("performative", forms.one_of(get_args(Performative))),
    _OntologyVersion("schema_version", forms.TEXT, otherwise=_VERSION),
    _Cause(),
    Kept("reply_to", forms.LONG),
    _Proofs(),
    Optional("idempotency_key", forms.NAME),
    Optional("priority", forms.whole_number(0, 9), omit=(5,)),
)
_END: Final = MemberTable(
    Optional("ttl", forms.SECONDS, "lifetime_ms", absent=lambda facts: facts["default_ms"]), REFUSED
)
_TOOLS: Final = Optional("tool_calls", forms.LIST)
_ATTACHED: Final = Optional("attachments", forms.URIS)
_KEPT_BESIDE: Final = MemberTable(Kept("tool_calls", forms.LIST), Kept("attachments", forms.URIS))
_REPORTED: Final = MemberTable(
    Required("code", forms.TEXT, "error_class"),
    Required("message", forms.LONG, "error_message"),
    Derived("error_code", lambda _stated, data: code_of_class(data["error_class"])),
    Derived("source_agent", lambda facts, _data: facts["sender"].id),
    Derived("timestamp", lambda facts, _data: format_ms(facts["sent_at_ms"])),
    Optional("retry_after_seconds", forms.NUMBER, "retry_after_s"),
    Rest("details"),
)


# --- messages ---------------------------------------------------------------------------------------------------------


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Decode the message of this dialect in *value*; raise DialectError if it is invalid."""
    tree = read_object(value)
    source, facts = begin_reading(tree, defaults, types, nulls=False)
    _HEAD.read(source, facts, facts)
    kind, version, data, locations = _read_content(source, facts, types)
    facts["default_ms"] = default_lifetime_ms(kind)
    _END.read(source, facts, facts)
    spoken = kind.terms.spoken(check_data(kind, source.notes.marked(data, _NAME), locations, tree))
    if spoken is not None and spoken != facts["performative"]:
        raise source.fault("performative", facts["performative"], f"{spoken}, as {kind.name} is said")
    set_end(facts, facts["lifetime_ms"], "/ttl")
    if "task_id" in kind.terms.required_options:
        facts["task_id"] = defaults.task_id or facts["message_id"]
    return foreign_that_says(facts, kind.name, version, data)


def _read_content(
    source: Source, facts: MessageFacts, types: Registry
) -> tuple[PayloadType, str, dict[str, Any], Mapping[str, str]]:
    """Return type, version, data and places of the content."""
    performative = facts["performative"]
    content = source.required("content", forms.OBJECT)
    if source.has("tool_calls") and performative not in _TOOL_ACTS:
        raise DialectError("/tool_calls", kind_shown(source.peek("tool_calls")), f"no such member in {performative}")
    typed = read_typed(content, "/content", types)
    if typed is not None:
        _KEPT_BESIDE.read(source, facts, facts)
        if typed.kind.name.startswith(_ACT) or typed.kind.name == _REPORT:
            source.notes.kept["/content/type"] = typed.name
        return typed.kind, typed.version, typed.data, _TYPED_LOCATIONS
    if performative == "error" and _is_report(content):
        source.keep("attachments", forms.URIS)
        kind = known_kind(types, _REPORT)
        data = _REPORTED.read(Source(content, "/content", source.notes), {}, facts)
        return kind, kind.version, data, _REPORTED.locations("/content")
    kind = known_kind(types, f"{_ACT}{performative.replace('_', '-')}")
    data = {"content": content}
    if content.get("conclude") is True:
        data["content"] = {name: value for name, value in content.items() if name != "conclude"}
        data["concludes"] = True
    _TOOLS.read(source, data, facts)
    _ATTACHED.read(source, data, facts)
    return kind, kind.version, data, _ACT_LOCATIONS


def _is_report(content: Mapping[str, Any]) -> bool:
    """Return whether the content of an error is an error report; any other code is an `act.error`."""
    code, text = content.get("code"), content.get("message")
    return isinstance(code, str) and isinstance(text, str) and is_error_class(code)


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Write *message* in this dialect; raise DialectError if the dialect cannot express it."""
    if carry:
        raise DialectError("", "carry", "a dialect with a place for the sealed message")
    opened = open_message(message, _NAME, types)
    facts = opened_facts(opened, aliases) | {
        "performative": opened.performative or "inform",
        "default_ms": default_lifetime_ms(opened.kind) if opened.kind is not None else MISSING,
    }
    target = Target(opened.kept)
    facts["to_id"] = lambda _stated: addressed_id(opened.metadata.recipient, aliases)
    _HEAD.write(target, facts, facts)
    _END.write(target, facts, facts)
    if opened.was_typed("/content/type") or not _write_content(target, facts, types):
        target.put_plain("content", write_typed(facts["message_type"], facts["schema_version"], opened.data))
        _KEPT_BESIDE.write(target, facts, facts)
    return target.finish()


def _write_content(target: Target, facts: MessageFacts, types: Registry) -> bool:
    """Write the content of a type that the format has; return whether that expresses all of it."""
    name = facts["message_type"]
    if facts["opened"].kind is not None and name.startswith(_ACT):
        return _write_act(target, facts, types)
    return facts["opened"].kind is not None and name == _REPORT and _write_report(target, facts)


def _write_act(target: Target, facts: MessageFacts, types: Registry) -> bool:
    data = facts["opened"].data
    content, concludes = data["content"], data.get("concludes", False)
    if not states_all(data, ("content", "tool_calls", "attachments", "concludes")):
        return False
    if is_typed(content, types) or ("conclude" in content and (concludes or content["conclude"] is True)):
        # A reader would take it for something else.
        return False
    for index, reference in enumerate(data.get("attachments") or ()):
        if not states_all(reference, ("uri",)):
            found = f"a reference with {', '.join(sorted(reference))}"
            raise DialectError(f"/data/attachments/{index}", found, "a reference of a uri alone")
    target.put_plain("content", {**content, "conclude": True} if concludes else content)
    calls = data.get("tool_calls")
    _TOOLS.write(target, {"tool_calls": calls if calls or facts["performative"] in _TOOL_ACTS else None}, facts)
    _ATTACHED.write(target, data, facts)
    return True


def _write_report(target: Target, facts: MessageFacts) -> bool:
    """Write an error; details for people, such as its severity, are left out."""
    data = facts["opened"].data
    if (data.get("details") or {}).keys() & _REPORTED.names:
        return False
    code = data["error_code"]
    error_class = data.get("error_class") or lookup(code).error_class
    if code_of_class(error_class) != code.upper() and is_error_class(f"{error_class}.{code.lower()}"):
        error_class = f"{error_class}.{code.lower()}"
    target.put_kept("attachments", forms.URIS)
    _REPORTED.write(target.inside("content"), {**data, "error_class": error_class}, facts)
    return True
