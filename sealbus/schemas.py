"""What a message type says beyond its fields: rules between fields, any JSON, upcasters, dual write of two versions.

    from sealbus.schemas import DualWrite, Has, Is, Rule, Upcaster, when

Pages: `docs/reference/declaring.md` (rules), `docs/how-to/change-types.md`.
"""

from __future__ import annotations

from bus.payloads.checked_json import CheckedJson, Json
from bus.payloads.dual_write import DualWrite
from bus.payloads.rules import (
    All,
    Among,
    AtMost,
    Begins,
    Bytes,
    Computed,
    Condition,
    Either,
    Every,
    Has,
    Is,
    IsText,
    Least,
    Not,
    RangeOf,
    Rule,
    Size,
    Some,
    exactly_one,
    when,
)
from bus.payloads.upcasters import Upcaster
from bus.schemas.published_types import registry

__all__ = [
    "All",
    "Among",
    "AtMost",
    "Begins",
    "Bytes",
    "CheckedJson",
    "Computed",
    "Condition",
    "DualWrite",
    "Either",
    "Every",
    "Has",
    "Is",
    "IsText",
    "Json",
    "Least",
    "Not",
    "RangeOf",
    "Rule",
    "Size",
    "Some",
    "Upcaster",
    "exactly_one",
    "registry",
    "when",
]
