"""The budget: how much more processor time and how many calls a message may take than at the base. Pure.

Owns reading `budget.toml`, the limits, the rule that nothing is raised without a reason, and the sentences about what
is above. The base is a commit that does not move (`speed.base`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from speed.figures import FIGURES
from speed.gauging import Gauged

__all__ = [
    "LIMITS",
    "PATHS",
    "PER_BYTE",
    "RESOLUTION",
    "Budget",
    "Path",
    "Raised",
    "RaisedCalls",
    "WITHIN_CALLS",
    "Turn",
    "faults",
    "over",
    "over_per_byte",
    "read",
    "table",
]

Path = Literal["native", "pure"]
PATHS: tuple[Path, ...] = ("native", "pure")
LIMITS: Mapping[str, float] = {
    "seal": 1.05,
    "seal-open": 1.05,
    "embedded-publish": 1.05,
    "judge": 1.10,
    "answer": 1.10,
    "embedded-consume": 1.10,
    "judge-caused": 1.15,
}
"""Processor time of a message, this tree's by the base's: more needs an entry in `budget.toml`."""
WITHIN_CALLS = 0.5
"""How much more or fewer calls may be: a few come with each batch, and not with each message."""
PER_BYTE: Mapping[str, str] = {"judge-16k": "judge-3k", "judge-100k": "judge-3k"}
"""A byte of these takes no more processor time than one of those."""
RESOLUTION = 1.02
"""Two runs of one tree differ by so much."""
_WORDS: Mapping[Path, str] = {"native": "with the compiled hot path", "pure": "in Python alone"}
_TITLES = {figure.name: figure.title for figure in FIGURES}


class Raised(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit above that of LIMITS, and what everybody gets for it."""

    figure: str
    path: Path
    limit: float
    base_us: float
    head_us: float
    """Both trees' figures when it was raised, of one run."""
    reason: str
    who: str


class RaisedCalls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls per message of one figure from some change on; the first of a figure are those of the base."""

    figure: str
    calls: float
    reason: str
    who: str


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that the file says."""

    counting: int = 1
    """Goes up when calls are counted in another way: entries before are not comparable."""
    raised: tuple[Raised, ...] = ()
    calls: tuple[RaisedCalls, ...] = ()

    def limit_of(self, figure: str, path: Path) -> float | None:
        """The most that *figure* may take, by the base's; None: it has no limit."""
        limits = [each.limit for each in self.raised if (each.figure, each.path) == (figure, path)]
        return limits[-1] if limits else LIMITS.get(figure)

    def calls_of(self, figure: str) -> RaisedCalls | None:
        """The calls per message of *figure*; None: it is not counted."""
        counts = [each for each in self.calls if each.figure == figure]
        return counts[-1] if counts else None

    def raised_in_place(self, before: Budget) -> list[str]:
        """The figures whose calls are more than in *before* although no entry was appended."""
        found: list[str] = []
        if before.counting != self.counting:
            return found
        for last in before.calls:
            now = self.calls_of(last.figure)
            appended = [each for each in self.calls if each.figure == last.figure]
            known = [each for each in before.calls if each.figure == last.figure]
            if now is not None and now.calls > known[-1].calls and len(appended) <= len(known):
                found.append(last.figure)
        return sorted(set(found))


class Turn(msgspec.Struct, frozen=True):
    """Both trees, measured one after the other."""

    base: Mapping[str, Gauged]
    head: Mapping[str, Gauged]


def read(text: str) -> Budget:
    """The budget in *text*."""
    return msgspec.convert(tomllib.loads(text), Budget)


def faults(budget: Budget) -> list[str]:
    """A sentence for each entry of *budget* that raises something without saying why, who says so, and from what."""
    found = []
    for raised in budget.raised:
        if raised.figure not in LIMITS:
            found.append(f"{raised.figure} has no limit to raise")
        elif not (raised.reason.strip() and raised.who.strip() and raised.base_us > 0 and raised.head_us > 0):
            found.append(f"{raised.figure} ({raised.path}) is raised without reason, author or both trees' figures")
        elif raised.head_us / raised.base_us > raised.limit:
            found.append(f"{raised.figure} ({raised.path}) is raised to less than was measured")
    last: dict[str, float] = {}
    for count in budget.calls:
        before = last.get(count.figure)
        if before is not None and count.calls > before and not (count.reason.strip() and count.who.strip()):
            found.append(f"calls of {count.figure} rise from {before} to {count.calls} without reason or author")
        last[count.figure] = count.calls
    return found


def ratio(turns: Sequence[Turn], figure: str) -> float:
    """This tree's processor time by the base's: the least of the turns of each. Neighbours only ever add time."""
    base_us, head_us = least_us(turns, figure)
    return head_us / base_us


def least_us(turns: Sequence[Turn], figure: str) -> tuple[float, float]:
    """The least processor time of *figure* at the base and here, in microseconds, of the turns that measured it."""
    bases = [turn.base[figure].us for turn in turns if figure in turn.base]
    heads = [turn.head[figure].us for turn in turns if figure in turn.head]
    return min(bases), min(heads)


def over(budget: Budget, path: Path, turns: Sequence[Turn]) -> dict[str, str]:
    """A sentence for each figure that takes more than its limit."""
    sentences = {}
    for name in turns[0].head:
        limit = budget.limit_of(name, path)
        if limit is None or name not in turns[0].base or (found := ratio(turns, name)) <= limit * RESOLUTION:
            continue
        base_us, head_us = least_us(turns, name)
        sentences[name] = (
            f"{name} ({_TITLES[name]}), {_WORDS[path]}: {found:.2f}x the base, where {limit:.2f}x is allowed; "
            f"{head_us:.1f} us a message here, {base_us:.1f} us at the base. Make it cheaper; or raise the limit on "
            "purpose, with an entry in tests/benchmarks/budget.toml that says what everybody gets for it."
        )
    return sentences


def over_per_byte(found: Mapping[str, Gauged], sizes: Mapping[str, int]) -> list[str]:
    """A sentence for each large payload of which a byte takes more processor time than one of a small payload."""
    sentences = []
    for large, small in PER_BYTE.items():
        if large in found and small in found:
            large_ns, small_ns = (found[name].us * 1000 / sizes[name] for name in (large, small))
            if large_ns > small_ns:
                sentences.append(
                    f"{large}: {large_ns:.1f} ns for each byte of its payload, and {small_ns:.1f} ns for one of {small}"
                )
    return sentences


def table(budget: Budget, found: Mapping[Path, Sequence[Turn]]) -> list[str]:
    """Markdown: every figure beside the base's."""
    lines = ["| | path | base, us | here, us | here / base | limit |", "|---|---|---|---|---|---|"]
    for name, title in _TITLES.items():
        for path, turns in found.items():
            if not turns or name not in turns[0].head:
                continue
            if name not in turns[0].base:
                here_us = min(turn.head[name].us for turn in turns if name in turn.head)
                lines.append(f"| {title} | {path} | - | {here_us:.1f} | - | - |")
                continue
            limit = budget.limit_of(name, path)
            base_us, here_us = least_us(turns, name)
            lines.append(
                f"| {title} | {path} | {base_us:.1f} | {here_us:.1f} | {ratio(turns, name):.2f} | "
                f"{'-' if limit is None else f'{limit:.2f}'} |"
            )
    return lines
