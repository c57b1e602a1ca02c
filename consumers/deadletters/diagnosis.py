"""Diagnosis: why a message was dead-lettered, found by running the gates again on its stored bytes.

Owns the expected value at the pointer, the value found, and the field that was probably meant. The gates are in
`bus.gates`, the layout in `consumers.deadletters.letter_view`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

from bus import gates
from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType, Registry
from bus.protocol import canonical
from bus.protocol.reasons import gate_of
from bus.telemetry.terminal import preview, printable
from bus.topics.names import read_topic
from consumers.deadletters.letters import DeadLetter

__all__ = ["Diagnosis", "examine", "nearest_field"]

_MAX_FOUND: Final = 400
_ABSENT: Final = object()
_WORDS: Final = {
    "StrType": "a string",
    "IntType": "an integer",
    "FloatType": "a number",
    "BoolType": "true or false",
    "NoneType": "null",
    "DateTimeType": "a date and time",
    "ListType": "an array",
    "VarTupleType": "an array",
    "TupleType": "an array",
    "SetType": "an array",
    "DictType": "an object",
    "StructType": "an object",
}


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, rename={"gate": "check"}):
    """The verdict of the gates on the stored bytes today.

    *reason* is empty if the bytes pass all gates that can run here.
    """

    gate: str = ""
    reason: str = ""
    pointer: str = ""
    detail: str = ""
    expected: str = ""
    found: str = ""
    nearest: str = ""
    """A sentence about the field that was probably meant."""


def examine(letter: DeadLetter, registry: Registry, *, namespace: str, max_message_bytes: int) -> Diagnosis:
    """Run the gates that need no keys, policy or handler; the lifetime is checked at the time of death."""
    topic = read_topic(letter.topic)
    case = gates.Case(
        record=msgspec.structs.replace(letter.record, headers=letter.headers),
        # A mailbox, a tier and a reply topic carry any type.
        expected_type=topic.message_type if topic is not None and topic.kind == "message" else msgspec.UNSET,
        key=letter.record.key,
        now_ms=letter.failed_ms,
        append_ms=letter.record.timestamp_ms,
    )
    checks = gates.Checks(
        max_message_bytes=max_message_bytes,
        namespace=namespace,
        kind_of=lambda message: registry.get(message.message_type),
    )
    verdict = gates.judge(case, checks)
    return _diagnosis_of(letter, registry, verdict.error) if isinstance(verdict, gates.Failed) else Diagnosis()


def nearest_field(kind: PayloadType, data: Any, pointer: str) -> Iterator[str]:
    """Yield a sentence about the unknown name most like the missing field, or the known field most like an unknown."""
    *parents, name = canonical.pointer_tokens(pointer)[1:] or [""]
    fields = {field.encode_name for field in _fields_at(inspect.type_info(kind.described), parents)}
    data = _value_at(data, parents)
    if not isinstance(data, dict) or not fields:
        return
    wrong = name not in fields
    found = difflib.get_close_matches(name, sorted(fields if wrong else data.keys() - fields), n=1, cutoff=0.5)
    if not wrong and name not in data and not found and len(others := sorted(data.keys() - fields)) == 1:
        # One is missing and one is unknown: no other can have been meant, however it is spelt.
        found = others
    if found and (wrong or name not in data):
        yield (
            f"the nearest known field is {found[0]!r}"
            if wrong
            else f"{found[0]!r} is unknown: perhaps {name!r} was meant"
        )


def _diagnosis_of(letter: DeadLetter, registry: Registry, error: ContractError) -> Diagnosis:
    try:
        envelope: Any = msgspec.json.decode(letter.record.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        envelope = None
    kind = registry.get(letter.message.message_type) if letter.message is not None else None
    is_data = error.pointer.startswith("/data") and kind is not None and isinstance(envelope, dict)
    expected = _expected(kind, error.pointer) if is_data and kind is not None else ""
    nearest = list(nearest_field(kind, envelope["data"], error.pointer)) if is_data and kind is not None else []
    return Diagnosis(
        gate=gate_of(error.reason),
        reason=error.reason,
        pointer=error.pointer,
        detail=error.text,
        expected=_told_expected(letter, error, expected),
        found=_shown(_value_at(envelope, canonical.pointer_tokens(error.pointer)))
        if error.pointer and envelope is not None
        else "",
        nearest=nearest[0] if nearest else "",
    )


def _told_expected(letter: DeadLetter, error: ContractError, by_type: str) -> str:
    """Describe what was expected, as far as the gate, the type or the dead letter shows."""
    name = read_topic(letter.topic)
    match error.reason:
        case "type_mismatch" if name is not None:
            return f"{name.message_type}, which the topic is for"
        case "key_mismatch":
            return (
                f"the record's key, {preview(letter.record.key)}"
                if letter.record.key is not None
                else "a record with a key"
            )
        case "expired":
            return f"later than {letter.failed_at}, when it was looked at"
        case "schema_violation" if by_type:
            return by_type
        case _:
            return error.text


def _expected(kind: PayloadType, pointer: str) -> str:
    """Describe the type of the field at *pointer*, and whether it is required."""
    *parents, name = canonical.pointer_tokens(pointer)[1:] or [""]
    for field in _fields_at(inspect.type_info(kind.described), parents):
        if field.encode_name == name:
            return _type_words(field.type) + (", required" if field.required else ", optional")
    return ""


def _type_words(kind: Any) -> str:
    if isinstance(kind, inspect.Metadata):
        return _type_words(kind.type)
    if isinstance(kind, inspect.UnionType):
        return " or ".join(sorted({_type_words(member) for member in kind.types}))
    if isinstance(kind, inspect.EnumType):
        return "one of " + ", ".join(repr(member.value) for member in kind.cls)
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(map(repr, kind.values))
    words = _WORDS.get(type(kind).__name__, type(kind).__name__.removesuffix("Type").lower())
    limits = {
        "ge": ">=",
        "gt": ">",
        "le": "<=",
        "lt": "<",
        "min_length": "length >=",
        "max_length": "length <=",
        "pattern": "matching",
    }
    texts = [f"{sign} {value}" for name, sign in limits.items() if (value := getattr(kind, name, None)) is not None]
    return ", ".join([words, *texts])


def _fields_at(kind: Any, tokens: list[str]) -> list[inspect.Field]:
    """Return the fields of the struct at *tokens*; empty if there is no struct."""
    if isinstance(kind, inspect.Metadata):
        return _fields_at(kind.type, tokens)
    if isinstance(kind, inspect.UnionType):
        return [field for member in kind.types for field in _fields_at(member, tokens)]
    if isinstance(kind, inspect.StructType):
        if not tokens:
            return list(kind.fields)
        return [
            found
            for field in kind.fields
            if field.encode_name == tokens[0]
            for found in _fields_at(field.type, tokens[1:])
        ]
    if tokens and isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return _fields_at(kind.item_type, tokens[1:])
    return _fields_at(kind.value_type, tokens[1:]) if tokens and isinstance(kind, inspect.DictType) else []


def _value_at(value: Any, tokens: list[str]) -> Any:
    for token in tokens:
        if isinstance(value, dict):
            value = value.get(token, _ABSENT)
        elif isinstance(value, list) and token.isdigit() and len(token) < 10 and int(token) < len(value):  # noqa: PLR2004 - longer than any array
            value = value[int(token)]
        else:
            return _ABSENT
    return value


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = printable(msgspec.json.encode(value).decode())
    return text if len(text) <= _MAX_FOUND else f"{text[:_MAX_FOUND]}... ({len(text)} characters)"
