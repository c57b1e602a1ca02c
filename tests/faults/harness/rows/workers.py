"""Rows about workers: deaths at every step, signals, storms of rebalances, blocked loops, messages that kill. On either
log.

Owns their loads and schedules.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from harness import product
from harness.rows.row import MIX, TYPES, Row, always
from harness.terms import Load
from harness.timeline import Fault

from bus.failpoints import FAILPOINTS

__all__ = ["ROWS"]

BOTH = ("embedded", "kafka")
# How often a worker comes by: each message, each retry, each commit.
_MOST = {"retried": 12, "buried": 6, "reported": 3, "sent": 20, "committing": 4, "committed": 4}
_NEEDS_INBOX = ("claimed", "inboxed")


_SLOWPAY = {"slowpay:0.5": 3, "deafpay:4": 1} if product.has_inbox() else {}


def _failpoint(name: str) -> Row:
    most = _MOST.get(name, 60)

    def schedule(chance: random.Random) -> Iterator[Fault]:
        yield Fault(0.0, "failpoint", "w1", how=f"{name}:{chance.randint(1, most)}")
        yield Fault(chance.uniform(0.5, 2.5), "failpoint", "w2", how=f"{name}:{chance.randint(1, most)}")
        yield Fault(chance.uniform(6.5, 8.0), "failpoint", "w1", how=f"{name}:{chance.randint(1, most)}")

    def lacking() -> str:
        if name in _NEEDS_INBOX and not product.has_inbox():
            return "the worker asks no inbox yet"
        return "" if name in product.has_failpoints() else "no line of the product reaches this failpoint yet"

    return Row(
        name=f"7-{name}",
        title=f"kill -9 at the failpoint `{name}`",
        logs=BOTH,
        schedule=schedule,
        load=Load(count=700, rate=80, types=dict(TYPES), mix=dict(MIX) | {"reject": 2}, duplicates=0.1, asking=0.2),
        lacking=lacking,
        quick=name in ("handled", "inboxed", "retried"),
        reaches=True,
    )


def _kills(chance: random.Random) -> Iterator[Fault]:
    at_s = 0.5
    while at_s < 8.0:
        yield Fault(at_s, "kill", chance.choice(["w1", "w2"]), chance.uniform(0.0, 1.5))
        at_s += chance.uniform(0.4, 2.0)


def _one_kill(chance: random.Random) -> Iterator[Fault]:
    yield Fault(chance.uniform(3.0, 4.0), "kill", "w1")


def _signals(chance: random.Random) -> Iterator[Fault]:
    at_s = 1.0
    while at_s < 9.0:
        yield Fault(at_s, "ask", chance.choice(["w1", "w2"]), how=chance.choice(["once", "once", "twice"]))
        at_s += chance.uniform(1.0, 3.0)


def _freezes(chance: random.Random) -> Iterator[Fault]:
    yield Fault(chance.uniform(0.5, 2.0), "freeze", "w1", chance.uniform(3.0, 12.0))
    yield Fault(chance.uniform(2.0, 6.0), "freeze", "w2", chance.uniform(3.0, 9.0))


def _storm(for_s: float) -> object:
    def schedule(chance: random.Random) -> Iterator[Fault]:
        at_s, number = 1.0, 0
        while at_s < for_s:
            number += 1
            yield Fault(
                at_s, "join", f"guest{number % 4}", chance.uniform(2.0, 5.0), how=chance.choice(["left", "killed"])
            )
            at_s += 2.0

    return schedule


def _comings(chance: random.Random) -> Iterator[Fault]:
    for at_s in (1.0, 3.0, 5.0, 7.0):
        yield Fault(
            at_s + chance.uniform(0.0, 1.0),
            "join",
            f"guest{int(at_s)}",
            chance.uniform(1.0, 5.0),
            how=chance.choice(["left", "killed"]),
        )
    yield Fault(chance.uniform(2.0, 6.0), "freeze", "w1", chance.uniform(5.5, 7.0))


def _gaps(chance: random.Random) -> Iterator[Fault]:
    for at_s in (1.0, 1.7, 2.4, 3.1):
        yield Fault(at_s, "gap", how=str(chance.randint(1, 3)))
    yield Fault(chance.uniform(1.0, 4.0), "kill", "w1")


def _publisher(chance: random.Random) -> Iterator[Fault]:
    for at_s in (1.0, 2.5, 4.0):
        yield Fault(at_s + chance.uniform(0.0, 1.0), "publisher", for_s=chance.uniform(0.0, 0.5))


def _chaos(chance: random.Random) -> Iterator[Fault]:
    at_s = 0.5
    while at_s < 12.0:
        what = chance.choice(["kill", "kill", "freeze", "ask", "publisher", "join", "flag"])
        whom = (
            ""
            if what in ("publisher", "flag")
            else f"guest{int(at_s * 10)}"
            if what == "join"
            else chance.choice(["w1", "w2", "w3"])
        )
        how = {"join": "left", "ask": "once"}.get(what, "")
        yield Fault(at_s, what, whom, chance.uniform(0.2, 6.0 if what == "freeze" else 2.0), how)
        at_s += chance.uniform(0.3, 1.5)


def _inbox() -> str:
    return "" if product.has_inbox() else "the worker asks no inbox yet"


ROWS = [
    *(_failpoint(name) for name in FAILPOINTS),
    Row(
        name="7-kill",
        title="kill -9 of workers at random moments",
        logs=BOTH,
        schedule=_kills,
        load=Load(count=900, rate=100, types=dict(TYPES), mix=dict(MIX), duplicates=0.1, asking=0.1, forged=0.01),
        quick=True,
    ),
    Row(
        name="7-kill-slow",
        title="kill -9 of a worker with about thirty handlers of 4 s at work",
        logs=BOTH,
        schedule=_one_kill,
        load=Load(count=60, rate=400, keys=1000, mix={"slow:4": 1}),
        seeds=3,
    ),
    Row(
        name="8-sigterm",
        title="SIGTERM at random moments, some twice, some with handlers longer than the drain",
        logs=BOTH,
        schedule=_signals,
        load=Load(count=600, rate=80, types=dict(TYPES), mix=dict(MIX) | {"slow:0.3": 3, "slow:7": 1}, keys=200),
        quick=True,
    ),
    Row(
        name="9-storm",
        title="a worker joins or leaves every 2 s, for 40 s",
        logs=BOTH,
        schedule=_storm(40.0),
        load=Load(count=4000, rate=100, types=dict(TYPES), mix={"ok": 1}, keys=60),
        seeds=5,
    ),
    Row(
        name="9-long-storm",
        title="a worker joins or leaves every 2 s, for 5 minutes",
        logs=BOTH,
        schedule=_storm(300.0),
        load=Load(count=30_000, rate=100, types=dict(TYPES), mix={"ok": 30, "slow:0.2": 1}, keys=60),
        seeds=1,
    ),
    Row(
        name="9-order",
        title="few keys and handlers of different lengths while workers come, go and freeze",
        logs=BOTH,
        schedule=_comings,
        load=Load(
            count=700,
            rate=80,
            keys=6,
            types={"fault.task": 1, "fault.strict": 1},
            mix={"ok": 4, "slow:0.03": 2, "slow:0.1": 1},
        ),
        quick=True,
    ),
    Row(
        name="9-tiers",
        title="many retries through tiers while workers come, go and freeze",
        logs=BOTH,
        schedule=_comings,
        load=Load(count=500, rate=60, types=dict(TYPES), mix={"ok": 1, "tier:2": 1}),
        seeds=5,
    ),
    Row(
        name="17-gaps",
        title="offsets with gaps, as compaction and transaction markers leave them",
        logs=("embedded",),
        schedule=_gaps,
        load=Load(count=600, rate=100, types=dict(TYPES), mix=dict(MIX) | {"slow:0.1": 2}),
        seeds=5,
    ),
    Row(
        name="9-freeze",
        title="SIGSTOP of workers for 3 to 12 s: they lose their partitions and come back as zombies",
        logs=BOTH,
        schedule=_freezes,
        load=Load(count=700, rate=80, types=dict(TYPES), mix=dict(MIX) | {"slow:0.5": 2} | _SLOWPAY, duplicates=0.1),
        quick=True,
    ),
    Row(
        name="10-blocked",
        title="a handler blocks the event loop for 15 s",
        logs=BOTH,
        schedule=always(),
        load=Load(count=500, rate=80, types={"fault.task": 1, "fault.strict": 1}, mix={"ok": 300, "block:15": 1}),
        seeds=5,
    ),
    Row(
        name="11-crash-loop",
        title="a message kills whoever handles it",
        logs=BOTH,
        schedule=always(),
        load=Load(count=300, rate=60, types=dict(TYPES), mix={"ok": 150, "crash": 1}),
        lacking=_inbox,
        seeds=5,
    ),
    Row(
        name="6-publisher",
        title="kill -9 of the publisher; another goes on from its journal",
        logs=BOTH,
        schedule=_publisher,
        load=Load(count=800, rate=150, types=dict(TYPES), mix=dict(MIX), duplicates=0.1),
        quick=True,
    ),
    Row(
        name="16-duplicates",
        title="each message up to 20 times, under its own id and under others, two workers",
        logs=BOTH,
        schedule=always(),
        load=Load(
            count=300, rate=60, types=dict(TYPES), mix=dict(MIX) | {"slow:0.3": 4}, duplicates=0.8, most_repeats=20
        ),
        lacking=_inbox,
        quick=True,
        seeds=10,
    ),
    Row(
        name="16-duplicates-kill",
        title="the same while workers are killed",
        logs=BOTH,
        schedule=_kills,
        load=Load(
            count=300, rate=40, types=dict(TYPES), mix=dict(MIX) | {"slow:0.3": 4}, duplicates=0.8, most_repeats=20
        ),
        lacking=_inbox,
    ),
    Row(
        name="30-chaos",
        title="kills, freezes, signals, rebalances, a dead publisher and a lost dependency, all at once",
        logs=BOTH,
        schedule=_chaos,
        load=Load(
            count=1200,
            rate=90,
            workers=3,
            types=dict(TYPES) | {"fault.need": 1},
            mix=dict(MIX) | {"slow:0.3": 1},
            duplicates=0.15,
            asking=0.1,
            forged=0.01,
        ),
        quick=True,
    ),
]
