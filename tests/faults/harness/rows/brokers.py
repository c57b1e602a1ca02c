"""Rows about brokers and links: deaths, freezes, elections, cuts, slowness, lost acknowledgements, topics that change.
On Kafka.

Owns their loads and schedules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from harness.rows.row import MIX, TYPES, Row
from harness.terms import Load
from harness.timeline import Fault

__all__ = ["ROWS"]

_LOAD = Load(count=3000, rate=200, types=dict(TYPES), mix=dict(MIX), duplicates=0.05, timeout_s=15)


def _broker(
    whom: str, how: str, shortest_s: float, longest_s: float, times: int = 1
) -> Callable[[random.Random], Iterator[Fault]]:
    def schedule(chance: random.Random) -> Iterator[Fault]:
        at_s = chance.uniform(1.5, 3.5)
        for _ in range(times):
            lasting_s = chance.uniform(shortest_s, longest_s)
            yield Fault(at_s, "broker", whom, lasting_s, how)
            at_s += lasting_s + chance.uniform(4.0, 6.0)

    return schedule


def _link(whom: str, how: str, shortest_s: float, longest_s: float) -> Callable[[random.Random], Iterator[Fault]]:
    def schedule(chance: random.Random) -> Iterator[Fault]:
        yield Fault(chance.uniform(1.5, 3.0), "link", whom, chance.uniform(shortest_s, longest_s), how)

    return schedule


def _apart(whom: str, how: str) -> Callable[[random.Random], Iterator[Fault]]:
    def schedule(chance: random.Random) -> Iterator[Fault]:
        yield Fault(chance.uniform(1.5, 3.0), "apart", whom, chance.uniform(5.0, 30.0), how)

    return schedule


def _often_apart(chance: random.Random) -> Iterator[Fault]:
    at_s = 1.0
    while at_s < 50.0:
        lasting_s = chance.uniform(3.0, 10.0)
        whom, how = (
            chance.choice(["leader", "coordinator", "1", "2", "3"]),
            chance.choice(["followers", "controller", "both"]),
        )
        yield Fault(at_s, "apart", whom, lasting_s, how + chance.choice(["", "-out", "-in"]))
        at_s += lasting_s + chance.uniform(0.5, 4.0)


def _flaky(chance: random.Random) -> Iterator[Fault]:
    at_s = 1.0
    for how in chance.sample(["slow", "narrow", "sliced", "resets"], 4):
        lasting_s = chance.uniform(3.0, 6.0)
        yield Fault(at_s, "link", "all", lasting_s, how)
        at_s += lasting_s + 0.5


def _lost_acks(chance: random.Random) -> Iterator[Fault]:
    at_s = chance.uniform(1.0, 2.0)
    for _ in range(3):
        lasting_s = chance.uniform(0.5, 2.0)
        yield Fault(at_s, "link", "all", lasting_s, "mute")
        yield Fault(at_s + chance.uniform(0.2, lasting_s), "publisher", for_s=chance.uniform(0.0, 0.5))
        at_s += lasting_s + 3.0


def _growing(chance: random.Random) -> Iterator[Fault]:
    yield Fault(chance.uniform(2.0, 5.0), "partitions", how="12")


def _mixed(chance: random.Random) -> Iterator[Fault]:
    at_s = 1.0
    while at_s < 40.0:
        what = chance.choice(["broker", "link", "kill", "freeze", "publisher"])
        lasting_s = chance.uniform(1.0, 8.0)
        if what == "broker":
            yield Fault(
                at_s,
                what,
                chance.choice(["leader", "follower", "coordinator"]),
                lasting_s,
                chance.choice(["kill", "freeze", "stop"]),
            )
            at_s += lasting_s + 3.0
        elif what == "link":
            yield Fault(
                at_s,
                what,
                chance.choice(["leader", "all"]),
                lasting_s,
                chance.choice(["cut", "slow", "resets", "mute"]),
            )
        else:
            yield Fault(at_s, what, "" if what == "publisher" else chance.choice(["w1", "w2"]), lasting_s)
        at_s += chance.uniform(1.0, 3.0)


def _row(name: str, title: str, schedule: Callable[[random.Random], Iterator[Fault]], **more: object) -> Row:
    return Row(
        **{"name": name, "title": title, "logs": ("kafka",), "schedule": schedule, "load": _LOAD, "seeds": 10, **more}
    )


ROWS = [
    _row(
        "1-kill-leader",
        "kill -9 of a leader while messages come",
        _broker("leader", "kill", 4, 12, 2),
        quick=True,
        quick_logs=("kafka",),
    ),
    _row("1-kill-follower", "kill -9 of a follower", _broker("follower", "kill", 4, 12, 2)),
    _row("1-kill-all", "kill -9 of all three brokers at once", _broker("all", "kill", 2, 8)),
    _row("1-kill-controller", "kill -9 of the controller", _broker("controller", "kill", 3, 10)),
    _row("1-stop-leader", "a leader stops in order and comes back", _broker("leader", "stop", 4, 12, 2)),
    _row("2-freeze-5", "a leader is frozen for about 5 s", _broker("leader", "freeze", 4, 6, 2)),
    _row("2-freeze-15", "a leader is frozen for about 15 s", _broker("leader", "freeze", 13, 17)),
    _row("2-freeze-45", "a leader is frozen for about 45 s", _broker("leader", "freeze", 43, 47), seeds=5),
    _row(
        "3-two-away",
        "two of three brokers are away for 40 to 60 s: nothing can be acknowledged",
        _broker("two", "stop", 40, 60),
        seeds=5,
    ),
    _row("4-cut-leader", "no byte passes between the clients and a leader", _link("leader", "cut", 5, 30)),
    _row(
        "4-cut-all",
        "no byte passes between the clients and any broker",
        _link("all", "cut", 5, 30),
        quick=True,
        quick_logs=("kafka",),
    ),
    _row("4-cut-up", "requests to a leader do not arrive", _link("leader", "cut-up", 5, 30)),
    _row("4-cut-down", "answers of all brokers do not arrive", _link("all", "cut-down", 5, 30)),
    _row("4-cut-followers", "no byte passes between a leader and the other brokers", _apart("leader", "followers")),
    _row(
        "4-cut-controller",
        "no byte passes between a leader and the controller: another is elected",
        _apart("leader", "controller"),
    ),
    _row("4-cut-broker", "a leader is cut off from all but its clients", _apart("leader", "both")),
    _row(
        "4-cut-broker-out",
        "nothing that a leader sends reaches a broker or the controller",
        _apart("leader", "both-out"),
    ),
    _row(
        "4-cut-broker-in", "nothing that a broker or the controller sends reaches a leader", _apart("leader", "both-in")
    ),
    _row(
        "4-cut-coordinator",
        "the group's coordinator is cut off from all but its clients",
        _apart("coordinator", "both"),
    ),
    _row(
        "4-cut-often",
        "one broker after another is cut off somehow, for a minute",
        _often_apart,
        load=Load(count=7000, rate=130, types=dict(TYPES), mix=dict(MIX), duplicates=0.05, timeout_s=15),
    ),
    _row("5-flaky", "links are slow, narrow, sliced, and reset every 2 s", _flaky),
    _row(
        "6-lost-acks",
        "acknowledgements are lost after the append, and then the publisher is killed",
        _lost_acks,
        quick=True,
        quick_logs=("kafka",),
    ),
    _row("22-partitions", "a topic grows from 4 to 12 partitions", _growing, seeds=5),
    _row(
        "24-coordinator",
        "kill -9 of the group's coordinator, which leads its commits",
        _broker("coordinator", "kill", 4, 12, 2),
    ),
    _row(
        "30-mixed",
        "brokers, links, workers and publisher, for 40 s",
        _mixed,
        load=Load(count=6000, rate=130, types=dict(TYPES), mix=dict(MIX), duplicates=0.1),
    ),
]
