"""Priorities: of what is ready, the urgent is handled first; what waits long is not forgotten.

sealbus run priorities:app --concurrency 1
"""

from __future__ import annotations

import msgspec
import pytest

from sealbus import App, payload


@payload("ticket.opened")
class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    name: str


app = App("support@svc")
handled: list[str] = []


@app.on(Ticket, order="none")
async def handle(ticket: Ticket) -> None:
    handled.append(ticket.name)


async def test_the_urgent_ticket_overtakes_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    handled.clear()
    monkeypatch.setenv("SEALBUS_WORKER__CONCURRENCY", "1")
    monkeypatch.setenv("SEALBUS_TOPICS__PARTITIONS", "1")
    async with app.test() as bus:
        for number in range(5):
            await bus.publish(Ticket(name=f"ordinary {number}"), priority="low")
        await bus.publish(Ticket(name="urgent"), priority="critical")
        await bus.settle()
        assert handled == ["urgent", *(f"ordinary {number}" for number in range(5))]
