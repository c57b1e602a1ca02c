"""DeathTimes: a time for each of a million deaths of messages, in little room."""

from __future__ import annotations

from array import array
from typing import Final

from consumers.deadletters.redrive_rules import RedrivenDeath

__all__ = ["DeathTimes"]

_FIRST: Final = 256


class DeathTimes:
    """Times by death, in 16 bytes for each of up to twice as many as there are: a hash table in two arrays."""

    def __init__(self) -> None:
        self._keys = array("q", bytes(8 * _FIRST))
        self._times_ms = array("q", bytes(8 * _FIRST))
        self._used = 0

    def put(self, death: RedrivenDeath, at_ms: int) -> None:
        """Note that *death* was undone at *at_ms*."""
        if 3 * self._used >= 2 * len(self._keys):
            self._grow()
        self._put(hash(death) or 1, at_ms)

    def get(self, death: RedrivenDeath) -> int | None:
        """Return when *death* was undone; None: never."""
        key = hash(death) or 1
        at = self._find(key)
        return self._times_ms[at] if self._keys[at] == key else None

    def _put(self, key: int, at_ms: int) -> None:
        at = self._find(key)
        self._used += self._keys[at] != key
        self._keys[at], self._times_ms[at] = key, at_ms

    def _find(self, key: int) -> int:
        """Return the index of *key*, or of the free place where it belongs."""
        keys, last = self._keys, len(self._keys) - 1
        at = key & last
        while keys[at] not in (0, key):
            at = (at + 1) & last
        return at

    def _grow(self) -> None:
        keys, times_ms = self._keys, self._times_ms
        size = 2 * len(keys)
        self._keys, self._times_ms, self._used = array("q", bytes(8 * size)), array("q", bytes(8 * size)), 0
        for key, at_ms in zip(keys, times_ms, strict=True):
            if key:
                self._put(key, at_ms)
