"""The crash rule: which message a process death counts against. Pure.

Owns the weight of a death for each running message, when a message is a suspect, and when it is dead-lettered. It
applies the inbox's rule (`consumers.delivery.inbox.claim_rules`) to messages without an inbox row. Messages with a row
only count as others that ran at the same time.

A death counts against the message that ran alone. A message that ran among others at two deaths is a suspect. A record
that was being checked counts as alone, even beside others: a check is short and starts nothing else, so a death during
it is unlikely to be a coincidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from consumers.delivery.inbox.claim_rules import DEATHS_TO_SUSPICION, MAX_DEATHS

__all__ = ["Blame", "Death", "RecordLocation", "Mark", "CrashCount", "after", "blames_of", "is_given_up", "unexpired"]

_KEPT_MS = 30 * 86_400_000
_MAX_KEPT = 10_000
_MAX_BLAMED = 3

MarkKind: TypeAlias = Literal["handler", "inbox", "judged"]


class RecordLocation(NamedTuple):
    """The key under which deaths are counted: the location where a message was first read.

    While a record is *judged*, it is the location of the record.
    """

    topic: str
    partition: int
    offset: int
    judged: bool = False

    @property
    def place(self) -> str:
        """TOPIC/PARTITION/OFFSET."""
        return f"{self.topic}/{self.partition}/{self.offset}"


class Mark(msgspec.Struct, frozen=True):
    """One message that was running.

    *name* is its id, or a checksum of a record that was being judged. *kind* "inbox": it has a row there.
    """

    topic: str
    partition: int
    offset: int
    name: str
    redrives: int
    kind: MarkKind

    @property
    def key(self) -> RecordLocation:
        """The key under which its deaths are counted."""
        return RecordLocation(self.topic, self.partition, self.offset, self.kind == "judged")


class Death(msgspec.Struct, frozen=True):
    """A process that crashed, and the messages *running* in it."""

    pid: int
    at_ms: int
    running: tuple[Mark, ...]
    member: str = ""
    """Its name in the group."""


class Blame(msgspec.Struct, frozen=True):
    """A message that several processes ran when they crashed, whether or not it is the cause."""

    mark: Mark
    deaths: int
    at_ms: int
    """When the last of these deaths was counted."""


class CrashCount(msgspec.Struct, frozen=True):
    """The crash count of one message."""

    topic: str
    partition: int
    offset: int
    judged: bool
    name: str
    redrives: int
    """How often an operator had redriven it when deaths were last forgiven."""
    starts: int
    """Runs that ended in the death of their process, since a run last ended in order."""
    deaths: int
    """Those of them in which it ran alone."""
    at_ms: int
    """When the last death was counted."""

    @property
    def key(self) -> RecordLocation:
        """The key under which it is counted."""
        return RecordLocation(self.topic, self.partition, self.offset, self.judged)

    @property
    def suspect(self) -> bool:
        """Whether it has to run alone; a message that died alone before stays alone."""
        return self.starts >= DEATHS_TO_SUSPICION or self.deaths > 0


def after(crash_counts: Mapping[RecordLocation, CrashCount], death: Death) -> dict[RecordLocation, CrashCount]:
    """Return the counts once *death* is counted."""
    judged = any(mark.kind == "judged" for mark in death.running)
    counted = dict(crash_counts)
    for mark in death.running:
        if mark.kind != "inbox":
            alone = mark.kind == "judged" if judged else len(death.running) == 1
            counted[mark.key] = _counted(_standing(crash_counts.get(mark.key), mark), alone, death.at_ms)
    return counted


def blames_of(deaths: Sequence[Death]) -> tuple[Blame, ...]:
    """Return the messages that ran in most of *deaths*, and in two or more: an operator looks at these first."""
    marks = {mark.key: mark for death in deaths for mark in death.running}
    times = {key: [death.at_ms for death in deaths if any(mark.key == key for mark in death.running)] for key in marks}
    most = max(map(len, times.values()), default=0)
    found = [Blame(marks[key], most, max(at_ms)) for key, at_ms in times.items() if len(at_ms) == most]
    return tuple(found[:_MAX_BLAMED]) if most >= DEATHS_TO_SUSPICION else ()


def is_given_up(crash_count: CrashCount, redrives: int) -> bool:
    """Return whether the message has had all its tries; a redrive since gives it new ones."""
    return crash_count.deaths >= MAX_DEATHS and redrives <= crash_count.redrives


def unexpired(crash_counts: Mapping[RecordLocation, CrashCount], now_ms: int) -> dict[RecordLocation, CrashCount]:
    """Return the counts worth keeping: not too old, and not too many."""
    young = [crash_count for crash_count in crash_counts.values() if crash_count.at_ms > now_ms - _KEPT_MS]
    return {crash_count.key: crash_count for crash_count in sorted(young, key=_age)[-_MAX_KEPT:]}


def _standing(crash_count: CrashCount | None, mark: Mark) -> CrashCount:
    """Return the count before this death; a recreated topic has other messages in the same places."""
    if crash_count is None or crash_count.name != mark.name:
        return CrashCount(*mark.key, name=mark.name, redrives=mark.redrives, starts=0, deaths=0, at_ms=0)
    # Deaths are forgiven once for each redrive; suspicion stays.
    return (
        msgspec.structs.replace(crash_count, deaths=0, redrives=mark.redrives)
        if mark.redrives > crash_count.redrives
        else crash_count
    )


def _counted(crash_count: CrashCount, alone: bool, at_ms: int) -> CrashCount:
    return msgspec.structs.replace(
        crash_count, starts=crash_count.starts + 1, deaths=crash_count.deaths + alone, at_ms=at_ms
    )


def _age(crash_count: CrashCount) -> tuple[int, RecordLocation]:
    return crash_count.at_ms, crash_count.key
