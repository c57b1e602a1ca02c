"""Overflow: first messages that keep the window full while all that may wait do wait go to a tier, without an attempt.

Owns which of them go. A run that waits for an answer depends on messages that are still in the log, perhaps behind
first messages that may not begin now. Their room is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bus.telemetry.logs import get_logger
from consumers.delivery.handling.slots import HandlerSlots
from consumers.delivery.receiving.verification import RecordVerifier
from consumers.delivery.resilience.retry import Tier, next_tier
from consumers.delivery.state.assignments import Partitions
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.in_flight import InFlight
from consumers.delivery.state.lanes import Lane, Lanes

__all__ = ["Overflow"]

_SHARE: Final = 4
"""One in so many places of the window is made free at once."""
_MAX_BLIND: Final = 10_000
"""So many messages are moved before one is met that a run waits for: a backlog is not copied from topic to tier."""

_log = get_logger("worker")


class Overflow:
    """Makes room in the window of one worker."""

    def __init__(
        self,
        slots: HandlerSlots,
        lanes: Lanes[Delivery],
        in_flight: InFlight,
        *,
        partitions: Partitions,
        tiers: Sequence[Tier],
        verification: RecordVerifier,
    ) -> None:
        self._slots = slots
        self._lanes = lanes
        self._in_flight = in_flight
        self._partitions = partitions
        self._tiers = tiers
        self._verification = verification
        self._credit = _MAX_BLIND

    @property
    def is_needed(self) -> bool:
        """Whether waiting first messages fill the window while deeper ones may wait in the log."""
        if not self._slots.holds_back:
            self._credit = _MAX_BLIND
            return False
        lanes, slots = self._lanes, self._slots
        return (
            self._credit > 0
            and not lanes.ready_deep
            and lanes.ready > 0
            and slots.has_room
            and bool(self._partitions.crowding or self._in_flight.is_half_full)
        )

    def met_deep(self) -> None:
        """Note that a message was read that a run waits for: there may be more behind."""
        self._credit = _MAX_BLIND

    def relieve(self) -> int:
        """Send the newest first messages to a tier; return how many."""
        limit, moved = max(1, self._in_flight.max_count // _SHARE), 0
        stay: list[Lane[Delivery]] = []
        while moved < limit and (lane := self._lanes.take_newest()) is not None:
            if self._may_move(lane):
                moved += self._move(lane)
            else:
                stay.append(lane)
        for lane in stay:
            self._lanes.release(lane, lane.head.priority)
        self._credit -= moved
        if moved:
            _log.info("worker.first_messages_moved", messages=moved, waiting=self._slots.waiting)
            self._slots.changed()
        return moved

    def _may_move(self, lane: Lane[Delivery]) -> bool:
        return all(
            isinstance(each, Accepted)
            and each.subscription.order != "key_strict"
            and each.inbox_request is None
            and next_tier(self._tiers, each.partition.tier, self._verification.remaining_s(each)) is not None
            for each in (lane.head, *(lane.behind or ()))
        )

    def _move(self, lane: Lane[Delivery]) -> int:
        moved = 0
        for each in (lane.head, *(lane.behind or ())):
            each.requeue = next_tier(self._tiers, each.partition.tier, self._verification.remaining_s(each))
            moved += 1
        self._lanes.release(lane, lane.head.priority, deep=True)
        return moved
