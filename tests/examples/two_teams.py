"""Two teams, each with a namespace of its own, and an agent that carries one message type across.

sealbus run two_teams:shop two_teams:bridge two_teams:mail
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sealbus import App, Bus, Context, connect, payload


@payload("order.placed")
class OrderPlaced(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("order.booked")
class OrderBooked(msgspec.Struct, frozen=True, kw_only=True):
    number: int


shop = App("shop@svc", namespace="sales")
bridge = App("bridge@svc", namespace="sales", types=[OrderBooked])
mail = App("mail@svc", namespace="support")
mails: asyncio.Queue[int] = asyncio.Queue()


@shop.on(OrderPlaced)
async def book(order: OrderPlaced) -> OrderBooked:
    return OrderBooked(number=order.number)


@bridge.lifespan
async def support() -> AsyncIterator[Bus]:
    """The other team's namespace, on the same log."""
    async with connect(os.environ.get("SEALBUS_BUS__URL"), agent="bridge@svc", namespace="support") as bus:
        yield bus


@bridge.on(OrderBooked, provide={"support": support})
async def carry(booked: OrderBooked, context: Context, *, support: Bus) -> None:
    # The key makes one message of what a retry might send twice.
    await support.publish(booked, idempotency_key=context.message.message_id)


@mail.on(OrderBooked)
async def tell(booked: OrderBooked) -> None:
    mails.put_nowait(booked.number)


@pytest.mark.medium
async def test_an_order_of_one_team_causes_a_mail_of_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    monkeypatch.setenv("SEALBUS_BUS__URL", url)
    async with shop.running(url, bridge, mail) as bus:
        await bus.publish(OrderPlaced(number=7))
        assert await asyncio.wait_for(mails.get(), 30) == 7
