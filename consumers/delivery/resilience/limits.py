"""Limits: how often, and how many at once, the runs of a group may use a named resource. Declarations; pure.

A limit belongs to its name: all handlers of the group that name it share it, in all workers, through the inbox's
database (`consumers.delivery.inbox.limiter`). A run over a limit waits without an attempt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from bus.errors import ConfigurationError

__all__ = ["Concurrency", "Limit", "Rate", "checked_limits", "units_of", "spacing_ms"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_COST: Final = 1e12


class Rate(msgspec.Struct, frozen=True):
    """At most *count* units in *per_s* seconds, within 5 %, evenly spaced; a run costs *cost* units.

        limits=[Rate("openai", 60), Rate("openai-tokens", 90_000, cost=lambda task: len(task.text) // 4)]

    *cost* is a number, or a function of the payload that returns one. A cost above *count* is one run in more time.
    """

    name: str
    count: float
    per_s: float = 60.0
    cost: float | Callable[[Any], float] = 1.0


class Concurrency(msgspec.Struct, frozen=True):
    """At most *count* runs at once, in all workers of the group. What a dead worker held is free after a minute.

    limits=[Concurrency("gpu", 4)]
    """

    name: str
    count: int


Limit: TypeAlias = Rate | Concurrency


def checked_limits(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return *limits*. Raises ConfigurationError with the place of what is wrong."""
    if not isinstance(limits, Sequence) or isinstance(limits, str):
        raise ConfigurationError('limits is a list: write limits=[Rate("openai", 60)]')
    names: set[str] = set()
    for limit in limits:
        if not isinstance(limit, Rate | Concurrency):
            raise ConfigurationError(f"limits has {type(limit).__name__}: it takes Rate and Concurrency")
        if not isinstance(limit.name, str) or _NAME.fullmatch(limit.name) is None:
            raise ConfigurationError(f"illegal name of a limit {limit.name!r:.80}: 1 to 64 of A-Z a-z 0-9 . _ -")
        if limit.name in names:
            raise ConfigurationError(f"two limits of one handler are named {limit.name!r}")
        names.add(limit.name)
        if isinstance(limit, Concurrency):
            if isinstance(limit.count, bool) or not isinstance(limit.count, int) or limit.count < 1:
                raise ConfigurationError(f"Concurrency({limit.name!r}, {limit.count!r}): count is 1 or more")
        elif not (_is_positive(limit.count) and _is_positive(limit.per_s)):
            raise ConfigurationError(f"Rate({limit.name!r}, {limit.count!r}, per_s={limit.per_s!r}): numbers above 0")
        elif not callable(limit.cost) and not _is_positive(limit.cost):
            raise ConfigurationError(f"Rate({limit.name!r}, cost={limit.cost!r}): a number above 0, or a function")
    return tuple(limits)


def spacing_ms(rate: Rate, cost: float) -> float:
    """Return the milliseconds that a run of *cost* units keeps the next one waiting."""
    return 1000.0 * rate.per_s / rate.count * cost


def units_of(rate: Rate, payload: object) -> float:
    """Return what a run for *payload* costs. Raises ConfigurationError for no number from 0 on."""
    if not callable(rate.cost):
        return rate.cost
    cost = rate.cost(payload)
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= _MAX_COST:
        raise ConfigurationError(f"the cost of limit {rate.name!r} is {cost!r:.80}: a number from 0 on")
    return cost


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value)
