"""The attributes of CloudEvents 1.0, each with its form and its place in a message. Pure.

Owns the table: reading an open event, writing the attributes of a message, and comparing the attributes of a wrapped
event with the message in it. `bus.dialects.cloudevents.modes` owns the modes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias, get_args
from urllib.parse import quote, unquote

from bus.dialects.carried_message import foreign_of, open_carried
from bus.dialects.data_check import Places, check_data, default_lifetime_ms, kind_of
from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import Claims, Defaults, Foreign, ForeignOptions
from bus.dialects.forms import MESSAGE_ID, NAME, OBJECT, TEXT, TIME, Form, UnfitValueError, matching, whole
from bus.dialects.keeping import ABSENT, ANYTHING, ANYTHING_OR_NULL, MARK, Notes, Source, Target
from bus.dialects.opened_message import OpenedMessage, open_message
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.protocol.envelope import Agent, Security
from bus.protocol.identifiers import is_message_id, is_namespace, is_schema_version
from bus.protocol.sealing import Message
from bus.vocabulary.forms import Level

__all__ = [
    "CONTENT_TYPE",
    "DIALECT",
    "JSON",
    "NUMBERS",
    "WRAPPED",
    "hints",
    "is_extension",
    "read_open",
    "unquoted",
    "unwrap",
    "write_attributes",
]

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
_PLACES: Final[Places] = {"": "/data"}


# --- forms ------------------------------------------------------------------------------------------------------------


def _read_source(value: Any) -> Source_:
    text = TEXT.read(value)
    namespace, slash, agent = text.removeprefix(_SCHEME).partition("/")
    if text.startswith(_SCHEME) and slash and is_namespace(namespace):
        return namespace, NAME.read(unquoted(agent))
    return None, NAME.read(text)


def unquoted(text: str) -> str:
    """Return percent-encoded *text* decoded; raise UnfitValueError for what is no UTF-8."""
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


def _read_sequence(value: Any) -> int:
    if value.__class__ is not str or not value.isdecimal() or not value.isascii() or len(value) > 16:  # noqa: PLR2004
        raise UnfitValueError
    number = int(value)
    if number > SAFE_INTEGER:
        raise UnfitValueError
    return number


def _read_content_type(value: Any) -> str:
    media_type = TEXT.read(value).partition(";")[0].strip().lower()
    if media_type != JSON:
        raise UnfitValueError
    return media_type


def _read_extension(value: Any) -> Any:
    if value.__class__ in (str, bool):
        return value
    return _INTEGER.read(value)


def is_extension(name: str, value: Any) -> bool:
    """Tell whether *name* can be an extension attribute of this value; null is none."""
    return _EXTENSION.match(name) is not None and (
        value is None or value.__class__ in (str, bool) or (value.__class__ is int and abs(value) < _MOST_INTEGER)
    )


_MOST_INTEGER: Final = 2**31
_INTEGER: Final = whole(1 - _MOST_INTEGER, _MOST_INTEGER - 1)
_SPEC: Final = matching("1.0", "1.0".__eq__)
_SOURCE: Final = Form("a URI reference of at most 256 characters", _read_source, _write_source)
_SUBJECT: Final = Form("an agent id or role:<role>", _read_subject, _write_subject)
_SEQUENCE: Final = Form("a decimal number in text", _read_sequence, str)
CONTENT_TYPE: Final = Form(f"{JSON} or {WRAPPED}", _read_content_type, lambda media_type: media_type)
_EXTENSION_VALUE: Final = Form("a text, an integer or a boolean", _read_extension)
_PRIORITY: Final = whole(0, 9)
_HOPS: Final = whole(0)


def _schema_form(kind: str) -> Form[str]:
    """Make the form of a schema's URN, read to the version."""
    beginning = f"{_SCHEMA}{kind}:"

    def read(value: Any) -> str:
        text = TEXT.read(value)
        version = text.removeprefix(beginning)
        if version == text or not is_schema_version(version):
            raise UnfitValueError
        return version

    return Form(f"{beginning}<x.y.z>", read, lambda version: f"{beginning}{version}")


def _type_form(prefixes: Collection[str]) -> Form[str]:
    """Make the form of types, from which one of *prefixes* is taken off."""

    def read(value: Any) -> str:
        text = TEXT.read(value)
        return text.removeprefix(next((prefix for prefix in prefixes if text.startswith(prefix)), ""))

    return Form("a message type", read, lambda name: name)


# --- an open event ----------------------------------------------------------------------------------------------------


def read_open(tree: dict[str, Any], defaults: Defaults, types: Registry, prefixes: Collection[str]) -> Foreign:
    """Return what the open event in *tree* says; raise DialectError."""
    notes = Notes()
    source = Source(tree, "", notes, nulls=True)
    if tree.get("specversion", MISSING) != "1.0":
        raise source.fault("specversion", tree.get("specversion", MISSING), "1.0", "unsupported_version")
    source.required("specversion", _SPEC)
    message_id = source.required("id", MESSAGE_ID, defaults.message_id)
    sender, namespace = _read_sender(source, defaults)
    kind, version = _read_type(source, types, prefixes)
    source.optional("datacontenttype", CONTENT_TYPE, absent=JSON)
    sent_ms = source.optional("time", TIME, absent=defaults.sent_at_ms)
    if "time" not in tree:
        notes.absent("/time")
    expires_ms = source.optional("expirytime", TIME)
    if expires_ms is None:
        notes.kept.setdefault("/expirytime", ABSENT)
    elif sent_ms is not None and expires_ms <= sent_ms:
        raise source.fault("expirytime", tree["expirytime"], "a time after that in /time")
    conversation_id = source.optional("sbconversation", NAME, absent=message_id, omit=(message_id,))
    key = source.optional("partitionkey", NAME, absent=conversation_id)
    cause_id = source.keep("causationid", MESSAGE_ID)
    own_task = message_id if "task_id" in kind.terms.needs else None
    options = ForeignOptions(
        message_id=message_id,
        to=source.optional("subject", _SUBJECT),
        key=key if key != conversation_id else None,
        expires_at_ms=expires_ms,
        idempotency_key=source.optional("sbkey", NAME),
        priority=source.optional("sbpriority", _PRIORITY),
        conversation_id=conversation_id,
        correlation_id=source.optional("correlationid", NAME, absent=cause_id),
        task_id=source.optional("sbtask", NAME, absent=own_task),
        sequence=source.optional("sequence", _SEQUENCE),
        security=_read_security(source),
        traceparent=source.optional("traceparent", TEXT),
        tracestate=source.optional("tracestate", TEXT),
    )
    level = source.keep("sbtrust", TEXT)
    source.keep("sbhops", _HOPS)
    data = _read_data(source)
    _keep_extensions(source)
    check_data(kind, notes.marked(data, DIALECT), _PLACES, tree)
    return Foreign(
        type=kind.name,
        version=version,
        data=data,
        options=options,
        claims=Claims(
            sender=sender,
            namespace=namespace,
            sent_at_ms=sent_ms,
            cause_id=cause_id,
            trust_level=level if level is None or level in _LEVELS else "model_generated",
        ),
    )


def _read_sender(source: Source, defaults: Defaults) -> tuple[Agent, str | None]:
    if not source.has("source") and defaults.sender is not None:
        source.default_inside("source")
        return defaults.sender, None
    namespace, agent = source.required("source", _SOURCE)
    if namespace is None:
        # The namespace it is sealed in is not known here, and would be written.
        source.notes.kept["/source"] = agent
    return Agent(id=agent), namespace


def _read_type(source: Source, types: Registry, prefixes: Collection[str]) -> tuple[PayloadType, str]:
    said = source.peek("type")
    name = source.required("type", _type_form(prefixes))
    newest = types.get(name)
    if newest is None:
        raise source.fault("type", said, "a type that is known here", "unknown_type")
    version = source.optional("dataschema", _schema_form(name), absent=newest.version)
    kind = kind_of(types, name, version)
    if kind is None:
        raise source.fault("dataschema", version, f"a version of {name} that is known here", "unsupported_version")
    return kind, version


def _read_security(source: Source) -> Security | None:
    classification = source.optional("dataclassification", TEXT)
    return None if classification is None else Security(data_classification=classification)


def _read_data(source: Source) -> dict[str, Any]:
    if source.has("data_base64"):
        raise source.fault("data_base64", source.peek("data_base64"), f"data, or {WRAPPED} as datacontenttype")
    if source.has("dataref") and not source.peek("data"):
        raise source.fault("dataref", source.peek("dataref"), "data, which refer to what is large")
    data: dict[str, Any] = source.required("data", OBJECT)
    if MARK in data:
        raise DialectError(f"/data/{MARK}", shown(data[MARK]), "no such member: it is the dialects' own")
    return dict(data)


def _keep_extensions(source: Source) -> None:
    for name in source.names():
        if not _EXTENSION.match(name):
            raise source.fault(name, source.peek(name), "an attribute of lower-case letters and digits")
        source.keep(name, _EXTENSION_VALUE)


def write_attributes(
    opened: OpenedMessage, target: Target, aliases: Mapping[str, str], prefixes: Collection[str]
) -> None:
    """Write every attribute but the content type and the data."""
    metadata, routing = opened.metadata, opened.routing
    security = metadata.security or Security()
    message_id, conversation_id = metadata.message_id, metadata.conversation_id
    target.put_plain("specversion", "1.0")
    target.put("id", MESSAGE_ID, message_id, absent=ANYTHING)
    _write_sender(opened, target, aliases)
    target.put("type", _type_form(prefixes), metadata.message_type)
    newest = opened.kind.version if opened.kind is not None else MISSING
    target.put("dataschema", _schema_form(metadata.message_type), metadata.schema_version, absent=newest)
    target.put("time", TIME, opened.sent_ms, absent=ANYTHING_OR_NULL)
    default_ms = default_lifetime_ms(opened.kind) if opened.kind is not None else MISSING
    is_default = opened.lifetime_ms == default_ms
    expires_ms = opened.sent_ms + opened.lifetime_ms
    target.put("expirytime", TIME, expires_ms, absent=expires_ms if is_default else MISSING)
    if metadata.recipient is not None and (metadata.recipient.id or "").startswith(_ROLE):
        raise DialectError("/metadata/recipient/id", shown(metadata.recipient.id), f"an id that is no {_ROLE}...")
    target.put("subject", _SUBJECT, metadata.recipient)
    target.put("sbconversation", NAME, conversation_id, absent=message_id, omit=(message_id,))
    target.put("partitionkey", NAME, routing.key or conversation_id, absent=conversation_id)
    cause_id = metadata.causation_id or _kept_cause(opened)
    target.put("causationid", MESSAGE_ID, cause_id)
    target.put("correlationid", NAME, metadata.correlation_id, absent=cause_id)
    target.put("sequence", _SEQUENCE, metadata.sequence)
    target.put("traceparent", TEXT, metadata.traceparent)
    target.put("tracestate", TEXT, metadata.tracestate)
    target.put("dataclassification", TEXT, security.data_classification)
    target.put("sbtask", NAME, metadata.task_id, absent=message_id)
    target.put("sbkey", NAME, routing.idempotency_key)
    target.put("sbpriority", _PRIORITY, routing.priority)
    if security.trust_level is not None:
        target.put("sbtrust", TEXT, security.trust_level)
    else:
        target.put_kept("sbtrust", TEXT)
    if metadata.hops:
        target.put("sbhops", _HOPS, metadata.hops)
    else:
        target.put_kept("sbhops", _HOPS)


def _write_sender(opened: OpenedMessage, target: Target, aliases: Mapping[str, str]) -> None:
    metadata = opened.metadata
    agent = aliases.get(metadata.sender.id or "", metadata.sender.id or "")
    kept = opened.kept.get("/source")
    # A sender from elsewhere was named without a namespace.
    is_foreign = isinstance(kept, str) and kept == agent and _read_source_of(kept) == (None, agent)
    target.put("source", _SOURCE, (None if is_foreign else metadata.namespace, agent), absent=ANYTHING)


def _read_source_of(text: str) -> Source_ | None:
    try:
        return _read_source(text)
    except UnfitValueError:
        return None


def _kept_cause(opened: OpenedMessage) -> str | None:
    """Return the cause that was kept, of a message without one in the log."""
    kept = opened.kept.get("/causationid")
    return kept if isinstance(kept, str) and is_message_id(kept) else None


# --- a wrapped message ------------------------------------------------------------------------------------------------


def hints(message: Message) -> dict[str, Any]:
    """Return the attributes beside a wrapped message."""
    opened = open_message(message, "", _UNTYPED)
    target = Target({})
    write_attributes(opened, target, {}, ())
    return target.finish()


_UNTYPED: Final = Registry()


def unwrap(tree: Mapping[str, Any], value: bytes, pointer: str, prefixes: Collection[str]) -> Foreign:
    """Return the message that the event wraps, whose *value* stands at *pointer*.

    Raises DialectError for an attribute that contradicts it. Its reason, `x_sealbus_mismatch`, is none of a dead
    letter: see `bus.dialects.carried_message.check_same`.
    """
    message = open_carried(value, pointer)
    said = hints(message)
    for name in ("specversion", "id", "source", "type"):
        if tree.get(name) is None:
            raise DialectError(f"/{name}", shown(tree.get(name, MISSING)), "an event's required attribute")
    for name, form in _forms(message, prefixes).items():
        given = tree.get(name)
        if given is None:
            continue
        is_same = name in said and any(_reads_as(form, each, said[name]) for each in _spellings(name, given))
        if not is_same:
            expected = f"{said.get(name, 'no such attribute')}, as in the sealed message"
            raise DialectError(f"/{name}", shown(given), expected, "x_sealbus_mismatch")
    return foreign_of(message)


def _reads_as(form: Form[Any], given: Any, said: Any) -> bool:
    try:
        return bool(form.read(given) == form.read(said))
    except UnfitValueError:
        return False


def _spellings(name: str, given: Any) -> Iterator[Any]:
    """Yield *given*, and what stands in its place where a relay takes an event out of headers of HTTP as it is."""
    yield given
    if given.__class__ is not str:
        return
    if name in NUMBERS and _DECIMAL.match(given):
        yield int(given)
    elif "%" in given:
        with contextlib.suppress(UnfitValueError):
            yield unquoted(given)


def _forms(message: Message, prefixes: Collection[str]) -> dict[str, Form[Any]]:
    return {
        "specversion": _SPEC,
        "id": MESSAGE_ID,
        "source": _SOURCE,
        "type": _type_form(prefixes),
        "dataschema": _schema_form(message.message_type),
        "time": TIME,
        "expirytime": TIME,
        "subject": _SUBJECT,
        "sbconversation": NAME,
        "partitionkey": NAME,
        "causationid": MESSAGE_ID,
        "correlationid": NAME,
        "sequence": _SEQUENCE,
        "traceparent": TEXT,
        "tracestate": TEXT,
        "dataclassification": TEXT,
        "sbtask": NAME,
        "sbkey": NAME,
        "sbpriority": _PRIORITY,
        "sbtrust": TEXT,
        "sbhops": _HOPS,
    }
