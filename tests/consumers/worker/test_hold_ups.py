"""What holds a worker's partitions up: named by key and message, with the reason, until when, and how many wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus.errors import DependencyDown, RetryLater
from consumers.app.app import App
from consumers.app.testing import TestBus
from consumers.delivery.crashes.crash_rules import Blame, CrashCount, Mark, RecordLocation
from consumers.delivery.resilience.limits import Rate
from consumers.delivery.resilience.retry import Retry
from consumers.worker.hold_ups import AFTER_S
from consumers.worker.lag import measure
from producers.directory.hold_ups import HoldUp, of_card, on_card
from tests.kit import Job


async def looked(bus: TestBus, for_s: float = 2 * AFTER_S) -> tuple[HoldUp, ...]:
    """What the worker has found after so many seconds."""
    worker = bus.workers[0]
    for _ in range(round(for_s)):
        await worker.cycle(0)
        await asyncio.sleep(0)
        await worker.keep_up()
        bus.clock.advance(1)
    return worker.hold_ups.found


def held(handler: Any, **options: Any) -> App:
    app = App("desk@svc")
    app.on(Job, **options)(handler)
    return app


async def test_a_key_that_waits_for_its_retry_is_named_with_its_message_and_the_time_of_its_next_attempt() -> None:
    async def handle(job: Job) -> None:
        if job.number == 0:
            raise RetryLater("the bank is closed", after_s=120)

    async with held(handle, order="key_strict", retry=Retry(attempts=5, base_s=120, cap_s=300)).test() as bus:
        poison = await bus.publish(Job(0), key="customer-7", ttl_s=7_200)
        for number in range(1, 5):
            await bus.publish(Job(number), key="customer-7", ttl_s=7_200)
        (found,) = await looked(bus)
        assert (found.reason, found.key, found.message_id) == ("retry", "customer-7", poison.message_id)
        assert found.until_ms is not None
        assert 90_000 < found.until_ms - bus.clock.now_ms() < 125_000
        assert found.behind == 4


async def test_what_is_handled_behind_a_waiting_message_does_not_wait() -> None:
    async def handle(job: Job) -> None:
        if job.number == 0:
            raise RetryLater("not yet", after_s=120)

    async with held(handle, order="key_strict", retry=Retry(attempts=5, base_s=120, cap_s=300)).test() as bus:
        await bus.publish(Job(0), key="k", ttl_s=7_200)
        for number in range(1, 21):
            await bus.publish(Job(number), key=f"other-{number}", ttl_s=7_200)
        await bus.publish(Job(21), key="k", ttl_s=7_200)
        (found,) = await looked(bus)
        assert found.behind == 1


async def test_a_message_behind_another_of_its_key_is_not_blamed_itself() -> None:
    async def handle(job: Job) -> None:
        if job.number == 0:
            raise RetryLater("not yet", after_s=120)

    async with held(handle, order="key_strict", retry=Retry(attempts=5, base_s=120, cap_s=300)).test() as bus:
        poison = await bus.publish(Job(0), key="k", ttl_s=7_200)
        await bus.publish(Job(1), key="k", ttl_s=7_200)
        found = await looked(bus)
        assert {each.message_id for each in found} == {poison.message_id}


async def test_a_running_handler_is_named_and_one_past_its_deadline_is_told_apart() -> None:
    done = asyncio.Event()

    async def handle(job: Job) -> None:
        while not done.is_set():
            try:
                await done.wait()
            except asyncio.CancelledError:
                continue

    async with held(handle, timeout_s=60).test() as bus:
        await bus.publish(Job(0), ttl_s=7_200)
        (found,) = await looked(bus)
        assert found.reason == "handler"
        assert "handle" in found.detail
        (found,) = await looked(bus, 70)
        assert found.reason == "stuck_handler"
        done.set()
        await bus.settle()


async def test_messages_that_wait_for_a_dependency_name_it() -> None:
    async def handle(job: Job) -> None:
        raise DependencyDown("ledger")

    async with held(handle).test() as bus:
        for number in range(3):
            await bus.publish(Job(number), ttl_s=7_200)
        found = await looked(bus, 60)
        assert {(each.reason, each.detail) for each in found} == {("breaker", "ledger")}


async def test_a_message_that_waits_for_a_limit_names_the_limit_and_no_other_worker() -> None:
    async def handle(job: Job) -> None: ...

    async with held(handle, limits=[Rate("openai", 1, per_s=600)]).test() as bus:
        for number in range(3):
            await bus.publish(Job(number), ttl_s=7_200)
        found = await looked(bus, 60)
        assert {(each.reason, each.detail) for each in found} == {("limit", "openai")}


async def test_nothing_is_told_of_a_partition_whose_commit_moves() -> None:
    async def handle(job: Job) -> None: ...

    async with held(handle).test() as bus:
        for number in range(20):
            await bus.publish(Job(number))
            assert await looked(bus, 2) == ()


async def test_what_is_settled_is_told_no_longer_and_its_gauge_falls() -> None:
    failing = True

    async def handle(job: Job) -> None:
        if failing:
            raise RetryLater("not yet", after_s=60)

    async with held(handle, order="key_strict", retry=Retry(attempts=5, base_s=60, cap_s=300)).test() as bus:
        await bus.publish(Job(0), ttl_s=7_200)
        assert await looked(bus)
        gauge = bus.workers[0]._metrics.registry.get_sample_value
        labels = {"group": bus.workers[0]._plan.group, "reason": "retry"}
        assert gauge("sealbus_hold_ups", labels) == 1
        failing = False
        assert await looked(bus, 80) == ()
        assert gauge("sealbus_hold_ups", labels) == 0


async def test_lag_is_the_age_of_the_first_unsettled_record_while_other_keys_move_on() -> None:
    async def handle(job: Job) -> None:
        if job.number == 0:
            raise RetryLater("not yet", after_s=600)

    options = {"order": "key_strict", "retry": Retry(attempts=5, base_s=600, cap_s=900)}
    async with held(handle, **options).test() as bus:
        worker = bus.workers[0]
        await bus.publish(Job(0), key="k", ttl_s=7_200)
        for number in range(1, 30):
            await bus.publish(Job(number), key=f"k{number}", ttl_s=7_200)
            await looked(bus, 10)
            found = await measure(
                bus.transport,
                worker._partitions.all(),
                bus.clock,
                f"agents.{bus.workers[0]._plan.group}",
                worker.in_flight.first_appended_ms,
            )
            # Never less than what the worker itself knows of its oldest message.
            assert max(lag.seconds for lag in found) >= worker.in_flight.oldest_s() - 1


@pytest.mark.parametrize(
    "listed", [None, "x", [1, None, {}], [{"reason": "evil", "topic": "agents.job.asked"}], {"reason": "retry"}]
)
def test_what_is_no_hold_up_on_a_card_is_left_out(listed: object) -> None:
    assert of_card(listed) == ()


def test_a_card_carries_the_longest_ten_and_cuts_their_texts() -> None:
    many = [
        HoldUp(reason="retry", topic="agents.job.asked", partition=0, offset=number, since_ms=number, key="k" * 5_000)
        for number in range(50)
    ]
    read = of_card(on_card(many))
    assert [each.offset for each in read] == list(range(10))
    assert max(len(each.key) for each in read) == 400


async def test_what_waits_until_a_suspect_has_run_alone_does_not_wait_for_the_log() -> None:
    """Two workers ended while they ran the message: it waits until the others have ended, and later ones for it."""
    done = asyncio.Event()

    async def handle(job: Job) -> None:
        await done.wait()

    async with held(handle, timeout_s=600).test() as bus:
        long = await bus.publish(Job(0), key="k0", ttl_s=7_200)
        await looked(bus, 1)
        suspect = await bus.publish(Job(3), key="k3", ttl_s=7_200)
        place = RecordLocation(suspect.topic, suspect.partition, suspect.offset)
        bus.workers[0].slots._guard.crash_counts = {
            place: CrashCount(*place, name=suspect.message_id, redrives=0, starts=2, deaths=0, at_ms=0)
        }
        await looked(bus, 2)
        later = await bus.publish(Job(8), key="k8", ttl_s=7_200)
        found = {each.message_id: each.reason for each in await looked(bus, 10)}
        done.set()
        await bus.settle()
    assert len({long.partition, suspect.partition, later.partition}) == 3
    assert found == {long.message_id: "handler", suspect.message_id: "crash", later.message_id: "busy"}


async def test_a_message_that_ran_in_two_workers_that_died_is_named_at_once_until_it_is_settled() -> None:
    done = asyncio.Event()

    async def handle(job: Job) -> None:
        await done.wait()

    async with held(handle, timeout_s=600).test() as bus:
        worker = bus.workers[0]
        receipt = await bus.publish(Job(0), key="k0", ttl_s=7_200)
        mark = Mark(receipt.topic, receipt.partition, receipt.offset, receipt.message_id, 0, "inbox")
        worker.hold_ups._blames = lambda: (Blame(mark, 2, bus.clock.now_ms()),)
        # Before the record has come to it: it may end this worker before the next look.
        worker.hold_ups.look()
        (early,) = worker.hold_ups.found
        (found,) = await looked(bus, 2)
        for each in (early, found):
            assert (each.reason, each.message_id, each.offset) == ("crash", receipt.message_id, receipt.offset)
            assert each.detail == "2 workers ended while they ran it"
        done.set()
        await bus.settle()
        assert await looked(bus, 2) == ()


async def test_a_message_that_another_worker_has_is_named_only_just_after_a_death() -> None:
    async def handle(job: Job) -> None: ...

    async with held(handle).test() as bus:
        worker, died_ms = bus.workers[0], bus.clock.now_ms()
        mark = Mark("agents.job.asked", 0, 7, "0192f0c0-0000-7000-8000-000000000001", 0, "handler")
        worker.hold_ups._blames = lambda: (Blame(mark, 2, died_ms),)
        assert [each.message_type for each in await looked(bus, 5)] == ["job.asked"]
        assert await looked(bus, 70) == ()
