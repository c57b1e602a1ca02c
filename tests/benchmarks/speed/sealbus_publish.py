"""Publishing with sealbus, to Kafka or to the embedded log: streams, concurrent single calls, one call after another.

Owns sealbus's side of every family that publishes. Payloads are Structs: checking, encoding and sealing them is within
the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from speed.measurement import Answer, Meter, Task, settle_memory
from speed.ours import settings_of
from speed.pacing import in_rounds, paced
from speed.payloads import drafted, keys, reports

from producers.connection import Bus
from sealbus import Outgoing, Receipt, connect

__all__ = ["fill", "latency", "many", "many_keyed", "single"]

_AGENT = "bench@svc"


async def _stream(bus: Bus, source: Iterable[msgspec.Struct]) -> None:
    async for outcome in bus.publish_many(source):
        if not isinstance(outcome, Receipt):
            raise outcome


async def many(task: Task) -> Answer:
    """`publish_many` of payloads: each is a conversation of its own, so its key is its id."""
    count = task.warm_up + task.messages
    return await _measured(task, reports(task.payloads, count))


async def many_keyed(task: Task) -> Answer:
    """`publish_many` of `Outgoing`s with one of a thousand keys."""
    count = task.warm_up + task.messages
    return await _measured(
        task,
        [Outgoing(report, key=key) for report, key in zip(reports(task.payloads, count), keys(count), strict=True)],
    )


async def _measured(task: Task, items: Sequence[msgspec.Struct]) -> Answer:
    first, rest = items[: task.warm_up], items[task.warm_up :]
    settle_memory()
    meter = Meter()
    async with connect(agent=_AGENT, settings=settings_of(task)) as bus:
        await _stream(bus, first)
        meter.start()
        await _stream(bus, rest)
        meter.stop()
    return meter.answer(task.messages, in_log=len(items))


async def single(task: Task) -> Answer:
    """A thousand concurrent `publish`, again and again."""
    items = reports(task.payloads, task.warm_up + task.messages)
    settle_memory()
    meter = Meter()
    async with connect(agent=_AGENT, settings=settings_of(task)) as bus:
        await in_rounds(task, meter, lambda at: bus.publish(items[at]))
    return meter.answer(task.messages, in_log=len(items))


async def latency(task: Task) -> Answer:
    """`publish`, each awaited, at a low rate."""
    items = reports(task.payloads, task.warm_up + task.messages)
    settle_memory()
    async with connect(agent=_AGENT, settings=settings_of(task)) as bus:
        return await paced(task, lambda at: bus.publish(items[at]))


async def fill(task: Task, *, idempotent: bool = False) -> Answer:
    """The sealed messages that a consuming family reads: a thousand keys, as many messages as the task has. Not a
    variant."""
    count = task.warm_up + task.messages
    meter = Meter()
    meter.start()
    source = (
        Outgoing(report, key=key, idempotency_key=f"order-{number}" if idempotent else None)
        for number, (key, report) in enumerate(drafted(task.payloads, count))
    )
    async with connect(agent=_AGENT, settings=settings_of(task)) as bus:
        await _stream(bus, source)
    meter.stop()
    return meter.answer(count, in_log=count)
