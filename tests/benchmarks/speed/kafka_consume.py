"""Reading the topic of sealed messages with other libraries.

Owns the rivals' side of the families that consume from Kafka. None of them looks at a hash; what each does is in
`speed.catalog`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import orjson
from confluent_kafka import Consumer
from fast_depends.msgspec import MsgSpecSerializer
from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker
from speed.kafka_rivals import aiokafka_consumer, confluent_consumer
from speed.measurement import Answer, Task, settle_memory
from speed.payloads import Report
from speed.tally import Tally

__all__ = [
    "aiokafka_for",
    "aiokafka_getmany",
    "confluent_consume",
    "faststream_batch",
    "faststream_batch_tuned",
    "faststream_confluent",
    "faststream_message",
    "faststream_message_tuned",
]

_TOGETHER = 500


class Envelope(msgspec.Struct):
    """What a program that trusts the log reads of a sealed message: its payload."""

    data: Report


_decode = msgspec.json.Decoder(Envelope).decode


async def aiokafka_getmany(task: Task) -> Answer:
    """`getmany`; the values stay bytes."""
    settle_memory()
    tally = Tally(task)
    async with aiokafka_consumer(task) as consumer:
        while not tally.done.is_set():
            for records in (await consumer.getmany(timeout_ms=200)).values():
                tally.add(len(records))
    return tally.answer()


async def aiokafka_for(task: Task) -> Answer:
    """`async for`; the values stay bytes."""
    settle_memory()
    tally = Tally(task)
    async with aiokafka_consumer(task) as consumer:
        async for _ in consumer:
            tally.add()
            if tally.done.is_set():
                break
    return tally.answer()


def confluent_consume(task: Task) -> Answer:
    """`consume(500)`; each value is taken out as bytes."""
    return asyncio.run(_confluent(task))


async def _confluent(task: Task) -> Answer:
    settle_memory()
    tally = Tally(task)
    consumer = Consumer(confluent_consumer(task))
    consumer.subscribe([task.topic])
    while not tally.done.is_set():
        messages = consumer.consume(_TOGETHER, timeout=0.2)
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            message.value()
        tally.add(len(messages))
    consumer.close()
    return tally.answer()


# FastStream decodes JSON where the content type says so in its own words; sealed messages say it in theirs.
async def _json_one(message: Any) -> Any:
    return orjson.loads(message.body)


async def _json_many(message: Any) -> list[Any]:
    return [orjson.loads(body) for body in message.body]


async def _typed_one(message: Any) -> Envelope:
    return _decode(message.body)


async def _typed_many(message: Any) -> list[Envelope]:
    return [_decode(body) for body in message.body]


async def faststream_message(task: Task) -> Answer:
    """A subscriber per message, acknowledged first, no logger; its types converted by its msgspec serializer."""
    return await _message(task, KafkaBroker(task.bootstrap, logger=None, serializer=MsgSpecSerializer()), _json_one)


async def faststream_message_tuned(task: Task) -> Answer:
    """The same with a decoder by hand, straight into the type, and its own conversion off."""
    return await _message(task, KafkaBroker(task.bootstrap, logger=None, apply_types=False), _typed_one)


async def faststream_confluent(task: Task) -> Answer:
    """Per message on FastStream's confluent-kafka broker."""
    return await _message(task, ConfluentBroker(task.bootstrap, logger=None, serializer=MsgSpecSerializer()), _json_one)


async def faststream_batch(task: Task) -> Answer:
    """A subscriber with `batch=True`, at most 500 at a time; types converted by its msgspec serializer."""
    return await _batch(task, KafkaBroker(task.bootstrap, logger=None, serializer=MsgSpecSerializer()), _json_many)


async def faststream_batch_tuned(task: Task) -> Answer:
    """The same with a decoder by hand, straight into the type, and its own conversion off."""
    return await _batch(task, KafkaBroker(task.bootstrap, logger=None, apply_types=False), _typed_many)


async def _message(task: Task, broker: KafkaBroker | ConfluentBroker, decoder: Any) -> Answer:
    tally = Tally(task)

    @broker.subscriber(
        task.topic, group_id=task.group, auto_offset_reset="earliest", ack_policy=AckPolicy.ACK_FIRST, decoder=decoder
    )
    async def handle(envelope: Envelope) -> None:
        tally.add(envelope.__class__ is Envelope)

    return await _served(broker, tally)


async def _batch(task: Task, broker: KafkaBroker, decoder: Any) -> Answer:
    tally = Tally(task)

    @broker.subscriber(
        task.topic,
        group_id=task.group,
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.ACK_FIRST,
        batch=True,
        max_records=_TOGETHER,
        decoder=decoder,
    )
    async def handle(envelopes: list[Envelope]) -> None:
        tally.add(len(envelopes) if envelopes[-1].__class__ is Envelope else 0)

    return await _served(broker, tally)


async def _served(broker: KafkaBroker | ConfluentBroker, tally: Tally) -> Answer:
    settle_memory()
    app = FastStream(broker, logger=None)
    running = asyncio.create_task(app.run())
    waiting = asyncio.create_task(tally.done.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    app.exit()
    await running
    return tally.answer()
