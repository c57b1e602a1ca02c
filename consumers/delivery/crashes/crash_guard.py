"""CrashGuard: notes the running messages of a worker, and returns the deaths counted against a message.

Owns when deaths are counted (when partitions of a dead process arrive), which counts an orderly end clears, and records
during whose checks the worker lost its session. Files are in `consumers.delivery.crashes.process_files`, the rule in
`consumers.delivery.crashes.crash_rules`, running alone in `consumers.delivery.handling.executor`. A failing directory
is logged once a minute and delays nothing.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from bus.clock import Clock, Interval
from bus.errors import ContractError
from bus.telemetry.logs import get_logger
from bus.transports.base import Record
from consumers.deadletters.park_orders import PARKED, Parked, ParkOrder, RecordKey
from consumers.deadletters.records import Control, Failure, read_control
from consumers.delivery.crashes.crash_rules import (
    Blame,
    CrashCount,
    Death,
    Mark,
    RecordLocation,
    after,
    blames_of,
    is_given_up,
)
from consumers.delivery.crashes.running_messages import RunningMessages
from consumers.delivery.state.delivery import Delivery, Refused
from consumers.delivery.state.partition import Partition

if TYPE_CHECKING:
    from consumers.delivery.crashes.process_files import ProcessFiles

__all__ = ["LARGE_BYTES", "Judge", "CrashGuard", "describe_death"]

Judge: TypeAlias = Callable[[Record, Partition, int], Delivery | None]

LARGE_BYTES: Final = 16_384
"""Records with smaller values are not noted: judging one takes less time than noting it, and ends no process."""

_SLOW_S: Final = 2.0
"""Checking one record for so many seconds has kept heartbeats from being sent."""
_MAX_SLOW: Final = 64
_FORGIVING_S: Final = 0.5
_SAMPLE_BYTES: Final = 4_096
_LATELY_MS: Final = 300_000
"""A member that died longer ago has lost its session already."""

_log = get_logger("deaths")


class CrashLoop(ContractError):  # noqa: N818 - the name stands in dead letters
    """The message is not run or judged any more."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "", "crash_loop")


class _Slow(NamedTuple):
    mark: Mark
    partition: Partition


class CrashGuard:
    """The crash notes of one worker. Without a *roll*, and before `open`, it notes nothing."""

    def __init__(self, roll: ProcessFiles | None, clock: Clock) -> None:
        self._process_files = roll
        self._clock = clock
        self.running: RunningMessages | None = None
        """The notes of what runs in this process; None where nothing is noted."""
        self.crash_counts: Mapping[RecordLocation, CrashCount] = {}
        """Crash counts of messages; empty as long as no process dies."""
        self.orders: Mapping[RecordKey, ParkOrder] = {}
        """The park orders of operators."""
        self.changed: Callable[[], object] = int
        """Called when crash counts or orders have changed."""
        self._deaths: Sequence[Death] = ()
        """Those of the last minutes, as of the last look."""
        self._forgiven: dict[RecordLocation, CrashCount] = {}
        self._slow: deque[_Slow] = deque(maxlen=_MAX_SLOW)
        self._rarely = Interval(clock)

    def open(self, count: int, member: str) -> None:
        """Note from now on what runs in this process, a *member* of its group, *count* at most at once."""
        if self._process_files is not None:
            try:
                self.running = self._process_files.join(count, member)
            except OSError as error:
                self._failed(error)

    def end_in_order(self) -> None:
        """Note that the process was told to end: a crash from now on counts against no message.

        May be called by a signal handler.
        """
        if self.running is not None:
            self.running.end_in_order()

    def close(self) -> None:
        """Note that the process ends in order."""
        self._forgive()
        if self._process_files is not None:
            self._process_files.leave()
        self.running = None

    def ended(self, delivery: Delivery) -> None:
        """Note that the handler of *delivery* has ended, in order or by an error: its crash count is forgiven."""
        if self.running is not None and self.crash_counts:
            self._forgive_later(_key_of(delivery.control))

    def judging(self, judge: Judge) -> Judge:
        """Wrap *judge* so that the record being judged is noted: for values of LARGE_BYTES or more."""
        if self._process_files is None:
            return judge

        def judged(record: Record, partition: Partition, now_ms: int) -> Delivery | None:
            return self._judge(judge, record, record.value or b"", partition, now_ms)

        return judged

    def ordered(self, orders: Mapping[RecordKey, ParkOrder]) -> None:
        """Replace the operators' *orders*."""
        self.orders = orders
        self.changed()
        _log.info("park.orders", orders=len(orders))

    def is_ordered(self, delivery: Delivery) -> bool:
        """Return whether an operator has ordered that *delivery* does not run."""
        return self._order_for(delivery.control) is not None

    def end_of(self, delivery: Delivery) -> Failure | None:
        """Return why *delivery* must not run any more; None where it may."""
        control = delivery.control
        order = self._order_for(control)
        if order is not None:
            error = Parked(order.why)
            return Failure(reason=error.reason, error=PARKED, text=error.text)
        crash_count = self._toll_of(delivery)
        if crash_count is None or not is_given_up(crash_count, control.redrive_count):
            return None
        return Failure(
            reason="crash_loop",
            error=CrashLoop.__name__,
            text=f"{crash_count.deaths} workers died while they ran it alone",
        )

    def is_suspect(self, delivery: Delivery) -> bool:
        """Return whether *delivery* has to run alone."""
        crash_count = self._toll_of(delivery)
        return crash_count is not None and crash_count.suspect

    def look(self) -> None:
        """Count the processes that have died: partitions have arrived."""
        if self._process_files is None:
            return
        try:
            deaths = self._process_files.count(self._clock.now_ms())
            self._deaths = self._process_files.deaths(self._clock.now_ms() - _LATELY_MS)
            self._count(self._process_files.crash_counts())
        except OSError as error:
            self._failed(error)
            return
        for death in deaths:
            if death.running:
                _log.warning("deaths.counted", pid=death.pid, running=describe_death(death))

    def gone_members(self) -> set[str]:
        """Return the members of the group whose processes died lately; the group may not know yet."""
        self.look()
        return {death.member for death in self._deaths if death.member}

    def blames(self) -> Sequence[Blame]:
        """Return the messages that several processes ran that died lately, as of the last look."""
        since_ms = self._clock.now_ms() - _LATELY_MS
        return blames_of([death for death in self._deaths if death.at_ms >= since_ms]) if self._deaths else ()

    def gone(self, partition: Partition) -> None:
        """Count the records of *partition*, now lost, whose judging took so long that it may have cost the session."""
        slow = [each.mark for each in self._slow if each.partition is partition]
        slow = [mark for mark in slow if partition.committed is None or mark.offset >= partition.committed]
        if not slow or self._process_files is None:
            return
        now_ms = self._clock.now_ms()

        def strike(crash_counts: dict[RecordLocation, CrashCount]) -> Mapping[RecordLocation, CrashCount]:
            for mark in slow:
                crash_counts = after(crash_counts, Death(0, now_ms, (mark,)))
            return crash_counts

        try:
            self._count(self._process_files.change(strike, now_ms))
        except OSError as error:
            self._failed(error)
        _log.warning("deaths.session_lost_in_judging", records=[mark.key.place for mark in slow])

    def _judge(self, judge: Judge, record: Record, value: bytes, partition: Partition, now_ms: int) -> Delivery | None:
        slots = self.running
        if slots is None:
            return judge(record, partition, now_ms)
        # The message id is not known yet. In a recreated topic another record has this place.
        mark = Mark(
            record.topic, record.partition, record.offset, f"crc32:{zlib.crc32(value[:_SAMPLE_BYTES]):08x}", 0, "judged"
        )
        control = read_control(record) if partition.own else Control(record.topic, record.partition, record.offset)
        order = self._order_for(control)
        if order is not None:
            return _refused(record, partition, control, Parked(order.why))
        crash_count = self.crash_counts.get(mark.key) if self.crash_counts else None
        if crash_count is not None and crash_count.name == mark.name and is_given_up(crash_count, 0):
            return _refused(
                record,
                partition,
                control,
                CrashLoop(f"{crash_count.deaths} workers died or lost their session while they judged it"),
            )
        slots.judge(mark)
        started_s = self._clock.monotonic_s()
        try:
            return judge(record, partition, now_ms)
        finally:
            slots.judged()
            if self._clock.monotonic_s() - started_s > _SLOW_S:
                self._slow.append(_Slow(mark, partition))
            elif crash_count is not None:
                self._forgive_later(mark.key)

    def _order_for(self, control: Control) -> ParkOrder | None:
        order = (
            self.orders.get((control.origin_topic, control.origin_partition, control.origin_offset))
            if self.orders
            else None
        )
        return order if order is not None and control.redrive_count <= order.redrives else None

    def _toll_of(self, delivery: Delivery) -> CrashCount | None:
        crash_count = self.crash_counts.get(_key_of(delivery.control))
        message = delivery.message
        return (
            crash_count
            if crash_count is not None and message is not None and crash_count.name == message.message_id
            else None
        )

    def _forgive_later(self, key: RecordLocation) -> None:
        crash_count = self.crash_counts.get(key)
        if crash_count is not None:
            if not self._forgiven:
                self._clock.call_later(_FORGIVING_S, self._forgive)
            self._forgiven[key] = crash_count
            self._count({other: crash_count for other, crash_count in self.crash_counts.items() if other != key})

    def _forgive(self) -> None:
        """Write cleared counts to the file, many at once."""
        forgiven, self._forgiven = self._forgiven, {}
        if not forgiven or self._process_files is None:
            return
        try:
            # A count that has changed since is new, and stays.
            left = self._process_files.change(
                lambda crash_counts: {
                    key: crash_count for key, crash_count in crash_counts.items() if forgiven.get(key) != crash_count
                },
                self._clock.now_ms(),
            )
        except OSError as error:
            self._failed(error)
        else:
            self._count(left)

    def _count(self, crash_counts: Mapping[RecordLocation, CrashCount]) -> None:
        self.crash_counts = crash_counts
        self.changed()

    def _failed(self, error: OSError) -> None:
        if self._rarely.is_due("failed", 60.0):
            _log.error(
                "deaths.not_counted",
                error=str(error),
                detail="a message without an idempotency key that ends its process is repeated until this works; see "
                "worker.state_dir",
            )


def describe_death(death: Death) -> list[str]:
    """Describe the running message for a log line: id and location; a record being checked has no id yet."""
    return [f"{mark.name} at {mark.key.place}{_HOW[mark.kind]}" for mark in death.running[:_MAX_TOLD]]


_MAX_TOLD: Final = 16
_HOW: Final = {"handler": "", "inbox": "", "judged": " (being judged)"}


def _key_of(control: Control) -> RecordLocation:
    return RecordLocation(control.origin_topic, control.origin_partition, control.origin_offset)


def _refused(record: Record, partition: Partition, control: Control, error: ContractError) -> Delivery:
    """Return the delivery of a record that is not judged any more."""
    location = record.partition, record.offset, record.topic
    size = len(record.value or b"") + len(record.key or b"")
    return Refused(record=record, partition=partition, control=control, key=location, size=size, error=error)
