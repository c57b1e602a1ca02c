"""A log that may come later."""

from __future__ import annotations

import pytest

from bus.clock import SystemClock
from bus.errors import UnreachableError
from bus.transports import open_transport
from bus.transports.base import Transport
from bus.transports.late import LateTransport


async def test_each_use_fails_until_the_log_is_there_and_then_none_does() -> None:
    tries: list[int] = []

    def opened() -> Transport:
        tries.append(1)
        if len(tries) < 3:
            raise UnreachableError("not yet")
        return open_transport("memory://", clock=SystemClock())

    late = LateTransport(opened)
    with pytest.raises(UnreachableError):
        await late.read("agents.a.b", 0, 0, max_records=1, max_bytes=1)
    with pytest.raises(UnreachableError):
        await late.admin.topics()
    assert await late.admin.topics() == {}
    assert late.features.name == "memory"
    assert len(tries) == 3
    await late.close()


async def test_one_that_never_came_is_closed() -> None:
    def opened() -> Transport:
        raise UnreachableError("never")

    await LateTransport(opened).close()
