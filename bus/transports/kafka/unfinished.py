"""Transactions of other programs that stay open: nothing behind the first record of one is given to anybody, nor counted as lag.

Owns telling one that was left behind from those that come and go. Pure. Does not own asking, nor what follows from it (`member`).
"""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka import TopicPartition

__all__ = ["Unfinished"]

_LATE_S = 10.0


class Unfinished:
    """Where each partition that is held up stands, and since when."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        self._told: set[TopicPartition] = set()

    def late(self, held_up: Mapping[TopicPartition, int], now_s: float) -> list[TopicPartition]:
        """Those of *held_up*, by the offset behind which nothing is given out, that have stood there for long; each is told once."""
        before = self._since
        self._since = {place: known if (known := before.get(place, (-1, now_s)))[0] == at else (at, now_s) for place, at in held_up.items()}
        late = {place for place, (_, since_s) in self._since.items() if now_s - since_s >= _LATE_S}
        news, self._told = sorted(late - self._told), late
        return news
