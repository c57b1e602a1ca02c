"""A dependency that is down: its messages wait, one of them tries, the rest of the work goes on, and nothing dies of
it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import generate_latest

from bus.errors import DependencyDown
from consumers.app.app import App
from consumers.app.testing import TestBus
from consumers.delivery.resilience.retry import Retry
from tests.kit import Done, Job


class Database:
    """Down until it is up; counts who asks at the same time."""

    def __init__(self) -> None:
        self.up = False
        self.asked: list[int] = []
        self.handled: list[int] = []
        self.others: list[int] = []

    def app(self, poison: int = -1) -> App:
        app = App("worker@svc")

        @app.on(Job, retry=Retry(attempts=2, base_s=0.1))
        async def handle(job: Job) -> None:
            self.asked.append(job.number)
            if not self.up or job.number == poison:
                raise DependencyDown("db")
            self.handled.append(job.number)

        @app.on(Done)
        async def other(message: Done) -> None:
            self.others.append(message.number)

        return app


async def come_through(bus, database: Database, count: int) -> None:
    """Once the database is up, all *count* messages are handled, and none has died."""
    database.up = True
    await bus.advance(31)
    await bus.advance(5)
    assert sorted(database.handled) == list(range(count))
    assert bus.dead_letters == []


@pytest.mark.medium
async def test_five_thousand_messages_wait_ten_minutes_and_none_dies() -> None:
    database = Database()
    async with database.app().test() as bus:
        for number in range(5_000):
            await bus.publish(Job(number=number), ttl_s=7_200)
        await bus.publish(Done(number=1))
        await bus.advance(600)
        assert bus.dead_letters == []
        # All that could run at once found out at the same time; after that one tries in a while.
        probes = len(database.asked) - len(set(database.asked[:1_000]))
        assert probes < 60
        assert database.others == [1]
        await come_through(bus, database, 5_000)


async def test_probes_take_turns() -> None:
    database = Database()
    async with database.app().test() as bus:
        for number in range(5):
            await bus.publish(Job(number=number), ttl_s=7_200)
        await bus.settle()
        database.asked.clear()
        await bus.advance(300)
        assert len(set(database.asked)) > 1
        assert 8 <= len(database.asked) <= 16


async def test_a_message_that_always_blames_its_dependency_is_dead_lettered() -> None:
    database = Database()
    database.up = True
    async with database.app(poison=0).test() as bus:
        await bus.publish(Job(number=0), ttl_s=7_200)
        # When the others come, their type waits already. Without any, nobody could tell its word from the truth.
        await bus.settle()
        for number in range(1, 20):
            await bus.publish(Job(number=number), ttl_s=7_200)
        await bus.advance(600)
        assert sorted(database.handled) == list(range(1, 20))
        assert [letter.reason for letter in bus.dead_letters] == ["retries_exhausted"]


async def test_who_missed_the_time_between_two_outages_does_not_spend_its_attempts_within_the_second() -> None:
    app, handled, down = App("worker@svc"), [], {0, 1}

    @app.on(Job, retry=Retry(attempts=6, backoff="constant", base_s=0.05))
    async def handle(job: Job) -> None:
        if job.number in down:
            raise DependencyDown("db")
        handled.append(job.number)

    async with app.test() as bus:
        await bus.publish(Job(number=0), ttl_s=7_200)
        await bus.settle()
        await bus.publish(Job(number=1), ttl_s=7_200)
        # What the other message finds says that the dependency is up again.
        down.discard(1)
        for _ in range(60):
            await bus.advance(1)
            if handled:
                break
        assert handled == [1]
        await bus.advance(10)
        down.clear()
        await bus.advance(60)
        assert handled == [1, 0]
        assert bus.dead_letters == []


async def test_a_message_expires_while_it_waits() -> None:
    database = Database()
    async with database.app().test() as bus:
        await bus.publish(Job(number=0), ttl_s=20)
        await bus.publish(Job(number=1), ttl_s=7_200)
        await bus.advance(120)
        assert [letter.reason for letter in bus.dead_letters] == ["expired"]


def breaker_open(bus: TestBus) -> float | None:
    return bus.publisher.metrics.registry.get_sample_value(
        "sealbus_breaker_open", {"group": "worker-svc-ed7e5b97", "dependency": "db"}
    )


async def test_the_breaker_is_seen_in_the_metrics() -> None:
    database = Database()
    async with database.app().test() as bus:
        await bus.publish(Job(number=0), ttl_s=7_200)
        await bus.settle()
        assert breaker_open(bus) == 1
        database.up = True
        await bus.advance(35)
        assert breaker_open(bus) == 0


async def test_a_breaker_disappears_when_its_waiting_messages_have_expired() -> None:
    database = Database()
    async with database.app().test() as bus:
        await bus.publish(Job(number=0), ttl_s=20)
        await bus.advance(60)
        assert [letter.reason for letter in bus.dead_letters] == ["expired"]
        await bus.advance(1_200)
        assert breaker_open(bus) == 0
        database.up = True
        await bus.publish(Job(number=1), ttl_s=20)
        await bus.settle()
        assert database.handled == [1]


async def test_the_breaker_stays_as_long_as_something_waits_for_it() -> None:
    database = Database()
    async with database.app().test() as bus:
        await bus.publish(Job(number=0), ttl_s=7_200)
        await bus.advance(3_600)
        assert breaker_open(bus) == 1
        await come_through(bus, database, 1)


async def test_of_a_type_that_waits_only_a_few_are_taken() -> None:
    database = Database()
    async with database.app().test() as bus:
        await bus.publish(Job(number=0), ttl_s=7_200)
        await bus.settle()
        for number in range(1, 500):
            await bus.publish(Job(number=number), ttl_s=7_200)
        await bus.publish(Done(number=1))
        await bus.advance(100)
        assert 2 <= len(bus.workers[0].in_flight) <= 64
        assert len(set(database.asked)) > 2
        assert database.others == [1]
        await come_through(bus, database, 500)


async def test_a_type_goes_on_when_the_message_that_made_it_wait_is_gone() -> None:
    database = Database()
    async with database.app().test() as bus:
        await bus.publish(Job(number=0), ttl_s=20)
        await bus.advance(60)
        assert [letter.reason for letter in bus.dead_letters] == ["expired"]
        database.up = True
        await bus.publish(Job(number=1), ttl_s=7_200)
        await bus.advance(60)
        assert database.handled == [1]


async def test_a_probe_revoked_before_it_ran_passes_its_turn_on() -> None:
    database = Database()
    async with database.app().test() as bus:
        first = await bus.publish(Job(number=0), ttl_s=7_200)
        await bus.settle()
        worker = bus.workers[0]
        (breaker,) = worker._dependencies._breakers._open.values()
        # Let through, it waits for its claim, or for the brake, when its partition goes.
        breaker.begin(first.message_id)
        leaving = worker._partitions.at(first.topic, first.partition)
        leaving.draining = True
        database.up = True
        elsewhere = 0
        for number in range(1, 20):
            elsewhere += (await bus.publish(Job(number=number), ttl_s=7_200)).partition != first.partition
        await bus.advance(60)
        assert len(database.handled) == elsewhere > 0


class OwnDown(DependencyDown):
    """Of a handler's author who does not call the constructor."""

    def __init__(self) -> None:
        Exception.__init__(self, "down")


class Unprintable(DependencyDown):
    def __str__(self) -> str:
        raise AttributeError("there is no response")


@pytest.mark.parametrize(
    "error",
    [
        lambda: DependencyDown(["db"]),
        lambda: DependencyDown("db\ud800"),
        lambda: DependencyDown("x" * 999),
        OwnDown,
        lambda: Unprintable("db"),
    ],
)
async def test_whatever_a_handler_calls_a_dependency_it_waits_and_is_shown(error: Callable[[], DependencyDown]) -> None:
    app, asked = App("worker@svc"), []

    @app.on(Job)
    async def handle(job: Job) -> None:
        asked.append(job.number)
        if len(asked) == 1:
            raise error()

    async with app.test() as bus:
        await bus.publish(Job(number=1), ttl_s=7_200)
        await bus.advance(60)
        assert (asked, bus.dead_letters) == ([1, 1], [])
        assert b"sealbus_breaker_open" in generate_latest(bus.publisher.metrics.registry)


@pytest.mark.medium
async def test_a_flood_of_failures_of_one_dependency_does_not_stop_others() -> None:
    database = Database()
    database.up = True
    app = App("worker@svc")

    @app.on(Job, retry=Retry(attempts=2, base_s=0.1))
    async def handle(job: Job) -> None:
        if job.number < 0:
            raise DependencyDown("db")
        database.handled.append(job.number)

    async with app.test() as bus:
        await bus.publish(Job(number=0), ttl_s=7_200)
        await bus.settle()
        for moment in range(1, 20):
            for number in range(25):
                await bus.publish(Job(number=-1 - number), ttl_s=7_200)
            await bus.publish(Job(number=moment), ttl_s=7_200)
            await bus.advance(0.5)
        assert database.handled == list(range(20))
