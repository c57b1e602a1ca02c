"""Rows about what becomes of messages: lifetimes, wrong clocks, a lost dependency, a locked file, a full disk. On
either log.

Owns their loads and schedules.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from harness import disks, product
from harness.rows.row import MIX, TYPES, Row, always
from harness.terms import Load
from harness.timeline import Fault

__all__ = ["ROWS"]

BOTH = ("embedded", "kafka")


def _clocks(chance: random.Random) -> Iterator[Fault]:
    wrong_s = chance.choice([-3600, -300, -30, 30, 300, 3600])
    yield Fault(chance.uniform(0.5, 2.0), "clock", "workers", chance.uniform(2.0, 5.0), how=str(wrong_s))
    yield Fault(
        chance.uniform(1.0, 4.0),
        "clock",
        "publisher",
        chance.uniform(1.0, 3.0),
        how=str(chance.choice([-90, -20, 20, 90])),
    )


def _late_topics(chance: random.Random) -> Iterator[Fault]:
    yield Fault(0.5, "late-topics", for_s=chance.uniform(4.0, 8.0))
    yield Fault(chance.uniform(1.0, 3.0), "kill", "w1")


def _dependency(for_s: float) -> object:
    def schedule(chance: random.Random) -> Iterator[Fault]:
        yield Fault(chance.uniform(0.5, 1.5), "flag", for_s=for_s)
        yield Fault(chance.uniform(3.0, 5.0), "kill", "w1")

    return schedule


def _locks(chance: random.Random) -> Iterator[Fault]:
    yield Fault(chance.uniform(0.5, 1.5), "lock", "log", chance.uniform(2.0, 12.0))


def _inbox_locks(chance: random.Random) -> Iterator[Fault]:
    yield Fault(chance.uniform(0.5, 1.5), "lock", "inbox", chance.uniform(2.0, 12.0))
    yield Fault(chance.uniform(14.0, 15.0), "lock", "inbox", chance.uniform(0.5, 4.0))


def _full(chance: random.Random) -> Iterator[Fault]:
    yield Fault(chance.uniform(0.5, 2.5), "full", for_s=chance.uniform(2.0, 8.0))
    yield Fault(chance.uniform(4.0, 6.0), "kill", "w1", chance.uniform(0.0, 2.0))
    yield Fault(chance.uniform(12.0, 14.0), "full", for_s=chance.uniform(2.0, 8.0))


def _inbox() -> str:
    return "" if product.has_inbox() else "the worker asks no inbox yet"


ROWS = [
    Row(
        name="5-hopeless",
        title="handlers that fail at every attempt, through a tier each time",
        logs=BOTH,
        schedule=always(Fault(3.0, "kill", "w1")),
        load=Load(count=150, rate=60, keys=1000, types=dict(TYPES), mix={"ok": 3, "never": 1}),
        seeds=3,
    ),
    Row(
        name="12-full-disk",
        title="the file system of log and inbox is full for some seconds, twice, and a worker dies meanwhile",
        logs=("embedded",),
        schedule=_full,
        load=Load(count=1500, rate=80, types=dict(TYPES), mix=dict(MIX), duplicates=0.1, disk_mb=64),
        lacking=disks.lacking,
        seeds=10,
    ),
    Row(
        name="13-clocks",
        title="wall clocks of workers and publisher jump by up to an hour, either way, and back",
        logs=BOTH,
        schedule=_clocks,
        load=Load(count=500, rate=80, types=dict(TYPES), mix=dict(MIX) | {"tier:1": 3}, ttl_s=86_400),
    ),
    Row(
        name="19-late",
        title="messages that expire before anybody is there, among others",
        logs=BOTH,
        schedule=always(),
        load=Load(count=200, rate=400, types=dict(TYPES), mix={"ok": 3, "late": 1}, head_start_s=6.5, forged=0.05),
        quick=True,
        seeds=5,
    ),
    Row(
        name="21-missing-topics",
        title="the topics of dead letters are missing, and made later; a worker dies meanwhile",
        logs=BOTH,
        schedule=_late_topics,
        load=Load(
            count=500,
            rate=80,
            types=dict(TYPES),
            mix=dict(MIX),
            absent=(".dlq",),
            environment={"SEALBUS_TOPICS__CREATE": "false"},
        ),
        seeds=5,
    ),
    Row(
        name="26-log-locked",
        title="another program holds the log's write lock for up to 12 s",
        logs=("embedded",),
        schedule=_locks,
        load=Load(count=500, rate=80, types=dict(TYPES), mix=dict(MIX), duplicates=0.1),
    ),
    Row(
        name="26-inbox-locked",
        title="another program holds the inbox's write lock for up to 12 s",
        logs=("embedded",),
        schedule=_inbox_locks,
        load=Load(count=800, rate=50, types=dict(TYPES), mix=dict(MIX), duplicates=0.2),
        lacking=_inbox,
    ),
    Row(
        name="27-dependency",
        title="a dependency is down for 15 s, and a worker dies meanwhile",
        logs=BOTH,
        schedule=_dependency(15.0),
        load=Load(count=600, rate=80, types={"fault.need": 3, "fault.task": 1}, mix={"ok": 1}),
        seeds=5,
    ),
    Row(
        name="27-long-dependency",
        title="a dependency is down for 10 minutes with 5,000 messages waiting",
        logs=BOTH,
        schedule=_dependency(600.0),
        load=Load(count=6000, rate=80, types={"fault.need": 6, "fault.task": 1}, mix={"ok": 1}),
        seeds=1,
    ),
]
