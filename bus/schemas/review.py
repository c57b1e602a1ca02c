"""Whether the types of a program may follow the published ones: the verdicts of `sealbus check --only types`. Pure.

Owns the rule: the schema of a published version never changes, and a changed schema has a version that its gravest
change allows. *today* is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any, Literal, TypeAlias

import msgspec

from bus.payloads.payload_types import PayloadType
from bus.schemas.changes import SchemaChange, compare, needed_bump, version_for
from bus.schemas.json_schema import schema_of
from bus.schemas.schema_folder import SchemaFolder, written
from bus.schemas.versions import SchemaVersion

__all__ = ["TypeReview", "ReviewVerdict", "review_types"]

ReviewVerdict: TypeAlias = Literal["ok", "new", "review", "broken"]


class TypeReview(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `types check` for one type."""

    type: str
    published: str | None
    """The published version to compare with; None if there is none yet."""
    version: str
    changes: tuple[SchemaChange, ...]
    verdict: ReviewVerdict
    reason: str


def review_types(
    kinds: Iterable[PayloadType], folder: SchemaFolder, *, today: date, reviewed: bool = False
) -> tuple[TypeReview, ...]:
    """Compare each of *kinds* with what *folder* has of it, and name published types that are gone."""
    found = [_review(kind, folder, today=today, reviewed=reviewed) for kind in kinds]
    known = {finding.type for finding in found}
    for name in folder.types():
        if name not in known:
            newest = str(folder.versions(name)[-1])
            change = SchemaChange("", "type deleted", "major", "no handler and no publisher of it is left here")
            found.append(
                TypeReview(
                    type=name,
                    published=newest,
                    version="-",
                    changes=(change,),
                    verdict="ok",
                    reason="not in this program",
                )
            )
    return tuple(found)


def _review(kind: PayloadType, folder: SchemaFolder, *, today: date, reviewed: bool) -> TypeReview:
    versions, own = folder.versions(kind.name), SchemaVersion.of(kind.version)
    # A correction of an older major follows that one, not the newest.
    before = [version for version in versions if version <= own] or list(versions)
    if not before:
        return TypeReview(
            type=kind.name, published=None, version=kind.version, changes=(), verdict="new", reason="not published yet"
        )
    base = before[-1]
    schema, published = schema_of(kind), folder.read(kind.name, base)
    changes = compare(published, schema)
    verdict, reason = _judged(kind, changes, base, own, reviewed=reviewed)
    if verdict != "broken" and base == own and written(schema) != written(published) and not changes:
        verdict, reason = "ok", "only words differ from the published file"
    early = [change for change in changes if change.kind == "field deleted" and _too_early(published, change, today)]
    if verdict == "ok" and early:
        verdict, reason = "broken", f"{early[0].pointer} is gone before its date: {early[0].text}"
    overdue = [field for field, leaving in kind.deprecated.items() if leaving.removal <= today]
    if verdict == "ok" and overdue:
        field = overdue[0]
        reason = f"but {field} was to be removed by {kind.deprecated[field].removal}: remove it with a major version"
    return TypeReview(
        type=kind.name, published=str(base), version=kind.version, changes=changes, verdict=verdict, reason=reason
    )


def _judged(
    kind: PayloadType, changes: tuple[SchemaChange, ...], base: SchemaVersion, own: SchemaVersion, *, reviewed: bool
) -> tuple[ReviewVerdict, str]:
    bump = needed_bump(changes, reviewed=reviewed)
    if bump is None or (bump == "patch" and own == base):
        return "ok", "unchanged" if bump is None else "other words"
    if own < base:
        return "broken", f"{own} is older than the published {base}"
    if bump == "review":
        return (
            "review",
            "readers that do not know the new value refuse it: check them, then --accept-new-values WHY",
        )
    required_version = SchemaVersion.of(version_for(str(base), bump))
    if own < required_version:
        change = changes[0]
        return (
            "broken",
            f"{change.kind} at {change.pointer or '/'} asks for {bump}: {required_version} instead of {own}",
        )
    if own.major > base.major and not all(step in kind.upcasters for step in range(base.major, own.major)):
        return "ok", f"but no upcaster reads {base.major}.x: readers refuse what old publishers send"
    if own.major > base.major and kind.older(base.major) is None:
        return "ok", f"but nothing judges {base.major}.x before it is upcast: write Upcaster(Older, function)"
    return "ok", f"{bump} change"


def _too_early(published: dict[str, Any], change: SchemaChange, today: date) -> bool:
    schema: Any = published
    for name in change.pointer.split("/")[1:]:
        schema = schema.get("properties", {}).get(name) if isinstance(schema, dict) else None
    until = schema.get("x-sealbus-removal") if isinstance(schema, dict) else None
    return isinstance(until, str) and until > today.isoformat()
