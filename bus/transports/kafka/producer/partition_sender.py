"""Send the batches of one partition, and interpret the broker's answers.

Owns order within the partition: at most two batches are in flight, and batches that a dead producer did not acknowledge
return to the front of the queue. `batches` cuts batches, `replacement` supplies producers.
"""

from __future__ import annotations

import asyncio

from aiokafka import errors

from bus.clock import Clock
from bus.errors import AppendUnknownError, BusError, TopicMissingError
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.cluster.topic_facts import BATCH_OVERHEAD
from bus.transports.kafka.errors import error_text, is_certain_failure, is_denial, is_refusal, kafka_error_of
from bus.transports.kafka.options import KafkaOptions
from bus.transports.kafka.producer.batches import AppendBatch, Queue
from bus.transports.kafka.producer.partition_choice import likewise
from bus.transports.kafka.producer.producer import Producer, Sent
from bus.transports.kafka.producer.replacement import ProducerSupervisor

__all__ = ["PartitionSender"]

_DEPTH = 2
_PAUSE_S = 0.2
_MAX_TRIES = 4


class PartitionSender:
    """Sends the records of one partition. `pump` runs as long as there are any."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        supply: ProducerSupervisor,
        link: ClusterClient,
        options: KafkaOptions,
        clock: Clock,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.queue = Queue()
        self._flying: list[Sent] = []
        self._producer: Producer | None = None
        self._supply = supply
        self._link = link
        self._options = options
        self._clock = clock

    @property
    def busy(self) -> bool:
        """Whether records wait or are in flight."""
        return bool(self.queue or self._flying)

    async def pump(self) -> None:
        """Send batches until nothing waits and nothing is in flight."""
        while self.busy:
            producer = self._producer if self._flying else await self._ready()
            if producer is None:
                await self._clock.sleep(_PAUSE_S)
                continue
            await self._fill(producer)
            if self._flying:
                await self._reap(producer)

    async def _ready(self) -> Producer | None:
        """Return a producer that can take a batch now; this partition keeps it while batches of it are in flight."""
        self._producer = await self._supply.current()
        if self._producer is None or self._producer.has_leader(self.topic, self.partition):
            return self._producer
        # A batch for a partition without a leader makes the library ask for one without a pause, and then breaks the
        # producer. So the batch waits here.
        try:
            async with asyncio.timeout(self._options.request_timeout_s):
                found = await self._producer.look_for_leader(self.topic, self.partition)
        except (errors.KafkaError, OSError, TimeoutError) as error:
            self._supply.fault = error_text(error)
            return None
        if not found:
            self._supply.fault = f"{self.topic} partition {self.partition} has no leader"
            if await self._is_gone():
                while (batch := self.queue.take(self._options.batch_bytes)) is not None:
                    self._deleted(batch)
            return None
        return self._producer

    async def _fill(self, producer: Producer) -> None:
        """Hand over due batches: while one is being written, the next one waits in the library."""
        limit = self._limit()
        while len(self._flying) < _DEPTH and not producer.is_replaced and (batch := self.queue.take(limit)) is not None:
            try:
                sent = await producer.send(batch, self.topic, self.partition, self._clock.now_ms())
            # After any error the records were never queued, and their callers wait for an outcome.
            except Exception as error:  # noqa: BLE001
                await self._failed(batch, error, certain=True)
                if not isinstance(error, errors.KafkaTimeoutError):
                    self._supply.replace(producer, error)
                return
            self._flying.append(sent)

    async def _reap(self, producer: Producer) -> None:
        """Wait for the oldest batch in flight, or for the producer's end."""
        sent = self._flying[0]
        if not sent.future.done():
            await asyncio.wait((sent.future, producer.dead), return_when=asyncio.FIRST_COMPLETED)
        if sent.future.done() and (error := sent.future.exception()) is not None:
            self._supply.replace(producer, error)
            await asyncio.wait((producer.dead,))
        elif sent.future.done():
            self._flying.pop(0)
            producer.flying.discard(sent)
            _acknowledge(sent)
            return
        await self._recover(producer)

    async def _recover(self, producer: Producer) -> None:
        """After the producer's end, settle what it acknowledged and put the rest back at the front of the queue, in
        order.
        """
        flying, self._flying = self._flying, []
        for sent in reversed(flying):
            producer.flying.discard(sent)
            error = (
                sent.future.exception()
                if sent.future.done()
                else errors.KafkaConnectionError("the producer was replaced")
            )
            if error is None:
                _acknowledge(sent)
            else:
                await self._failed(sent.batch, error, certain=is_certain_failure(error))

    async def _failed(self, batch: AppendBatch, error: BaseException, *, certain: bool) -> None:
        """Put *batch* back for another attempt, or settle it if it can never succeed."""
        for span in batch.spans:
            span.take_back(certain=certain)
        if isinstance(error, errors.UnknownTopicOrPartitionError) and await self._is_gone():
            self._deleted(batch)
            return
        worn = max(span.tries for span in batch.spans) >= _MAX_TRIES and not _may_pass(error)
        if not is_refusal(error) and not worn:
            self.queue.put_back(batch.spans)
        elif len(batch) == 1 or is_denial(error):
            _refuse(batch, kafka_error_of(error, f"appending to {self.topic}"))
        else:
            # One record is refused and the others with it: send one by one to find it.
            for span in batch.spans:
                span.solo, span.tries = True, 0
            self.queue.put_back(batch.spans)

    def _deleted(self, batch: AppendBatch) -> None:
        # Batches in flight count too: anything written was deleted with the topic.
        for span in batch.spans:
            span.uncertain = False
        _refuse(batch, TopicMissingError(f"topic {self.topic!r} was deleted"))

    async def _is_gone(self) -> bool:
        self._link.forget(self.topic)
        try:
            await self._link.topic(self.topic)
        except TopicMissingError:
            return True
        except BusError:
            return False
        return False

    def _limit(self) -> int:
        facts = self._link.known(self.topic)
        largest_bytes = facts.max_batch_bytes if facts is not None else None
        return (
            self._options.batch_bytes
            if largest_bytes is None
            else max(1, min(self._options.batch_bytes, largest_bytes - BATCH_OVERHEAD))
        )


def _acknowledge(sent: Sent) -> None:
    answer = sent.future.result()
    timestamp_ms = answer.timestamp if answer.timestamp is not None and answer.timestamp >= 0 else sent.timestamp_ms
    sent.batch.acknowledge(sent.topic, sent.partition, answer.offset, timestamp_ms)


def _refuse(batch: AppendBatch, fault: BusError) -> None:
    for span in batch.spans:
        for index in span.indices:
            span.call.settle(index, AppendUnknownError(str(fault)) if span.uncertain else likewise(fault))


def _may_pass(error: BaseException) -> bool:
    """Tell whether repeating a batch that failed with *error* makes sense until its deadline."""
    return isinstance(error, OSError | TimeoutError | errors.KafkaError) and not isinstance(error, errors.UnknownError)
