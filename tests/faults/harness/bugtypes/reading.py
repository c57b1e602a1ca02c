"""Bugs in reading and judging: positions, pauses, order, and gates that let everything through.

Owns these patches. Each replaces one seam of the worker or of the embedded log in this process.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import msgspec
from harness.bugs import Bug

from bus import gates
from bus.transports.sqlite import fetch as reading
from bus.transports.sqlite import subscription
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.settling import durable_append
from consumers.delivery.state.assignments import Partitions
from consumers.delivery.state.delivery import Refused
from consumers.delivery.state.lanes import Lanes
from consumers.worker.worker import Worker

__all__ = ["BUGS"]


def no_epoch_check() -> None:
    """Whoever has lost a partition commits all the same."""

    def commit(log: Any, group: str, member_id: int, offsets: Mapping[tuple[int, int], int]) -> list[Any]:
        for (part, _), offset in offsets.items():
            log.connection.execute("UPDATE leases SET committed = ? WHERE grp = ? AND part = ?", (offset, group, part))
        return []

    subscription.commit = commit  # type: ignore[attr-defined]
    subscription.SqliteSubscription._is_silent = lambda _: False
    subscription.SqliteSubscription._lose = lambda *_: None
    Worker.lost = lambda *_: None


def latest_on_reset() -> None:
    position = reading._position

    def patched(want: Any, kept: Any, *, strict: bool) -> int:
        return int(kept.end) if want.position is None else position(want, kept, strict=strict)

    reading._position = patched


def one_too_far() -> None:
    """Reading goes on after the commit, not at it."""

    class Ahead(subscription._Held):
        __slots__ = ()

        def __init__(self, taken: Any) -> None:
            super().__init__(taken)
            if self.position is not None and self.position > 0:
                self.position += 1

    subscription._Held = Ahead  # type: ignore[misc]


def remembered_pause() -> None:
    """A partition that was paused when it went away is paused when it comes back."""
    hold, add = Partitions.pause, Partitions.add
    paused: set[tuple[str, int]] = set()

    def held(self: Partitions, partition: Any, want: bool) -> None:
        place = partition.assignment.topic, partition.assignment.partition
        if not partition.closed:
            (paused.add if want else paused.discard)(place)
        hold(self, partition, want)

    def added(self: Partitions, assignments: Any) -> None:
        known = list(assignments)
        add(self, known)
        for partition in self.held_among(known):
            if (partition.assignment.topic, partition.assignment.partition) in paused:
                hold(self, partition, True)

    Partitions.pause, Partitions.add = held, added


def tier_head_lost() -> None:
    """The head of a tier that is not due is passed over, and never read again."""
    defer = Partitions.defer

    def patched(self: Partitions, partition: Any, offset: int, delay_s: float) -> None:
        partition.frontier.deliver(offset)
        partition.frontier.settle(offset)
        defer(self, partition, offset + 1, delay_s)

    Partitions.defer = patched


def lanes_ignored() -> None:
    add = Lanes.add
    numbers = itertools.count()

    def patched(self: Any, _: Any, *rest: Any, **options: Any) -> None:
        add(self, next(numbers), *rest, **options)

    Lanes.add = patched


def expired_handled() -> None:
    RecordVerifier.check_lifetime = lambda *_, **__: None
    RecordVerifier.remaining_s = lambda *_: 3600.0
    limits = gates.cast_limits
    gates.cast_limits = lambda checks: limits(checks)._replace(expiry_tolerance_ms=1 << 40, max_ttl_ms=1 << 40)
    gates.lifetime_gate = lambda *_, **__: None


def seal_ignored() -> None:
    gates.integrity_gate = lambda message: message.statement


def poison_skipped() -> None:
    """What is no sound message is passed over in silence."""
    judge = RecordVerifier.judge

    def patched(self: RecordVerifier, record: Any, partition: Any, now_ms: int) -> Any:
        delivery = judge(self, record, partition, now_ms)
        return None if isinstance(delivery, Refused) else delivery

    RecordVerifier.judge = patched


def letters_altered() -> None:
    """A dead letter is written anew instead of kept as it came."""
    bury = durable_append.dead_letter_record  # type: ignore[attr-defined]

    def patched(*arguments: Any, **options: Any) -> Any:
        letter = bury(*arguments, **options)
        return msgspec.structs.replace(letter, value=(letter.value or b"") + b"\n")

    durable_append.dead_letter_record = patched  # type: ignore[attr-defined]


BUGS = [
    Bug(
        "no-epoch-check",
        "a commit is taken from whoever sends it",
        no_epoch_check,
        ("9-freeze", "9-order"),
        ("I5", "I1"),
    ),
    Bug("latest-on-reset", "a group without a commit begins at the end", latest_on_reset, ("19-late",), ("I1",)),
    Bug("one-too-far", "reading goes on one after the commit", one_too_far, ("7-kill",), ("I1", "I5", "I8")),
    Bug("remembered-pause", "a pause outlives a rebalance", remembered_pause, ("9-tiers",), ("I8",)),
    Bug(
        "tier-head-lost",
        "the head of a tier is passed over while it is not due",
        tier_head_lost,
        ("7-kill",),
        ("I5", "I1"),
    ),
    Bug("lanes-ignored", "the messages of a key run side by side", lanes_ignored, ("9-order",), ("I6",)),
    Bug("expired-handled", "the lifetime is not looked at", expired_handled, ("19-late",), ("I7",)),
    Bug("seal-ignored", "the seal is not compared with the bytes", seal_ignored, ("19-late",), ("I7",)),
    Bug("poison-skipped", "what a gate refuses is passed over in silence", poison_skipped, ("19-late",), ("I1", "I5")),
    Bug("letters-altered", "dead letters are written anew", letters_altered, ("7-kill",), ("SAME",)),
]
