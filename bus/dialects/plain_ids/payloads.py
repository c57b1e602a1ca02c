"""The payloads of dialect `plain-ids`, one table for each kind of message. Pure.

Owns the eight kinds. Greetings, announcements and errors leave out fields for which the format has no member. All other
kinds are written completely, if necessary as typed content.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from bus.dialects.data_check import known_kind
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
    same,
    time_form,
    whole_number,
)
from bus.dialects.keeping import Source, Target
from bus.dialects.member_table import (
    REFUSED,
    Derived,
    Inside,
    Items,
    MemberRow,
    MemberTable,
    MessageFacts,
    Optional,
    Required,
)
from bus.dialects.typed_content import is_typed, make_typed, read_typed, split_type, states_all, typed_name, write_typed
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType
from bus.protocol.timestamps import format_ms

__all__ = ["ANSWERING", "KINDS_OF_PLAIN_IDS", "REGISTRY", "read_plain", "write_plain"]

REGISTRY: Final = "registry"
"""The agent that knows the others."""
KINDS_OF_PLAIN_IDS: Final = {
    "request": "method.request",
    "response": "method.response",
    "handshake": "agent.handshake",
    "handshake_ack": "agent.handshake-ack",
    "error": "error.reported",
    "discover_agents": "agent.discover",
    "agent_announcement": "agent.announcement",
    "goodbye": "agent.goodbye",
}
ANSWERING: Final = frozenset({"response", "handshake_ack", "error", "agent_announcement"})
"""The kinds that answer another message."""
_NAMES: Final = {kind: name for name, kind in KINDS_OF_PLAIN_IDS.items()}
_OWN_SCHEME: Final = "sealbus://"
_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]\Z")
_KNOWN_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,62}[A-Z0-9]\Z")
_NOT_IN_CODES: Final = re.compile("[^A-Z0-9]+")
_MAX_METHOD, _MAX_TEXT, _MAX_CODE = 128, 500, 64
PayloadRead: TypeAlias = tuple[PayloadType, str, dict[str, Any], Mapping[str, str]]
"""Type, version, data and places."""


# --- forms ------------------------------------------------------------------------------------------------------------


def _as_code(text: Any) -> str:
    """Return the code of an error that is named in any words, as the schema of a response allows."""
    facts: str = LONG.read(text)
    if _KNOWN_CODE.match(facts):
        return facts
    derived = _NOT_IN_CODES.sub("_", facts.upper()).strip("_")[:_MAX_CODE].rstrip("_")
    return derived if _KNOWN_CODE.match(derived) else f"ERROR_{derived}"[:_MAX_CODE].rstrip("_")


_METHOD: Final = matching("a text of 1 to 128 characters", lambda text: 0 < len(text) <= _MAX_METHOD)
_ERROR_TEXT: Final = matching("a text of 1 to 500 characters", lambda text: 0 < len(text) <= _MAX_TEXT)
_ERROR_CODE: Final = matching("an upper-case code such as RATE_LIMIT_EXCEEDED", _CODE.match)
_ANY_CODE: Final = Form(LONG.expected, _as_code, same)
_ANY_TEXT: Final = Form(LONG.expected, lambda text: LONG.read(text) or "no message", same)
_HEALTH: Final = one_of(("healthy", "unhealthy"))
_COUNT: Final = whole_number(0)
_RETRY_AFTER: Final = Form("whole seconds, at least 0", _COUNT.read, math.ceil)
_SEEN_MS: Final = time_form(format_ms)
_SEEN: Final = Form(_SEEN_MS.expected, lambda value: format_ms(_SEEN_MS.read(value)), same)


# --- tables -----------------------------------------------------------------------------------------------------------


class _EndpointRow(MemberRow):
    """The endpoint of an agent; the endpoint of an agent on a bus, `sealbus://<namespace>/<agent id>`, has no field of
    ours.

    The namespace is unknown while reading, so such an endpoint is kept.
    """

    name = field = "endpoint"

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:  # noqa: ARG002
        endpoint = source.required(self.name, TEXT)
        if _is_own(endpoint, data["agent_id"]):
            source.notes.kept[source.location(self.name)] = endpoint
        else:
            data[self.field] = endpoint

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        kept, agent_id = facts["opened"].kept.get(target.location(self.name)), data["agent_id"]
        own = f"{_OWN_SCHEME}{facts['namespace']}/{quote(agent_id, safe='')}"
        own = kept if isinstance(kept, str) and _is_own(kept, agent_id) else own
        target.put_plain(self.name, data.get(self.field) or own)


def _is_own(endpoint: str, agent_id: str) -> bool:
    namespace, slash, agent = endpoint.removeprefix(_OWN_SCHEME).partition("/")
    return endpoint.startswith(_OWN_SCHEME) and bool(namespace and slash) and agent == quote(agent_id, safe="")


class _OwnCard(Inside):
    """The card of who sends it."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        super().read(source, data, facts)
        agent_id, sender = data[self.field]["agent_id"], facts["sender"].id
        if agent_id != sender:
            expected = f"{sender}, as in /sender_id"
            raise DialectError("/payload/agent_card/agent_id", shown(agent_id), expected, "schema_violation")


_EXTRAS: Final = (Optional("details", OBJECT), Optional("retry_after", _RETRY_AFTER, "retry_after_s"))
_ERROR: Final = MemberTable(Required("code", _ANY_CODE), Required("message", _ANY_TEXT), *_EXTRAS, REFUSED)
_CARD: Final = MemberTable(
    *(Required(name, TEXT) for name in ("agent_id", "name", "version")),
    Required("description", LONG),
    Required("capabilities", LIST),
    Required("supported_protocols", LIST),
    Optional("schema_versions", LIST),
    Optional("metadata", OBJECT),
    REFUSED,
)
_FILTERS: Final = MemberTable(
    Optional("status", one_of(("healthy", "unhealthy", "all"))), Optional("max_results", whole_number(1, 100)), REFUSED
)
_AGENT: Final = MemberTable(
    Required("agent_id", TEXT),
    Required("name", TEXT),
    Required("capabilities", LIST),
    Required("status", _HEALTH),
    _EndpointRow(),
    Optional("last_heartbeat", _SEEN),
    REFUSED,
)
_TABLES: Final = {
    "request": MemberTable(Required("method", _METHOD), Optional("parameters", OBJECT), REFUSED),
    "response": MemberTable(
        Required("status", one_of(("success", "error"))),
        Optional("data", OBJECT),
        Inside("error", _ERROR, "error", optional=True),
        REFUSED,
    ),
    "handshake": MemberTable(_OwnCard("agent_card", _CARD, "agent_card"), REFUSED),
    "handshake_ack": MemberTable(
        Required("accepted", FLAG),
        Inside("agent_card", _CARD, "agent_card", optional=True),
        Optional("protocol", TEXT),
        Inside(
            "error",
            MemberTable(
                Required("code", _ERROR_CODE, "reason_code"), Optional("message", TEXT, "explanation"), REFUSED
            ),
            optional=True,
        ),
        REFUSED,
    ),
    "error": MemberTable(
        Inside(
            "error",
            MemberTable(
                Required("code", _ERROR_CODE, "error_code"),
                Required("message", _ERROR_TEXT, "error_message"),
                *_EXTRAS,
                Optional("documentation_url", TEXT),
                REFUSED,
            ),
        ),
        Derived("source_agent", lambda facts, _data: facts["sender"].id or ""),
        Derived("timestamp", lambda facts, _data: format_ms(facts["sent_at_ms"])),
        REFUSED,
    ),
    "discover_agents": MemberTable(
        Optional("capabilities", LIST), Inside("filters", _FILTERS, "filters", optional=True), REFUSED
    ),
    "agent_announcement": MemberTable(
        Items("agents", _AGENT), Required("total_count", _COUNT), Optional("query_time_ms", NUMBER), REFUSED
    ),
    "goodbye": MemberTable(
        Optional("reason", TEXT, "reason_code", derive=lambda _stated, _data: "SHUTDOWN"),
        Optional("message", TEXT, "explanation"),
        REFUSED,
    ),
}


# --- reading ----------------------------------------------------------------------------------------------------------


def read_plain(payload: dict[str, Any], facts: MessageFacts) -> PayloadRead:
    """Return the data of the *payload* of a message."""
    name = facts["kind"]
    source = Source(payload, "/payload", facts["notes"])
    typed = _READ_TYPED[name](source, facts) if name in _READ_TYPED else None
    if typed is not None:
        return typed
    kind = known_kind(facts["types"], KINDS_OF_PLAIN_IDS[name])
    data = _TABLES[name].read(source, {}, facts)
    return kind, kind.version, data, _TABLES[name].locations("/payload")


def _read_typed_request(source: Source, facts: MessageFacts) -> PayloadRead | None:
    method, parameters, types = source.peek("method"), source.peek("parameters"), facts["types"]
    split = split_type(method)
    if split is None or split[0] not in types or parameters.__class__ is not dict:
        return None
    typed = make_typed(split, parameters, types, "/payload/method", "/payload/parameters")
    if not typed.is_directive:
        raise DialectError("/payload/method", shown(method), f"a response, as {split[0]} is said")
    _TABLES["request"].read(source, {}, facts)
    if split[0] in _NAMES:
        source.notes.kept["/payload/method"] = typed.name
    return typed.kind, typed.version, typed.data, {"": "/payload/parameters"}


def _read_typed_response(source: Source, facts: MessageFacts) -> PayloadRead | None:
    typed = read_typed(source.peek("data"), "/payload/data", facts["types"])
    if typed is None or source.peek("status") != "success":
        return None
    if typed.is_directive:
        raise DialectError("/payload/data/type", shown(typed.kind.name), "a type that is said by a response")
    source.required("status", TEXT)
    source.required("data", OBJECT)
    source.refuse_rest()
    if typed.kind.name in _NAMES:
        source.notes.kept["/payload/data/type"] = typed.name
    return typed.kind, typed.version, typed.data, {"": "/payload/data/data"}


_READ_TYPED: Final = {"request": _read_typed_request, "response": _read_typed_response}


# --- writing ----------------------------------------------------------------------------------------------------------


def write_plain(target: Target, facts: MessageFacts) -> str:
    """Write the payload of a message; return its kind."""
    opened = facts["opened"]
    name = _NAMES.get(opened.metadata.message_type) if opened.kind is not None else None
    was_typed = opened.was_typed("/payload/method") or opened.was_typed("/payload/data/type")
    data = _SAYABLE[name](opened.data, facts) if name is not None and not was_typed else None
    part = target.inside("payload")
    if name is not None and data is not None:
        _TABLES[name].write(part, data, facts)
        return name
    if opened.is_directive:
        method = typed_name(facts["message_type"], facts["schema_version"])
        part.put_sayable("method", _METHOD, method, "/metadata/message_type")
        part.put_plain("parameters", opened.data)
        return "request"
    part.put_plain("status", "success")
    part.put_plain("data", write_typed(facts["message_type"], facts["schema_version"], opened.data))
    return "response"


# Each returns the data to say by the table; None: typed content does.


def _sayable_request(data: MessageFacts, facts: MessageFacts) -> MessageFacts | None:
    split = split_type(data["method"])
    is_ambiguous = split is not None and split[0] in facts["types"] and "parameters" in data
    return data if _TABLES["request"].says_all(data) and not is_ambiguous else None


def _sayable_response(data: MessageFacts, facts: MessageFacts) -> MessageFacts | None:
    error = data.get("error") or {}
    # The time to wait is in whole seconds.
    is_stated = _ERROR.says_all(error) and (error.get("retry_after_s") or 0) % 1 == 0
    is_stated = is_stated and _TABLES["response"].says_all(data) and not is_typed(data.get("data"), facts["types"])
    return data if is_stated else None


def _sayable_error(data: MessageFacts, _stated: MessageFacts) -> MessageFacts | None:
    # The reasons of the bus are in lower case.
    code, text = data["error_code"].upper(), data["error_message"]
    text = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
    return {**data, "error_code": code, "error_message": text} if _CODE.match(code) else None


def _card_to_say(card: MessageFacts, facts: MessageFacts) -> MessageFacts:
    own = {"agent_id": facts["sender_id"]} if card["agent_id"] == facts["sender"].id else {}
    return {"description": "", "supported_protocols": ["sealbus/1"], **card, **own}


def _sayable_handshake(data: MessageFacts, facts: MessageFacts) -> MessageFacts | None:
    card = data["agent_card"]
    return {"agent_card": _card_to_say(card, facts)} if card["agent_id"] == facts["sender"].id else None


def _sayable_ack(data: MessageFacts, facts: MessageFacts) -> MessageFacts | None:
    if "explanation" in data and "reason_code" not in data:
        return None
    card = data.get("agent_card")
    return data if card is None else {**data, "agent_card": _card_to_say(card, facts)}


def _sayable_discover(data: MessageFacts, facts: MessageFacts) -> MessageFacts | None:
    is_stated = _TABLES["discover_agents"].says_all(data) and states_all(data.get("filters") or {}, _FILTERS.fields)
    return data if is_stated and facts["to_id"] == REGISTRY else None


def _sayable_announcement(data: MessageFacts, facts: MessageFacts) -> MessageFacts | None:
    if facts["sender_id"] != REGISTRY:
        return None
    return {**data, "agents": [_with_plain_time(agent) for agent in data["agents"]]}


def _with_plain_time(agent: MessageFacts) -> MessageFacts:
    seen = agent.get("last_heartbeat")
    return agent if seen is None else {**agent, "last_heartbeat": format_ms(TIME.read(seen))}


_SAYABLE: Final[Mapping[str, Callable[[MessageFacts, MessageFacts], MessageFacts | None]]] = {
    "request": _sayable_request,
    "response": _sayable_response,
    "handshake": _sayable_handshake,
    "handshake_ack": _sayable_ack,
    "error": _sayable_error,
    "discover_agents": _sayable_discover,
    "agent_announcement": _sayable_announcement,
    "goodbye": lambda data, _stated: data,
}
