"""Start, watch and replace the producer of a transport.

Owns starting a producer, condemning a failed one, and detecting one that makes no progress although the cluster could
take its batches. Each `PartitionSender` requeues its own batches after the producer's end.

Every failed batch costs the producer: the library assigns sequence numbers before sending and never takes them back.
After any failure the broker refuses all later batches of that partition.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping

from aiokafka import errors

from bus.backoff import Backoff
from bus.errors import BusError
from bus.own_context import OwnContext
from bus.telemetry.logs import get_logger
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.errors import error_text
from bus.transports.kafka.options import KafkaOptions
from bus.transports.kafka.producer.producer import Producer

__all__ = ["ProducerSupervisor"]

_GRACE_S = 5.0
_STALL_S = 15.0
_HEALTHY_S = 5.0
_WATCH_S = 1.0
_BACKOFF = Backoff(0.2, 4.0)

_log = get_logger("kafka")


class ProducerSupervisor:
    """Keeps at most one live producer at a time."""

    def __init__(self, options: KafkaOptions, link: ClusterClient) -> None:
        self._options = options
        self._link = link
        self._producer: Producer | None = None
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._own = OwnContext()
        self._pauses_s = _BACKOFF.delays_s()
        self._not_before_s = 0.0
        self.fault = ""
        """The last fault; a deadline that expires later includes it in its error."""

    async def current(self) -> Producer | None:
        """Return the producer that takes batches now; None if none could be started."""
        if self._producer is not None and not self._producer.is_replaced:
            return self._producer
        async with self._starting:
            if time.monotonic() < self._not_before_s:
                return None
            if self._producer is not None and self._producer.is_replaced:
                await asyncio.wait((self._producer.dead,))
                self._producer = None
            if self._producer is None:
                self._producer = await self._start_producer()
            return self._producer

    def replace(self, producer: Producer, error: BaseException, grace_s: float = _GRACE_S) -> None:
        """Replace *producer*.

        Batches of other partitions in flight may finish within *grace_s*; then it is stopped.
        """
        if producer.is_replaced:
            return
        producer.is_replaced = True
        self.fault = error_text(error)
        _log.warning("kafka.producer_replaced", error=self.fault)
        self._spawn(self._end(producer, grace_s))

    async def close(self) -> None:
        """Stop the producer."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.kill()

    async def _start_producer(self) -> Producer | None:
        try:
            producer = await Producer.start(self._options)
        except (errors.KafkaError, OSError, TimeoutError) as error:
            self.fault = error_text(error)
            pause_s = next(self._pauses_s)
            _log.warning("kafka.producer_not_started", error=self.fault, again_in_s=pause_s)
            self._not_before_s = time.monotonic() + pause_s
            return None
        self._pauses_s = _BACKOFF.delays_s()
        self._spawn(self._watch(producer))
        return producer

    async def _end(self, producer: Producer, grace_s: float) -> None:
        waiting = [sent.future for sent in producer.flying if not sent.future.done()]
        if waiting and grace_s:
            await asyncio.wait(waiting, timeout=grace_s)
        await producer.kill()

    async def _watch(self, producer: Producer) -> None:
        healthy_since_s: float | None = None
        hindered: dict[tuple[str, int], str] = {}
        while not producer.is_replaced:
            await asyncio.sleep(_WATCH_S)
            late = producer.late(_STALL_S)
            found = await self._hindrances(late)
            self._tell({location: why for location, why in found.items() if hindered.get(location) != why})
            hindered = found
            # A new producer could not write either to a partition that the cluster refuses. Replacing it would only
            # write the batches of other partitions to the log twice.
            if not late - found.keys():
                healthy_since_s = None
            elif healthy_since_s is None:
                healthy_since_s = time.monotonic()
            elif time.monotonic() - healthy_since_s >= _HEALTHY_S:
                self.replace(producer, TimeoutError("no progress, although its partitions could be written"), grace_s=0)

    async def _hindrances(self, locations: set[tuple[str, int]]) -> dict[tuple[str, int], str]:
        """Return which of *locations* cannot be written, with the reason if known.

        Asks through the ClusterClient, which does return to the bootstrap list.
        """
        try:
            facts = await self._link.topics({topic for topic, _ in locations}, limits=True) if locations else {}
        except BusError:
            return dict.fromkeys(locations, "")
        return {(topic, number): why for topic, number in locations if (why := facts[topic].hindrance(number))}

    def _tell(self, hindered: Mapping[tuple[str, int], str]) -> None:
        for topic, why in sorted({(topic, why) for (topic, _), why in hindered.items() if why}):
            partitions = sorted(number for (name, number), reason in hindered.items() if (name, reason) == (topic, why))
            self.fault = f"{topic}: {why}"
            _log.warning("kafka.not_written", topic=topic, partitions=partitions, why=why)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._own.begin(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
