"""Messages that their sender delays: they wait in the log, and no handler gets one early."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.settings.loading import load
from consumers.app.testing import TestBus
from sealbus import App, Context, Outgoing, PublishRejected, payload


@payload("alarm.set")
class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    name: str = "tea"


@payload("alarm.rung")
class Rung(msgspec.Struct, frozen=True, kw_only=True):
    name: str


def alarms(rung: list[int]) -> App:
    app = App("alarms@svc")

    @app.on(Alarm)
    async def ring(alarm: Alarm, context: Context) -> None:
        rung.append(1 + context.attempt - 1)

    return app


def now_of(bus: TestBus) -> datetime:
    return datetime.fromtimestamp(bus.clock.now_ms() / 1000, UTC)


@pytest.mark.parametrize("delay_s", [0.5, 7, 40, 3_000])
async def test_a_delayed_message_runs_when_it_is_due_and_not_before(delay_s: float) -> None:
    rung: list[int] = []
    async with alarms(rung).test() as bus:
        await bus.publish(Alarm(), delay_s=delay_s)
        await bus.settle()
        await bus.advance(delay_s - 0.1)
        assert rung == []
        # A record leaves a tier only after its whole delay.
        await bus.advance(301)
        assert rung == [1]
        assert not bus.dead_letters


@pytest.mark.medium
@settings(max_examples=15, deadline=None)
@given(delay_s=st.floats(0.001, 20_000), step_s=st.floats(0.3, 400))
async def test_it_is_never_early_however_time_passes(delay_s: float, step_s: float) -> None:
    rung: list[int] = []
    async with alarms(rung).test() as bus:
        await bus.publish(Alarm(), delay_s=delay_s)
        started_s = bus.clock.monotonic_s()
        for _ in range(30):
            await bus.advance(min(step_s, 300.0))
            elapsed_s = bus.clock.monotonic_s() - started_s
            assert not rung or elapsed_s >= delay_s
        await bus.advance(delay_s + 600)
        assert rung == [1]


async def test_a_time_is_as_good_as_a_delay_and_one_that_has_passed_delays_nothing() -> None:
    rung: list[int] = []
    async with alarms(rung).test() as bus:
        await bus.publish(Alarm(), at=now_of(bus) - timedelta(seconds=5))
        await bus.settle()
        assert rung == [1]
        await bus.publish(Alarm(), at=now_of(bus) + timedelta(minutes=2))
        await bus.settle()
        assert rung == [1]
        await bus.advance(420)
        assert rung == [1, 1]


async def test_the_lifetime_of_a_delayed_message_begins_when_it_is_due() -> None:
    rung: list[int] = []
    async with alarms(rung).test() as bus:
        await bus.publish(Alarm(), delay_s=3600, ttl_s=400)
        await bus.advance(3600 + 350)
        assert (rung, bus.dead_letters) == ([1], [])


async def test_sent_and_returned_messages_can_be_delayed() -> None:
    app, seen = App("alarms@svc"), []

    @app.on(Alarm)
    async def ring(alarm: Alarm, context: Context) -> Outgoing:
        await context.send(Rung(name="sent"), delay_s=10)
        return Outgoing(Rung(name="returned"), delay_s=20)

    @app.on(Rung)
    async def rung(rung: Rung) -> None:
        seen.append(rung.name)

    async with app.test() as bus:
        await bus.publish(Alarm())
        await bus.advance(9)
        assert seen == []
        await bus.advance(60)
        assert sorted(seen) == ["returned", "sent"]


async def test_a_delayed_message_names_its_delay_as_something_that_must_be_understood() -> None:
    async with alarms([]).test() as bus:
        await bus.publish(Alarm(), delay_s=5, critical_fields=("/data/name",))
        # Those of `test@sealbus` are not among what the app has sent.
        (record,) = [record async for record in _records(bus)]
        assert record.metadata.critical_fields == ("/data/name", "/routing/not_before")
        assert record.routing.not_before is not None


async def _records(bus: TestBus):
    from bus.protocol import sealing
    from bus.transports.read_all import scan_topic

    async for record in scan_topic(bus.transport, "agents.alarm.set"):
        yield sealing.parse(record.value)


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"delay_s": -1}, "is not 0 or more"),
        ({"delay_s": float("nan")}, "is not 0 or more"),
        ({"delay_s": "5"}, "is a str, not seconds"),
        ({"delay_s": 8 * 86_400}, "are more than 604800 s together"),
        ({"at": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - that is the mistake
        ({"at": "tomorrow"}, "is a str, not a datetime"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC), "delay_s": 1}, "not both"),
    ],
)
async def test_a_delay_that_makes_no_sense_is_refused(options: dict[str, object], cure: str) -> None:
    async with alarms([]).test() as bus:
        with pytest.raises(PublishRejected, match=cure):
            await bus.publish(Alarm(), **options)


async def test_a_delayed_message_of_a_strict_order_lets_others_of_its_key_pass() -> None:
    app, seen = App("alarms@svc"), []

    @app.on(Alarm, order="key_strict")
    async def ring(alarm: Alarm) -> None:
        seen.append(alarm.name)

    async with app.test(settings=load(flags={"topics.partitions": 1}, env={}, file=None).settings) as bus:
        await bus.publish(Alarm(name="late"), key="k", delay_s=60)
        await bus.publish(Alarm(name="soon"), key="k")
        await bus.settle()
        assert seen == ["soon"]
        await bus.advance(301)
        assert seen == ["soon", "late"]
