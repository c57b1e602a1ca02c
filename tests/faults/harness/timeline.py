"""What shall go wrong, to whom, when and for how long: a schedule drawn from a seed.

Owns the values of a schedule, drawing one so that the same row, log and seed give the same one anywhere, and printing
it. Pure: it knows no process and no clock. What a row draws is `rows`', doing it is `arena`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import msgspec

__all__ = ["Fault", "Schedule", "Timeline", "draw", "printed"]


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong: *what* befalls *whom* at *at_s* after the load began, and is over *for_s* later; *how*
    is its detail."""

    at_s: float
    what: str
    whom: str = ""
    for_s: float = 0.0
    how: str = ""

    @property
    def over_s(self) -> float:
        """When it is over."""
        return self.at_s + self.for_s


Schedule = Callable[[random.Random], Iterable[Fault]]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run does to its processes, in order of time."""

    row: str
    log: str
    seed: int
    faults: tuple[Fault, ...]

    @property
    def over_s(self) -> float:
        """When the last fault is over: from then on everything must heal by itself."""
        return max((fault.over_s for fault in self.faults), default=0.0)


def draw(row: str, log: str, seed: int, schedule: Schedule) -> Timeline:
    """The timeline of *row* on *log* for *seed*."""
    # Seeded by a text: other than a hash of a tuple it is the same in every process.
    chance = random.Random(f"{row}/{log}/{seed}")
    rounded = (
        Fault(round(max(0.0, fault.at_s), 3), fault.what, fault.whom, round(max(0.0, fault.for_s), 3), fault.how)
        for fault in schedule(chance)
    )
    return Timeline(row=row, log=log, seed=seed, faults=tuple(sorted(rounded, key=lambda fault: fault.at_s)))


def printed(timeline: Timeline) -> str:
    """The timeline as lines, the first one saying how to have it again."""
    again = f"--row {timeline.row} --log {timeline.log} --seed {timeline.seed}"
    lines = [f"row {timeline.row} on {timeline.log}, seed {timeline.seed}; again: run.py {again}"]
    for fault in timeline.faults:
        lasting = f" for {fault.for_s:.2f} s" if fault.for_s else ""
        lines.append(
            f"  {fault.at_s:7.2f} s  {fault.what:<10} "
            f"{fault.whom:<12}{lasting}{f'  ({fault.how})' if fault.how else ''}"
        )
    return "\n".join(lines)
