"""What this machine's processor is worth at this moment: a fixed piece of ordinary Python work, timed.

Owns the piece, which must never change: the base's instrument runs the same one around each figure, and both trees are
measured alike only with it. It is made of what sealbus is made of (hashing a kilobyte, writing and reading small JSON,
calls, attributes, dicts, lists), so that another processor, another clock rate or a busy neighbour slows both down
alike.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable

__all__ = ["calibration_us"]

_PASSES = 400
_BLOCK = bytes(range(256)) * 4
_DOCUMENT = {
    "id": "0190f0c2-7b1e-7cc3-98c4-dc0c0c07398f",
    "number": 41,
    "score": 0.75,
    "tags": ["a", "b"],
    "draft": False,
}


class _Thing:
    __slots__ = ("name", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number

    def moved(self, by: int) -> _Thing:
        return _Thing(self.name, self.number + by)


def _one(table: dict[str, int]) -> int:
    digest = hashlib.sha256(_BLOCK).hexdigest()
    text = json.dumps(_DOCUMENT)
    total = len(json.loads(text)) + len(digest)
    thing = _Thing("thing", total)
    for number in range(12):
        thing = thing.moved(number)
        name = f"{thing.name}-{number}"
        table[name] = thing.number
        total += table.get(name, 0)
    return total + len([value for value in table.values() if value & 1])


def calibration_us(cpu_s: Callable[[], float] = time.process_time) -> float:
    """Processor microseconds that one pass takes now; some milliseconds of work."""
    table: dict[str, int] = {}
    started_s = cpu_s()
    for _ in range(_PASSES):
        _one(table)
    return (cpu_s() - started_s) / _PASSES * 1e6
