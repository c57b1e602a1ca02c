"""Dialect 003: speech acts with free content, sent from one agent to another. Pure.

Owns the table of that format. Unknown members are refused, and so is null. Tokens and signatures go to `Claims.proofs`,
for the ingress alone; they are never kept, shown or written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from bus.dialects.data_check import Places, check_data, default_lifetime_ms, known_kind
from bus.dialects.faults import MISSING, kind_shown, shown
from bus.dialects.foreign import NO_ALIASES, NONE, Claims, Defaults, Foreign, ForeignOptions
from bus.dialects.forms import (
    LAST_MS,
    LIST,
    LONG,
    MESSAGE_ID,
    NAME,
    NUMBER,
    OBJECT,
    SECONDS,
    TEXT,
    TIME,
    URIS,
    Form,
    UnfitValueError,
    matching,
    one_of,
    whole,
)
from bus.dialects.keeping import ANYTHING, Notes, Source, Target
from bus.dialects.opened_message import OpenedMessage, addressed_id, open_message
from bus.dialects.strict_json import read_object
from bus.dialects.typed_content import is_typed, read_typed, says_all, write_typed
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol import canonical
from bus.protocol.envelope import Agent, Performative
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
_ORDINARY: Final = (5,)
"""The priority that is not written."""


def _read_auth(value: Any) -> dict[str, str]:
    if (
        value.__class__ is not dict
        or value.keys() != {"type", "token"}
        or value["type"] not in ("jwt", "mtls")
        or value["token"].__class__ is not str
        or not value["token"]
    ):
        raise UnfitValueError
    auth: dict[str, str] = value
    return auth


def _read_causality(value: Any) -> str:
    if value.__class__ is not dict or value.keys() != {"in_reply_to"}:
        raise UnfitValueError
    return MESSAGE_ID.read(value["in_reply_to"])


_PERFORMATIVE: Final = one_of(get_args(Performative))
_ID: Final = matching("a UUID in lower case", _UUID.match)
_PRIORITY: Final = whole(0, 9)
_CAUSALITY: Final = Form("an object of in_reply_to alone", _read_causality, lambda cause_id: {"in_reply_to": cause_id})
_AUTH: Final = Form("an object of type (jwt or mtls) and token", _read_auth, is_secret=True)
_SIGNATURE: Final = Form("a text of at least one character", TEXT.read, is_secret=True)

# Members have the same names, save these.
_ACT_PLACES: Final[Places] = {"": "", "/attachments/*/uri": "/attachments/*", "/concludes": "/content/conclude"}
_ERROR_PLACES: Final[Places] = {
    "": "/content",
    "/details": "/content",
    "/error_class": "/content/code",
    "/error_message": "/content/message",
    "/retry_after_s": "/content/retry_after_seconds",
}
_TYPED_PLACES: Final[Places] = {"": "/content/data"}


def decode(value: bytes | Mapping[str, Any], *, defaults: Defaults = NONE, types: Registry = BUILT_IN) -> Foreign:
    """Return what the message of dialect 003 in *value* says; raise DialectError."""
    tree = read_object(value)
    notes = Notes()
    source = Source(tree, "", notes)
    message_id = source.required("message_id", _ID, defaults.message_id)
    conversation_id = source.required("conversation_id", NAME, defaults.conversation_id)
    sender = _read_agent(source, "sender", defaults.sender)
    receiver = _read_agent(source, "receiver", defaults.recipient)
    sent_ms = source.required("timestamp", TIME, defaults.sent_at_ms)
    performative: Any = source.required("performative", _PERFORMATIVE)
    version = source.required("schema_version", TEXT)
    if version != _VERSION:
        notes.kept["/schema_version"] = version
    cause_id = _read_cause(source)
    source.keep("reply_to", LONG)
    proofs = _read_proofs(source, tree)
    idempotency_key = source.optional("idempotency_key", NAME)
    priority = source.optional("priority", _PRIORITY, omit=_ORDINARY)
    kind, schema_version, data, places = _read_content(source, performative, sender, sent_ms, types)
    lifetime_ms = source.optional("ttl", SECONDS, absent=default_lifetime_ms(kind))
    source.refuse_rest()
    notes.marked(data, _NAME)
    payload = check_data(kind, data, places, tree)
    spoken = kind.terms.spoken(payload)
    if spoken is not None and spoken != performative:
        raise source.fault("performative", performative, f"{spoken}, as {kind.name} is said")
    if sent_ms + lifetime_ms > LAST_MS:
        raise DialectError("/ttl", f"{lifetime_ms} ms", "a time before the year 10000")
    return Foreign(
        type=kind.name,
        version=schema_version,
        data=data,
        options=ForeignOptions(
            message_id=message_id,
            to=receiver,
            expires_at_ms=sent_ms + lifetime_ms,
            idempotency_key=idempotency_key,
            priority=priority,
            conversation_id=conversation_id,
            correlation_id=cause_id,
            task_id=(defaults.task_id or message_id) if "task_id" in kind.terms.needs else None,
            performative=performative,
        ),
        claims=Claims(sender=sender, sent_at_ms=sent_ms, cause_id=cause_id, proofs=proofs),
    )


def encode(
    message: Message, *, aliases: Mapping[str, str] = NO_ALIASES, carry: bool = False, types: Registry = BUILT_IN
) -> dict[str, Any]:
    """Say *message* in dialect 003; raise DialectError if it cannot be said.

    *aliases*: agent ids of ours -> ids there; `role:<role>` and `*` name a role and everybody. There is no place to
    carry the sealed message.
    """
    if carry:
        raise DialectError("", "carry", "a dialect with a place for the sealed message")
    opened = open_message(message, _NAME, types)
    metadata = opened.metadata
    target = Target(opened.kept)
    target.put_sayable("message_id", _ID, metadata.message_id, "/metadata/message_id", absent=ANYTHING)
    target.put("conversation_id", NAME, metadata.conversation_id, absent=ANYTHING)
    target.put("sender", NAME, aliases.get(metadata.sender.id or "", metadata.sender.id), absent=ANYTHING)
    target.put("receiver", NAME, addressed_id(metadata.recipient, aliases), absent=ANYTHING)
    target.put("timestamp", TIME, opened.sent_ms, absent=ANYTHING)
    target.put("performative", _PERFORMATIVE, opened.performative or "inform")
    target.put_kept("schema_version", TEXT, _VERSION)
    _write_cause(opened, target)
    target.put_kept("reply_to", LONG)
    target.put("idempotency_key", NAME, opened.routing.idempotency_key)
    target.put("priority", _PRIORITY, opened.routing.priority, omit=_ORDINARY)
    default_ms = default_lifetime_ms(opened.kind) if opened.kind is not None else MISSING
    target.put("ttl", SECONDS, opened.lifetime_ms, absent=default_ms)
    _write_content(opened, target, types)
    return target.finish()


def _read_agent(source: Source, name: str, default: Agent | None) -> Agent:
    if not source.has(name) and default is not None and default.id is not None:
        source.required(name, NAME, default.id)
        return default
    return Agent(id=source.required(name, NAME))


def _read_cause(source: Source) -> str | None:
    """Return the id of the message that this one answers. It is kept: only an ingress can find the message."""
    cause_id = source.keep("in_reply_to", MESSAGE_ID)
    nested_id = source.keep("causality", _CAUSALITY)
    if cause_id is not None and nested_id is not None and cause_id != nested_id:
        raise DialectError("/causality/in_reply_to", shown(nested_id), f"{cause_id}, as in /in_reply_to")
    return cause_id or nested_id


def _write_cause(opened: OpenedMessage, target: Target) -> None:
    metadata = opened.metadata
    answered = metadata.causation_id or metadata.correlation_id
    nested = opened.kept.get("/causality")
    is_nested = nested == {"in_reply_to": answered}
    # Without a cause, the correlation can be a workflow, which is answered by nobody: only what was kept says more.
    is_said = opened.kept.get("/in_reply_to") == answered or (metadata.causation_id is not None and not is_nested)
    target.put("in_reply_to", MESSAGE_ID, answered if is_said else None)
    target.put("causality", _CAUSALITY, answered if is_nested else None)


def _read_proofs(source: Source, tree: Mapping[str, Any]) -> dict[str, Any]:
    proofs: dict[str, Any] = {}
    auth = source.optional("auth", _AUTH)
    if auth is not None:
        proofs["auth"] = auth
    signature = source.optional("signature", _SIGNATURE)
    if signature is not None:
        proofs["signature"] = signature
        proofs["signed"] = canonical.encode_parsed(tree.get("content"))
    return proofs


# --- content ----------------------------------------------------------------------------------------------------------


def _read_content(
    source: Source, performative: str, sender: Agent, sent_ms: int, types: Registry
) -> tuple[PayloadType, str, dict[str, Any], Places]:
    """Return type, version, data and places of the content."""
    content = source.required("content", OBJECT)
    if source.has("tool_calls") and performative not in _TOOL_ACTS:
        found = kind_shown(source.peek("tool_calls"))
        raise DialectError("/tool_calls", found, f"no such member in {performative}")
    typed = read_typed(content, "/content", types)
    if typed is not None:
        source.keep("tool_calls", LIST)
        source.keep("attachments", URIS)
        if typed.kind.name.startswith(_ACT) or typed.kind.name == _REPORT:
            source.notes.kept["/content/type"] = typed.name
        return typed.kind, typed.version, typed.data, _TYPED_PLACES
    if performative == "error" and _is_report(content):
        source.keep("attachments", URIS)
        kind = known_kind(types, _REPORT)
        return kind, kind.version, _read_report(source.notes, content, sender, sent_ms), _ERROR_PLACES
    kind = known_kind(types, f"{_ACT}{performative.replace('_', '-')}")
    data: dict[str, Any] = {"content": content}
    if content.get("conclude") is True:
        data["content"] = {name: value for name, value in content.items() if name != "conclude"}
        data["concludes"] = True
    calls = source.optional("tool_calls", LIST)
    if calls is not None:
        data["tool_calls"] = calls
    attachments = source.optional("attachments", URIS)
    if attachments is not None:
        data["attachments"] = attachments
    return kind, kind.version, data, _ACT_PLACES


def _is_report(content: Mapping[str, Any]) -> bool:
    """Tell whether the content of an error says what a report says; any other code is an `act.error`."""
    code, text = content.get("code"), content.get("message")
    return isinstance(code, str) and isinstance(text, str) and is_error_class(code)


def _read_report(notes: Notes, content: dict[str, Any], sender: Agent, sent_ms: int) -> dict[str, Any]:
    source = Source(content, "/content", notes)
    error_class = source.required("code", TEXT)
    data: dict[str, Any] = {"error_class": error_class, "error_message": source.required("message", LONG)}
    notes.derive(data, "error_code", code_of_class(error_class))
    notes.derive(data, "source_agent", sender.id)
    notes.derive(data, "timestamp", format_ms(sent_ms))
    retry_after_s = source.optional("retry_after_seconds", NUMBER)
    if retry_after_s is not None:
        data["retry_after_s"] = retry_after_s
    if details := source.rest():
        data["details"] = details
    return data


def _write_content(opened: OpenedMessage, target: Target, types: Registry) -> None:
    metadata = opened.metadata
    written = False
    if opened.kind is not None and not opened.was_typed("/content/type"):
        if metadata.message_type.startswith(_ACT):
            written = _write_act(opened, target, types)
        elif metadata.message_type == _REPORT:
            written = _write_report(opened, target)
    if not written:
        target.put_plain("content", write_typed(metadata.message_type, metadata.schema_version, opened.data))
        target.put_kept("tool_calls", LIST)
        target.put_kept("attachments", URIS)


def _write_act(opened: OpenedMessage, target: Target, types: Registry) -> bool:
    data = opened.data
    content, concludes = data["content"], data.get("concludes", False)
    if not says_all(data, ("content", "tool_calls", "attachments", "concludes")):
        return False
    if is_typed(content, types) or ("conclude" in content and (concludes or content["conclude"] is True)):
        # A reader would take it for something else.
        return False
    attachments = data.get("attachments")
    for index, reference in enumerate(attachments or ()):
        if not says_all(reference, ("uri",)):
            pointer = f"/data/attachments/{index}"
            raise DialectError(
                pointer, f"a reference with {', '.join(sorted(reference))}", "a reference of a uri alone"
            )
    target.put_plain("content", {**content, "conclude": True} if concludes else content)
    calls = data.get("tool_calls")
    target.put("tool_calls", LIST, calls if calls or opened.performative in _TOOL_ACTS else None)
    target.put("attachments", URIS, attachments)
    return True


def _write_report(opened: OpenedMessage, target: Target) -> bool:
    """Say an error; what only helps to read it, such as its severity, is left out."""
    data = opened.data
    details = data.get("details", {})
    if details.keys() & {"code", "message", "retry_after_seconds"}:
        return False
    code = data["error_code"]
    error_class = data.get("error_class") or lookup(code).error_class
    if code_of_class(error_class) != code.upper() and is_error_class(f"{error_class}.{code.lower()}"):
        error_class = f"{error_class}.{code.lower()}"
    target.put_kept("attachments", URIS)
    part = target.inside("content")
    part.put("code", TEXT, error_class)
    part.put("message", LONG, data["error_message"])
    part.put("retry_after_seconds", NUMBER, data.get("retry_after_s"))
    for name, value in details.items():
        part.put_plain(name, value)
    return True
