"""Whether anybody reads what a redrive would send."""

from __future__ import annotations

from collections import Counter

import pytest

from bus.errors import ConfigurationError
from bus.transports.base import GroupInfo
from consumers.deadletters.recipients import Recipient, check_recipients, judge_recipients
from consumers.deadletters.redrive_rules import RedriveCount, RedriveCounts

TOPIC = ("ns.order.placed", 0)


def group(name: str, members: int = 0, committed: int | None = 5) -> GroupInfo:
    return GroupInfo(
        name=name,
        members={f"m{number}": (TOPIC,) for number in range(members)},
        committed={} if committed is None else {TOPIC: committed},
    )


def judged(*infos: GroupInfo, verdict: str = "send") -> tuple[Recipient, ...]:
    counts = RedriveCounts(
        counts=Counter({RedriveCount(verdict, "rejected", "order.placed", "old"): 3}),
    )
    return judge_recipients(counts, infos, "ns")


@pytest.mark.parametrize(
    ("infos", "is_nobody", "text"),
    [
        ((group("old", 1), group("new", 2)), False, ""),
        ((group("old"),), False, "group old has no members now: 3 dead letters wait in its redrive topic"),
        (
            (group("old"), group("new", 2)),
            True,
            "group old has no members: 3 dead letters would be sent to a group without workers",
        ),
        ((group("old"), group("new", 0)), True, "would be sent to a group without workers"),
        ((group("new", 2, committed=None),), True, "group old has no members and no committed offsets"),
        ((), True, "no members and no committed offsets"),
    ],
)
def test_a_group_of_nobody_is_told_from_one_that_is_stopped(
    infos: tuple[GroupInfo, ...], is_nobody: bool, text: str
) -> None:
    (recipient,) = judged(*infos)
    assert recipient.is_nobody is is_nobody
    assert text in recipient.text
    assert bool(recipient.text) == bool(text)


def test_other_groups_that_read_the_topic_are_offered() -> None:
    other = GroupInfo(name="other", members={}, committed={("ns.order.paid", 0): 1})
    (recipient,) = judged(group("old"), group("idle"), group("new", 2), other)
    assert [(reader.group, reader.members) for reader in recipient.readers] == [("new", 2), ("idle", 0)]
    assert "order.placed is read by new (2 members), idle (0 members)" in recipient.cure
    assert "group='old'" in recipient.cure


def test_a_group_of_nobody_is_refused_with_the_cure() -> None:
    check_recipients(judged(group("old")))
    with pytest.raises(ConfigurationError, match=r"without workers\. order\.placed is read by new"):
        check_recipients(judged(group("old"), group("new", 1)))


def test_letters_that_are_not_sent_have_no_recipients() -> None:
    assert judged(group("new", 1), verdict="park") == ()
