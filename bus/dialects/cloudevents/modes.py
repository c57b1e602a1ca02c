"""CloudEvents 1.0: events with the data of a message (open), or with the sealed message itself (wrapped). Pure.

Owns the modes of content: structured (`decode`, `encode`), binary (`decode_binary`, `encode_binary`), batch
(`decode_batch`), and telling them apart by headers (`decode_record`). The sealed message of a wrapped event is
authoritative. Its attributes are hints, and an attribute that contradicts the message is refused. Extensions that
intermediaries added to a wrapped event are ignored.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from bus.dialects.cloudevents import event_table
from bus.dialects.faults import MISSING, shown
from bus.dialects.foreign import NO_ALIASES, NONE, Defaults, Foreign
from bus.dialects.forms import UnfitValueError
from bus.dialects.keeping import Target
from bus.dialects.message_facts import open_message
from bus.dialects.strict_json import read_object
from bus.dialects.type_names import NO_TYPE_NAMES, TypeNames
from bus.errors import ContractError, DialectError
from bus.payloads.payload_types import Registry
from bus.protocol import canonical
from bus.protocol.sealing import MAX_MESSAGE_BYTES, Message
from bus.vocabulary import BUILT_IN

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
EventHeaders: TypeAlias = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes | None]]
_DECIMAL: Final = re.compile(r"(?:0|[1-9][0-9]{0,15})\Z")


# --- structured -------------------------------------------------------------------------------------------------------


def decode(
    value: bytes | Mapping[str, Any],
    *,
    defaults: Defaults = NONE,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
    names: TypeNames = NO_TYPE_NAMES,
) -> Foreign:
    """Decode the event in *value*, in structured mode; raise DialectError if it is invalid.

    *prefixes*, such as `com.example.`, are removed from types; *names* maps further ones.
    """
    tree = read_object(value)
    if _is_wrapped(tree):
        carried, pointer = _carried_in(tree)
        return event_table.unwrap(tree, carried, pointer, _names(prefixes, names))
    return event_table.read_open(tree, defaults, types, _names(prefixes, names))


def encode(
    message: Message,
    *,
    aliases: Mapping[str, str] = NO_ALIASES,
    carry: bool = False,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
    names: TypeNames = NO_TYPE_NAMES,
) -> dict[str, Any]:
    """Encode *message* as an event in structured mode: open, or wrapped if *carry* is set.

    *aliases* maps our agent ids to foreign ids. *prefixes* are those of `decode`; a type that was read with a
    prefix is written with it.
    """
    if carry:
        value = base64.b64encode(message.value).decode()
        return {
            **event_table.hints(message, _names(prefixes, names)),
            "datacontenttype": event_table.WRAPPED,
            "data_base64": value,
        }
    opened = open_message(message, event_table.DIALECT, types)
    target = Target(opened.kept, is_open=event_table.is_extension, nulls=True)
    event_table.write_attributes(opened, target, aliases, _names(prefixes, names))
    target.put("datacontenttype", event_table.CONTENT_TYPE, event_table.JSON, absent=event_table.JSON)
    target.put_plain("data", opened.data)
    target.names.add("data_base64")
    return target.finish()


def _names(prefixes: Collection[str], names: TypeNames) -> TypeNames:
    return names if not prefixes else names.with_prefixes(prefixes)


def _is_wrapped(tree: Mapping[str, Any]) -> bool:
    media_type = tree.get("datacontenttype")
    return isinstance(media_type, str) and media_type.partition(";")[0].strip().lower() == event_table.WRAPPED


def _carried_in(tree: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return the value of the record in a structured event, and where it stands.

    We write base64. A relay that had it in its hands as text writes `data`, the text or what it has read there as JSON.
    """
    if "data" not in tree:
        return _read_base64(tree), "/data_base64"
    if "data_base64" in tree:
        raise DialectError("/data", shown(tree["data"]), "data_base64 alone")
    data = tree["data"]
    if isinstance(data, str):
        return _restored(data.encode()), "/data"
    if isinstance(data, dict):
        return canonical.encode_parsed(data), "/data"
    raise DialectError("/data", shown(data), "the value of a record as text")


def _restored(body: bytes) -> bytes:
    """Return the canonical value of a record whose JSON an intermediary may have rewritten.

    The seal covers the canonical form, so hashes and signature show whether the content changed.
    """
    try:
        tree = canonical.parse_canonical(body)
    except ContractError:
        return body
    if canonical.is_canonical(body, tree):
        return body
    try:
        return canonical.encode_parsed(read_object(body))
    except DialectError as error:
        raise DialectError(f"/data{error.pointer}", error.found, error.expected, error.reason) from None


def _read_base64(tree: Mapping[str, Any]) -> bytes:
    text = tree.get("data_base64", MISSING)
    if not isinstance(text, str):
        raise DialectError("/data_base64", shown(text), "the value of a record in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise DialectError("/data_base64", shown(text), "base64 with padding") from None


# --- binary -----------------------------------------------------------------------------------------------------------


def decode_binary(
    headers: EventHeaders,
    body: bytes | None,
    *,
    defaults: Defaults = NONE,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
    names: TypeNames = NO_TYPE_NAMES,
) -> Foreign:
    """Decode the event in binary mode: attributes in headers `ce_...` (or `ce-...`, HTTP), data in *body*."""
    tree = _attributes(headers)
    if body is None:
        raise DialectError("/data", "null", "an event, which a record without a value is not")
    if _is_wrapped(tree):
        return event_table.unwrap(tree, _restored(body), "/data", _names(prefixes, names))
    try:
        data = read_object(body)
    except DialectError as error:
        raise DialectError(f"/data{error.pointer}", error.found, error.expected, error.reason) from None
    return event_table.read_open({**tree, "data": data}, defaults, types, _names(prefixes, names))


def encode_binary(
    message: Message,
    *,
    aliases: Mapping[str, str] = NO_ALIASES,
    carry: bool = False,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
    names: TypeNames = NO_TYPE_NAMES,
    http: bool = False,
) -> tuple[dict[str, str], bytes]:
    """Say *message* as an event in binary mode; return its headers and its body.

    *http*: headers as HTTP has them, `ce-...` and percent-encoded, instead of those of Kafka.
    """
    if carry:
        attributes, body = (
            {**event_table.hints(message, _names(prefixes, names)), "datacontenttype": event_table.WRAPPED},
            message.value,
        )
    else:
        attributes = encode(message, aliases=aliases, types=types, prefixes=prefixes, names=names)
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


def _attributes(headers: EventHeaders) -> dict[str, Any]:
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
        if attribute in event_table.NUMBERS and _DECIMAL.match(attributes[attribute]):
            attributes[attribute] = int(attributes[attribute])
    return attributes


def _unquoted_header(attribute: str, text: str) -> str:
    try:
        return event_table.unquoted(text)
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
    headers: EventHeaders,
    value: bytes | None,
    *,
    defaults: Defaults = NONE,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
    names: TypeNames = NO_TYPE_NAMES,
) -> Foreign:
    """Decode the event in a Kafka record or an HTTP request; its content type selects the mode."""
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
        return decode(value, defaults=defaults, types=types, prefixes=prefixes, names=names)
    return decode_binary(pairs, value, defaults=defaults, types=types, prefixes=prefixes, names=names)


def decode_batch(
    value: bytes,
    *,
    defaults: Defaults = NONE,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
    names: TypeNames = NO_TYPE_NAMES,
) -> list[Foreign | DialectError]:
    """Decode each event of a batch, or return why it is refused; raise DialectError if the batch is not a list."""
    if len(value) > MAX_MESSAGE_BYTES:
        raise DialectError("", f"{len(value)} bytes", f"at most {MAX_MESSAGE_BYTES} bytes", "oversized")
    try:
        events = _decode_list(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise DialectError("", "no list of JSON values", "a JSON list of events") from None
    read: list[Foreign | DialectError] = []
    for event in events:
        try:
            read.append(decode(bytes(event), defaults=defaults, types=types, prefixes=prefixes, names=names))
        except DialectError as error:
            read.append(error.with_traceback(None))
    return read


def encode_batch(
    messages: Iterable[Message],
    *,
    aliases: Mapping[str, str] = NO_ALIASES,
    carry: bool = False,
    types: Registry = BUILT_IN,
    prefixes: Collection[str] = (),
    names: TypeNames = NO_TYPE_NAMES,
) -> list[dict[str, Any]]:
    """Encode *messages* as a batch of events."""
    return [
        encode(message, aliases=aliases, carry=carry, types=types, prefixes=prefixes, names=names)
        for message in messages
    ]


_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
