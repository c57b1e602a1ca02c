"""`types check`: may the types of a program follow the published ones?"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from bus.payloads.payload_types import PayloadType, payload, payload_type
from bus.payloads.upcasters import Upcaster
from bus.schemas.json_schema import schema_of
from bus.schemas.review import TypeReview, review_types
from bus.schemas.schema_folder import SchemaFolder
from bus.schemas.versions import SchemaVersion

TODAY = date(2026, 11, 24)


def kind(*fields: Any, version: str = "1.0.0", **options: Any) -> PayloadType:
    cls = msgspec.defstruct("Moved", fields, kw_only=True, frozen=True)
    return payload_type(payload("task.moved", version=version, **options)(cls))


@pytest.fixture
def folder(tmp_path: Path) -> SchemaFolder:
    return SchemaFolder(tmp_path)


def publish(folder: SchemaFolder, *kinds: PayloadType) -> None:
    for each in kinds:
        folder.publish(each.name, SchemaVersion.of(each.version), schema_of(each))


def reviewed(folder: SchemaFolder, each: PayloadType, **options: Any) -> TypeReview:
    (found,) = review_types([each], folder, today=options.pop("today", TODAY), **options)
    return found


def test_a_type_that_is_not_published_is_new(folder: SchemaFolder) -> None:
    assert reviewed(folder, kind(("a", str))).verdict == "new"


def test_an_unchanged_type_is_ok(folder: SchemaFolder) -> None:
    publish(folder, kind(("a", str)))
    assert reviewed(folder, kind(("a", str))).verdict == "ok"


def test_a_changed_type_under_its_old_version_is_broken(folder: SchemaFolder) -> None:
    publish(folder, kind(("a", str)))
    found = reviewed(folder, kind(("a", str), ("b", str, "")))
    assert found.verdict == "broken"
    assert "asks for minor: 1.1.0 instead of 1.0.0" in found.reason


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("1.0.1", "broken"), ("1.1.0", "ok"), ("1.2.0", "ok"), ("2.0.0", "ok"), ("0.9.0", "broken")],
)
def test_a_new_optional_field_asks_for_a_minor_version(folder: SchemaFolder, version: str, verdict: str) -> None:
    publish(folder, kind(("a", str)))
    assert reviewed(folder, kind(("a", str), ("b", str, ""), version=version)).verdict == verdict


def test_a_breaking_change_without_a_major_version_is_broken(folder: SchemaFolder) -> None:
    publish(folder, kind(("result", str)))
    found = reviewed(folder, kind(("output", str), version="1.1.0"))
    assert found.verdict == "broken"
    assert "field renamed at /result asks for major: 2.0.0" in found.reason


def test_a_major_version_without_upcaster_is_reported(folder: SchemaFolder) -> None:
    publish(folder, kind(("a", str)))
    found = reviewed(folder, kind(("b", int), version="2.0.0"))
    assert (found.verdict, "no upcaster reads 1.x" in found.reason) == ("ok", True)
    upcast = reviewed(folder, kind(("b", int), version="2.0.0", upcasters={1: dict}))
    assert (upcast.verdict, "nothing judges 1.x" in upcast.reason) == ("ok", True)
    older = kind(("a", int), version="1.0.0").cls
    judged = reviewed(folder, kind(("b", int), version="2.0.0", upcasters={1: Upcaster(older, dict)}))
    assert judged.reason == "major change"


def test_a_new_enum_value_has_to_be_reviewed(folder: SchemaFolder) -> None:
    publish(folder, kind(("a", Literal["x", "y"])))
    wider = kind(("a", Literal["x", "y", "z"]), version="1.1.0")
    assert reviewed(folder, wider).verdict == "review"
    assert reviewed(folder, wider, reviewed=True).verdict == "ok"


def test_the_newest_of_the_published_versions_is_compared_by_semver(folder: SchemaFolder) -> None:
    publish(folder, kind(("a", str), version="1.2.0"), kind(("a", str), ("b", str, ""), version="1.10.0"))
    found = reviewed(folder, kind(("a", str), ("b", str, ""), version="1.10.0"))
    assert (found.published, found.verdict) == ("1.10.0", "ok")


def test_a_deprecated_field_stays_until_its_date(folder: SchemaFolder) -> None:
    publish(folder, kind(("a", str), ("b", str, ""), deprecated={"b": ("2027-03-01", "use a")}))
    gone = kind(("a", str), version="2.0.0", upcasters={1: dict})
    assert reviewed(folder, gone).verdict == "broken"
    assert "before its date" in reviewed(folder, gone).reason
    assert reviewed(folder, gone, today=date(2027, 3, 1)).verdict == "ok"


def test_a_deprecated_field_past_its_date_is_reported(folder: SchemaFolder) -> None:
    late = kind(("a", str), ("b", str, ""), deprecated={"b": ("2026-01-01", "use a")})
    publish(folder, late)
    assert "was to be removed by 2026-01-01" in reviewed(folder, late).reason


def test_a_published_type_that_the_program_lacks_is_named(folder: SchemaFolder) -> None:
    publish(folder, kind(("a", str)))
    (found,) = review_types([], folder, today=TODAY)
    assert (found.type, found.reason) == ("task.moved", "not in this program")
