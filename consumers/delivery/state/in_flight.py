"""InFlight: deliveries taken from the log and not yet settled, in count and bytes.

Owns the bounds, settling offsets in the frontier, and counting outcomes. Commits and fetching are in
`consumers.worker.worker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Set

from bus.clock import Clock
from bus.telemetry.counters import trace_of_parent
from bus.telemetry.metrics import Metrics
from consumers.delivery.state.delivery import Delivery
from consumers.delivery.state.partition import Partition

__all__ = ["InFlight"]


class InFlight:
    """Counts the deliveries in flight of one worker."""

    def __init__(self, group: str, clock: Clock, metrics: Metrics, *, max_count: int, max_bytes: int) -> None:
        self._group = group
        self._clock = clock
        self._metrics = metrics
        self._meters = metrics.meters(group)
        self.max_count = max_count
        self._max_bytes = max_bytes
        self._deliveries: dict[int, Delivery] = {}
        self._bytes = 0
        self.waiting: Callable[[], Iterable[Delivery]] = tuple
        """Returns the deliveries whose runs wait for answers: up to a limit of their own they take no room."""
        self.landed = asyncio.Event()
        """Set whenever a delivery is settled or dropped; the waiter clears it."""

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def is_half_full(self) -> bool:
        """Whether one type may have taken so much room that others should come first."""
        if 2 * len(self._deliveries) < self.max_count and 2 * self._bytes < self._max_bytes:
            return False
        count, size = self._left()
        return 2 * count <= self.max_count or 2 * size <= self._max_bytes

    def _left(self) -> tuple[int, int]:
        """Return the remaining room, in records and bytes; runs that wait for answers take none."""
        count, size = self.max_count - len(self._deliveries), self._max_bytes - self._bytes
        for delivery in self.waiting():
            count, size = count + 1, size + delivery.size
        return count, size

    def room(
        self, waiting: Set[str] = frozenset(), held_up: Callable[[], Iterable[Delivery]] = tuple
    ) -> tuple[int, int]:
        """Return how many records and bytes may still be taken; both 0 when either bound is reached.

        At a bound, deliveries of the types in *waiting* do not count: they must not keep out types that wait for
        nothing. Then those *held_up* behind a retry of their key do not count either, up to once the whole room.
        """
        count, size = self.max_count - len(self._deliveries), self._max_bytes - self._bytes
        if count <= 0 or size <= 0:
            count, size = self._left()
        if waiting and (count <= 0 or size <= 0):
            excused = [
                delivery.size for delivery in self._deliveries.values() if delivery.partition.expected_type in waiting
            ]
            count, size = count + len(excused), size + sum(excused)
        if count <= 0 or size <= 0:
            excused = [delivery.size for delivery in held_up() if delivery.partition.expected_type not in waiting]
            count, size = count + min(len(excused), self.max_count), size + min(sum(excused), self._max_bytes)
        return (count, size) if count > 0 and size > 0 else (0, 0)

    def crowding(self, before: Set[str], held_up: Iterable[Delivery]) -> set[str]:
        """Return the types that crowd the room: messages of other types come first.

        A type crowds it with half of the room, and one of *before* as long as it has three quarters of that. Deliveries
        *held_up* behind a retry of their key take no room.
        """
        waiting = {id(delivery) for delivery in (*held_up, *self.waiting())}
        counts: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for delivery in self._deliveries.values():
            if (kind := delivery.partition.expected_type) is not None and id(delivery) not in waiting:
                counts[kind] = counts.get(kind, 0) + 1
                sizes[kind] = sizes.get(kind, 0) + delivery.size
        allowed_count, allowed_bytes = self.max_count // 2, self._max_bytes // 2

        def crowds(kind: str) -> bool:
            share = 0.75 if kind in before else 1.0
            return counts[kind] >= allowed_count * share or sizes[kind] >= allowed_bytes * share

        return {kind for kind in counts if crowds(kind)}

    def take(self, delivery: Delivery, now_ms: int, now_s: float) -> None:
        """Count *delivery* as in flight from now on: *now_ms* of the wall clock, *now_s* of the monotonic one."""
        delivery.taken_s = now_s
        # From here on the monotonic clock alone gives its age and lifetime: reading two clocks costs as much as a lane.
        delivery.ends_s = now_s + (delivery.expires_ms - now_ms) / 1000
        delivery.born_s = now_s + (delivery.sealed_ms - now_ms) / 1000
        self._deliveries[id(delivery)] = delivery
        self._bytes += delivery.size

    def done(self, delivery: Delivery) -> None:
        """Settle *delivery*: its handler's outcome is durable."""
        meter = self._meters[delivery.label]
        age_s = self._clock.monotonic_s() - delivery.born_s
        meter.end_to_end_seconds.observe(age_s if age_s > 0 else 0.0)
        meter.done.count += 1
        # As `_land`, without its calls: every message goes this way.
        if self._deliveries.pop(id(delivery), None) is not None:
            self._bytes -= delivery.size
        self.landed.set()
        if not delivery.partition.closed:
            delivery.partition.frontier.settle(delivery.record.offset)

    def dead(self, delivery: Delivery, reason: str) -> None:
        """Settle *delivery*: its dead letter is durable."""
        self._metrics.settled.labels(delivery.label, self._group, "dead", reason).inc(exemplar=_trace_of(delivery))
        self._land(delivery)

    def skipped(self, delivery: Delivery) -> None:
        """Settle *delivery*, which nobody wants to be handled any more."""
        self._metrics.settled.labels(delivery.label, self._group, "skipped", "").inc()
        self._land(delivery)

    def withheld(self, delivery: Delivery) -> None:
        """Settle *delivery*: its record is stored beside its process, and the approvers are asked."""
        self._metrics.settled.labels(delivery.label, self._group, "held", "").inc()
        self._land(delivery)

    def retried(self, delivery: Delivery, tier: str) -> None:
        """Settle *delivery*: its retry record is durable in *tier*."""
        self._metrics.retry(delivery.label, self._group, tier, trace=_trace_of(delivery))
        self._land(delivery)

    def drop(self, delivery: Delivery) -> None:
        """Let go of *delivery*, whose partition has gone: the next owner settles it."""
        if self._deliveries.pop(id(delivery), None) is not None:
            self._bytes -= delivery.size
        self.landed.set()

    def deliveries(self) -> Iterable[Delivery]:
        """Return all deliveries in flight, in the order in which they were taken."""
        return self._deliveries.values()

    def first_appended_ms(self) -> dict[Partition, tuple[int, int]]:
        """Return by partition the first offset in flight, and when its record was appended."""
        first: dict[Partition, tuple[int, int]] = {}
        for delivery in self._deliveries.values():
            record, known = delivery.record, first.get(delivery.partition)
            if known is None or record.offset < known[0]:
                first[delivery.partition] = record.offset, record.timestamp_ms
        return first

    def oldest_s(self) -> float:
        """Return the seconds for which the oldest delivery has been in flight."""
        oldest = next(iter(self._deliveries.values()), None)
        return self._clock.monotonic_s() - oldest.taken_s if oldest else 0.0

    def _land(self, delivery: Delivery) -> None:
        self.drop(delivery)
        if not delivery.partition.closed:
            delivery.partition.frontier.settle(delivery.record.offset)


def _trace_of(delivery: Delivery) -> dict[str, str] | None:
    return None if delivery.message is None else trace_of_parent(delivery.message.metadata.traceparent)
