"""Frontier: the committable offset of one partition; every delivered offset below it is settled. Pure.

Owns the order in which offsets were delivered, and which are settled. Offsets have gaps (compaction, transaction
markers): only delivered ones count, and nothing is added to an offset in the middle. One tracker per assignment (topic,
partition, epoch).
"""

from __future__ import annotations

from collections import deque

__all__ = ["MAX_SPAN", "Frontier"]

MAX_SPAN = 1_000
"""Deliveries from the frontier on, per partition: the most that a crash repeats there."""


class Frontier:
    """Delivered offsets of one assignment; a commit never passes an unsettled one."""

    __slots__ = ("_position", "_settled", "open")

    def __init__(self) -> None:
        self.open: deque[int] = deque()
        """The delivered offsets from the first unsettled one on."""
        self._settled: set[int] = set()
        self._position: int | None = None

    def deliver(self, offset: int) -> bool:
        """Note that *offset* was delivered.

        Returns False when it was delivered before (a repeat after a seek) and must be passed over.
        """
        if self._position is not None and offset < self._position:
            return False
        self.open.append(offset)
        self._position = offset + 1
        return True

    def settle(self, offset: int) -> None:
        """Note that *offset* is settled; in any order, each offset once."""
        if self.open and self.open[0] == offset:
            self.open.popleft()
            while self._settled and self.open and self.open[0] in self._settled:
                self._settled.remove(self.open.popleft())
        else:
            self._settled.add(offset)

    @property
    def committable(self) -> int | None:
        """The first unsettled offset, else the one after the last delivered; None before the first delivery."""
        return self.open[0] if self.open else self._position

    @property
    def settled_ahead(self) -> int:
        """Deliveries that are settled, and lie behind one that is not."""
        return len(self._settled)

    @property
    def span(self) -> int:
        """Deliveries from the frontier on, settled or not: the most that a crash repeats."""
        return len(self.open)
