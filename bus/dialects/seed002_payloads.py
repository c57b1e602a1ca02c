"""The payloads of dialect 002, member by member. Pure.

Owns the eight kinds of message and the table of each payload. `bus.dialects.seed002` reads and writes the message
around it. Greetings, announcements and errors leave out what the format has no member for; of anything else, everything
is said, if need be as typed content.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec

from bus.dialects.data_check import Places, known_kind
from bus.dialects.faults import shown
from bus.dialects.forms import (
    FLAG,
    LIST,
    LONG,
    NUMBER,
    OBJECT,
    TEXT,
    TIME,
    Form,
    matching,
    one_of,
    time_form,
    whole,
)
from bus.dialects.keeping import Notes, Source, Target
from bus.dialects.opened_message import OpenedMessage
from bus.dialects.typed_content import is_typed, make_typed, read_typed, says_all, split_type, typed_name, write_typed
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol.timestamps import format_ms

__all__ = ["KINDS", "REGISTRY", "MessageHead", "PayloadRead", "SayingAs", "read_payload", "write_payload"]

REGISTRY: Final = "registry"
"""The agent that knows the others."""


class Kind(msgspec.Struct, frozen=True):
    """One kind of message: its type here, and whether it answers another message."""

    type: str
    answers: bool


KINDS: Final = {
    "request": Kind("method.request", answers=False),
    "response": Kind("method.response", answers=True),
    "handshake": Kind("agent.handshake", answers=False),
    "handshake_ack": Kind("agent.handshake-ack", answers=True),
    "error": Kind("error.reported", answers=True),
    "discover_agents": Kind("agent.discover", answers=False),
    "agent_announcement": Kind("agent.announcement", answers=True),
    "goodbye": Kind("agent.goodbye", answers=False),
}
_NAMES: Final = {kind.type: name for name, kind in KINDS.items()}


class MessageHead(msgspec.Struct, frozen=True):
    """What a payload takes from the message around it."""

    notes: Notes
    sender: str
    sent_ms: int
    types: Registry


class PayloadRead(msgspec.Struct, frozen=True):
    """What a payload says."""

    kind: PayloadType
    version: str
    data: dict[str, Any]
    places: Places


class SayingAs(msgspec.Struct, frozen=True):
    """The ids under which a message is said, and the types that its reader knows."""

    sender: str
    recipient: str
    types: Registry


_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]\Z")
_MOST_METHOD: Final = 128
_MOST_TEXT: Final = 500

_NOT_IN_CODES: Final = re.compile("[^A-Z0-9]+")
_KNOWN_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,62}[A-Z0-9]\Z")
_MOST_CODE: Final = 64


def _as_code(text: Any) -> str:
    """Return the code of an error that is named in any words, as the schema of a response allows."""
    said: str = LONG.read(text)
    if _KNOWN_CODE.match(said):
        return said
    derived = _NOT_IN_CODES.sub("_", said.upper()).strip("_")[:_MOST_CODE].rstrip("_")
    if not _KNOWN_CODE.match(derived):
        derived = f"ERROR_{derived}"[:_MOST_CODE].rstrip("_")
    return derived


def _as_text(text: Any) -> str:
    said: str = LONG.read(text)
    return said or "no message"


_METHOD: Final = matching("a text of 1 to 128 characters", lambda text: 0 < len(text) <= _MOST_METHOD)
_ERROR_TEXT: Final = matching("a text of 1 to 500 characters", lambda text: 0 < len(text) <= _MOST_TEXT)
_ERROR_CODE: Final = matching("an upper-case code such as RATE_LIMIT_EXCEEDED", _CODE.match)
_ANY_CODE: Final = Form(LONG.expected, _as_code, lambda code: code)
_ANY_TEXT: Final = Form(LONG.expected, _as_text, lambda text: text)
_STATUS: Final = one_of(("success", "error"))
_HEALTH: Final = one_of(("healthy", "unhealthy"))
_FILTER: Final = one_of(("healthy", "unhealthy", "all"))
_COUNT: Final = whole(0)
_RESULTS: Final = whole(1, 100)
_RETRY_AFTER: Final = Form("whole seconds, at least 0", _COUNT.read, math.ceil)
_HEARTBEAT: Final = time_form(format_ms)


def read_payload(name: str, payload: dict[str, Any], head: MessageHead) -> PayloadRead:
    """Return what the *payload* of a message of kind *name* says."""
    source = Source(payload, "/payload", head.notes)
    typed = _READ_TYPED[name](source, head) if name in _READ_TYPED else None
    if typed is not None:
        return typed
    kind = known_kind(head.types, KINDS[name].type)
    data = _READERS[name](source, head)
    source.refuse_rest()
    return PayloadRead(kind, kind.version, data, _PLACES[name])


def write_payload(opened: OpenedMessage, target: Target, saying: SayingAs) -> str:
    """Write the payload of a message; return its kind."""
    metadata = opened.metadata
    name = _NAMES.get(metadata.message_type) if opened.kind is not None else None
    was_typed = opened.was_typed("/payload/method") or opened.was_typed("/payload/data/type")
    if name is not None and not was_typed and _WRITERS[name](opened, target, saying):
        return name
    part = target.inside("payload")
    if opened.is_directive:
        method = typed_name(metadata.message_type, metadata.schema_version)
        part.put_sayable("method", _METHOD, method, "/metadata/message_type")
        part.put_plain("parameters", opened.data)
        return "request"
    part.put_plain("status", "success")
    part.put_plain("data", write_typed(metadata.message_type, metadata.schema_version, opened.data))
    return "response"


# --- typed content ----------------------------------------------------------------------------------------------------


def _read_typed_request(source: Source, head: MessageHead) -> PayloadRead | None:
    method, parameters = source.peek("method"), source.peek("parameters")
    said = split_type(method)
    if said is None or said[0] not in head.types or parameters.__class__ is not dict:
        return None
    typed = make_typed(said, parameters, head.types, "/payload/method", "/payload/parameters")
    if not typed.is_directive:
        raise DialectError("/payload/method", shown(method), f"a response, as {said[0]} is said")
    source.required("method", _METHOD)
    source.required("parameters", OBJECT)
    source.refuse_rest()
    if said[0] in _NAMES:
        head.notes.kept["/payload/method"] = typed.name
    return PayloadRead(typed.kind, typed.version, typed.data, {"": "/payload/parameters"})


def _read_typed_response(source: Source, head: MessageHead) -> PayloadRead | None:
    typed = read_typed(source.peek("data"), "/payload/data", head.types)
    if typed is None or source.peek("status") != "success":
        return None
    if typed.is_directive:
        raise DialectError("/payload/data/type", shown(typed.kind.name), "a type that is said by a response")
    source.required("status", _STATUS)
    source.required("data", OBJECT)
    source.refuse_rest()
    if typed.kind.name in _NAMES:
        head.notes.kept["/payload/data/type"] = typed.name
    return PayloadRead(typed.kind, typed.version, typed.data, {"": "/payload/data/data"})


# --- request and response ---------------------------------------------------------------------------------------------


def _read_request(source: Source, _head: MessageHead) -> dict[str, Any]:
    data: dict[str, Any] = {"method": source.required("method", _METHOD)}
    parameters = source.optional("parameters", OBJECT)
    if parameters is not None:
        data["parameters"] = parameters
    return data


def _write_request(opened: OpenedMessage, target: Target, saying: SayingAs) -> bool:
    data = opened.data
    said = split_type(data["method"])
    is_ambiguous = said is not None and said[0] in saying.types and "parameters" in data
    if not says_all(data, ("method", "parameters")) or is_ambiguous:
        return False
    part = target.inside("payload")
    part.put("method", _METHOD, data["method"])
    part.put("parameters", OBJECT, data.get("parameters"))
    return True


def _read_response(source: Source, _head: MessageHead) -> dict[str, Any]:
    data: dict[str, Any] = {"status": source.required("status", _STATUS)}
    content = source.optional("data", OBJECT)
    if content is not None:
        data["data"] = content
    error = source.optional_inside("error")
    if error is not None:
        data["error"] = {"code": error.required("code", _ANY_CODE), "message": error.required("message", _ANY_TEXT)}
        _read_extras(error, data["error"])
        error.refuse_rest()
    return data


def _read_extras(error: Source, fields: dict[str, Any]) -> None:
    """Read what an error may say besides its code and its message."""
    details = error.optional("details", OBJECT)
    if details is not None:
        fields["details"] = details
    retry_after_s = error.optional("retry_after", _RETRY_AFTER)
    if retry_after_s is not None:
        fields["retry_after_s"] = retry_after_s


def _write_response(opened: OpenedMessage, target: Target, saying: SayingAs) -> bool:
    data = opened.data
    error = data.get("error")
    if not says_all(data, ("status", "data", "error")) or is_typed(data.get("data"), saying.types):
        return False
    if error is not None and not _is_error_said(error):
        return False
    part = target.inside("payload")
    part.put("status", _STATUS, data["status"])
    part.put("data", OBJECT, data.get("data"))
    if error is not None:
        inner = part.inside("error")
        inner.put("code", _ANY_CODE, error["code"])
        inner.put("message", _ANY_TEXT, error["message"])
        inner.put("details", OBJECT, error.get("details"))
        inner.put("retry_after", _RETRY_AFTER, error.get("retry_after_s"))
    return True


def _is_error_said(error: dict[str, Any]) -> bool:
    """Tell whether all of *error* can be said: the time to wait is in whole seconds."""
    return says_all(error, ("code", "message", "details", "retry_after_s")) and error.get("retry_after_s", 0) % 1 == 0


def _read_error(source: Source, head: MessageHead) -> dict[str, Any]:
    error = source.inside("error")
    data: dict[str, Any] = {
        "error_code": error.required("code", _ERROR_CODE),
        "error_message": error.required("message", _ERROR_TEXT),
    }
    _read_extras(error, data)
    url = error.optional("documentation_url", TEXT)
    if url is not None:
        data["documentation_url"] = url
    error.refuse_rest()
    head.notes.derive(data, "source_agent", head.sender)
    head.notes.derive(data, "timestamp", format_ms(head.sent_ms))
    return data


def _write_error(opened: OpenedMessage, target: Target, _saying: SayingAs) -> bool:
    data = opened.data
    # The reasons of the bus are in lower case.
    code, text = data["error_code"].upper(), data["error_message"]
    if not _CODE.match(code):
        return False
    error = target.inside("payload").inside("error")
    error.put("code", _ERROR_CODE, code)
    error.put("message", _ERROR_TEXT, text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…")
    error.put("details", OBJECT, data.get("details"))
    error.put("retry_after", _RETRY_AFTER, data.get("retry_after_s"))
    error.put("documentation_url", TEXT, data.get("documentation_url"))
    return True


# --- greeting and leaving ---------------------------------------------------------------------------------------------

_CARD_REQUIRED: Final[dict[str, Form[Any]]] = {
    "agent_id": TEXT,
    "name": TEXT,
    "version": TEXT,
    "description": LONG,
    "capabilities": LIST,
    "supported_protocols": LIST,
}
_CARD_OPTIONAL: Final[dict[str, Form[Any]]] = {"schema_versions": LIST, "metadata": OBJECT}
_CARD_DEFAULTS: Final[dict[str, Any]] = {"description": "", "supported_protocols": ["sealbus/1"]}


def _read_card(card: Source) -> dict[str, Any]:
    data: dict[str, Any] = {name: card.required(name, form) for name, form in _CARD_REQUIRED.items()}
    for name, form in _CARD_OPTIONAL.items():
        value = card.optional(name, form)
        if value is not None:
            data[name] = value
    card.refuse_rest()
    return data


def _write_card(card: dict[str, Any], part: Target, opened: OpenedMessage, saying: SayingAs) -> None:
    own = {"agent_id": saying.sender} if card["agent_id"] == opened.metadata.sender.id else {}
    for name, form in {**_CARD_REQUIRED, **_CARD_OPTIONAL}.items():
        part.put(name, form, {**_CARD_DEFAULTS, **card, **own}.get(name))


def _read_handshake(source: Source, head: MessageHead) -> dict[str, Any]:
    part = source.inside("agent_card")
    card = _read_card(part)
    if card["agent_id"] != head.sender:
        raise part.fault("agent_id", card["agent_id"], f"{head.sender}, as in /sender_id", "schema_violation")
    return {"agent_card": card}


def _write_handshake(opened: OpenedMessage, target: Target, saying: SayingAs) -> bool:
    card = opened.data["agent_card"]
    if card["agent_id"] != opened.metadata.sender.id:
        return False
    _write_card(card, target.inside("payload").inside("agent_card"), opened, saying)
    return True


def _read_ack(source: Source, _head: MessageHead) -> dict[str, Any]:
    data: dict[str, Any] = {"accepted": source.required("accepted", FLAG)}
    card = source.optional_inside("agent_card")
    if card is not None:
        data["agent_card"] = _read_card(card)
    protocol = source.optional("protocol", TEXT)
    if protocol is not None:
        data["protocol"] = protocol
    error = source.optional_inside("error")
    if error is not None:
        data["reason_code"] = error.required("code", _ERROR_CODE)
        text = error.optional("message", TEXT)
        if text is not None:
            data["explanation"] = text
        error.refuse_rest()
    return data


def _write_ack(opened: OpenedMessage, target: Target, saying: SayingAs) -> bool:
    data = opened.data
    if "explanation" in data and "reason_code" not in data:
        return False
    part = target.inside("payload")
    part.put("accepted", FLAG, data["accepted"])
    if "agent_card" in data:
        _write_card(data["agent_card"], part.inside("agent_card"), opened, saying)
    part.put("protocol", TEXT, data.get("protocol"))
    error = part.inside("error")
    error.put("code", _ERROR_CODE, data.get("reason_code"))
    error.put("message", TEXT, data.get("explanation"))
    return True


def _read_goodbye(source: Source, head: MessageHead) -> dict[str, Any]:
    data: dict[str, Any] = {}
    reason = source.optional("reason", TEXT)
    if reason is None:
        head.notes.derive(data, "reason_code", "SHUTDOWN")
    else:
        data["reason_code"] = reason
    text = source.optional("message", TEXT)
    if text is not None:
        data["explanation"] = text
    return data


def _write_goodbye(opened: OpenedMessage, target: Target, _saying: SayingAs) -> bool:
    part = target.inside("payload")
    is_derived = opened.is_derived("/reason_code", "SHUTDOWN")
    part.put("reason", TEXT, None if is_derived else opened.data["reason_code"])
    part.put("message", TEXT, opened.data.get("explanation"))
    return True


# --- discovery --------------------------------------------------------------------------------------------------------


def _read_discover(source: Source, _head: MessageHead) -> dict[str, Any]:
    data: dict[str, Any] = {}
    capabilities = source.optional("capabilities", LIST)
    if capabilities is not None:
        data["capabilities"] = capabilities
    filters = source.optional_inside("filters")
    if filters is not None:
        data["filters"] = {}
        for name, form in _FILTERS.items():
            value = filters.optional(name, form)
            if value is not None:
                data["filters"][name] = value
        filters.refuse_rest()
    return data


_FILTERS: Final[dict[str, Form[Any]]] = {"status": _FILTER, "max_results": _RESULTS}


def _write_discover(opened: OpenedMessage, target: Target, saying: SayingAs) -> bool:
    data = opened.data
    filters = data.get("filters", {})
    if (
        saying.recipient != REGISTRY
        or not says_all(data, ("capabilities", "filters"))
        or not says_all(filters, _FILTERS)
    ):
        return False
    part = target.inside("payload")
    part.put("capabilities", LIST, data.get("capabilities"))
    inner = part.inside("filters")
    for name, form in _FILTERS.items():
        inner.put(name, form, filters.get(name))
    return True


def _read_announcement(source: Source, _head: MessageHead) -> dict[str, Any]:
    agents = []
    for item in source.items("agents"):
        agent: dict[str, Any] = {
            "agent_id": item.required("agent_id", TEXT),
            "name": item.required("name", TEXT),
            "capabilities": item.required("capabilities", LIST),
            "status": item.required("status", _HEALTH),
        }
        endpoint = item.required("endpoint", _endpoint_of(agent["agent_id"]))
        if endpoint is not None:
            agent["endpoint"] = endpoint
        seen_ms = item.optional("last_heartbeat", _HEARTBEAT)
        if seen_ms is not None:
            agent["last_heartbeat"] = format_ms(seen_ms)
        item.refuse_rest()
        agents.append(agent)
    data: dict[str, Any] = {"agents": agents, "total_count": source.required("total_count", _COUNT)}
    duration_ms = source.optional("query_time_ms", NUMBER)
    if duration_ms is not None:
        data["query_time_ms"] = duration_ms
    return data


def _write_announcement(opened: OpenedMessage, target: Target, saying: SayingAs) -> bool:
    data = opened.data
    if saying.sender != REGISTRY:
        return False
    part = target.inside("payload")
    agents = data["agents"]
    for item, agent in zip(part.items("agents", len(agents)), agents, strict=True):
        for name, form in _AGENT.items():
            item.put(name, form, agent[name])
        endpoint = agent.get("endpoint") or _kept_endpoint(opened, item, agent["agent_id"])
        item.put_plain("endpoint", endpoint)
        seen = agent.get("last_heartbeat")
        item.put("last_heartbeat", _HEARTBEAT, None if seen is None else TIME.read(seen))
    part.put("total_count", _COUNT, data["total_count"])
    part.put("query_time_ms", NUMBER, data.get("query_time_ms"))
    return True


_AGENT: Final[dict[str, Form[Any]]] = {"agent_id": TEXT, "name": TEXT, "capabilities": LIST, "status": _HEALTH}
_OWN_SCHEME: Final = "sealbus://"


def _endpoint_of(agent_id: str) -> Form[Any]:
    """Make the form of an agent's endpoint: that of an agent on a bus is none here."""
    # No namespace is known where it is read: the endpoint of an agent on a bus is kept, too.
    return Form(
        TEXT.expected,
        lambda value: None if _is_own(endpoint := TEXT.read(value), agent_id) else endpoint,
        lambda endpoint: endpoint or "",
    )


def _is_own(endpoint: str, agent_id: str) -> bool:
    """Tell whether *endpoint* is `sealbus://<namespace>/<agent id>`."""
    namespace, slash, agent = endpoint.removeprefix(_OWN_SCHEME).partition("/")
    return endpoint.startswith(_OWN_SCHEME) and bool(namespace and slash) and agent == quote(agent_id, safe="")


def _kept_endpoint(opened: OpenedMessage, item: Target, agent_id: str) -> str:
    """Return the endpoint of an agent without one."""
    kept = opened.kept.get(item.place("endpoint"))
    if isinstance(kept, str) and _is_own(kept, agent_id):
        return kept
    return f"{_OWN_SCHEME}{opened.metadata.namespace}/{quote(agent_id, safe='')}"


_READ_TYPED: Final[dict[str, Callable[[Source, MessageHead], PayloadRead | None]]] = {
    "request": _read_typed_request,
    "response": _read_typed_response,
}
_READERS: Final[dict[str, Callable[[Source, MessageHead], dict[str, Any]]]] = {
    "request": _read_request,
    "response": _read_response,
    "handshake": _read_handshake,
    "handshake_ack": _read_ack,
    "error": _read_error,
    "discover_agents": _read_discover,
    "agent_announcement": _read_announcement,
    "goodbye": _read_goodbye,
}
_WRITERS: Final[dict[str, Callable[[OpenedMessage, Target, SayingAs], bool]]] = {
    "request": _write_request,
    "response": _write_response,
    "handshake": _write_handshake,
    "handshake_ack": _write_ack,
    "error": _write_error,
    "discover_agents": _write_discover,
    "agent_announcement": _write_announcement,
    "goodbye": _write_goodbye,
}
# Fields have the names of their members, save these.
_PLACES: Final[dict[str, Places]] = {
    **{name: {"": "/payload"} for name in KINDS},
    "response": {"": "/payload", "/error/retry_after_s": "/payload/error/retry_after"},
    "handshake_ack": {
        "": "/payload",
        "/reason_code": "/payload/error/code",
        "/explanation": "/payload/error/message",
    },
    "error": {
        "": "/payload/error",
        "/error_code": "/payload/error/code",
        "/error_message": "/payload/error/message",
        "/retry_after_s": "/payload/error/retry_after",
    },
    "goodbye": {"": "/payload", "/reason_code": "/payload/reason", "/explanation": "/payload/message"},
}
