"""What a change of a schema asks for: seed 000's table, row by row."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from bus.errors import ContractError
from bus.payloads.payload_types import payload, payload_type
from bus.payloads.rules import Has, Is, Rule, when
from bus.schemas.changes import compare, needed_bump, version_for
from bus.schemas.json_schema import schema_of
from bus.schemas.versions import SchemaVersion


def struct(*fields: tuple[str, Any] | tuple[str, Any, Any], **options: Any) -> dict[str, Any]:
    cls = msgspec.defstruct("Handoff", fields, kw_only=True, frozen=True)
    return schema_of(payload_type(payload("task.moved", **options)(cls)))


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    street: str


class InnerWithZip(msgspec.Struct, frozen=True, kw_only=True):
    street: str
    zip_code: str


STATUS = Literal["open", "done"]
BASE = struct(("receiver_agent_id", str), ("duration_ms", int), ("status", STATUS), ("note", str, ""))
ROWS = {
    "optional field added": (
        struct(("receiver_agent_id", str), ("duration_ms", int), ("status", STATUS), ("note", str, ""),
               ("priority", str, "normal")),
        "/priority", "minor",
    ),
    "enum value added": (
        struct(("receiver_agent_id", str), ("duration_ms", int), ("status", Literal["open", "done", "lost"]),
               ("note", str, "")),
        "/status", "review",
    ),
    "enum value removed": (
        struct(("receiver_agent_id", str), ("duration_ms", int), ("status", Literal["open"]), ("note", str, "")),
        "/status", "major",
    ),
    "required field added": (
        struct(("receiver_agent_id", str), ("duration_ms", int), ("status", STATUS), ("note", str, ""),
               ("trace_id", str)),
        "/trace_id", "major",
    ),
    "field renamed": (
        struct(("target_agent_id", str), ("duration_ms", int), ("status", STATUS), ("note", str, "")),
        "/receiver_agent_id", "major",
    ),
    "type changed": (
        struct(("receiver_agent_id", str), ("duration_ms", str), ("status", STATUS), ("note", str, "")),
        "/duration_ms", "major",
    ),
    "field deleted": (
        struct(("receiver_agent_id", str), ("duration_ms", int), ("status", STATUS)),
        "/note", "major",
    ),
    "optional field made required": (
        struct(("receiver_agent_id", str), ("duration_ms", int), ("status", STATUS), ("note", str)),
        "/note", "major",
    ),
    "required field made optional": (
        struct(("receiver_agent_id", str), ("duration_ms", int, 0), ("status", STATUS), ("note", str, "")),
        "/duration_ms", "major",
    ),
    "default changed": (
        struct(("receiver_agent_id", str), ("duration_ms", int), ("status", STATUS), ("note", str, "-")),
        "/note", "major",
    ),
    "limit changed": (
        struct(("receiver_agent_id", Annotated[str, Meta(max_length=9)]), ("duration_ms", int),
               ("status", STATUS), ("note", str, "")),
        "/receiver_agent_id", "major",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ROWS)
def test_each_change_is_named_and_asks_for_its_bump(kind: str) -> None:
    new, pointer, bump = ROWS[kind]
    changes = compare(BASE, new)
    assert (changes[0].kind, changes[0].pointer, changes[0].bump) == (kind, pointer, bump)
    assert needed_bump(changes) == bump


def test_a_rename_names_the_likely_new_name() -> None:
    change = compare(BASE, ROWS["field renamed"][0])[0]
    assert "target_agent_id" in change.text


def test_a_field_replaced_by_another_type_is_not_a_rename() -> None:
    new = struct(("duration_ms", int), ("status", STATUS), ("note", str, ""), ("size", int))
    assert {change.kind for change in compare(BASE, new)} == {"field deleted", "required field added"}


def test_changes_in_parts_are_found_with_their_pointer() -> None:
    old, new = struct(("address", Inner)), struct(("address", InnerWithZip))
    assert [(change.pointer, change.kind) for change in compare(old, new)] == [
        ("/address/zip_code", "required field added")
    ]
    listed = compare(struct(("all", tuple[Inner, ...])), struct(("all", tuple[InnerWithZip, ...])))
    assert listed[0].pointer == "/all/*/zip_code"


def test_a_rule_that_comes_is_major() -> None:
    rule = Rule("done needs a note", "/note", when(Is("status", ("done",)), Has("note")))
    fields = (("status", STATUS), ("note", str | None, None))
    changes = compare(struct(*fields), struct(*fields, rules=(rule,)))
    assert [(change.kind, change.bump) for change in changes] == [("rule changed", "major")]


@pytest.mark.parametrize(
    ("before", "after", "bump"),
    [
        ({}, {"required_options": ("task_id",)}, "major"),
        ({"required_options": ("task_id",)}, {}, "minor"),
        ({"performative": "request"}, {"performative": "query"}, "major"),
        ({}, {"performative": "request"}, "review"),
        ({"performative": "request"}, {}, "major"),
        ({"risk": "low"}, {"risk": "medium"}, "review"),
        ({"ttl_s": 60}, {"ttl_s": 90}, "minor"),
        ({}, {"side_effect": "write"}, "review"),
        ({"resource": "/a"}, {}, "review"),
    ],
)
def test_terms_of_the_envelope_are_part_of_the_contract(before: Any, after: Any, bump: str) -> None:
    assert needed_bump(compare(struct(("a", str), **before), struct(("a", str), **after))) == bump


FLAG = (("a", str), ("dry_run", bool, False))


def test_a_field_that_becomes_critical_is_minor_and_one_that_is_no_more_is_reviewed() -> None:
    plain, critical = struct(*FLAG), struct(*FLAG, critical=("dry_run",))
    assert needed_bump(compare(plain, critical)) == "minor"
    assert needed_bump(compare(critical, plain)) == "review"


@pytest.mark.parametrize("field", [("dry_run", bool, False), ("most", int | None, None), ("share", float, 1.0)])
def test_a_new_flag_or_limit_of_a_type_of_high_risk_is_asked_about(field: Any) -> None:
    def advice(*fields: Any, **options: Any) -> list[str]:
        return [
            change.advice for change in compare(struct(("a", str), **options), struct(("a", str), *fields, **options))
        ]

    (said,) = advice(field, risk="high")
    assert f'critical=("{field[0]}",)' in said
    assert advice(field) == [""]
    assert advice(("note", str, ""), risk="high") == [""]
    new = struct(("a", str), field, risk="high", critical=(field[0],))
    assert {change.advice for change in compare(struct(("a", str), risk="high"), new)} == {""}


def test_other_words_are_a_patch() -> None:
    old = struct(("a", str))
    assert needed_bump(compare(old, {**old, "description": "other words"})) is None
    assert compare(old, old) == ()


def test_a_reviewed_enum_is_minor() -> None:
    changes = compare(BASE, ROWS["enum value added"][0])
    assert needed_bump(changes, reviewed=True) == "minor"


versions = st.tuples(*[st.integers(0, 99)] * 3).map(lambda numbers: SchemaVersion(*numbers))


@given(versions)
def test_versions_are_read_as_they_are_written(version: SchemaVersion) -> None:
    assert SchemaVersion.of(str(version)) == version


@given(versions, st.sampled_from(["patch", "minor", "major"]))
def test_a_bump_is_the_least_later_version_of_its_kind(version: SchemaVersion, bump: Any) -> None:
    later = SchemaVersion.of(version_for(str(version), bump))
    assert later > version
    assert (later.major > version.major) == (bump == "major")


def test_1_10_0_comes_after_1_2_0() -> None:
    assert sorted(map(SchemaVersion.of, ("1.10.0", "1.2.0", "1.9.9"))) == [(1, 2, 0), (1, 9, 9), (1, 10, 0)]


@pytest.mark.parametrize("text", ["1.0", "1.0.0-rc1", "v1.0.0", "agent-msg.v1", "01.0.0", "1.0.0\n", "../1.0.0", ""])
def test_an_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        SchemaVersion.of(text)


def test_a_deprecation_is_minor_and_names_date_and_successor() -> None:
    old = struct(("a", str), ("b", str, ""))
    new = struct(("a", str), ("b", str, ""), deprecated={"b": ("2027-03-01", "use a")})
    (change,) = compare(old, new)
    assert (change.kind, change.pointer, change.bump) == ("field deprecated", "/b", "minor")
    assert "2027-03-01" in change.text
    assert "use a" in change.text


@pytest.mark.parametrize("what", [("soon", "use a"), ("2027-03-01",), "2027-03-01"])
def test_a_deprecation_needs_a_date_and_advice(what: Any) -> None:
    with pytest.raises(ContractError, match="write"):
        struct(("a", str), deprecated={"a": what})


def test_the_limits_of_every_integer_are_not_a_change() -> None:
    before = {"type": "object", "properties": {"count": {"type": "integer"}, "size": {"type": "integer", "minimum": 0}}}
    after: dict[str, Any] = {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1},
            "size": {"type": "integer", "minimum": 0, "maximum": 2**53 - 1},
        },
    }
    assert [change for change in compare(before, after) if change.bump != "patch"] == []
    less = {"type": "object", "properties": {**after["properties"], "count": {"type": "integer", "maximum": 9}}}
    assert [(change.pointer, change.bump) for change in compare(before, less)] == [("/count", "major")]
