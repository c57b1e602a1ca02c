"""One life of a producer: it starts, sends batches, and ends for certain.

Owns the library's producer with its traps: `stop()` may hang for as long as the brokers are away, a batch that fails
leaves a gap in the sequence that refuses every later batch of its partition, and a client that has lost its brokers
never returns to the bootstrap list. So a producer is never repaired: it is condemned and replaced (`sending`). Does not
own which batches there are.
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
    """A batch on its way: `future` is the broker's answer, `batch` what it holds."""

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
        # Nobody may be there to hear of a failure when its producer is being replaced.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())


class Producer:
    """A started producer. `condemned`: takes nothing more; `dead`: will not write anything any more."""

    def __init__(self, producer: AIOKafkaProducer, compression: str) -> None:
        self._producer = producer
        self._writing = Writing(producer, compression)
        self.condemned = False
        self.dead = asyncio.get_running_loop().create_future()
        self.flying: set[Sent] = set()

    @classmethod
    async def started(cls, options: KafkaOptions) -> Producer:
        """A new one. Raises what the library raises, TimeoutError after a while."""
        producer = AIOKafkaProducer(**options.producer())
        try:
            async with asyncio.timeout(_START_S):
                await producer.start()
        except BaseException:
            await _killed(producer)
            raise
        return cls(producer, options.compression)

    def has_leader(self, topic: str, partition: int) -> bool:
        """Whether a partition is led by some broker, as far as is known."""
        node = self._producer.client.cluster.leader_for_partition(TopicPartition(topic, partition))
        return node is not None and node >= 0

    async def look_for_leader(self, topic: str, partition: int) -> bool:
        """The same, after asking the cluster."""
        await self._producer.client.add_topic(topic)
        await self._producer.client.force_metadata_update()
        return self.has_leader(topic, partition)

    async def send(self, batch: AppendBatch, topic: str, partition: int, now_ms: int) -> Sent:
        """Hand *batch* to the library; raises its errors for what was certainly never queued."""
        builder = self._writing.written(batch.records(), timestamp_ms=now_ms)
        for span in batch.spans:
            span.hand_over()
        sent = Sent(
            batch, topic, partition, await self._producer.send_batch(builder, topic, partition=partition), now_ms
        )
        self.flying.add(sent)
        return sent

    def late(self, wait_s: float) -> set[tuple[str, int]]:
        """Topics and partitions of batches that have waited for their answer for *wait_s* or longer."""
        before_s = time.monotonic() - wait_s
        return {
            (sent.topic, sent.partition) for sent in self.flying if sent.since_s <= before_s and not sent.future.done()
        }

    async def kill(self) -> None:
        """End it within seconds, whatever the brokers do. What it still held is not resent by it."""
        self.condemned = True
        await _killed(self._producer)
        if not self.dead.done():
            self.dead.set_result(None)


async def _killed(producer: AIOKafkaProducer) -> None:
    # stop() waits for every batch, without a deadline: end the task that sends, then the connections.
    task = producer._sender.sender_task  # noqa: SLF001 - there is no public way
    if task is not None and not task.done():
        task.cancel()
    with contextlib.suppress(KafkaError, OSError, TimeoutError, asyncio.CancelledError):
        await asyncio.wait_for(producer.client.close(), _KILL_S)
    if task is not None:
        await asyncio.wait([task], timeout=_KILL_S)
    producer._closed = True  # noqa: SLF001 - else it warns that nobody stopped it
