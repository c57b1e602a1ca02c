"""Lag: how far a group is behind the end of each held partition, in records and in seconds.

Owns measuring it, the gauges, and noting which offsets a tier holds. Commits are in `consumers.worker.worker`; `sealbus
groups` shows the lag of groups without a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from bus.clock import Clock
from bus.errors import TransportError
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.topics.names import consumer_group
from bus.transports.base import PartitionRange, Transport
from consumers.delivery.state.partition import Partition

__all__ = ["Lag", "measure", "publish_lag", "show_lag", "watch_lag"]

_FIRST_S, _EVERY_S = 0.5, 5.0

_log = get_logger("worker")


class Lag(msgspec.Struct, frozen=True):
    """Records after the frontier of one partition, and the age of the first of them in seconds (0 without records).

    Where every record taken is settled, the age of the last one taken: the next is younger, and that costs no fetch.
    """

    topic: str
    partition: int
    messages: int
    seconds: float


async def measure(
    transport: Transport,
    partitions: Sequence[Partition],
    clock: Clock,
    group: str,
    first_appended_ms: Callable[[], Mapping[Partition, tuple[int, int]]] = dict,
) -> list[Lag]:
    """Return the lag of *group*, as the log names it, in each of *partitions*. Raises TransportError.

    *first_appended_ms* returns by partition the first offset in flight and its append time: no fetch is needed there.
    """
    in_flight = first_appended_ms()
    commits: Mapping[tuple[str, int], int] = {}
    # Without a partition, too: whether the log answers is to be known.
    if not partitions or any(_known(partition) is None for partition in partitions):
        commits = await transport.admin.committed(group)
    ranges: dict[str, dict[int, PartitionRange]] = {}
    lags = []
    for partition in partitions:
        topic, number = partition.assignment.topic, partition.assignment.partition
        if topic not in ranges:
            ranges[topic] = dict(await transport.admin.ranges(topic))
        retained = ranges[topic].get(number)
        if retained is None:
            continue
        known = _known(partition)
        at = max(retained.start, commits.get((topic, number), retained.start) if known is None else known)
        messages, seconds = 0, 0.0
        # An offset need not be a message: transactions leave markers, also after the last message.
        if (
            retained.end > at
            and (oldest_ms := await _oldest_ms(transport, partition, at, in_flight.get(partition))) is not None
        ):
            messages, seconds = retained.end - at, max(0.0, (clock.now_ms() - oldest_ms) / 1000)
        partition.measured, partition.behind = at, messages
        if partition.tier is not None:
            # Each record in a tier is due after its delay, also where no clock says when it came and it is fetched much
            # later.
            partition.seen.see(retained.end - 1, clock.monotonic_s())
        lags.append(Lag(topic, number, messages, seconds))
    return lags


def _known(partition: Partition) -> int | None:
    """Return the group's offset as far as this member knows.

    None until a record is delivered, or the group's commit was read once.
    """
    frontier = partition.frontier.committable
    return partition.measured if frontier is None else frontier


async def _oldest_ms(transport: Transport, partition: Partition, at: int, first: tuple[int, int] | None) -> int | None:
    """Return the append time of the record at offset *at*, or of the next one; *first* is in flight."""
    if first is not None and first[0] == at:
        return first[1]
    is_idle = not partition.frontier.open
    if is_idle and partition.taken_ms and (partition.measured is None or partition.measured < at):
        # It moves, and all that was taken is settled: the last record taken is hardly older than the next one, and
        # reading costs a fetch per partition.
        return partition.taken_ms
    oldest = await transport.read(
        partition.assignment.topic, partition.assignment.partition, at, max_records=1, max_bytes=1
    )
    return oldest[0].timestamp_ms if oldest else None


def publish_lag(lags: Iterable[Lag], metrics: Metrics, group: str) -> None:
    """Replace the gauges: another member reports the partitions that were lost."""
    metrics.lag_messages.clear()
    metrics.lag_seconds.clear()
    for lag in lags:
        metrics.lag_messages.labels(group, lag.topic, lag.partition).set(lag.messages)
        metrics.lag_seconds.labels(group, lag.topic, lag.partition).set(lag.seconds)


async def watch_lag(
    transport: Transport,
    assigned: Callable[[], Sequence[Partition]],
    clock: Clock,
    metrics: Metrics,
    group: str,
    *,
    namespace: str,
    on_error: Callable[[str], None] = lambda _: None,
    first_appended_ms: Callable[[], Mapping[Partition, tuple[int, int]]] = dict,
) -> None:
    """Measure and publish the lag of the *assigned* partitions at intervals, for ever; tell each time why not, or "".

    Run it as a task of its own: reading the age partition by partition takes seconds, and nothing may wait for it. The
    first measurement is soon: retries in a tier count their wait from when they are seen.
    """
    pause_s, was_known = _FIRST_S, True
    while True:
        await clock.sleep(pause_s)
        error = await show_lag(
            transport,
            assigned(),
            clock,
            metrics,
            group,
            namespace=namespace,
            is_news=was_known,
            first_appended_ms=first_appended_ms,
        )
        on_error(error)
        is_known = not error
        if is_known and not was_known:
            _log.info("worker.lag_known", group=group, hint="the log answers again")
        pause_s, was_known = _EVERY_S, is_known


async def show_lag(
    transport: Transport,
    partitions: Sequence[Partition],
    clock: Clock,
    metrics: Metrics,
    group: str,
    *,
    namespace: str,
    is_news: bool = True,
    first_appended_ms: Callable[[], Mapping[Partition, tuple[int, int]]] = dict,
) -> str:
    """Measure and publish once; return why that failed, else "".

    A log that does not answer leaves the gauges as they are, and is told if *is_news*.
    """
    try:
        lags = await measure(transport, partitions, clock, consumer_group(namespace, group), first_appended_ms)
        publish_lag(lags, metrics, group)
    except TransportError as error:
        if is_news:
            _log.warning("worker.lag_unknown", error=str(error))
        return str(error) or type(error).__name__
    return ""
