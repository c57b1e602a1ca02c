"""The long killer: at random somebody is killed with -9 or halted, every 5 to 15 s, for an hour. On either log.

Owns its load and its schedule: who is away is left alone until it is back, and a broker until those that are left have
caught up.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from harness.rows.row import MIX, TYPES, Row
from harness.terms import Load
from harness.timeline import Fault

__all__ = ["ROWS"]

_WORKERS = ("w1", "w2", "w3")
_BROKERS = ("1", "2", "3")
_BACK_S = 6.0
"""Until a process that was killed is at work again."""
_CAUGHT_UP_S = 12.0
"""Until a broker that was killed is in sync again; one more gone before that, and nothing can be acknowledged for a
while."""
_RATE = 130.0
_HOUR_S = 3600.0


def _killer(for_s: float, brokers: bool) -> Callable[[random.Random], Iterator[Fault]]:
    def schedule(chance: random.Random) -> Iterator[Fault]:
        at_s, away_until_s = chance.uniform(5.0, 10.0), dict.fromkeys(("", "flag", "broker", *_WORKERS), 0.0)
        while at_s < for_s:
            what = chance.choices(["worker", "publisher", "flag", "broker"], [10, 3, 1, 12 if brokers else 0])[0]
            fault = _drawn(what, at_s, chance)
            whom = fault.what if fault.what in ("broker", "flag") else fault.whom
            if away_until_s[whom] <= at_s:
                yield fault
                again_s = _CAUGHT_UP_S if fault.what == "broker" and fault.how == "kill" else _BACK_S
                away_until_s[whom] = fault.over_s + again_s
                at_s += chance.uniform(5.0, 15.0)
            else:
                at_s += 1.0

    return schedule


def _drawn(what: str, at_s: float, chance: random.Random) -> Fault:
    how = chance.choice(["kill", "freeze"])
    match what:
        case "worker":
            return Fault(
                at_s,
                how,
                chance.choice(_WORKERS),
                chance.uniform(0.0, 3.0) if how == "kill" else chance.uniform(2.0, 12.0),
            )
        case "publisher":
            return Fault(at_s, what, "", chance.uniform(0.0, 3.0), how)
        case "broker":
            return Fault(at_s, what, chance.choice(_BROKERS), chance.uniform(1.0, 10.0), how)
        case _:
            return Fault(at_s, what, "", chance.uniform(1.0, 4.0))


def _row(name: str, title: str, log: str, for_s: float) -> Row:
    # Deaths of the publisher cost some of the time: messages still come in when the last fault is over.
    load = Load(
        count=round(for_s * _RATE),
        rate=_RATE,
        workers=len(_WORKERS),
        keys=400,
        types=dict(TYPES) | {"fault.need": 1},
        mix={name: 4 * weight for name, weight in MIX.items()} | {"slow:0.3": 4, "slowpay:0.5": 2, "never": 1},
        duplicates=0.1,
        asking=0.1,
        forged=0.005,
    )
    return Row(name=name, title=title, logs=(log,), schedule=_killer(for_s, brokers=log == "kafka"), load=load, seeds=1)


ROWS = [
    _row("31-hour", "workers and publisher are killed or halted every 5 to 15 s, for an hour", "embedded", _HOUR_S),
    _row("31-hour-brokers", "the same with brokers", "kafka", _HOUR_S),
    _row("31-minutes", "the same as 31-hour for four minutes", "embedded", 240.0),
    _row("31-minutes-brokers", "the same with brokers", "kafka", 240.0),
]
