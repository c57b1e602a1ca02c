"""Receiver: from fetched records to deliveries in their lanes, piece by piece.

Owns skipping records (not due yet, a partition with a full span, repeats after a seek), counting received and skipped
records, and splitting a fetch into pieces. Verdicts are in `consumers.delivery.receiving.verification`, fetching and
running in `consumers.worker.worker`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from bus import failpoints
from bus.clock import Clock
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.transports.base import Record
from consumers.delivery.crashes.crash_guard import LARGE_BYTES, Judge
from consumers.delivery.receiving.awaited import descends_from, is_awaited
from consumers.delivery.receiving.verification import RecordVerifier, location_of
from consumers.delivery.resilience.retry import Tier
from consumers.delivery.resilience.retry_clock import RetryClock
from consumers.delivery.state.assignments import Partitions
from consumers.delivery.state.delivery import Delivery
from consumers.delivery.state.in_flight import InFlight
from consumers.delivery.state.lanes import Lanes
from consumers.delivery.state.partition import Partition

__all__ = ["Receiver"]

# Small enough that parsed messages are handled and freed before the garbage collector or the CPU cache notices.
_PIECE_RECORDS = 48
_SLICE_S = 0.01
"""Seconds after which other coroutines get a turn."""
_GLANCE_RECORDS, _GLANCE_BYTES = 8, 16_384
_SLOW_S = 0.25
_BACKWARDS_MS = 500
_HIGHEST = 9
_WAITING_SPANS = 16
"""So many times the usual span of a partition is taken while runs wait for answers."""

_log = get_logger("worker")


class _Fetch:
    """The state of one fetch while its records are taken.

    Its partitions, those that take no more of it, and the retries among the taken records.
    """

    __slots__ = ("begun_s", "found", "glanced_s", "left_bytes", "passed_over", "retries")

    def __init__(self, found: Mapping[tuple[str, int], Partition | None], max_bytes: float) -> None:
        self.found = found
        self.begun_s = self.glanced_s = 0.0
        """When the current piece began, and when the clock was last read."""
        self.left_bytes = max_bytes
        """Bytes of deliveries that may still be taken; the remaining records are fetched again."""
        self.passed_over: set[Partition] = set()
        self.retries: dict[Hashable, bytes | None] = {}


class Receiver:
    """Takes records in for one worker."""

    def __init__(
        self,
        partitions: Partitions,
        verification: RecordVerifier,
        in_flight: InFlight,
        lanes: Lanes[Delivery],
        *,
        metrics: Metrics,
        group: str,
        clock: Clock,
        retry_clock: RetryClock,
        judge_large: Judge | None = None,
    ) -> None:
        self.met_deep: Callable[[], object] = _nothing
        """Called for each delivery that a run waits for."""
        self._partitions = partitions
        self._verification = verification
        self._judge = verification.judge
        self._judge_large = judge_large or verification.judge
        """For values of LARGE_BYTES or more."""
        self._in_flight = in_flight
        self._lanes = lanes
        self._meters = metrics.meters(group)
        self._slow = metrics.slow_decodes
        self._group = group
        self._clock = clock
        self._retry_clock = retry_clock

    def admit(self, records: Sequence[Record], max_bytes: float = math.inf) -> Iterator[None]:
        """Take *records* in pieces, until their deliveries reach *max_bytes*.

        The caller may wait between two pieces.
        """
        # Looked up before the first await: records fetched for one assignment must not count for the next one of that
        # partition.
        found = {
            location: self._partitions.at(*location)
            for location in {(record.topic, record.partition) for record in records}
        }
        for (topic, number), partition in found.items():
            if partition is not None and partition.tier is not None:
                last = max(record.offset for record in records if record.partition == number and record.topic == topic)
                partition.seen.see(last, self._clock.monotonic_s())
        fetch, start = _Fetch(found, max_bytes), 0
        while start < len(records):
            start += self._admit(records[start : start + _PIECE_RECORDS], fetch)
            yield

    def _admit(self, records: Sequence[Record], fetch: _Fetch) -> int:
        """Take some of *records*, at least one; return how many."""
        # Read the clocks once per piece.
        now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
        topic, number, partition = "", -1, None
        # Real time, also with a test's clock: the loop stands still meanwhile.
        fetch.begun_s = fetch.glanced_s = time.perf_counter()
        for count, record in enumerate(records, 1):
            # Records come in runs of one partition.
            if record.partition != number or record.topic != topic:
                topic, number = record.topic, record.partition
                partition = fetch.found[topic, number]
            if partition is None or partition.draining or partition.closed or partition in fetch.passed_over:
                continue
            if partition.tier is not None and (wait_s := self._wait_s(record, partition, partition.tier, now_s)) > 0:
                self._partitions.defer(partition, record.offset, wait_s)
                fetch.passed_over.add(partition)
            elif len(partition.frontier.open) >= partition.max_open and not self._may_pass_waiting(partition):
                self._partitions.pause_full(partition, record.offset)
                fetch.passed_over.add(partition)
            elif fetch.left_bytes <= 0:
                self._partitions.leave(partition, record.offset)
                fetch.passed_over.add(partition)
            elif partition.frontier.deliver(record.offset):
                partition.taken_ms = record.timestamp_ms
                self._take(record, partition, now_ms, now_s, fetch)
                # For small records the clock is read only every few records.
                if (not count % _GLANCE_RECORDS or len(record.value or b"") > _GLANCE_BYTES) and self._has_taken_long(
                    record, partition, fetch
                ):
                    return count
        return len(records)

    def _may_pass_waiting(self, partition: Partition) -> bool:
        """Return whether more is taken of *partition*, whose span is full, for runs that wait may wait for it."""
        return partition.frontier.span < _WAITING_SPANS * partition.max_open and any(self._in_flight.waiting())

    def _has_taken_long(self, record: Record, partition: Partition, fetch: _Fetch) -> bool:
        """Return whether other coroutines should have a turn; log *record* where it alone took too long."""
        now_s = time.perf_counter()
        if now_s - fetch.glanced_s > _SLOW_S:
            self._tell_slow(record, partition, now_s - fetch.glanced_s)
        fetch.glanced_s = now_s
        return now_s - fetch.begun_s > _SLICE_S

    def _tell_slow(self, record: Record, partition: Partition, taken_s: float) -> None:
        self._slow.labels(self._verification.label(partition), self._group).inc()
        location = f"{record.topic}/{record.partition}/{record.offset}"
        _log.warning("record.slow", place=location, bytes=len(record.value or b""), took_s=round(taken_s, 3))

    def _wait_s(self, record: Record, partition: Partition, tier: Tier, now_s: float) -> float:
        """Return the seconds until *record*, the head of a tier, is due.

        It is due by its append time, or by how long this worker has seen it in the tier.
        """
        by_sight_s = tier.delay_s - partition.seen.waited_s(record.offset, now_s)
        moment_ms = self._retry_clock.moment_ms(record.timestamp_ms)
        if moment_ms < partition.passed_ms - _BACKWARDS_MS:
            # It lies behind records with later append times: a clock was wrong unseen, and this time would make it due
            # too early.
            return by_sight_s
        wait_s = min(by_sight_s, tier.delay_s - (round(now_s * 1000) - moment_ms) / 1000)
        if wait_s <= 0:
            partition.passed_ms = max(partition.passed_ms, moment_ms)
        return wait_s

    def _take(self, record: Record, partition: Partition, now_ms: int, now_s: float, fetch: _Fetch) -> None:
        value = record.value
        judge = self._judge if value is None or len(value) < LARGE_BYTES else self._judge_large
        delivery = judge(record, partition, now_ms)
        if delivery is None or (partition.tier is not None and _is_copy(delivery, fetch.retries)):
            partition.frontier.settle(record.offset)
            meter = self._meters[self._verification.label(partition) if delivery is None else delivery.label]
            meter.received.count += 1
            meter.skipped.count += 1
            return
        self._meters[delivery.label].received.count += 1
        fetch.left_bytes -= delivery.size
        self._in_flight.take(delivery, now_ms, now_s)
        message = delivery.message
        if message is not None and message.metadata.hops and is_awaited(delivery):
            delivery.awaited = True
            # The deeper it is, the sooner something ends by it.
            delivery.priority = min(_HIGHEST, delivery.priority + message.metadata.hops)
            self.met_deep()
            before = self._lanes.head_of(delivery.key)
            if before is not None and descends_from(delivery, before):
                # It is part of the run that has its key, and would wait for it for ever.
                delivery.key = location_of(record)
        self._lanes.add(
            delivery.key,
            delivery,
            delivery.priority,
            delivery.label,
            deep=delivery.awaited or delivery.requeue is not None,
        )
        if failpoints.is_armed:
            failpoints.reach("taken")


def _nothing() -> None:
    """Do nothing."""


def _is_copy(delivery: Delivery, retries: dict[Hashable, bytes | None]) -> bool:
    """Return whether *delivery*, from a tier, copies a retry of the same fetch, noted in *retries*.

    A worker that dies or loses its partition between appending a retry and committing appends it twice. Each copy would
    run and wait by its own, and double again with the next death. One copy is enough, and skipping the other loses
    nothing: the commit passes it only once the first is settled. Copies are recognised only within one fetch, because a
    later record may be the next retry of the first, which settles it. Only identical bytes count, because headers can
    be forged.
    """
    control, partition = delivery.control, delivery.partition
    origin = (
        partition.assignment,
        control.origin_topic,
        control.origin_partition,
        control.origin_offset,
        control.redrive_count,
    )
    if origin not in retries:
        retries[origin] = delivery.record.value
        return False
    return retries[origin] == delivery.record.value
