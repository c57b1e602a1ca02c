"""CheckFinding: one mistake that `sealbus check` found, its harm and its fix. Pure."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

__all__ = ["AREAS", "OTHER_CHECKS", "Area", "CheckFinding", "GRAVITIES", "Gravity"]

Area: TypeAlias = Literal["settings", "types", "lint", "policy", "keys", "workflows", "doors"]
Gravity: TypeAlias = Literal["error", "warning", "note"]
AREAS: Final[tuple[Area, ...]] = ("settings", "types", "lint", "policy", "keys", "workflows", "doors")
GRAVITIES: Final[tuple[Gravity, ...]] = ("note", "warning", "error")
"""From the least grave."""


OTHER_CHECKS: Final = frozenset(
    {"schema-change", "new-value", "not-published", "no-upcaster", "advice", "recorded-refused", "key", "keys-unused"}
    | {"workflow"}
)
"""Names of checks, besides those of lint and of policies."""


class CheckFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding; *location* is a file and line, a type and field, a rule, a key, or TOPIC/PARTITION/OFFSET."""

    area: Area
    check: str
    level: Gravity
    location: str
    what: str
    why: str = ""
    fix: str = ""
    file: str | None = None
    line: int | None = None
