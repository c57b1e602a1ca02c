"""The rides of a day."""

from __future__ import annotations

from bus.lines import STOPS


def stops(count: int) -> list[str]:
    return [STOPS[number % len(STOPS)] for number in range(count)]
