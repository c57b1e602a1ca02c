"""CloudEvents 1.0: events with the data of a message (open), or with the sealed message itself (wrapped). Pure.

Owns the table of attributes and the modes of content: structured (`decode`, `encode`), binary (`decode_binary`,
`encode_binary`), batch (`decode_batch`), and telling them apart by headers (`decode_record`). A wrapped event proves
what it says; its attributes are hints, and one that contradicts the message is refused. Of a wrapped event, extensions
that others added on the way are ignored.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias, get_args
from urllib.parse import quote, unquote

import msgspec

from bus.dialects.carried_message import foreign_of, open_carried
from bus.dialects.data_check import Places, check_data, default_lifetime_ms, kind_of
from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import NONE, Claims, Defaults, Foreign, ForeignOptions
from bus.dialects.forms import MESSAGE_ID, NAME, OBJECT, TEXT, TIME, Form, UnfitValueError, matching, whole
from bus.dialects.keeping import ABSENT, ANYTHING, ANYTHING_OR_NULL, MARK, Notes, Source, Target
from bus.dialects.opened_message import OpenedMessage, open_message
from bus.dialects.strict_json import read_object
from bus.errors import DialectError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol import canonical
from bus.protocol.canonical_numbers import SAFE_INTEGER
from bus.protocol.envelope import Agent, Security
from bus.protocol.identifiers import is_message_id, is_namespace, is_schema_version
from bus.protocol.sealing import MAX_MESSAGE_BYTES, Message
from bus.vocabulary import BUILT_IN
from bus.vocabulary.forms import Level

__all__ = [
    "BATCH",
    "STRUCTURED",
    "WRAPPED",
    "decode",
    "decode_batch",
    "decode_binary",
    "decode_record",
    "encode",
    "encode_batch",
    "encode_binary",
]

_NAME: Final = "cloudevents"
STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
WRAPPED: Final = "application/vnd.sealbus.v1+json"
"""The content type of a sealed message: data are the exact value of its record."""
_JSON: Final = "application/json"

Headers: TypeAlias = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes | None]]
Source_: TypeAlias = tuple[str | None, str]
"""A namespace, if it is one of sealbus, and the id of an agent in it."""

_SCHEME: Final = "sealbus://"
_SCHEMA: Final = "urn:sealbus:schema:"
_ROLE: Final = "role:"
_EXTENSION: Final = re.compile(r"[a-z0-9]{1,64}\Z")
_DECIMAL: Final = re.compile(r"(?:0|[1-9][0-9]{0,15})\Z")
_LEVELS: Final = frozenset(get_args(Level))
_NUMBERS: Final = ("sbpriority", "sbhops")
"""The attributes that are integers; in headers they are text."""
_PLACES: Final[Places] = {"": "/data"}


# --- forms ------------------------------------------------------------------------------------------------------------


def _read_source(value: Any) -> Source_:
    text = TEXT.read(value)
    namespace, slash, agent = text.removeprefix(_SCHEME).partition("/")
    if text.startswith(_SCHEME) and slash and is_namespace(namespace):
        return namespace, NAME.read(_unquoted(agent))
    return None, NAME.read(text)


def _unquoted(text: str) -> str:
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
    if media_type != _JSON:
        raise UnfitValueError
    return media_type


def _read_extension(value: Any) -> Any:
    if value.__class__ in (str, bool):
        return value
    return _INTEGER.read(value)


def _is_extension(name: str, value: Any) -> bool:
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
_CONTENT_TYPE: Final = Form(f"{_JSON} or {WRAPPED}", _read_content_type, lambda media_type: media_type)
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


# --- structured -------------------------------------------------------------------------------------------------------


def decode(
    value: bytes | Mapping[str, Any],
    *,
    defaults: Defaults = NONE,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
) -> Foreign:
    """Return what the event in *value*, in structured mode, says; raise DialectError.

    *prefixes* are taken off types, such as `com.example.`.
    """
    tree = read_object(value)
    if tree.get("datacontenttype") == WRAPPED:
        return _unwrap(tree, _read_base64(tree), prefixes)
    return _decode_open(tree, defaults, types, prefixes)


def encode(
    message: Message,
    *,
    aliases: Mapping[str, str] = {},
    carry: bool = False,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
) -> dict[str, Any]:
    """Say *message* as an event in structured mode: open, or wrapped if it is to be carried.

    *aliases*: agent ids of ours -> ids there. *prefixes*: as `decode` takes them; the type that was kept has one.
    """
    if carry:
        value = base64.b64encode(message.value).decode()
        return {**_hints(message), "datacontenttype": WRAPPED, "data_base64": value}
    opened = open_message(message, _NAME, types)
    target = Target(opened.kept, is_open=_is_extension, nulls=True)
    _write_attributes(opened, target, aliases, prefixes)
    target.put("datacontenttype", _CONTENT_TYPE, _JSON, absent=_JSON)
    target.put_plain("data", opened.data)
    target.names.add("data_base64")
    return target.finish()


def _decode_open(tree: dict[str, Any], defaults: Defaults, types: Registry, prefixes: Collection[str]) -> Foreign:
    notes = Notes()
    source = Source(tree, "", notes, nulls=True)
    if tree.get("specversion", MISSING) != "1.0":
        raise source.fault("specversion", tree.get("specversion", MISSING), "1.0", "unsupported_version")
    source.required("specversion", _SPEC)
    message_id = source.required("id", MESSAGE_ID, defaults.message_id)
    sender, namespace = _read_sender(source, defaults)
    kind, version = _read_type(source, types, prefixes)
    source.optional("datacontenttype", _CONTENT_TYPE, absent=_JSON)
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
    check_data(kind, notes.marked(data, _NAME), _PLACES, tree)
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


def _write_attributes(
    opened: OpenedMessage, target: Target, aliases: Mapping[str, str], prefixes: Collection[str]
) -> None:
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


# --- wrapped ----------------------------------------------------------------------------------------------------------


def _read_base64(tree: Mapping[str, Any]) -> bytes:
    text = tree.get("data_base64", MISSING)
    if not isinstance(text, str):
        raise DialectError("/data_base64", shown(text), "the value of a record in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DialectError("/data_base64", shown(text), "base64 with padding") from None


def _hints(message: Message) -> dict[str, Any]:
    """Return the attributes beside a wrapped message."""
    opened = open_message(message, "", _UNTYPED)
    target = Target({})
    _write_attributes(opened, target, {}, ())
    return target.finish()


_UNTYPED: Final = Registry()


def _unwrap(tree: Mapping[str, Any], value: bytes, prefixes: Collection[str]) -> Foreign:
    """Return the message that the event wraps; raise DialectError for an attribute that contradicts it."""
    message = open_carried(value, "/data_base64")
    said = _hints(message)
    for name in ("specversion", "id", "source", "type"):
        if tree.get(name) is None:
            raise DialectError(f"/{name}", shown(tree.get(name, MISSING)), "an event's required attribute")
    for name, form in _forms(message, prefixes).items():
        given = tree.get(name)
        if given is None:
            continue
        try:
            is_same = name in said and form.read(given) == form.read(said[name])
        except UnfitValueError:
            is_same = False
        if not is_same:
            expected = f"{said.get(name, 'no such attribute')}, as in the sealed message"
            raise DialectError(f"/{name}", shown(given), expected, "x_sealbus_mismatch")
    if "data" in tree:
        raise DialectError("/data", shown(tree["data"]), "data_base64 alone")
    return foreign_of(message)


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


# --- binary -----------------------------------------------------------------------------------------------------------


def decode_binary(
    headers: Headers,
    body: bytes | None,
    *,
    defaults: Defaults = NONE,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
) -> Foreign:
    """Return what the event in binary mode says: attributes in headers `ce_...` (or `ce-...`, HTTP), data in *body*."""
    tree = _attributes(headers)
    if body is None:
        raise DialectError("/data", "null", "an event, which a record without a value is not")
    if tree.get("datacontenttype") == WRAPPED:
        return _unwrap(tree, body, prefixes)
    try:
        data = read_object(body)
    except DialectError as error:
        raise DialectError(f"/data{error.pointer}", error.found, error.expected, error.reason) from None
    return _decode_open({**tree, "data": data}, defaults, types, prefixes)


def encode_binary(
    message: Message,
    *,
    aliases: Mapping[str, str] = {},
    carry: bool = False,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
    http: bool = False,
) -> tuple[dict[str, str], bytes]:
    """Say *message* as an event in binary mode; return its headers and its body.

    *http*: headers as HTTP has them, `ce-...` and percent-encoded, instead of those of Kafka.
    """
    if carry:
        attributes, body = {**_hints(message), "datacontenttype": WRAPPED}, message.value
    else:
        attributes = encode(message, aliases=aliases, types=types, prefixes=prefixes)
        body = canonical.encode_parsed(attributes.pop("data"))
    headers = {}
    for name, value in attributes.items():
        text = _header_text(value)
        if name == "datacontenttype":
            headers["content-type"] = text
        elif value is not None:
            headers[f"ce-{name}" if http else f"ce_{name}"] = quote(text, safe=_PLAIN) if http else text
    return headers, body


_PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""The characters that a header of HTTP has as they are."""


def _header_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _attributes(headers: Headers) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for header, raw in headers.items() if isinstance(headers, Mapping) else headers:
        name = header.lower()
        is_event, is_http = name.startswith(("ce_", "ce-")), name.startswith("ce-")
        if not is_event and name != "content-type":
            continue
        attribute = name[3:] if is_event else "datacontenttype"
        text = _text_of_header(attribute, raw)
        if attribute in attributes or (is_event and attribute in ("data", "datacontenttype", "data_base64")):
            raise DialectError(f"/{attribute}", f"the header {name} beside another", "every attribute once")
        attributes[attribute] = _unquoted_header(attribute, text) if is_http else text
        if attribute in _NUMBERS and _DECIMAL.match(attributes[attribute]):
            attributes[attribute] = int(attributes[attribute])
    return attributes


def _unquoted_header(attribute: str, text: str) -> str:
    try:
        return _unquoted(text)
    except UnfitValueError:
        raise DialectError(f"/{attribute}", shown(text), "percent-encoded UTF-8") from None


def _text_of_header(attribute: str, raw: str | bytes | None) -> str:
    try:
        if raw is not None:
            return raw if isinstance(raw, str) else raw.decode()
    except UnicodeDecodeError:
        pass
    raise DialectError(f"/{attribute}", "no text" if raw is not None else "null", "a text in UTF-8")


# --- records and batches ----------------------------------------------------------------------------------------------


def decode_record(
    headers: Headers,
    value: bytes | None,
    *,
    defaults: Defaults = NONE,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
) -> Foreign:
    """Return what the event in a record of Kafka, or in a request, says: its content type tells the mode."""
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    content_type = next(
        (_text_of_header("datacontenttype", raw) for name, raw in pairs if name.lower() == "content-type"), ""
    )
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == BATCH:
        raise DialectError("/datacontenttype", BATCH, "one event: batches come by HTTP alone")
    if media_type == STRUCTURED:
        if value is None:
            raise DialectError("", "null", "an event, which a record without a value is not")
        return decode(value, defaults=defaults, types=types, prefixes=prefixes)
    return decode_binary(pairs, value, defaults=defaults, types=types, prefixes=prefixes)


def decode_batch(
    value: bytes,
    *,
    defaults: Defaults = NONE,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
) -> list[Foreign | DialectError]:
    """Return what each event of a batch says, or why it is refused; raise DialectError for what is no list."""
    if len(value) > MAX_MESSAGE_BYTES:
        raise DialectError("", f"{len(value)} bytes", f"at most {MAX_MESSAGE_BYTES} bytes", "oversized")
    try:
        events = _decode_list(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise DialectError("", "no list of JSON values", "a JSON list of events") from None
    read: list[Foreign | DialectError] = []
    for event in events:
        try:
            read.append(decode(bytes(event), defaults=defaults, types=types, prefixes=prefixes))
        except DialectError as error:
            read.append(error.with_traceback(None))
    return read


def encode_batch(
    messages: Iterable[Message],
    *,
    aliases: Mapping[str, str] = {},
    carry: bool = False,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Say *messages* as a batch of events."""
    return [encode(message, aliases=aliases, carry=carry, types=types, prefixes=prefixes) for message in messages]


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
