"""What if sealbus published through confluent-kafka: its own publisher over an `append` that librdkafka carries out.

Owns two such logs, for measuring only: one on `AIOProducer`, which cannot send headers, so that none are sent; and one
on `Producer`, with headers, a thread that polls, a callback for each message. Above `append` all is sealbus as it is:
sealing, batching, an outcome for each.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.aio import AIOProducer
from speed.kafka_rivals import confluent_producer
from speed.measurement import Answer, Meter, Task, settle_memory
from speed.ours import settings_of
from speed.payloads import reports

from bus.clock import SystemClock
from bus.telemetry.metrics import Metrics
from bus.transports import open_configured
from bus.transports.base import Appended, AppendOutcome, NewRecord, Transport
from producers.connection import Bus, make_publisher
from sealbus import Receipt

__all__ = ["on_aioproducer", "on_producer"]

_POLL_S = 0.05
_LARGEST = 10_000


class _Through:
    """The log of *below*, but for appending."""

    def __init__(self, below: Transport) -> None:
        self.features, self.admin, self._below = below.features, below.admin, below

    async def close(self) -> None:
        await self._below.close()


class _OnAioProducer(_Through):
    def __init__(self, below: Transport, task: Task) -> None:
        super().__init__(below)
        self._producer = AIOProducer(confluent_producer(task), batch_size=_LARGEST)

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
        futures = [await self._producer.produce(record.topic, record.value, record.key) for record in records]
        await self._producer.flush()
        return [_appended(message) for message in await asyncio.gather(*futures)]

    async def close(self) -> None:
        await self._producer.close()
        await super().close()


class _OnProducer(_Through):
    def __init__(self, below: Transport, task: Task) -> None:
        super().__init__(below)
        self._producer = Producer(confluent_producer(task))
        self._closed = False
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._closed:
            self._producer.poll(_POLL_S)

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        outcomes: list[Any] = [None] * len(records)
        left = len(records)

        # Called on the polling thread alone, one after the other.
        def delivered(number: int, error: KafkaError | None, message: Message) -> None:
            nonlocal left
            outcomes[number] = RuntimeError(str(error)) if error is not None else _appended(message)
            left -= 1
            if not left:
                loop.call_soon_threadsafe(done.set_result, None)

        for number, record in enumerate(records):
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                headers=list(record.headers),
                on_delivery=lambda error, message, number=number: delivered(number, error, message),  # type: ignore[misc]
            )
        await done
        return outcomes

    async def close(self) -> None:
        self._closed = True
        self._thread.join()
        self._producer.flush()
        await super().close()


def _appended(message: Message) -> Appended:
    return Appended(message.topic(), message.partition(), message.offset(), time.time_ns() // 1_000_000)


async def on_aioproducer(task: Task) -> Answer:
    """`publish_many` over AIOProducer."""
    return await _measured(task, _OnAioProducer)


async def on_producer(task: Task) -> Answer:
    """`publish_many` over Producer, with a callback for each message."""
    return await _measured(task, _OnProducer)


async def _measured(task: Task, made: type[_OnAioProducer | _OnProducer]) -> Answer:
    items = reports(task.payloads, task.warm_up + task.messages)
    settle_memory()
    meter, settings = Meter(), settings_of(task)
    log: Any = made(open_configured(settings), task)
    bus = Bus(make_publisher(log, settings, "bench@svc", clock=SystemClock(), metrics=Metrics()), log)
    for part in (items[: task.warm_up], items[task.warm_up :]):
        # Begun anew after the warm-up.
        meter.start()
        async for outcome in bus.publish_many(part):
            if not isinstance(outcome, Receipt):
                raise outcome
    meter.stop()
    await bus.close()
    return meter.answer(task.messages, in_log=len(items))
