"""Publishing one message per call to Kafka with other libraries: a thousand calls at a time, and one call after
another.

Owns the rivals' side of the families `single` and `latency`.
"""

from __future__ import annotations

import asyncio

from confluent_kafka.aio import AIOProducer
from speed.kafka_rivals import aiokafka_producer, confluent_producer
from speed.measurement import Answer, Meter, Task, settle_memory
from speed.pacing import CONCURRENT, in_batches, in_rounds, paced
from speed.payloads import bodies, keys

__all__ = ["aiokafka_latency", "aiokafka_single", "confluent_single"]


async def aiokafka_single(task: Task) -> Answer:
    """`gather` of a thousand `send_and_wait`, again and again."""
    count = task.warm_up + task.messages
    values, named = bodies(task.payloads, count), [key.encode() for key in keys(count)]
    settle_memory()
    meter = Meter()
    async with aiokafka_producer(task) as producer:
        await in_rounds(task, meter, lambda at: producer.send_and_wait(task.topic, values[at], key=named[at]))
    return meter.answer(task.messages, in_log=count)


async def confluent_single(task: Task) -> Answer:
    """A thousand `AIOProducer.produce`, a flush, then their thousand futures, again and again.

    Without the flush the outcomes are seen when its timer looks for them: a thousand a second.
    """
    count = task.warm_up + task.messages
    values, named = bodies(task.payloads, count), [key.encode() for key in keys(count)]
    settle_memory()
    meter = Meter()
    producer = AIOProducer(confluent_producer(task), batch_size=CONCURRENT)

    async def together(numbers: range) -> None:
        futures = [await producer.produce(task.topic, values[at], named[at]) for at in numbers]
        await producer.flush()
        await asyncio.gather(*futures)

    try:
        await in_batches(task, meter, together)
    finally:
        await producer.close()
    return meter.answer(task.messages, in_log=count)


async def aiokafka_latency(task: Task) -> Answer:
    """`send_and_wait` with no linger, each awaited, at a low rate."""
    count = task.warm_up + task.messages
    values, named = bodies(task.payloads, count), [key.encode() for key in keys(count)]
    settle_memory()
    async with aiokafka_producer(task, linger_ms=0) as producer:
        return await paced(task, lambda at: producer.send_and_wait(task.topic, values[at], key=named[at]))
