"""Workers of one group that do not fit each other, by their cards."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.operations.survey.member_verdicts import of_members
from producers.directory.presence import AgentEntry, GroupMember

NOW_MS, MINUTE_MS = 1_700_000_000_000, 60_000


def member(name: str, **told: Any) -> GroupMember:
    return GroupMember(**({"group": "shop-svc", "name": name, "inbox": "0a", "handled": ("shop.order",)} | told))


def judged(*members: GroupMember, now_ms: int = NOW_MS) -> list[tuple[str, str, str]]:
    agent = AgentEntry(agent_id="shop@svc", health="healthy", instances=1, heard_s_ago=1.0, members=members)
    return [(each.state, each.text, each.cure) for each in of_members([agent], now_ms)]


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


def test_two_programs_in_one_group_are_a_hint_once_no_deployment_lasts_so_long() -> None:
    begun_ms = NOW_MS - 4 * MINUTE_MS
    programs = (
        member("h-1", since_ms=NOW_MS - 600 * MINUTE_MS, handled=("shop.order", "shop.refund")),
        member("h-2", since_ms=begun_ms),
    )
    assert judged(*programs) == []
    ((state, text, cure),) = judged(*programs, now_ms=begun_ms + 5 * MINUTE_MS)
    assert state == "hint"
    assert "workers of shop@svc have handled different types for 5 min" in text
    assert "shop.refund by 1 worker (h-1)" in text
    assert "shop.order" not in text
    assert "agent id" in cure


def test_workers_that_do_not_tell_since_when_they_run_are_not_judged() -> None:
    assert judged(member("h-1", since_ms=0, handled=("a.b",)), member("h-2", since_ms=None)) == []
