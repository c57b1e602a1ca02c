"""What waits without an attempt waits ever longer, and an event without a process dies by name within its bound."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.settings.loading import load
from bus.transports.read_all import scan_topic
from consumers.app.testing import TestBus
from consumers.delivery.resilience.retry import Tier, next_tier
from consumers.processes.sagas.early_events import MAX_APPENDS
from sealbus import App, payload
from sealbus.sagas import Saga, SagaContext, on_message, on_start


@payload("early.begin", version="1.0.0", performative="request")
class Begin(msgspec.Struct, frozen=True, kw_only=True):
    key: str


@payload("early.event", version="1.0.0", performative="inform")
class Event(msgspec.Struct, frozen=True, kw_only=True):
    key: str


class Book(msgspec.Struct):
    count: int = 0


SEEN: list[str] = []


class Waiting(Saga[Book], version="1.0.0"):
    @on_start(Begin, key="/data/key")
    async def begun(self, message: Begin, context: SagaContext) -> None: ...

    @on_message(Event, key="/data/key", admits="anyone")
    async def event(self, message: Event, context: SagaContext) -> None:
        SEEN.append(message.key)


def app_of() -> App:
    SEEN.clear()
    app = App("early@tests")
    app.add(Waiting)
    return app


def settings(**flags: Any) -> Any:
    return load(flags={name.replace("__", "."): value for name, value in flags.items()}, env={}, file=None).settings


async def appends(bus: TestBus) -> Counter[bytes]:
    """How often each message lies in a tier."""
    found: Counter[bytes] = Counter()
    for topic in await bus.transport.admin.topics():
        if "._retry." in topic:
            found.update([record.value or b"" async for record in scan_topic(bus.transport, topic)])
    return found


@pytest.mark.parametrize("tiers", [["5s", "30s", "5m"], ["5s"], ["1m"]])
async def test_an_event_without_a_process_dies_by_name_within_its_bound(tiers: list[str]) -> None:
    async with app_of().test(settings=settings(retry__tiers=tiers)) as bus:
        for number in range(20):
            await bus.publish(Event(key=f"k{number}"), ttl_s=86_400)
        await bus.advance(601)
        assert Counter(letter.reason for letter in bus.dead_letters) == {"invalid_transition": 20}
        assert max((await appends(bus)).values(), default=0) <= MAX_APPENDS
    assert SEEN == []


async def test_an_event_is_taken_when_its_process_comes_within_the_bound() -> None:
    async with app_of().test() as bus:
        await bus.publish(Event(key="one"))
        await bus.advance(200)
        await bus.publish(Begin(key="one"))
        await bus.advance(400)
        assert not bus.dead_letters
    assert SEEN == ["one"]


async def test_the_bound_is_counted_from_the_first_look_and_not_from_the_message() -> None:
    async with app_of().test() as bus:
        worker = bus.workers[0]
        await bus.publish(Event(key="one"), delay_s=3_600, ttl_s=86_400)
        await bus.publish(Begin(key="other"))
        await bus.advance(3_601)
        await bus.publish(Begin(key="one"))
        await bus.advance(400)
        assert not bus.dead_letters
        assert worker.app.agent_id == "early@tests"
    assert SEEN == ["one"]


async def test_a_flood_of_one_sender_is_bounded_and_others_are_not_touched() -> None:
    async with app_of().test(settings=settings(worker__max_early=10, deadletter__details=True)) as bus:
        for number in range(25):
            await bus.publish(Event(key=f"k{number}"))
        await bus.settle()
        assert Counter(letter.reason for letter in bus.dead_letters) == {"invalid_transition": 15}
        assert all("early events waiting" in letter.error for letter in bus.dead_letters)


async def test_the_setting_bounds_how_long() -> None:
    async with app_of().test(settings=settings(worker__early_s="20s")) as bus:
        await bus.publish(Event(key="one"))
        await bus.advance(21)
        assert [letter.reason for letter in bus.dead_letters] == ["invalid_transition"]


TIERS = st.lists(st.sampled_from([1.0, 5.0, 30.0, 60.0, 300.0, 3600.0]), unique=True, max_size=5)


@given(TIERS, st.integers(-1, 4), st.floats(0, 1e6))
def test_the_next_tier_is_longer_or_the_longest_and_never_outlives_the_message(
    delays: list[float], last: int, remaining_s: float
) -> None:
    tiers = [Tier(f"{delay:g}s", delay) for delay in delays]
    before = tiers[last] if 0 <= last < len(tiers) else None
    chosen = next_tier(tiers, before, remaining_s)
    if chosen is None:
        assert all(tier.delay_s >= remaining_s for tier in tiers)
        return
    assert chosen.delay_s < remaining_s
    longer = [tier.delay_s for tier in tiers if before is None or tier.delay_s > before.delay_s]
    if longer and min(longer) < remaining_s:
        assert chosen.delay_s == min(longer)
