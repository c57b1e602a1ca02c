"""The tables of dialect `speech-acts`, and the way through them. Pure.

Owns every member of that format. Unknown members are refused, and so is null. Tokens and signatures go to
`Claims.proofs`, for the ingress alone; they are never kept, shown or written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from bus.dialects import forms
from bus.dialects.data_check import Places, check_data, default_lifetime_ms, known_kind
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
    Optional,
    Required,
    Rest,
    Said,
)
from bus.dialects.said import addressed_id, begin_reading, foreign_that_says, open_message, said_by, set_end
from bus.dialects.strict_json import read_object
from bus.dialects.typed_content import is_typed, read_typed, says_all, write_typed
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
_TYPED_PLACES: Final[Places] = {"": "/content/data"}
_ACT_PLACES: Final[Places] = {"": "", "/attachments/*/uri": "/attachments/*", "/concludes": "/content/conclude"}


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
    """The version of the ontology: required, and kept where it is not the first."""

    def read(self, source: Source, data: Said, said: Said) -> None:  # noqa: ARG002
        version = source.required(self.name, forms.TEXT)
        if version != self.otherwise:
            source.notes.kept[source.place(self.name)] = version


class _Cause(MemberRow):
    """The message that this one answers, in one of two places. It is kept: only an ingress can find the message."""

    def read(self, source: Source, data: Said, said: Said) -> None:  # noqa: ARG002
        cause_id = source.keep("in_reply_to", forms.MESSAGE_ID)
        nested_id = source.keep("causality", _CAUSALITY)
        if cause_id is not None and nested_id is not None and cause_id != nested_id:
            raise DialectError("/causality/in_reply_to", shown(nested_id), f"{cause_id}, as in /in_reply_to")
        data["cause_id"] = data["correlation_id"] = cause_id or nested_id

    def write(self, target: Target, data: Mapping[str, Any], said: Said) -> None:
        kept, causation_id = said["opened"].kept, data["causation_id"]
        answered = causation_id or data["correlation_id"]
        is_nested = kept.get("/causality") == {"in_reply_to": answered}
        # Without a cause, the correlation can be a workflow, which is answered by nobody: only what was kept says more.
        is_said = kept.get("/in_reply_to") == answered or (causation_id is not None and not is_nested)
        target.put("in_reply_to", forms.MESSAGE_ID, answered if is_said else None)
        target.put("causality", _CAUSALITY, answered if is_nested else None)


class _Proofs(MemberRow):
    """A token, and a signature with the bytes that it covers."""

    def read(self, source: Source, data: Said, said: Said) -> None:
        proofs = {"auth": source.optional("auth", _AUTH), "signature": source.optional("signature", forms.SECRET)}
        data["proofs"] = {name: proof for name, proof in proofs.items() if proof is not None}
        if "signature" in data["proofs"]:
            data["proofs"]["signed"] = canonical.encode_parsed(said["tree"].get("content"))


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
    Optional("priority", forms.whole(0, 9), omit=(5,)),
)
_END: Final = MemberTable(
    Optional("ttl", forms.SECONDS, "lifetime_ms", absent=lambda said: said["default_ms"]), REFUSED
)
_TOOLS: Final = Optional("tool_calls", forms.LIST)
_ATTACHED: Final = Optional("attachments", forms.URIS)
_KEPT_BESIDE: Final = MemberTable(Kept("tool_calls", forms.LIST), Kept("attachments", forms.URIS))
_REPORTED: Final = MemberTable(
    Required("code", forms.TEXT, "error_class"),
    Required("message", forms.LONG, "error_message"),
    Derived("error_code", lambda _said, data: code_of_class(data["error_class"])),
    Derived("source_agent", lambda said, _data: said["sender"].id),
    Derived("timestamp", lambda said, _data: format_ms(said["sent_at_ms"])),
    Optional("retry_after_seconds", forms.NUMBER, "retry_after_s"),
    Rest("details"),
)


# --- messages ---------------------------------------------------------------------------------------------------------


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Return what the message of this dialect in *value* says; raise DialectError."""
    tree = read_object(value)
    source, said = begin_reading(tree, defaults, types, nulls=False)
    _HEAD.read(source, said, said)
    kind, version, data, places = _read_content(source, said, types)
    said["default_ms"] = default_lifetime_ms(kind)
    _END.read(source, said, said)
    spoken = kind.terms.spoken(check_data(kind, source.notes.marked(data, _NAME), places, tree))
    if spoken is not None and spoken != said["performative"]:
        raise source.fault("performative", said["performative"], f"{spoken}, as {kind.name} is said")
    set_end(said, said["lifetime_ms"], "/ttl")
    if "task_id" in kind.terms.needs:
        said["task_id"] = defaults.task_id or said["message_id"]
    return foreign_that_says(said, kind.name, version, data)


def _read_content(
    source: Source, said: Said, types: Registry
) -> tuple[PayloadType, str, dict[str, Any], Mapping[str, str]]:
    """Return type, version, data and places of the content."""
    performative = said["performative"]
    content = source.required("content", forms.OBJECT)
    if source.has("tool_calls") and performative not in _TOOL_ACTS:
        raise DialectError("/tool_calls", kind_shown(source.peek("tool_calls")), f"no such member in {performative}")
    typed = read_typed(content, "/content", types)
    if typed is not None:
        _KEPT_BESIDE.read(source, said, said)
        if typed.kind.name.startswith(_ACT) or typed.kind.name == _REPORT:
            source.notes.kept["/content/type"] = typed.name
        return typed.kind, typed.version, typed.data, _TYPED_PLACES
    if performative == "error" and _is_report(content):
        source.keep("attachments", forms.URIS)
        kind = known_kind(types, _REPORT)
        data = _REPORTED.read(Source(content, "/content", source.notes), {}, said)
        return kind, kind.version, data, _REPORTED.places("/content")
    kind = known_kind(types, f"{_ACT}{performative.replace('_', '-')}")
    data = {"content": content}
    if content.get("conclude") is True:
        data["content"] = {name: value for name, value in content.items() if name != "conclude"}
        data["concludes"] = True
    _TOOLS.read(source, data, said)
    _ATTACHED.read(source, data, said)
    return kind, kind.version, data, _ACT_PLACES


def _is_report(content: Mapping[str, Any]) -> bool:
    """Tell whether the content of an error says what a report says; any other code is an `act.error`."""
    code, text = content.get("code"), content.get("message")
    return isinstance(code, str) and isinstance(text, str) and is_error_class(code)


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Say *message* in this dialect; raise DialectError if it cannot be said."""
    if carry:
        raise DialectError("", "carry", "a dialect with a place for the sealed message")
    opened = open_message(message, _NAME, types)
    said = said_by(opened, aliases) | {
        "performative": opened.performative or "inform",
        "default_ms": default_lifetime_ms(opened.kind) if opened.kind is not None else MISSING,
    }
    target = Target(opened.kept)
    said["to_id"] = lambda _said: addressed_id(opened.metadata.recipient, aliases)
    _HEAD.write(target, said, said)
    _END.write(target, said, said)
    if opened.was_typed("/content/type") or not _write_content(target, said, types):
        target.put_plain("content", write_typed(said["message_type"], said["schema_version"], opened.data))
        _KEPT_BESIDE.write(target, said, said)
    return target.finish()


def _write_content(target: Target, said: Said, types: Registry) -> bool:
    """Write the content of a type that the format has; tell whether that says all of it."""
    name = said["message_type"]
    if said["opened"].kind is not None and name.startswith(_ACT):
        return _write_act(target, said, types)
    return said["opened"].kind is not None and name == _REPORT and _write_report(target, said)


def _write_act(target: Target, said: Said, types: Registry) -> bool:
    data = said["opened"].data
    content, concludes = data["content"], data.get("concludes", False)
    if not says_all(data, ("content", "tool_calls", "attachments", "concludes")):
        return False
    if is_typed(content, types) or ("conclude" in content and (concludes or content["conclude"] is True)):
        # A reader would take it for something else.
        return False
    for index, reference in enumerate(data.get("attachments") or ()):
        if not says_all(reference, ("uri",)):
            found = f"a reference with {', '.join(sorted(reference))}"
            raise DialectError(f"/data/attachments/{index}", found, "a reference of a uri alone")
    target.put_plain("content", {**content, "conclude": True} if concludes else content)
    calls = data.get("tool_calls")
    _TOOLS.write(target, {"tool_calls": calls if calls or said["performative"] in _TOOL_ACTS else None}, said)
    _ATTACHED.write(target, data, said)
    return True


def _write_report(target: Target, said: Said) -> bool:
    """Say an error; what only helps to read it, such as its severity, is left out."""
    data = said["opened"].data
    if (data.get("details") or {}).keys() & _REPORTED.names:
        return False
    code = data["error_code"]
    error_class = data.get("error_class") or lookup(code).error_class
    if code_of_class(error_class) != code.upper() and is_error_class(f"{error_class}.{code.lower()}"):
        error_class = f"{error_class}.{code.lower()}"
    target.put_kept("attachments", forms.URIS)
    _REPORTED.write(target.inside("content"), {**data, "error_class": error_class}, said)
    return True
