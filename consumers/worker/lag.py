"""Lag: how far a group is behind the end of each partition it holds, in records and in seconds.

Owns measuring, publishing it as gauges, and noting what a tier holds. Committing is the worker's; the lag of groups
that nobody works for is `sealbus groups`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from bus.clock import Clock
from bus.errors import TransportError
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.transports.base import PartitionRange, Transport
from consumers.state.partition import Partition

__all__ = ["Lag", "measure", "publish", "show", "watch"]

_FIRST_S, _EVERY_S = 0.5, 5.0

_log = get_logger("worker")


class Lag(msgspec.Struct, frozen=True):
    """Records after the frontier of one partition, and the age of the oldest of them (0 when there is none).

    Of a partition that has moved since the last look it is the age of the last record taken, which costs no fetch.
    """

    topic: str
    partition: int
    messages: int
    seconds: float


async def measure(transport: Transport, partitions: Sequence[Partition], clock: Clock, group: str) -> list[Lag]:
    """The lag of *group* in each of *partitions*; raises TransportError."""
    commits: Mapping[tuple[str, int], int] = {}
    if any(_known(partition) is None for partition in partitions):
        commits = await transport.admin.committed(group)
    ranges: dict[str, dict[int, PartitionRange]] = {}
    lags = []
    for partition in partitions:
        topic, number = partition.assignment.topic, partition.assignment.partition
        if topic not in ranges:
            ranges[topic] = dict(await transport.admin.ranges(topic))
        kept = ranges[topic].get(number)
        if kept is None:
            continue
        known = _known(partition)
        at = max(kept.start, commits.get((topic, number), kept.start) if known is None else known)
        messages, seconds = 0, 0.0
        # Offsets alone are no messages: transactions leave markers behind, also after the last of them.
        if kept.end > at and (oldest_ms := await _oldest_ms(transport, partition, at)) is not None:
            messages, seconds = kept.end - at, max(0.0, (clock.now_ms() - oldest_ms) / 1000)
        partition.measured = at
        if partition.tier is not None:
            # Whatever is in a tier now is due after its delay, also where no clock says when it came and it is fetched
            # much later.
            partition.seen.see(kept.end - 1, clock.monotonic_s())
        lags.append(Lag(topic, number, messages, seconds))
    return lags


def _known(partition: Partition) -> int | None:
    """Where the group stands, as far as this member can tell.

    None until something is delivered, or the group's commit was looked up once.
    """
    frontier = partition.frontier.committable
    return partition.measured if frontier is None else frontier


async def _oldest_ms(transport: Transport, partition: Partition, at: int) -> int | None:
    """When the record at offset *at* was appended, or the next one after it."""
    if partition.taken_ms and (partition.measured is None or partition.measured < at):
        # It moves: the last record that was taken is about as old, and reading costs a fetch for each partition.
        return partition.taken_ms
    oldest = await transport.read(
        partition.assignment.topic, partition.assignment.partition, at, max_records=1, max_bytes=1
    )
    return oldest[0].timestamp_ms if oldest else None


def publish(lags: Iterable[Lag], metrics: Metrics, group: str) -> None:
    """Replace the gauges: what is not held any more is another member's to report."""
    metrics.lag_messages.clear()
    metrics.lag_seconds.clear()
    for lag in lags:
        metrics.lag_messages.labels(group, lag.topic, lag.partition).set(lag.messages)
        metrics.lag_seconds.labels(group, lag.topic, lag.partition).set(lag.seconds)


async def watch(
    transport: Transport, held: Callable[[], Sequence[Partition]], clock: Clock, metrics: Metrics, group: str
) -> None:
    """Measure and publish at intervals what is *held* then, for ever.

    A task of its own, because nothing may wait for it: reading partition by partition how old is what waits there takes
    seconds. The first time soon, for retries in a tier count their wait from when they were seen there.
    """
    pause_s = _FIRST_S
    while True:
        await clock.sleep(pause_s)
        await show(transport, held(), clock, metrics, group)
        pause_s = _EVERY_S


async def show(
    transport: Transport, partitions: Sequence[Partition], clock: Clock, metrics: Metrics, group: str
) -> None:
    """Measure and publish; a log that does not answer leaves the gauges as they are."""
    try:
        publish(await measure(transport, partitions, clock, group), metrics, group)
    except TransportError as error:
        _log.warning("worker.lag_unknown", error=str(error))
