"""Values that dialect `evidence` spells differently from our data. Pure.

Owns the forms of references, confidences, versions of types and critical fields, and which fields have them.
`bus.dialects.evidence.payloads` owns what is special to one type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from msgspec import inspect

from bus.dialects.faults import Missing
from bus.dialects.forms import Form, UnfitValueError, are_texts, choice, same
from bus.dialects.payload_shapes import FormOf, PayloadShape, Renames, locations_of, payload_shape_of
from bus.payloads.payload_types import PayloadType
from bus.protocol.identifiers import is_message_type, is_pointer
from bus.vocabulary.parts import Ref, ReturnContract

__all__ = ["OUTPUT_SCHEMA", "RENAMES", "TEXTS", "locations_for", "pointer_form", "shape_for", "texts_in"]

RENAMES: Final[Mapping[str, Renames]] = MappingProxyType(
    {
        "approval.request": {"/action": {"diff_ref": "ref"}},
        "error.reported": {"": {"suggested_recovery": "recovery_hint"}},
        "handoff.request": {
            "": {"context_packet": "context"},
            "/scope": {"allowed_files": "include", "forbidden_files": "exclude"},
        },
        "pr.create.request": {"": {"repo": "repository"}},
    }
)
"""Types -> objects in their data -> names there -> names here."""
_IN_WORDS: Final = frozenset({"claim.made", "evidence.observed", "repo.map.result"})
"""The types in which the format writes a confidence as a word. Others write the number."""
_MAX_POINTERS, _MAX_CHARACTERS = 64, 1024
_RANGE: Final = re.compile(r"(.+)\.v(0|[1-9][0-9]{0,63})\Z")
_RANGE_HERE: Final = re.compile(r"(.+)@((?:0|[1-9][0-9]{0,63})(?:\.(?:0|[1-9][0-9]{0,63})){0,2})\Z")


def _read_reference(value: Any) -> dict[str, Any]:
    if value.__class__ is str:
        return {"uri": value}
    if value.__class__ is not dict:
        raise UnfitValueError
    return {name: member for name, member in value.items() if member is not None}


def _write_reference(reference: Any) -> Any:
    return reference["uri"] if reference.__class__ is dict and reference.keys() == {"uri"} else reference


def _word_of(confidence: float) -> str:
    if confidence >= 0.8:  # noqa: PLR2004 - the bounds of the table
        return "high"
    return "medium" if confidence >= 0.5 else "low"  # noqa: PLR2004


def _read_confidence(value: Any) -> float:
    if value.__class__ is int or value.__class__ is float:
        number: float = value
        return number
    return _WORDS.read(value)


def _read_range(value: Any) -> str:
    """Read `x.v1` as `x@1`; `x@1.2` has no other spelling."""
    if value.__class__ is str:
        found = _RANGE.match(value)
        if found is not None and is_message_type(found[1]):
            return f"{found[1]}@{found[2]}"
        found = _RANGE_HERE.match(value)
        if found is not None and is_message_type(found[1]):
            return str(value)
    raise UnfitValueError


def _write_range(text: str) -> str:
    name, _, version = text.partition("@")
    return f"{name}.v{version}" if version.isdecimal() else text


def _read_contract(value: Any) -> dict[str, str]:
    found = _RANGE.match(value) if value.__class__ is str else None
    if found is None or not is_message_type(found[1]):
        raise UnfitValueError
    return {"expected_message_type": found[1], "schema": f"{found[1]}@{found[2]}"}


def _write_contract(contract: dict[str, str]) -> str:
    return _write_range(contract["schema"])


_WORDS: Final = choice({"high": 0.9, "medium": 0.6, "low": 0.3}, _word_of)
_REFERENCE: Final = Form("a URI, or an object with one", _read_reference, _write_reference)
_CONFIDENCE_WORD: Final = Form("high, medium, low or a number", _read_confidence, _word_of)
_CONFIDENCE: Final = Form("high, medium, low or a number", _read_confidence, same)
_TYPE_RANGE: Final = Form("a type and its major version, such as review.result.v1", _read_range, _write_range)
OUTPUT_SCHEMA: Final = Form(_TYPE_RANGE.expected, _read_contract, _write_contract)
"""The type that an answer must have, here a return contract."""
TEXTS: Final = Form[tuple[str, ...]]("a list of texts", tuple, list, fits=are_texts)
"""Texts, which are a tuple here."""


def texts_in(value: Any) -> tuple[str, ...] | None:
    """Return the texts in a list of them; None for anything else."""
    found: tuple[str, ...] | Missing = TEXTS.reads(value)
    return None if isinstance(found, Missing) else found


_SEVERITY: Final = Form("a severity", lambda value: "error" if value == "recoverable" else value, same)
"""The severity of errors: a recoverable error is one that is retryable."""


def _form_of(kind: PayloadType) -> FormOf:
    confidence = _CONFIDENCE_WORD if kind.name in _IN_WORDS else _CONFIDENCE

    def form_of(pointer: str, field: inspect.Type, owner: Any) -> Form[Any] | None:
        if isinstance(field, inspect.StructType) and field.cls is Ref:
            return _REFERENCE
        if pointer.endswith("/confidence") and isinstance(field, inspect.FloatType):
            return confidence
        if owner is ReturnContract and pointer.endswith("/schema"):
            return _TYPE_RANGE
        return _OF_ONE_TYPE.get((kind.name, pointer))

    return form_of


_OF_ONE_TYPE: Final[Mapping[tuple[str, str], Form[Any]]] = {
    ("capability.advertisement", "/supported_payload_schemas"): _TYPE_RANGE,
    ("error.reported", "/severity"): _SEVERITY,
}


@lru_cache(maxsize=512)
def shape_for(kind: PayloadType) -> PayloadShape:
    """Return the shape of the payloads of *kind*."""
    return payload_shape_of(kind.described, _form_of(kind), RENAMES.get(kind.name, {}))


@lru_cache(maxsize=512)
def locations_for(kind: PayloadType, base: str) -> Mapping[str, str]:
    """Return where the fields of *kind* stand in a foreign message, if not under their own names below *base*."""
    return MappingProxyType(locations_of(shape_for(kind), base))


# --- critical fields --------------------------------------------------------------------------------------------------

_ENVELOPE: Final = {
    **{
        name: f"/metadata/{name}"
        for name in (
            *("message_id", "run_id", "conversation_id", "task_id", "parent_task_id", "correlation_id", "causation_id"),
            *("timestamp", "sender", "recipient", "message_type", "intent", "authority", "security"),
            "critical_fields",
        )
    },
    "schema_version": "/metadata/protocol",
    "tenant_id": "/metadata/namespace",
    "trace_id": "/metadata/traceparent",
    "sequence_number": "/metadata/sequence",
    "idempotency_key": "/routing/idempotency_key",
    "payload": "/data",
}
_NAMES: Final = {pointer: name for name, pointer in _ENVELOPE.items()}
_SPAN: Final = {"span_id": "/metadata/traceparent"}
_DATA: Final = "/data/"


@lru_cache(maxsize=512)
def pointer_form(kind: PayloadType) -> Form[tuple[str, ...]]:
    """Make the form of critical fields: names there, pointers here. A name outside the envelope names a field of the
    data.

    A pointer without a foreign name stays a pointer. Foreign readers do not know it, so they refuse the message, as
    required.
    """
    renamed = RENAMES.get(kind.name, {}).get("", {})
    pointers = {**_ENVELOPE, **_SPAN, **{name: f"{_DATA}{ours}" for name, ours in renamed.items()}}
    names = {**_NAMES, **{f"{_DATA}{ours}": name for name, ours in renamed.items()}}

    def pointer_of(name: str) -> str:
        if name.startswith("/"):
            return name
        return pointers.get(name) or _DATA + name.replace("~", "~0").replace("/", "~1")

    def name_of(pointer: str) -> str:
        rest = pointer.removeprefix(_DATA)
        plain = rest.replace("~1", "/").replace("~0", "~") if rest != pointer and "/" not in rest else pointer
        name = names.get(pointer, plain)
        return name if pointer_of(name) == pointer else pointer

    def read(value: Any) -> tuple[str, ...]:
        found = tuple(map(pointer_of, TEXTS.read(value)))
        if len(found) > _MAX_POINTERS or any(
            len(pointer) > _MAX_CHARACTERS or not is_pointer(pointer) for pointer in found
        ):
            raise UnfitValueError
        return found

    return Form("at most 64 names of fields", read, lambda found: list(map(name_of, found)))
