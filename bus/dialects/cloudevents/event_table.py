"""The attributes of CloudEvents 1.0, each with its form and its place in a message. Pure.

Owns the table: reading an open event, writing the attributes of a message, and comparing the attributes of a wrapped
event with the message in it. `bus.dialects.cloudevents.modes` owns the modes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, get_args
from urllib.parse import quote, unquote

from bus.dialects.carried_message import foreign_of, open_carried
from bus.dialects.data_check import Locations, check_data, default_lifetime_ms, kind_of
from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import NONE, Defaults, Foreign
from bus.dialects.forms import MESSAGE_ID, NAME, OBJECT, TEXT, TIME, Form, UnfitValueError, matching, same, whole_number
from bus.dialects.keeping import ABSENT, ANYTHING, MARK, Source, Target
from bus.dialects.member_table import Kept, MemberRow, MemberTable, MessageFacts, Optional, Required
from bus.dialects.message_facts import OpenedMessage, begin_reading, foreign_that_says, open_message, opened_facts
from bus.dialects.type_names import TypeNames
from bus.errors import DialectError
from bus.payloads.payload_types import Registry
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.protocol.envelope import Agent, Security
from bus.protocol.identifiers import is_message_id, is_namespace, is_schema_version
from bus.protocol.sealing import Message
from bus.vocabulary.forms import Level

DIALECT: Final = "cloudevents"
WRAPPED: Final = "application/vnd.sealbus.v1"
"""The content type of a sealed message: data are the exact value of its record. With `+json` at its end every SDK would
read the JSON and write it again in a form of its own.
"""
JSON: Final = "application/json"
Source_: TypeAlias = tuple[str | None, str]
"""A namespace, if it is one of sealbus, and the id of an agent in it."""

_SCHEME: Final = "sealbus://"
_SCHEMA: Final = "urn:sealbus:schema:"
_ROLE: Final = "role:"
_EXTENSION: Final = re.compile(r"[a-z0-9]{1,64}\Z")
_LEVELS: Final = frozenset(get_args(Level))
NUMBERS: Final = ("sbpriority", "sbhops")
"""The attributes that are integers; in headers they are text."""
_DECIMAL: Final = re.compile(r"(?:0|[1-9][0-9]{0,15})\Z")
_LOCATIONS: Final[Locations] = {"": "/data"}


# --- forms ------------------------------------------------------------------------------------------------------------


def _read_source(value: Any) -> Source_:
    text = TEXT.read(value)
    namespace, slash, agent = text.removeprefix(_SCHEME).partition("/")
    if text.startswith(_SCHEME) and slash and is_namespace(namespace):
        return namespace, NAME.read(unquoted(agent))
    return None, NAME.read(text)


def unquoted(text: str) -> str:
    """Percent-decode *text*; raise UnfitValueError if the bytes are not UTF-8."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise UnfitValueError from None


def _write_source(source: Source_) -> str:
    namespace, agent = source
    return agent if namespace is None else f"{_SCHEME}{namespace}/{quote(agent, safe='')}"


def _read_subject(value: Any) -> Agent:
    text = NAME.read(value)
    return Agent(role=NAME.read(text.removeprefix(_ROLE))) if text.startswith(_ROLE) else Agent(id=text)


def _write_subject(recipient: Agent) -> str | None:
    return recipient.id if recipient.id is not None else f"{_ROLE}{recipient.role}"


def _is_sequence(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= 16 and int(text) <= SAFE_INTEGER  # noqa: PLR2004


def is_extension(name: str, value: Any) -> bool:
    """Tell whether *name* can be an extension attribute of this value; null is none."""
    return _EXTENSION.match(name) is not None and (
        value is None or value.__class__ in (str, bool) or (value.__class__ is int and abs(value) < _MAX_INTEGER)
    )


_MAX_INTEGER: Final = 2**31
_INTEGER: Final = whole_number(1 - _MAX_INTEGER, _MAX_INTEGER - 1)
_NO_TYPES: Final = Registry()
_SPEC: Final = matching("1.0", "1.0".__eq__)
_SOURCE: Final = Form("a URI reference of at most 256 characters", _read_source, _write_source)
_SUBJECT: Final = Form("an agent id or role:<role>", _read_subject, _write_subject)
_SEQUENCE: Final = Form("a decimal number in text", int, str, fits=matching("", _is_sequence).accepts)
CONTENT_TYPE: Final = Form(
    f"{JSON} or {WRAPPED}",
    lambda _value: JSON,
    same,
    fits=lambda value: TEXT.read(value).partition(";")[0].strip().lower() == JSON,
)
_EXTENSION_VALUE: Final = Form[Any](
    "a text, an integer or a boolean", fits=lambda value: value.__class__ in (str, bool) or _INTEGER.accepts(value)
)


def _schema_form(facts: MessageFacts) -> Form[str]:
    """Make the form of a schema's URN, read to the version."""
    beginning = f"{_SCHEMA}{facts['message_type']}:"

    def read(value: Any) -> str:
        text = TEXT.read(value)
        version = text.removeprefix(beginning)
        if version == text or not is_schema_version(version):
            raise UnfitValueError
        return version

    return Form(f"{beginning}<x.y.z>", read, lambda version: f"{beginning}{version}")


def _type_form(facts: MessageFacts) -> Form[str]:
    """Make the form of types, which foreign systems may name otherwise."""
    names: TypeNames = facts["type_names"]
    return Form("a message type", lambda value: names.read(TEXT.read(value)), names.written)


# --- the attributes ---------------------------------------------------------------------------------------------------


class _EventSender(MemberRow):
    """The row for the sender and its namespace. A foreign sender is written without a namespace."""

    name, form = "source", _SOURCE

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        if not source.has(self.name) and facts["defaults"].sender is not None:
            source.note_absent(self.name)
            data["sender"] = facts["defaults"].sender
            return
        data["namespace"], agent = source.required(self.name, _SOURCE)
        data["sender"] = Agent(id=agent)
        if data["namespace"] is None:
            # The namespace it is sealed in is not known here, and would be written.
            source.notes.kept["/source"] = agent

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        kept, agent = facts["kept"].get("/source"), data["sender_id"] or ""
        is_foreign = kept == agent and _SOURCE.reads(kept) == (None, agent)
        target.put(self.name, _SOURCE, (None if is_foreign else data["namespace"], agent), absent=ANYTHING)


_KNOWN: Final = "a type that is known here: of an app (--app), or mapped to one in the setting dialects.type_names"


class _EventType(Required):
    """The type, of which *facts* gets the newest version that is known here."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        stated = source.peek(self.name)
        super().read(source, data, facts)
        newest = facts["types"].get(data[self.field])
        if newest is None:
            raise source.fault(self.name, stated, _KNOWN, "unknown_type")
        facts["newest"] = newest.version


class _EventEnd(Optional):
    """The end of its life; absent for that of its type."""

    def read(self, source: Source, data: MessageFacts, facts: MessageFacts) -> None:
        super().read(source, data, facts)
        expires_ms, sent_ms = data.get(self.field), data.get("sent_at_ms")
        if expires_ms is None:
            source.notes.kept.setdefault("/expirytime", ABSENT)
        elif sent_ms is not None and expires_ms <= sent_ms:
            raise source.fault(self.name, facts["tree"][self.name], "a time after that in /time")


class _EventCause(Kept):
    """The cause. It is kept, because only an ingress can find the message."""

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:  # noqa: ARG002
        target.put(self.name, MESSAGE_ID, data["cause_id"])


class _EventClaim(Kept):
    """A row for a claim of the sender; encoding writes the sealed value instead."""

    def write(self, target: Target, data: Mapping[str, Any], facts: MessageFacts) -> None:
        if data[self.field]:
            target.put(self.name, self.form_for(facts), data[self.field])
        else:
            super().write(target, data, facts)


def _message_id(facts: MessageFacts) -> Any:
    return facts["message_id"]


def _conversation_id(facts: MessageFacts) -> Any:
    return facts["conversation_id"]


_HEAD: Final = MemberTable(
    Required("specversion", _SPEC),
    Required("id", MESSAGE_ID, "message_id", default="message_id"),
    _EventSender(),
    _EventType("type", _type_form, "message_type"),
    Optional("dataschema", _schema_form, "schema_version", absent=lambda facts: facts["newest"]),
)
_REST: Final = MemberTable(
    Optional("time", TIME, "sent_at_ms", absent=lambda facts: facts["defaults"].sent_at_ms, noted=True),
    _EventEnd("expirytime", TIME, "expires_at_ms", absent=lambda facts: facts["absent_end"]),
    Optional("sbconversation", NAME, "conversation_id", absent=_message_id, omit=lambda facts: (facts["message_id"],)),
    Optional("partitionkey", NAME, "partition", absent=_conversation_id),
    _EventCause("causationid", MESSAGE_ID, "cause_id"),
    Optional("subject", _SUBJECT, "to"),
    Optional("sbkey", NAME, "idempotency_key"),
    Optional("sbpriority", whole_number(0, 9), "priority"),
    Optional("correlationid", NAME, "correlation_id", absent=lambda facts: facts.get("cause_id")),
    Optional("sbtask", NAME, "task_id", absent=lambda facts: facts["own_task"]),
    Optional("sequence", _SEQUENCE),
    Optional("dataclassification", TEXT, "classification"),
    Optional("traceparent", TEXT),
    Optional("tracestate", TEXT),
    _EventClaim("sbtrust", TEXT, "trust_level"),
    _EventClaim("sbhops", whole_number(0), "hops"),
)


# --- an open event ----------------------------------------------------------------------------------------------------


def read_open(tree: dict[str, Any], defaults: Defaults, types: Registry, names: TypeNames) -> Foreign:
    """Decode the open event in *tree*; raise DialectError if it is invalid."""
    source, facts = begin_reading(tree, defaults, types, nulls=True)
    facts |= {"type_names": names, "absent_end": None}
    if tree.get("specversion", MISSING) != "1.0":
        raise source.fault("specversion", tree.get("specversion", MISSING), "1.0", "unsupported_version")
    _HEAD.read(source, facts, facts)
    name, version = facts["message_type"], facts["schema_version"]
    kind = kind_of(types, name, version)
    if kind is None:
        raise source.fault("dataschema", version, f"a version of {name} that is known here", "unsupported_version")
    source.optional("datacontenttype", CONTENT_TYPE, absent=JSON)
    facts["own_task"] = facts["message_id"] if "task_id" in kind.terms.required_options else None
    _REST.read(source, facts, facts)
    if facts["partition"] != facts["conversation_id"]:
        facts["key"] = facts["partition"]
    if (classification := facts.get("classification")) is not None:
        facts["security"] = Security(data_classification=classification)
    level = facts.get("trust_level")
    facts["trust_level"] = level if level is None or level in _LEVELS else "model_generated"
    data = _read_data(source)
    for extension in source.names():
        if not _EXTENSION.match(extension):
            raise source.fault(extension, source.peek(extension), "an attribute of lower-case letters and digits")
        source.keep(extension, _EXTENSION_VALUE)
    check_data(kind, source.notes.marked(data, DIALECT), _LOCATIONS, tree)
    return foreign_that_says(facts, kind.name, version, data)


def _read_data(source: Source) -> dict[str, Any]:
    if source.has("data_base64"):
        raise source.fault("data_base64", source.peek("data_base64"), f"data, or {WRAPPED} as datacontenttype")
    if source.has("dataref") and not source.peek("data"):
        raise source.fault("dataref", source.peek("dataref"), "data, which refer to what is large")
    data: dict[str, Any] = source.required("data", OBJECT)
    if MARK in data:
        raise DialectError(f"/data/{MARK}", shown(data[MARK]), "no such member: it is the dialects' own")
    return dict(data)


def write_attributes(opened: OpenedMessage, target: Target, aliases: Mapping[str, str], names: TypeNames) -> None:
    """Write every attribute but the content type and the data."""
    facts = opened_facts(opened, aliases)
    security, recipient = facts["security"] or Security(), facts["recipient"]
    expires_ms = opened.sent_ms + opened.lifetime_ms
    is_default = opened.kind is not None and opened.lifetime_ms == default_lifetime_ms(opened.kind)
    kept_cause = opened.kept.get("/causationid")
    kept_cause = kept_cause if isinstance(kept_cause, str) and is_message_id(kept_cause) else None
    facts |= {
        "specversion": "1.0",
        "type_names": names,
        "newest": opened.kind.version if opened.kind is not None else MISSING,
        "expires_at_ms": expires_ms,
        "absent_end": expires_ms if is_default else MISSING,
        "partition": facts["key"] or facts["conversation_id"],
        "cause_id": facts["causation_id"] or kept_cause,
        "to": recipient,
        "own_task": facts["message_id"],
        "classification": security.data_classification,
        "trust_level": security.trust_level,
        "defaults": NONE,
    }
    if "/type" not in opened.kept and names.read(names.written(facts["message_type"])) != facts["message_type"]:
        raise DialectError(
            "/metadata/message_type",
            shown(facts["message_type"]),
            "a type whose name is not read as another one (dialects.type_names, dialects.type_prefixes)",
        )
    _HEAD.write(target, facts, facts)
    if recipient is not None and (recipient.id or "").startswith(_ROLE):
        raise DialectError("/metadata/recipient/id", shown(recipient.id), f"an id that is no {_ROLE}...")
    _REST.write(target, facts, facts)


# --- a wrapped message ------------------------------------------------------------------------------------------------


def hints(message: Message, names: TypeNames) -> dict[str, Any]:
    """Return the attributes beside a wrapped message."""
    target = Target({})
    write_attributes(open_message(message, "", _NO_TYPES), target, {}, names)
    return target.finish()


def unwrap(tree: Mapping[str, Any], value: bytes, pointer: str, names: TypeNames) -> Foreign:
    """Return the message that the event wraps as *value* at *pointer*.

    Raises DialectError for an attribute that contradicts the message. Its reason, `x_sealbus_mismatch`, never occurs in
    dead letters: see `bus.dialects.carried_message.check_same`.
    """
    message = open_carried(value, pointer)
    stated, facts = hints(message, names), {"message_type": message.message_type, "type_names": names}
    for name in ("specversion", "id", "source", "type"):
        if tree.get(name) is None:
            raise DialectError(f"/{name}", shown(tree.get(name, MISSING)), "an event's required attribute")
    for row in (*_HEAD.rows, *_REST.rows):
        provided = tree.get(row.name)
        if provided is None:
            continue
        form = row.form_for(facts)
        expected_value = form.reads(stated.get(row.name))
        found = [form.reads(spelling) for spelling in _spellings(row.name, provided)]
        if expected_value is MISSING or expected_value not in found:
            expected = f"{stated.get(row.name, 'no such attribute')}, as in the sealed message"
            raise DialectError(f"/{row.name}", shown(provided), expected, "x_sealbus_mismatch")
    return foreign_of(message)


def _spellings(name: str, provided: Any) -> Iterator[Any]:
    """Yield *provided*, and what stands in its place where a relay takes an event out of headers of HTTP as it is."""
    yield provided
    if provided.__class__ is not str:
        return
    if name in NUMBERS and _DECIMAL.match(provided):
        yield int(provided)
    elif "%" in provided:
        with contextlib.suppress(UnfitValueError):
            yield unquoted(provided)
