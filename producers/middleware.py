"""Middleware around publishes: functions that take the next publish and return one.

Owns composing them. A publish takes an `Outgoing` and returns its `Receipt`, or raises as `Bus.publish` does. A `Bus`
puts them around `publish`, `publish_many` and the publish of a `request`; `producers.connection.connect` lists the
publishes that bypass them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence

from producers.outcomes import PublishRejected, PublishUnknown, Receipt, Result
from producers.sealing.options import Outgoing

__all__ = ["PublishMiddleware", "Publishing", "around", "publish_each"]

Publishing = Callable[[Outgoing], Awaitable[Receipt]]
"""Publishes a draft."""

PublishMiddleware = Callable[[Publishing], Publishing]

_AT_ONCE = 256


def around(publishing: Publishing, middleware: Sequence[PublishMiddleware]) -> Publishing:
    """Return *publishing* with *middleware* around it, the first one outermost."""
    for wrap in reversed(middleware):
        publishing = wrap(publishing)
    return publishing


async def publish_each(
    publishing: Publishing, source: Iterable[object] | AsyncIterable[object]
) -> AsyncIterator[Result]:
    """Publish each payload or `Outgoing` of *source*, many at a time; yield their outcomes in order.

    Slower than a stream without middleware: each has a task of its own.
    """
    waiting: deque[asyncio.Task[Receipt]] = deque()
    try:
        async for item in _items(source):
            draft = item if isinstance(item, Outgoing) else Outgoing(item)  # type: ignore[arg-type]
            waiting.append(asyncio.ensure_future(publishing(draft)))
            if len(waiting) >= _AT_ONCE:
                yield await _result(waiting.popleft())
        while waiting:
            yield await _result(waiting.popleft())
    finally:
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)


async def _items(source: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[object]:
    if isinstance(source, AsyncIterable):
        async for item in source:
            yield item
    else:
        for item in source:
            yield item


async def _result(task: asyncio.Task[Receipt]) -> Result:
    try:
        return await task
    except (PublishRejected, PublishUnknown) as error:
        return error
