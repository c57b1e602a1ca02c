"""Workers of one group that do not fit each other, by their cards."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.operations.survey.member_verdicts import of_members
from producers.directory.presence import AgentEntry, GroupMember


def member(name: str, **told: Any) -> GroupMember:
    return GroupMember(**({"group": "shop-svc", "name": name, "inbox": "0a", "handled": ("shop.order",)} | told))


def judged(*members: GroupMember) -> list[tuple[str, str, str]]:
    agent = AgentEntry(agent_id="shop@svc", health="healthy", instances=1, heard_s_ago=1.0, members=members)
    return [(each.state, each.text, each.cure) for each in of_members([agent])]


def test_a_worker_with_another_inbox_than_its_group_is_a_fault_that_names_it() -> None:
    ((state, text, cure),) = judged(member("h-1"), member("h-2"), member("h-3", inbox="0b"))
    assert state == "fault"
    assert "shop-svc: its workers use different inboxes" in text
    assert "inbox 0a by 2 workers (h-1, h-2)" in text
    assert "inbox 0b by 1 worker (h-3)" in text
    assert "one inbox.url" in cure


def test_a_worker_without_an_inbox_beside_others_with_one_is_a_fault() -> None:
    ((state, text, _),) = judged(member("h-1"), member("h-2", inbox="none"))
    assert (state, "none by 1 worker (h-2)" in text) == ("fault", True)


@pytest.mark.parametrize("other", [{"inbox": "0a"}, {"inbox": ""}, {"inbox": "0b", "group": "another"}])
def test_one_inbox_an_unknown_one_and_another_group_are_no_fault(other: dict[str, Any]) -> None:
    assert judged(member("h-1"), member("h-2", **other)) == []
