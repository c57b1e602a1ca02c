"""One dead letter laid out: for people and as JSON.

Owns the layout, what the schema says today, and which field was probably meant. Everything foreign is escaped.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from bus.errors import ContractError
from bus.payloads import PayloadType, Registry
from consumers.cli.printing import preview, printable, raw_json
from consumers.deadletters import DeadLetter

__all__ = ["as_json", "as_text"]


def as_json(letter: DeadLetter, registry: Registry | None) -> dict[str, object]:
    """The letter as one JSON object."""
    record = letter.record
    fields: dict[str, object] = {
        "place": f"{record.topic}/{record.partition}/{record.offset}",
        "reason": letter.reason,
        "gate": letter.gate,
        "error": letter.error,
        "pointer": letter.pointer,
        "group": letter.group,
        "attempts": letter.attempts,
        "failed_at": letter.failed_at,
        "origin": {"topic": letter.topic, "partition": letter.partition, "offset": letter.offset},
        "message_id": letter.message.message_id if letter.message else None,
        "message_type": letter.message.message_type if letter.message else None,
        "sender": letter.message.metadata.sender.id if letter.message else None,
    }
    if registry is None:
        return fields
    fields["advice"] = list(_advice(letter, registry))
    fields["headers"] = {name: value.decode("utf-8", "backslashreplace") for name, value in record.headers}
    value = raw_json(record.value or b"")
    return fields | ({"value": value} if value is not None else {"value_base64": base64.b64encode(record.value or b"").decode()})


def as_text(letter: DeadLetter, registry: Registry) -> Iterator[str]:
    """The letter as lines for people."""
    record = letter.record
    about = {
        "place": f"{record.topic}/{record.partition}/{record.offset}",
        "reason": f"{letter.reason or '-'} (gate {letter.gate or '-'})",
        "pointer": letter.pointer,
        "group": letter.group,
        "attempts": str(letter.attempts),
        "died": letter.failed_at,
        "came from": f"{letter.topic}/{letter.partition}/{letter.offset}",
    }
    if letter.message is not None:
        metadata = letter.message.metadata
        about |= {
            "message": metadata.message_id,
            "type": f"{metadata.message_type} {metadata.schema_version}",
            "sender": metadata.sender.id or "",
            "sealed at": metadata.timestamp,
            "expires at": letter.message.routing.expires_at,
            "conversation": metadata.conversation_id,
        }
    yield from (f"{name + ':':<14}{printable(text)}" for name, text in about.items() if text)
    yield from _block("error", printable(letter.error, keep="\n"))
    yield from (f"{'advice:':<14}{line}" for line in _advice(letter, registry))
    yield from _block("headers", "\n".join(f"{printable(name)}: {printable(preview(value))}" for name, value in letter.headers))
    yield from _block(*_content(letter))


def _content(letter: DeadLetter) -> tuple[str, str]:
    if letter.message is not None:
        return "data", printable(msgspec.json.format(letter.message.data, indent=2).decode(), keep="\n")
    value = letter.record.value or b""
    heading = "stub of a record that was too large to keep" if letter.is_stub else f"value, {len(value)} bytes that are no message"
    return heading, preview(value)


def _block(heading: str, text: str) -> Iterator[str]:
    if text:
        yield f"{heading}:"
        yield from (f"  {line}" for line in text.split("\n"))


def _advice(letter: DeadLetter, registry: Registry) -> Iterator[str]:
    """What the type as it is known here says of the payload today."""
    kind = registry.get(letter.message.message_type) if letter.message is not None else None
    if kind is None or letter.message is None or letter.gate != "schema":
        return
    try:
        kind.open(letter.message)
    except ContractError as error:
        yield printable(f"{error.pointer}: {error.text}")
        yield from _nearest_field(kind, msgspec.json.decode(letter.message.data), error.pointer)
    else:
        yield f"{kind.name} {kind.version} as it is known here accepts this message"


def _nearest_field(kind: PayloadType, data: Any, pointer: str) -> Iterator[str]:
    """The unknown name in the data that is most like the missing one, or the known one most like what is too much."""
    *parents, name = [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[2:]] or [""]
    fields = _fields_at(inspect.type_info(kind.cls), parents)
    for token in parents:
        data = data[int(token)] if isinstance(data, list) and token.isdigit() else data.get(token) if isinstance(data, dict) else None
    if not isinstance(data, dict) or not fields:
        return
    wrong = name not in fields
    found = difflib.get_close_matches(name, sorted(fields if wrong else data.keys() - fields), n=1, cutoff=0.5)
    if found and (wrong or name not in data):
        yield printable(f"the nearest known field is {found[0]!r}" if wrong else f"{found[0]!r} is unknown: perhaps {name!r} was meant")


def _fields_at(kind: Any, tokens: list[str]) -> set[str]:
    """The names of the struct that *tokens* lead to; empty where they lead to something else."""
    if isinstance(kind, inspect.Metadata):
        return _fields_at(kind.type, tokens)
    if isinstance(kind, inspect.UnionType):
        return set().union(*(_fields_at(member, tokens) for member in kind.types))
    if isinstance(kind, inspect.StructType):
        if not tokens:
            return {field.encode_name for field in kind.fields}
        return set().union(*(_fields_at(field.type, tokens[1:]) for field in kind.fields if field.encode_name == tokens[0]))
    if tokens and isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return _fields_at(kind.item_type, tokens[1:])
    return _fields_at(kind.value_type, tokens[1:]) if tokens and isinstance(kind, inspect.DictType) else set()
