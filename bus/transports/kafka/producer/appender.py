"""Append records to their partitions in order, each with one outcome by its deadline.

Owns deadlines, looking up topic facts before sending, and one `PartitionSender` per partition. `partition_sender` sends
the batches, `partition_choice` chooses the partitions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from operator import attrgetter

from bus.backoff import Backoff
from bus.clock import Clock
from bus.errors import AppendUnknownError, BusError, ClosedError, DeadlineError, TopicMissingError
from bus.own_context import OwnContext
from bus.telemetry.logs import get_logger
from bus.transports.base import AppendOutcome, NewRecord, OnOutcomes
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.cluster.topic_facts import TopicFacts
from bus.transports.kafka.errors import error_text
from bus.transports.kafka.options import KafkaOptions
from bus.transports.kafka.producer.batches import AppendCall
from bus.transports.kafka.producer.partition_choice import distributed
from bus.transports.kafka.producer.partition_sender import PartitionSender
from bus.transports.kafka.producer.replacement import ProducerSupervisor

__all__ = ["Appender"]

_BACKOFF = Backoff(0.1, 1.0)

_topic_of, _partition_of = attrgetter("topic"), attrgetter("partition")

_log = get_logger("kafka")


class Appender:
    """The append side of one transport."""

    def __init__(self, options: KafkaOptions, link: ClusterClient, clock: Clock) -> None:
        self._options = options
        self._link = link
        self._clock = clock
        self._supply = ProducerSupervisor(options, link)
        self._lanes: dict[tuple[str, int], PartitionSender] = {}
        self._pumping: dict[PartitionSender, asyncio.Task[None]] = {}
        self._calls: set[AppendCall] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._own = OwnContext()
        self._refreshing: set[str] = set()
        self._turns = itertools.count()
        self._preparing = asyncio.Lock()
        self._unprepared = 0
        self._closed = False

    async def append(
        self, records: Sequence[NewRecord], *, timeout_s: float, on_outcomes: OnOutcomes | None = None
    ) -> Sequence[AppendOutcome]:
        """Append *records*; return one outcome per record.

        Before the cluster has ever answered, an unreachable cluster is reported at once instead of at the deadline.
        """
        if not records:
            return []
        call = AppendCall(len(records), asyncio.get_running_loop().create_future(), on_outcomes)
        if timeout_s <= 0:
            call.give_up(lambda: DeadlineError("no time was left to append"), AppendUnknownError)
            return call.results()
        timer = self._clock.call_later(timeout_s, partial(self._expire, call))
        self._calls.add(call)
        try:
            self._enqueue(call, records, self._clock.monotonic_s() + timeout_s)
            await call.done
        finally:
            timer.cancel()
            call.given_up = True
            self._calls.discard(call)
        return call.results()

    async def close(self, timeout_s: float) -> None:
        """Wait at most *timeout_s* for accepted appends, then stop the producer."""
        pending = {call.done for call in self._calls if not call.done.done()}
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)
        self._closed = True
        for call in list(self._calls):
            call.give_up(
                lambda: ClosedError("the transport was closed"),
                lambda: AppendUnknownError("the transport was closed during the append"),
            )
        tasks = {*self._tasks, *self._pumping.values()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._supply.close()

    def _enqueue(self, call: AppendCall, records: Sequence[NewRecord], deadline_s: float) -> None:
        topics = {*map(_topic_of, records)}
        known = {name: facts for name in topics if (facts := self._link.known(name)) is not None}
        for record in records if {*map(_partition_of, records)} != {None} else ():
            if (
                record.partition is not None
                and (facts := known.get(record.topic)) is not None
                and record.partition >= facts.partitions
            ):
                # The partition may have been added in the meantime: ask before refusing.
                self._link.forget(record.topic)
                del known[record.topic]
        if len(known) < len(topics) or self._unprepared:
            # Keep the order of calls: an append that still waits for topic facts must not be overtaken by a later one
            # for the same partition.
            self._unprepared += 1
            self._spawn(self._prepare(call, records, topics, deadline_s))
            return
        for name in topics:
            if self._link.is_stale(name):
                self._refresh(name)
        self._distribute(call, records, known)

    async def _prepare(
        self, call: AppendCall, records: Sequence[NewRecord], topics: set[str], deadline_s: float
    ) -> None:
        try:
            async with self._preparing:
                found: dict[str, TopicFacts | BusError] = {}
                for name in topics:
                    found[name] = self._link.known(name) or await self._facts(name, deadline_s)
                self._distribute(call, records, found)
        finally:
            self._unprepared -= 1

    async def _facts(self, name: str, deadline_s: float) -> TopicFacts | BusError:
        pauses_s = _BACKOFF.delays_s()
        while True:
            pause_s = next(pauses_s)
            try:
                return await self._link.topic(name)
            except BusError as error:
                # If no broker has ever answered, waiting for the deadline only hides the fault.
                if (
                    not error.retriable
                    or not self._link.connected_once
                    or self._clock.monotonic_s() + pause_s >= deadline_s
                ):
                    return error
                self._supply.fault = str(error)
            await self._clock.sleep(pause_s)

    def _distribute(
        self, call: AppendCall, records: Sequence[NewRecord], topics: Mapping[str, TopicFacts | BusError]
    ) -> None:
        if call.given_up:
            return
        spans = distributed(
            call, records, topics, max_record_bytes=self._options.max_record_bytes, turn=next(self._turns)
        )
        for (topic, partition), span in spans.items():
            lane = self._lanes.get((topic, partition))
            if lane is None:
                lane = PartitionSender(
                    topic, partition, supply=self._supply, link=self._link, options=self._options, clock=self._clock
                )
                self._lanes[topic, partition] = lane
            lane.queue.add(span)
            self._pump(lane)

    def _pump(self, lane: PartitionSender) -> None:
        if lane not in self._pumping and not self._closed:
            task = self._pumping[lane] = self._own.begin(lane.pump())
            task.add_done_callback(partial(self._pump_ended, lane))

    def _pump_ended(self, lane: PartitionSender, task: asyncio.Task[None]) -> None:
        del self._pumping[lane]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("kafka.lane_failed", topic=lane.topic, partition=lane.partition, error=error_text(error))
        if lane.busy:
            self._pump(lane)

    def _refresh(self, name: str) -> None:
        """Check in the background whether a topic has gained partitions or was deleted."""
        if name not in self._refreshing and not self._closed:
            self._refreshing.add(name)
            self._spawn(self._fetch_facts(name))

    async def _fetch_facts(self, name: str) -> None:
        try:
            await self._link.topics([name])
        except TopicMissingError:
            self._link.forget(name)
        except BusError as error:
            self._supply.fault = str(error)
        finally:
            self._refreshing.discard(name)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._own.begin(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _expire(self, call: AppendCall) -> None:
        because = f" ({self._supply.fault})" if self._supply.fault else ""
        call.give_up(
            lambda: DeadlineError(
                f"the append was still waiting for Kafka when its time was up{because}; nothing was written"
            ),
            lambda: AppendUnknownError(f"the append was on its way when its time was up{because}"),
        )
