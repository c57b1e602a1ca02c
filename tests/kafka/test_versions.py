"""A type moves from one major version to the next on a real Kafka: nothing is lost, dead or handled twice."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from bus.settings.loading import load
from bus.transports import open_transport
from bus.transports.read_all import scan_topic
from sealbus import App, connect, payload
from sealbus.schemas import DualWrite

TOTAL = 900


@payload("order.placed", version="1.0.0")
class Old(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    customer: str


def upcast(data: dict[str, Any]) -> dict[str, Any]:
    return {"number": data["number"], "customers": [data["customer"]]}


@payload("order.placed", version="2.0.0", upcasters={1: upcast})
class New(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    customers: list[str]


@payload(
    "order.placed",
    version="2.0.0",
    dual_write=DualWrite(Old, lambda order: Old(number=order.number, customer=order.customers[0])),
)
class Both(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    customers: list[str]


async def test_a_rolling_change_with_dual_write_handles_every_message_once(kafka: str, tmp_path: Path) -> None:
    handled: Counter[int] = Counter()
    url = f"kafka://{kafka}"
    flags: dict[str, Any] = {
        "bus": url,
        "namespace": f"v{uuid.uuid4().hex[:8]}",
        "inbox.url": f"sqlite:///{tmp_path}/inbox.db",
    }
    flags |= {"inbox.local": "true", "topics.create": "true"}
    settings = load(flags=flags, env={}, file=None).settings

    def app(cls: Any) -> App:
        made = App("booking@svc", group="booking")

        @made.on(cls)
        async def book(order: Any) -> None:
            handled[order.number] += 1

        return made

    async def produce(bus: Any, numbers: range) -> None:
        async for receipt in bus.publish_many(Both(number=number, customers=["Ada"]) for number in numbers):
            assert receipt.offset >= 0

    async with connect(settings=settings, agent="shop@svc") as bus:
        async with app(Old).running(settings=settings):
            await produce(bus, range(TOTAL // 3))
            async with app(New).running(settings=settings):
                await produce(bus, range(TOTAL // 3, 2 * TOTAL // 3))
        async with app(New).running(settings=settings):
            await produce(bus, range(2 * TOTAL // 3, TOTAL))
            async with asyncio.timeout(90):
                while len(handled) < TOTAL:  # noqa: ASYNC110 - it is counted by workers
                    await asyncio.sleep(0.1)
            # What would be handled a second time has the time to be.
            await asyncio.sleep(1)
    assert handled == Counter(range(TOTAL))
    transport = open_transport(url)
    try:
        topics = await transport.admin.topics()
        dead = [topic for topic in topics if topic.startswith(flags["namespace"]) and topic.endswith(".dlq")]
        for topic in dead:
            assert [record async for record in scan_topic(transport, topic)] == []
    finally:
        await transport.close()
