"""Publishing to Kafka with other libraries: many messages, as fast as they go, every acknowledgement awaited.

Owns the rivals' side of the families `publish` and `partitions`. Values are ready bytes: nothing is encoded within the
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, Message, Producer
from faststream.kafka import KafkaBroker
from speed.kafka_rivals import BATCH_BYTES, LINGER_MS, aiokafka_producer, codec, confluent_producer
from speed.measurement import Answer, Meter, Task, settle_memory
from speed.payloads import bodies, keys

from bus.transports.partitioner import partition_of

__all__ = [
    "aiokafka_batch",
    "aiokafka_send",
    "confluent_produce",
    "faststream_batch",
    "faststream_batches",
    "faststream_one",
]

_SMALLER_BYTES = 262_144
_AWAITED = 20_000
_TOGETHER = 500
_DOZEN = 12


def _prepared(task: Task) -> tuple[list[bytes], list[bytes], Meter]:
    count = task.warm_up + task.messages
    values, named = bodies(task.payloads, count), [key.encode() for key in keys(count)]
    settle_memory()
    return values, named, Meter()


async def aiokafka_send(task: Task) -> Answer:
    """One `send()` a message, in batches of 256 KB; the futures are awaited 20,000 at a time.

    It is fastest so: with batches of 1 MB and all futures at the end it is a fifth slower.
    """
    values, named, meter = _prepared(task)
    async with aiokafka_producer(task, batch_bytes=_SMALLER_BYTES) as producer:

        async def part(start: int, end: int) -> None:
            for first in range(start, end, _AWAITED):
                some = range(first, min(end, first + _AWAITED))
                futures = [await producer.send(task.topic, values[at], key=named[at]) for at in some]
                await asyncio.gather(*futures)

        await part(0, task.warm_up)
        meter.start()
        await part(task.warm_up, len(values))
        meter.stop()
    return meter.answer(task.messages, in_log=len(values))


async def aiokafka_batch(task: Task) -> Answer:
    """Batches of 256 KB built by hand, one per partition; the partition of a key is looked up as cheaply as can be."""
    values, named, meter = _prepared(task)
    async with aiokafka_producer(task, batch_bytes=_SMALLER_BYTES) as producer:
        await _by_hand(producer, task, values[: task.warm_up], named)
        meter.start()
        await _by_hand(producer, task, values[task.warm_up :], named[task.warm_up :])
        meter.stop()
    return meter.answer(task.messages, in_log=len(values))


async def _by_hand(producer: AIOKafkaProducer, task: Task, values: Sequence[bytes], named: Sequence[bytes]) -> None:
    builders = [producer.create_batch() for _ in range(task.partitions)]
    futures = []

    async def leave(partition: int) -> None:
        builder = builders[partition]
        builder.close()
        futures.append(await producer.send_batch(builder, task.topic, partition=partition))
        builders[partition] = producer.create_batch()

    for value, key in zip(values, named, strict=False):
        partition = partition_of(key, task.partitions)
        if builders[partition].append(key=key, value=value, timestamp=None) is None:
            await leave(partition)
            builders[partition].append(key=key, value=value, timestamp=None)
    for partition, builder in enumerate(builders):
        if builder.record_count():
            await leave(partition)
    await asyncio.gather(*futures)


def confluent_produce(task: Task) -> Answer:
    """One `produce()` a message with a callback that counts; polled now and then, flushed at the end."""
    values, named, meter = _prepared(task)
    producer = Producer(confluent_producer(task))
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    def part(start: int, end: int) -> None:
        for at in range(start, end):
            producer.produce(task.topic, values[at], named[at], on_delivery=delivered)
            if at % _TOGETHER == 0:
                producer.poll(0)
        producer.flush()

    part(0, task.warm_up)
    meter.start()
    part(task.warm_up, len(values))
    meter.stop()
    if failed:
        raise RuntimeError(f"{len(failed)} messages failed, the first with {failed[0]}")
    return meter.answer(task.messages, in_log=len(values))


def _broker(task: Task, linger_ms: int = LINGER_MS) -> KafkaBroker:
    return KafkaBroker(
        task.bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=linger_ms,
        max_batch_size=BATCH_BYTES,
        max_request_size=4 * BATCH_BYTES,
        compression_type=codec(task),
        logger=None,
    )


async def faststream_batch(task: Task) -> Answer:
    """`publish_batch` of 500, each awaited before the next."""
    return await _batches(task, 1)


async def faststream_batches(task: Task) -> Answer:
    """`publish_batch` of 500, a dozen calls at a time."""
    return await _batches(task, _DOZEN)


async def _batches(task: Task, concurrent: int) -> Answer:
    values, _, meter = _prepared(task)
    async with _broker(task, linger_ms=0) as broker:
        await broker.start()

        async def part(start: int, end: int) -> None:
            starts = iter(range(start, end, _TOGETHER))

            async def work() -> None:
                for at in starts:
                    await broker.publish_batch(*values[at : min(end, at + _TOGETHER)], topic=task.topic)

            await asyncio.gather(*(work() for _ in range(concurrent)))

        await part(0, task.warm_up)
        meter.start()
        await part(task.warm_up, len(values))
        meter.stop()
    return meter.answer(task.messages, in_log=len(values))


async def faststream_one(task: Task) -> Answer:
    """`publish`, each awaited before the next."""
    values, named, meter = _prepared(task)
    async with _broker(task, linger_ms=0) as broker:
        await broker.start()
        for at in range(task.warm_up):
            await broker.publish(values[at], task.topic, key=named[at])
        meter.start()
        for at in range(task.warm_up, len(values)):
            await broker.publish(values[at], task.topic, key=named[at])
        meter.stop()
    return meter.answer(task.messages, in_log=len(values))
