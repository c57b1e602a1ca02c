"""A table of members, walked both ways: each kind of row, and what comes back of what it reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bus.dialects import Defaults
from bus.dialects.forms import NAME, TEXT, TIME, whole_number
from bus.dialects.keeping import ABSENT, Notes, Source, Target
from bus.dialects.member_table import KEPT, REFUSED, Derived, Inside, Items, Kept, MemberTable, Optional, Required, Rest
from bus.errors import DialectError

STEP = MemberTable(Required("do", TEXT, "action"), Optional("after"), KEPT)
TABLE = MemberTable(
    Required("id", NAME, "message_id", default="message_id"),
    Required("at", TIME, "sent_at_ms"),
    Optional("level", whole_number(0, 9), absent=5, omit=(5,)),
    Optional("title", TEXT, derive=lambda _said, data: data["message_id"]),
    Kept("reply", TEXT, otherwise="nobody"),
    Inside("owner", MemberTable(Required("name", NAME, "owner_name"), REFUSED), optional=True),
    Items("steps", STEP, optional=True),
    Derived("kind", lambda _said, _data: "plan"),
    Rest("inputs"),
)
PLAN = {"id": "p-1", "at": "2026-01-31T12:00:00Z", "title": "t", "reply": "me"}


def read(message: dict[str, Any], **defaults: Any) -> tuple[dict[str, Any], Notes]:
    notes = Notes()
    data = TABLE.read(Source(message, "", notes), {}, {"defaults": Defaults(**defaults)})
    return data, notes


def written(data: dict[str, Any], notes: Notes) -> dict[str, Any]:
    opened = SimpleNamespace(is_derived=lambda pointer, value: pointer in notes.derived and data[pointer[1:]] == value)
    target = Target(dict(notes.kept))
    TABLE.write(target, data, {"opened": opened})
    return target.finish()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"at": "2026-01-31T19:00:00+07:00"},
        {"level": 7},
        {"level": 5},
        {"title": ABSENT},
        {"owner": {"name": "o"}, "x": [1, None]},
        {"steps": [{"do": "a"}, {"do": "b", "after": 0}]},
    ],
)
def test_what_is_read_is_written_again(more: dict[str, Any]) -> None:
    message = {name: value for name, value in {**PLAN, **more}.items() if value != ABSENT}
    assert written(*read(message)) == message


def test_fields_have_the_names_of_here_and_places_there() -> None:
    data, notes = read({**PLAN, "id": "i", "title": "t", "steps": [{"do": "a"}], "more": 1})
    assert (data["message_id"], data["sent_at_ms"], data["level"], data["kind"]) == ("i", 1_769_860_800_000, 5, "plan")
    assert (data["steps"], data["inputs"]) == ([{"action": "a"}], {"more": 1})
    assert (notes.kept, notes.derived) == ({"/reply": "me"}, ["/kind"])
    places = TABLE.locations("/payload")
    assert (places["/steps/*/action"], places["/owner_name"]) == ("/payload/steps/*/do", "/payload/owner/name")


def test_what_stands_for_a_missing_member_is_a_default_or_made_up() -> None:
    message = {"at": PLAN["at"], "reply": "me"}
    data, notes = read(message, message_id="made")
    assert (data["message_id"], data["title"]) == ("made", "made")
    assert written(data, notes) == message
    with pytest.raises(DialectError, match="/id"):
        read(message)


def test_a_table_says_all_that_no_reader_takes_for_another_member() -> None:
    data, _ = read(PLAN)
    assert TABLE.says_all(data)
    assert not TABLE.says_all({**data, "unknown": 1})
    assert not TABLE.says_all({**data, "inputs": {"id": "another"}})
    assert not TABLE.says_all({**data, "steps": [{"action": "a", "do": "b"}]})
