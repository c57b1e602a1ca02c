"""What time it is for the log, whatever the wall clocks do; and what is due although nobody knows the time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from bus.clock import ManualClock
from consumers.app.testing import TestBus
from consumers.delivery.resilience.retry_clock import FirstSeen, RetryClock
from sealbus import App, Context, Retry, RetryLater
from tests.kit import Job


class JumpyClock(ManualClock):
    """Its wall clock can be set; its monotonic clock goes on."""

    jump_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.jump_ms


def test_with_clocks_that_agree_an_append_was_when_it_says() -> None:
    clock = JumpyClock()
    for own in (True, False):
        retry_clock = RetryClock(clock, own=own)
        clock.advance(7)
        at_s, appended_ms = clock.monotonic_s(), clock.now_ms()
        retry_clock.learn(appended_ms)
        clock.advance(7)
        assert retry_clock.moment_ms(appended_ms) == at_s * 1000


@given(st.lists(st.tuples(st.floats(0, 400), st.integers(-600_000, 600_000), st.floats(0, 400)), max_size=60))
def test_whichever_way_a_wall_clock_jumps_nothing_was_appended_earlier_than_it_was(
    steps: list[tuple[float, int, float]],
) -> None:
    clock = JumpyClock()
    retry_clock = RetryClock(clock, own=True)
    appended: list[tuple[float, int]] = []
    # Between two looks it jumps once at most.
    for before_s, jump_ms, after_s in steps:
        for seconds, by_ms in ((before_s, 0), (after_s, jump_ms)):
            clock.jump_ms += by_ms
            appended.append((clock.monotonic_s(), clock.now_ms()))
            clock.advance(seconds)
            appended.append((clock.monotonic_s(), clock.now_ms()))
        retry_clock.watch()
    for at_s, appended_ms in appended:
        assert retry_clock.moment_ms(appended_ms) >= at_s * 1000 - 2


@pytest.mark.parametrize("jump_s", [3600, 90, -90, -3600])
def test_what_is_appended_after_a_jump_was_appended_when_it_was(jump_s: int) -> None:
    clock = JumpyClock()
    retry_clock = RetryClock(clock, own=True)
    clock.advance(100)
    retry_clock.watch()
    clock.jump_ms = jump_s * 1000
    clock.advance(1)
    retry_clock.watch()
    clock.advance(1)
    at_s, appended_ms = clock.monotonic_s(), clock.now_ms()
    clock.advance(10_000)
    assert retry_clock.moment_ms(appended_ms) == at_s * 1000


def test_without_a_log_clock_a_late_acknowledgement_changes_nothing() -> None:
    clock = JumpyClock()
    retry_clock = RetryClock(clock, own=True)
    appended_ms = clock.now_ms()
    # Such as behind a handler that blocks the event loop.
    clock.advance(12)
    with capture_logs() as logs:
        retry_clock.learn(appended_ms)
    assert (logs, retry_clock.offset_s) == ([], 0.0)


def test_what_no_clock_here_can_have_shown_counts_as_appended_now() -> None:
    clock = JumpyClock()
    retry_clock = RetryClock(clock, own=True)
    clock.advance(100)
    assert retry_clock.moment_ms(clock.now_ms() + 60_000) == clock.monotonic_s() * 1000


def test_a_wall_clock_that_is_corrected_little_by_little_is_followed() -> None:
    clock = JumpyClock()
    retry_clock = RetryClock(clock, own=True)
    for _ in range(1_000):
        clock.advance(1)
        clock.jump_ms += 7
        retry_clock.watch()
        at_s, appended_ms = clock.monotonic_s(), clock.now_ms()
        assert 0 <= retry_clock.moment_ms(appended_ms) - at_s * 1000 <= 50


@pytest.mark.parametrize("wrong_s", [0, 300, -300])
def test_before_the_first_acknowledgement_a_record_counts_as_just_arrived(wrong_s: int) -> None:
    clock = JumpyClock()
    clock.jump_ms = wrong_s * 1000
    retry_clock = RetryClock(clock, own=False)
    clock.advance(10)
    broker_ms = clock.now_ms() - clock.jump_ms - 3_000
    assert retry_clock.moment_ms(broker_ms) == 10_000
    retry_clock.learn(broker_ms + 3_000)
    assert retry_clock.moment_ms(broker_ms) == 7_000


def test_a_brokers_clock_is_learned_from_appends_and_followed_through_jumps() -> None:
    clock = JumpyClock()
    retry_clock = RetryClock(clock, own=False)
    clock.advance(50)
    broker_ms = clock.now_ms() - 90_000
    retry_clock.learn(broker_ms)
    assert retry_clock.offset_s == -90
    clock.jump_ms = 3_600_000
    clock.advance(10)
    assert retry_clock.moment_ms(broker_ms + 3_000) == 53_000


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 10)), max_size=60), st.integers(0, 60))
def test_a_wait_is_counted_from_the_first_sight_of_a_record(steps: list[tuple[int, float]], asked: int) -> None:
    sightings, now_s, first_s = FirstSeen(), 0.0, None
    for offset, elapsed_s in steps:
        now_s += elapsed_s
        sightings.see(offset, now_s)
        if offset >= asked and first_s is None:
            first_s = now_s
    assert sightings.waited_s(asked, now_s) == (0.0 if first_s is None else now_s - first_s)


def wall_clock(bus: TestBus) -> JumpyClock:
    assert isinstance(bus.clock, JumpyClock)
    return bus.clock


@asynccontextmanager
async def failing_once(runs: dict[int, list[float]]) -> AsyncIterator[TestBus]:
    """A bus whose handler asks to be tried again after five seconds, once for each job, and notes in *runs* when it
    ran."""
    app = App("clock@tests")

    @app.on(Job, retry=Retry(attempts=3))
    async def handle(job: Job, context: Context) -> None:
        runs.setdefault(job.number, []).append(bus.clock.monotonic_s())
        if context.attempt == 1:
            raise RetryLater(after_s=5)

    async with app.test() as bus:
        yield bus


@pytest.mark.parametrize("jump_s", [3600, -3600])
@pytest.mark.parametrize("back_after_s", [1, 3, 1000])
async def test_a_retry_is_neither_early_nor_stuck_when_the_wall_clock_jumps(
    jump_s: int, back_after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.app.testing.ManualClock", JumpyClock)
    runs: dict[int, list[float]] = {}
    async with failing_once(runs) as bus:
        await bus.publish(Job(1), ttl_s=86_400)
        await bus.settle()
        await bus.advance(2)
        wall_clock(bus).jump_ms = jump_s * 1000
        await bus.publish(Job(2), ttl_s=86_400)
        await bus.settle()
        await bus.advance(back_after_s)
        wall_clock(bus).jump_ms = 0
        await bus.advance(30)
        assert not bus.dead_letters
    times = sorted(chain.from_iterable(runs.values()))
    assert len(times) == 4
    firsts, seconds = times[:2], times[2:]
    for first, second in zip(firsts, seconds, strict=True):
        assert 5 <= second - first <= 16


@pytest.mark.parametrize("jump_s", [3600, -3600, -150_000_000])
async def test_a_clock_jump_does_not_change_a_wait_longer_than_the_largest_tier(
    jump_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.app.testing.ManualClock", JumpyClock)
    runs: list[float] = []
    app = App("clock@tests")

    @app.on(Job, retry=Retry(attempts=3))
    async def handle(job: Job, context: Context) -> None:
        runs.append(bus.clock.monotonic_s())
        if context.attempt == 1:
            raise RetryLater(after_s=700)

    async with app.test() as bus:
        await bus.publish(Job(1), ttl_s=86_400)
        await bus.settle()
        await bus.advance(100)
        wall_clock(bus).jump_ms = jump_s * 1000
        for _ in range(60):
            await bus.advance(20)
        assert not bus.dead_letters
    first, second = runs
    assert 700 <= second - first <= 960


async def test_a_retry_from_a_worker_with_a_slow_clock_does_not_expire_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("consumers.app.testing.ManualClock", JumpyClock)
    runs: list[int] = []
    app = App("clock@tests")

    @app.on(Job, retry=Retry(attempts=3))
    async def handle(job: Job, context: Context) -> None:
        runs.append(context.attempt)
        if context.attempt == 1:
            wall_clock(bus).jump_ms = -3_600_000
            raise RetryLater(after_s=5)

    async with app.test() as bus:
        await bus.publish(Job(1), ttl_s=86_400)
        await bus.settle()
        wall_clock(bus).jump_ms = 0
        await bus.advance(20)
        assert (runs, bus.dead_letters) == ([1, 2], [])


async def test_what_was_appended_by_a_clock_that_was_set_back_is_not_let_through_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("consumers.app.testing.ManualClock", JumpyClock)
    runs: dict[int, list[float]] = {}
    async with failing_once(runs) as bus:
        for number, jump_ms in ((1, 0), (2, -3_600_000)):
            wall_clock(bus).jump_ms = 0
            message = await bus.publish(Job(number), key="same", ttl_s=86_400)
            assert message.message_id
            wall_clock(bus).jump_ms = jump_ms
            await bus.settle()
            wall_clock(bus).jump_ms = 0
            await bus.advance(6 if number == 1 else 1)
        await bus.advance(20)
    assert [later - first >= 5 for first, later in runs.values()] == [True, True]


async def test_a_clock_set_back_releases_no_retry_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("consumers.app.testing.ManualClock", JumpyClock)
    runs: dict[int, list[float]] = {}
    async with failing_once(runs) as bus:
        wall_clock(bus).jump_ms = -300_000
        for number in range(2):
            await bus.publish(Job(number), key="same", ttl_s=86_400)
            await bus.settle()
            await bus.advance(2)
        wall_clock(bus).jump_ms = 0
        await bus.advance(20)
    assert [later - first >= 5 for first, later in runs.values()] == [True, True]


@pytest.mark.medium
@pytest.mark.parametrize("jump_s", [0, 3600, -3600])
async def test_of_many_retries_none_waits_for_the_others_because_the_wall_clock_has_jumped(
    jump_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.app.testing.ManualClock", JumpyClock)
    runs: dict[int, list[float]] = {}
    async with failing_once(runs) as bus:
        await bus.publish(Job(0), ttl_s=86_400)
        await bus.advance(20)
        wall_clock(bus).jump_ms = jump_s * 1000
        await bus.advance(2)
        # More than are fetched at once, and than may be open.
        for number in range(1, 1_500):
            await bus.publish(Job(number), ttl_s=86_400)
        await bus.advance(20)
    assert len(runs) == 1_500
    assert all(5 <= second - first <= 6 for first, second in runs.values())
