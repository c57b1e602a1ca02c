"""What a profile comes to: which functions the time is spent in themselves. Pure.

Owns reading py-spy's raw format (a stack a line, its frames between semicolons, then the number of samples) and the
largest self times.
"""

from __future__ import annotations

from collections import Counter

import msgspec

__all__ = ["Cost", "costs"]

# What a benchmark does before it begins.
_BESIDE = ("<module> (", "_find_and_load", "prepared (")
# Threads that wait for work, which py-spy does not always see as idle.
_WAITING = ("EpollSelector.select (", "Writer._serve (", "ThreadWriter._serve (", "_worker (")
# Below these is what the loop and the threads do.
_WITHIN = ("_run_once (", "Thread.run (")


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One function's own time: *share* of all samples."""

    name: str
    share: float


def costs(raw: str, most: int) -> list[Cost]:
    """The *most* largest of *raw*."""
    own: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, text = line.rpartition(" ")
        frames = stack.split(";")
        inner = next((index for index, frame in enumerate(frames) if any(each in frame for each in _WITHIN)), None)
        if not text.isdecimal() or inner is None or frames[-1].startswith(_WAITING):
            continue
        if any(frame.startswith(_BESIDE) for frame in frames[inner:]):
            continue
        own[frames[-1]] += int(text)
    total = own.total() or 1
    return [Cost(name=name, share=count / total) for name, count in own.most_common(most)]
