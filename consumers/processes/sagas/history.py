"""The history of a process: its steps and waits over time, kept in its row, after its end too. Pure.

It has names, agents and times, and nothing of what was said. Owns what one step adds, and its bound: the oldest parts
that are over make room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

__all__ = [
    "MAX_HISTORY",
    "HistoryKind",
    "PartOutcome",
    "ProcessHistory",
    "ProcessPart",
    "StepTaking",
    "history_after",
    "history_in",
    "interrupted",
]

HistoryKind: TypeAlias = Literal["step", "request", "timer"]
PartOutcome: TypeAlias = Literal[
    "", "done", "answered", "due", "refused", "died", "silent", "cancelled", "dropped", "replaced", "ended"
]
"""Empty: it is under way. `dropped`: the process no longer waits for it; `ended`: the process ended before it."""

MAX_HISTORY: Final = 48
_MAX_NAME: Final = 128
_MAX_AGENT: Final = 256


class ProcessPart(msgspec.Struct, frozen=True, array_like=True):
    """A step, or a wait, of a process. Times are of the worker that took the step, Unix times in milliseconds."""

    name: str
    """The method of a step; the name of a wait, for a workflow file its node (up to the first dot)."""
    kind: str
    """A HistoryKind. Newer code may write another one."""
    start_ms: int
    end_ms: int | None = None
    """None: it is under way. A step takes no time: it is one transaction."""
    outcome: str = ""
    """A PartOutcome, as above."""
    agent: str = ""
    """The agent that was asked; empty: any, or none."""


class ProcessHistory(msgspec.Struct, frozen=True):
    """What is known of the course of one process."""

    parts: tuple[ProcessPart, ...] = ()
    """In the order in which they began, at most MAX_HISTORY."""
    forgotten: int = 0
    """Older parts that are not kept."""


class StepTaking(msgspec.Struct, frozen=True, kw_only=True):
    """What one step did, as far as history is concerned."""

    method: str
    """Empty: only the bus itself acted."""
    at_ms: int
    wait_name: str = ""
    """The wait on which it acted, where that is over."""
    wait_outcome: PartOutcome = ""
    armed: Mapping[str, tuple[HistoryKind, str]] = {}
    """By name, the new waits with the agent that is asked."""
    dropped: Collection[str] = ()
    is_over: bool = False
    """Whether the process has ended."""


def history_after(before: ProcessHistory, step: StepTaking) -> ProcessHistory:
    """Return the history after *step*."""
    closing: dict[str, PartOutcome] = {_name(name): "replaced" for name in step.armed}
    closing |= {_name(name): "dropped" for name in step.dropped}
    if step.wait_name:
        closing[_name(step.wait_name)] = step.wait_outcome
    parts = [_closed(each, closing.get(each.name, ""), step.at_ms) for each in before.parts]
    if step.method:
        parts.append(ProcessPart(_name(step.method), "step", step.at_ms, step.at_ms, "done"))
    for name, (kind, agent) in step.armed.items():
        parts.append(ProcessPart(_name(name), kind, step.at_ms, agent=agent[:_MAX_AGENT]))
    if step.is_over:
        parts = [_closed(each, "ended", step.at_ms) for each in parts]
    return _bounded(parts, before.forgotten)


def interrupted(before: ProcessHistory, at_ms: int) -> ProcessHistory:
    """Return the history of a process that an operator has ended."""
    return history_after(before, StepTaking(method="", at_ms=at_ms, is_over=True))


def history_in(state: bytes) -> ProcessHistory:
    """Return the history in the *state* of a process; an empty one where older code wrote it, or a built-in saga."""
    try:
        return msgspec.json.decode(state or b"{}", type=_WithHistory).history
    except msgspec.DecodeError:
        return ProcessHistory()


class _WithHistory(msgspec.Struct):
    """The part of the stored data that has the history."""

    history: ProcessHistory = ProcessHistory()


def _closed(part: ProcessPart, outcome: PartOutcome, at_ms: int) -> ProcessPart:
    if part.end_ms is not None or not outcome:
        return part
    return msgspec.structs.replace(part, end_ms=max(at_ms, part.start_ms), outcome=outcome)


def _bounded(parts: Iterable[ProcessPart], forgotten: int) -> ProcessHistory:
    left = list(parts)
    while len(left) > MAX_HISTORY:
        # What is over goes first: of what is under way the end is still to be told.
        left.pop(next((number for number, each in enumerate(left) if each.end_ms is not None), 0))
        forgotten += 1
    return ProcessHistory(tuple(left), forgotten)


def _name(name: str) -> str:
    return name[:_MAX_NAME]
