"""One producer from its start to its certain end.

Owns the library's producer and its traps. `stop()` may hang as long as the brokers are away. A failed batch leaves a
sequence gap that makes the broker refuse every later batch of the partition. A client that has lost its brokers never
returns to the bootstrap list. So a producer is never repaired: `replacement` condemns and replaces it. Which batches
are sent is decided in `partition_sender`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from bus.transports.kafka.options import KafkaOptions
from bus.transports.kafka.producer.batches import AppendBatch
from bus.transports.kafka.producer.record_batch import Writing

__all__ = ["Producer", "Sent"]

_START_S = 15.0
_KILL_S = 3.0


class Sent:
    """A batch in flight: `future` is the broker's answer, `batch` the records."""

    __slots__ = ("batch", "future", "partition", "since_s", "timestamp_ms", "topic")

    def __init__(
        self, batch: AppendBatch, topic: str, partition: int, future: asyncio.Future[Any], timestamp_ms: int
    ) -> None:
        self.batch = batch
        self.topic = topic
        self.partition = partition
        self.future = future
        self.timestamp_ms = timestamp_ms
        self.since_s = time.monotonic()
        # While the producer is being replaced nothing may await this future: mark its error as retrieved.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())


class Producer:
    """A started producer. `is_replaced`: takes no more batches; `dead`: done once nothing can be written any more."""

    def __init__(self, producer: AIOKafkaProducer, compression: str) -> None:
        self._producer = producer
        self._writing = Writing(producer, compression)
        self.is_replaced = False
        self.dead = asyncio.get_running_loop().create_future()
        self.flying: set[Sent] = set()

    @classmethod
    async def start(cls, options: KafkaOptions) -> Producer:
        """Start a new producer. Raises the library's errors, and TimeoutError after 15 s."""
        producer = AIOKafkaProducer(**options.producer())
        try:
            async with asyncio.timeout(_START_S):
                await producer.start()
        except BaseException:
            await _kill(producer)
            raise
        return cls(producer, options.compression)

    def has_leader(self, topic: str, partition: int) -> bool:
        """Tell whether the cached metadata name a leader for the partition."""
        node = self._producer.client.cluster.leader_for_partition(TopicPartition(topic, partition))
        return node is not None and node >= 0

    async def look_for_leader(self, topic: str, partition: int) -> bool:
        """Refresh the metadata, then tell whether the partition has a leader."""
        await self._producer.client.add_topic(topic)
        await self._producer.client.force_metadata_update()
        return self.has_leader(topic, partition)

    async def send(self, batch: AppendBatch, topic: str, partition: int, now_ms: int) -> Sent:
        """Hand *batch* to the library. Raises the library's error if the batch was certainly never queued."""
        builder = self._writing.written(batch.records(), timestamp_ms=now_ms)
        for span in batch.spans:
            span.hand_over()
        sent = Sent(
            batch, topic, partition, await self._producer.send_batch(builder, topic, partition=partition), now_ms
        )
        self.flying.add(sent)
        return sent

    def late(self, wait_s: float) -> set[tuple[str, int]]:
        """Return the (topic, partition) of batches that have waited *wait_s* or longer for their answer."""
        before_s = time.monotonic() - wait_s
        return {
            (sent.topic, sent.partition) for sent in self.flying if sent.since_s <= before_s and not sent.future.done()
        }

    async def kill(self) -> None:
        """Stop the producer within seconds, even if no broker answers. Unsent records are not resent."""
        self.is_replaced = True
        await _kill(self._producer)
        if not self.dead.done():
            self.dead.set_result(None)


async def _kill(producer: AIOKafkaProducer) -> None:
    # stop() waits for every batch, without a deadline: cancel the sender task, then close the connections.
    task = producer._sender.sender_task  # noqa: SLF001 - there is no public way
    if task is not None and not task.done():
        task.cancel()
    with contextlib.suppress(KafkaError, OSError, TimeoutError, asyncio.CancelledError):
        await asyncio.wait_for(producer.client.close(), _KILL_S)
    if task is not None:
        await asyncio.wait([task], timeout=_KILL_S)
    producer._closed = True  # noqa: SLF001 - otherwise it warns that it was never stopped
