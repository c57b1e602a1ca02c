"""Messages of several versions of one type: producers and consumers change one after the other, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.payloads.dual_write import in_share, which_version
from bus.payloads.payload_types import payload_type
from bus.protocol.sealing import parse
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.transports import open_transport
from bus.transports.read_all import scan_topic
from sealbus import App, Context, Outgoing, connect, payload
from sealbus.errors import ContractError
from sealbus.schemas import DualWrite
from tests.kit import Done, handling


@payload("order.placed", version="1.0.0")
class OrderV1(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    customer: str


@payload("order.placed", version="1.1.0")
class OrderV11(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    customer: str
    note: str = ""


def from_v1(data: dict[str, Any]) -> dict[str, Any]:
    first, _, last = data.pop("customer").partition(" ")
    return {**data, "first_name": first, "last_name": last}


def to_v1(order: Any) -> OrderV1:
    return OrderV1(number=order.number, customer=f"{order.first_name} {order.last_name}")


@payload("order.placed", version="2.0.0", upcasters={1: from_v1})
class OrderV2(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    first_name: str
    last_name: str


@payload("order.placed", version="2.0.0", upcasters={1: from_v1}, dual_write=DualWrite(OrderV1, to_v1))
class BothV2(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    first_name: str
    last_name: str


@payload("order.placed", version="2.0.0")
class OnlyV2(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    first_name: str
    last_name: str


def consumer(cls: Any, handled: Counter[int], *, answers: bool = False) -> App:
    """An app in the code that knows *cls*, counting what it handles."""
    app = App("booking@svc", group="booking")

    @app.on(cls)
    async def book(order: Any) -> Any:
        handled[order.number] += 1
        return Done(number=order.number) if answers else None

    return app


async def settled(url: str, handled: Counter[int], count: int) -> None:
    async with asyncio.timeout(60):
        while sum(handled.values()) < count:  # noqa: ASYNC110 - it is counted by workers
            await asyncio.sleep(0.02)
    # What would be handled a second time has the time to be.
    await asyncio.sleep(0.5)


async def dead_letters(url: str) -> list[str]:
    transport = open_transport(url)
    try:
        topics = [topic for topic in await transport.admin.topics() if topic.endswith(".dlq")]
        return [topic for topic in topics async for _ in scan_topic(transport, topic)]
    finally:
        await transport.close()


def settings_of(url: str, **flags: Any) -> Settings:
    named = {name.replace("_", ".", 1): value for name, value in flags.items()}
    return load(flags={"bus": url, **named}, env={}, file=None).settings


@asynccontextmanager
async def running(url: str, *apps: App, **flags: Any) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app.running(settings=settings_of(url, **flags)))
        yield


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/bus.db"


class TestAChangeOfOneSide:
    @pytest.mark.medium
    async def test_a_v1_producer_and_a_v2_consumer(self, url: str) -> None:
        handled: Counter[int] = Counter()
        async with running(url, consumer(OrderV2, handled)), connect(url, agent="shop@svc") as bus:
            for number in range(50):
                await bus.publish(OrderV1(number=number, customer="Ada Lovelace"))
            await settled(url, handled, 50)
        assert handled == Counter(range(50))
        assert await dead_letters(url) == []

    @pytest.mark.medium
    async def test_a_newer_minor_version_is_read_by_older_consumers(self, url: str) -> None:
        handled: Counter[int] = Counter()
        async with running(url, consumer(OrderV1, handled)), connect(url, agent="shop@svc") as bus:
            await bus.publish(OrderV11(number=1, customer="Ada", note="gift"))
            await settled(url, handled, 1)
        assert await dead_letters(url) == []

    async def test_a_version_without_upcaster_is_dead_lettered_with_the_missing_one(self, url: str) -> None:
        app = handling(App("booking@svc", group="booking"), OnlyV2)
        async with app.test() as bus:
            await bus.publish(OrderV1(number=1, customer="Ada"))
            await bus.settle()
            (letter,) = bus.dead_letters
        assert letter.reason == "unsupported_version"
        assert "no upcaster leads from 1 to 2" in repr(letter)

    async def test_the_error_for_a_newer_version_asks_to_upgrade_the_reader(self) -> None:
        kind = payload_type(OrderV1)
        message = await _sealed(OnlyV2(number=1, first_name="Ada", last_name="L"))
        with pytest.raises(ContractError, match="upgrade this reader first"):
            kind.open(message)


class TestDualWrite:
    @pytest.mark.medium
    @pytest.mark.parametrize("answers", [False, True])
    async def test_old_and_new_workers_of_one_group_handle_every_message_once(self, url: str, answers: bool) -> None:
        """Producers write both versions, while old and new workers come and go."""
        handled: Counter[int] = Counter()
        inbox = {"inbox_url": url.replace("bus.db", "inbox.db")}
        total = 240

        async def produce(bus: Any, start: int) -> None:
            for number in range(start, start + total // 3):
                await bus.publish(BothV2(number=number, first_name="Ada", last_name="L"), key=f"k{number % 7}")

        async with connect(url, agent="shop@svc") as bus:
            old = consumer(OrderV1, handled, answers=answers)
            new = consumer(OrderV2, handled, answers=answers)
            async with running(url, old, **inbox):
                await produce(bus, 0)
                async with running(url, new, **inbox):
                    await produce(bus, total // 3)
            async with running(url, new, **inbox):
                await produce(bus, 2 * total // 3)
                await settled(url, handled, total)
        assert handled == Counter(range(total))
        assert await dead_letters(url) == []
        if answers:
            assert await _numbers(url, "agents.job.done") == Counter(range(total))

    @pytest.mark.medium
    async def test_readers_of_either_version_alone_take_theirs(self, url: str) -> None:
        old, new = Counter[int](), Counter[int]()
        first, second = consumer(OrderV1, old), consumer(OnlyV2, new)
        second.group = "billing"
        async with running(url, first, second), connect(url, agent="shop@svc") as bus:
            drafts = [Outgoing(BothV2(number=n, first_name="A", last_name="L")) for n in range(30)]
            receipts = [receipt async for receipt in bus.publish_many(drafts)]
            await settled(url, old, 30)
            await settled(url, new, 30)
        assert len(receipts) == 30
        assert old == new == Counter(range(30))
        assert await dead_letters(url) == []

    @pytest.mark.medium
    async def test_without_an_inbox_a_reader_of_both_versions_handles_the_older(self, url: str) -> None:
        handled: Counter[int] = Counter()
        off = {"inbox_url": "off"}
        async with running(url, consumer(OrderV2, handled), **off), connect(url, agent="shop@svc") as bus:
            for number in range(20):
                await bus.publish(BothV2(number=number, first_name="A", last_name="L"))
            await settled(url, handled, 20)
        assert handled == Counter(range(20))

    @pytest.mark.medium
    async def test_outputs_of_a_handler_are_written_in_both_versions(self, url: str) -> None:
        app = App("shop@svc", group="shop")

        @app.on(Done)
        async def order(booked: Done, context: Context) -> None:
            context.send(BothV2(number=booked.number, first_name="A", last_name="L"))

        handled: Counter[int] = Counter()
        async with running(url, app, consumer(OrderV1, handled)), connect(url, agent="x@svc") as bus:
            await bus.publish(Done(number=1))
            await settled(url, handled, 1)
        assert await _versions(url) == Counter({"1.0.0": 1, "2.0.0": 1})

    @pytest.mark.medium
    async def test_queued_outputs_are_sent_unchanged_in_both_versions(self, url: str) -> None:
        @payload("order.placed", version="2.0.0", upcasters={1: from_v1}, dual_write=DualWrite(OrderV1, to_v1))
        class Changing(msgspec.Struct, kw_only=True):
            number: int
            first_name: str
            last_name: str

        app = App("shop@svc", group="shop")

        @app.on(Done)
        async def order(booked: Done, context: Context) -> None:
            placed = Changing(number=booked.number, first_name="A", last_name="L")
            context.send(placed)
            placed.number = 99

        handled: Counter[int] = Counter()
        async with running(url, app, consumer(OrderV1, handled)), connect(url, agent="x@svc") as bus:
            await bus.publish(Done(number=1))
            await settled(url, handled, 1)
        assert await _numbers(url, "agents.order.placed") == Counter({1: 2})

    async def test_a_share_of_the_messages_is_written_in_both_versions(self, url: str) -> None:
        @payload(
            "order.placed", version="2.0.0", upcasters={1: from_v1}, dual_write=DualWrite(OrderV1, to_v1, share=0.25)
        )
        class Some(msgspec.Struct, frozen=True, kw_only=True):
            number: int
            first_name: str
            last_name: str

        async with connect(url, agent="shop@svc") as bus:
            async for _ in bus.publish_many(Some(number=n, first_name="A", last_name="L") for n in range(400)):
                pass
        versions = await _versions(url)
        assert versions["1.0.0"] == 400
        assert 60 < versions["2.0.0"] < 140

    @pytest.mark.medium
    async def test_a_conversation_goes_on_in_the_version_it_began_with(self, url: str) -> None:
        app = App("relay@svc", group="relay")

        @app.on(OrderV2)
        async def relay(order: OrderV2, context: Context) -> None:
            if order.last_name != "again":
                context.send(BothV2(number=order.number, first_name="A", last_name="again"))

        async with running(url, app), connect(url, agent="shop@svc") as bus:
            await bus.publish(OrderV1(number=1, customer="Ada L"))
            async with asyncio.timeout(30):
                while sum((await _versions(url)).values()) < 2:  # noqa: ASYNC110 - it is counted by workers
                    await asyncio.sleep(0.05)
        assert await _versions(url) == Counter({"1.0.0": 2})


@given(this=st.booleans(), other=st.booleans(), newer=st.booleans(), inbox=st.booleans())
def test_a_reader_handles_at_least_one_of_two_versions(this: bool, other: bool, newer: bool, inbox: bool) -> None:
    first = which_version(reads_this=this, reads_other=other, is_newer=newer, has_inbox=inbox)
    second = which_version(reads_this=other, reads_other=this, is_newer=not newer, has_inbox=inbox)
    assert ("take" in (first, second)) == (this or other)
    if not inbox:
        assert (first, second) != ("take", "take")


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_share_grows_without_taking_any_out(identity: str, one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert in_share(identity, high) or not in_share(identity, low)
    assert in_share(identity, 1.0)
    assert not in_share(identity, 0.0)


def test_the_older_version_has_to_be_one_of_the_same_type() -> None:
    with pytest.raises(ContractError, match="not an older major"):
        payload("order.moved", version="2.0.0", dual_write=DualWrite(OrderV1, to_v1))(
            msgspec.defstruct("Moved", [("number", int)])
        )


async def _sealed(subject: Any) -> Any:
    async with connect("memory://", agent="x@svc") as bus:
        return bus.publisher.sealer.seal(Outgoing(subject)).message


async def _records(url: str, topic: str) -> list[Any]:
    transport = open_transport(url)
    try:
        return [parse(record.value) async for record in scan_topic(transport, topic)]
    finally:
        await transport.close()


async def _versions(url: str) -> Counter[str]:
    return Counter(message.metadata.schema_version for message in await _records(url, "agents.order.placed"))


async def _numbers(url: str, topic: str) -> Counter[int]:
    return Counter(msgspec.json.decode(message.data)["number"] for message in await _records(url, topic))
