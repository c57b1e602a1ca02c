"""How calls of one message each are made: a thousand at a time, or one after another at a low rate.

Owns the two ways, the same for everybody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from speed.measurement import Answer, Meter, Task
from speed.ratios import quantile

__all__ = ["CONCURRENT", "PER_SECOND", "in_batches", "in_rounds", "paced"]

CONCURRENT = 1_000
PER_SECOND = 200

Call = Callable[[int], Awaitable[object]]
Together = Callable[[range], Awaitable[object]]


async def in_rounds(task: Task, meter: Meter, call: Call) -> None:
    """*call* for each number, a thousand at a time; measured after the warm-up."""
    await in_batches(task, meter, lambda numbers: asyncio.gather(*(call(at) for at in numbers)))


async def in_batches(task: Task, meter: Meter, together: Together) -> None:
    """The same, for an interface that wants to know of all calls of a batch."""
    count = task.warm_up + task.messages
    for start in range(0, task.warm_up, CONCURRENT):
        await together(range(start, min(task.warm_up, start + CONCURRENT)))
    meter.start()
    for start in range(task.warm_up, count, CONCURRENT):
        await together(range(start, min(count, start + CONCURRENT)))
    meter.stop()


async def paced(task: Task, call: Call) -> Answer:
    """*call* for each number, one after another, 200 in a second; how long each took, after the warm-up."""
    meter = Meter()
    took_ms: list[float] = []
    begun_s = time.perf_counter()
    for at in range(task.warm_up + task.messages):
        if at == task.warm_up:
            meter.start()
        await asyncio.sleep(max(0.0, begun_s + at / PER_SECOND - time.perf_counter()))
        started_s = time.perf_counter()
        await call(at)
        if at >= task.warm_up:
            took_ms.append((time.perf_counter() - started_s) * 1000)
    meter.stop()
    answer = meter.answer(task.messages, in_log=task.warm_up + task.messages)
    answer.p50_ms, answer.p99_ms = quantile(took_ms, 0.5), quantile(took_ms, 0.99)
    return answer
