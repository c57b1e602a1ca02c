"""The brake: when too large a share of a type's messages dies, something is wrong with more than the messages, and the type pauses.

Owns the window, the decision, and how long to pause: after the pause a few messages are let through, and they decide whether it goes on. Counts
only what handlers make of messages; what a gate refuses may come from anybody, and must not be able to stop a group. Pure: time is an argument.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Brake", "COUNTED"]

COUNTED = frozenset({"rejected", "retries_exhausted", "crash_loop"})
"""The reasons that count as deaths here."""

_TRIAL = 10
_LONGEST = 16


class _Window:
    """The last outcomes of one type."""

    __slots__ = ("factor", "outcomes", "size", "until_s")

    def __init__(self, size: int) -> None:
        self.outcomes: deque[bool] = deque()
        self.size = size
        self.factor = 1
        self.until_s = 0.0


class Brake:
    """Pauses a type for *pause_s* when more than *share* of its last *window* outcomes are deaths; a share of 1 never does."""

    def __init__(self, *, share: float, window: int, pause_s: float) -> None:
        self._share = share
        self._size = window
        self._pause_s = pause_s
        self._windows: dict[str, _Window] = {}

    @property
    def enabled(self) -> bool:
        """Whether it can ever pull."""
        return self._share < 1

    def note(self, message_type: str, now_s: float, *, died: bool) -> float | None:
        """One more outcome; the seconds to pause for if the brake is pulled by it."""
        window = self._windows.get(message_type)
        if window is None:
            window = self._windows[message_type] = _Window(self._size)
        if now_s < window.until_s:
            # Begun before the pause.
            return None
        window.outcomes.append(died)
        if len(window.outcomes) < window.size:
            return None
        share = sum(window.outcomes) / len(window.outcomes)
        if share <= self._share:
            if window.size < self._size:
                window.size, window.factor = self._size, 1
            else:
                window.outcomes.popleft()
            return None
        pause_s = self._pause_s * window.factor
        window.factor = min(_LONGEST, window.factor * 2)
        window.size = min(_TRIAL, self._size)
        window.outcomes.clear()
        window.until_s = now_s + pause_s
        return pause_s

    def delay_s(self, message_type: str, now_s: float) -> float:
        """0 when a message may run now, else what is left of the pause."""
        window = self._windows.get(message_type)
        return 0.0 if window is None else max(0.0, window.until_s - now_s)

    def paused(self, now_s: float) -> set[str]:
        """The types that pause."""
        return {name for name, window in self._windows.items() if now_s < window.until_s}
