"""The brake: mass dying pauses a type, and a few messages decide when it goes on."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from bus.settings.loading import load
from consumers.delivery.resilience.failure_brake import COUNTED, BrakeRule
from sealbus import App, DependencyDown, Reject
from tests.kit import Done, Job


def test_only_what_handlers_make_of_messages_counts() -> None:
    assert sorted(COUNTED) == ["crash_loop", "rejected", "retries_exhausted"]


def test_it_is_pulled_when_more_than_the_share_of_a_full_window_died() -> None:
    brake = BrakeRule(share=0.5, window=4, pause_s=60)
    assert [brake.note("a", 0, died=died) for died in (True, True, False, False)] == [None] * 4
    assert brake.note("a", 0, died=True) is None
    assert brake.note("a", 0, died=True) is None
    assert brake.note("a", 0, died=True) == 60
    assert brake.delay_s("a", 10) == 50
    assert brake.delay_s("b", 10) == 0
    assert brake.paused(10) == {"a"}
    assert brake.paused(60) == set()


def test_after_a_pause_a_few_decide_and_each_failed_trial_doubles_it() -> None:
    brake = BrakeRule(share=0.5, window=100, pause_s=60)
    for _ in range(99):
        assert brake.note("a", 0, died=True) is None
    assert brake.note("a", 0, died=True) == 60
    assert [brake.note("a", 60, died=True) for _ in range(10)][-1] == 120
    assert [brake.note("a", 180, died=False) for _ in range(10)] == [None] * 10
    assert brake.delay_s("a", 180) == 0


def test_a_trial_that_goes_well_brings_back_the_full_window_and_the_first_pause() -> None:
    brake = BrakeRule(share=0.5, window=20, pause_s=60)
    assert [brake.note("a", 0, died=True) for _ in range(20)][-1] == 60
    assert [brake.note("a", 60, died=True) for _ in range(10)][-1] == 120
    assert [brake.note("a", 180, died=False) for _ in range(10)] == [None] * 10
    # Ten deaths in twenty are not too many, eleven are.
    assert [brake.note("a", 180, died=True) for _ in range(11)] == [None] * 10 + [60]


def test_pauses_grow_sixteenfold_and_no_further() -> None:
    brake = BrakeRule(share=0.5, window=4, pause_s=1)
    now_s, pauses = 0.0, []
    for _ in range(7):
        pause_s = [brake.note("a", now_s, died=True) for _ in range(4)][-1]
        assert pause_s is not None
        now_s += pause_s
        pauses.append(pause_s)
    assert pauses == [1, 2, 4, 8, 16, 16, 16]


def test_runs_started_before_the_pause_do_not_count() -> None:
    brake = BrakeRule(share=0.5, window=2, pause_s=60)
    brake.note("a", 0, died=True)
    assert brake.note("a", 0, died=True) == 60
    assert [brake.note("a", 30, died=True) for _ in range(50)] == [None] * 50


@given(st.lists(st.booleans(), max_size=300))
def test_a_share_of_one_never_pulls_it(outcomes: list[bool]) -> None:
    brake = BrakeRule(share=1, window=5, pause_s=60)
    assert not brake.enabled
    assert all(brake.note("a", 0, died=died) is None for died in outcomes)


@given(st.lists(st.booleans(), max_size=300), st.integers(2, 20), st.floats(0.1, 0.9))
def test_it_is_never_pulled_while_no_window_holds_too_many_deaths(
    outcomes: list[bool], window: int, share: float
) -> None:
    brake = BrakeRule(share=share, window=window, pause_s=60)
    pulled = any(brake.note("a", 0, died=died) is not None for died in outcomes)
    too_many = any(sum(outcomes[at : at + window]) > share * window for at in range(len(outcomes) - window + 1))
    assert pulled == too_many


async def test_messages_of_the_type_wait_and_are_not_lost() -> None:
    app = App("brake@tests")
    broken = [True]
    done: list[int] = []

    @app.on(Job)
    async def handle(job: Job) -> None:
        if broken[0]:
            raise Reject("broken deploy")
        done.append(job.number)

    settings = load(
        flags={"worker.concurrency": 4, "deadletter.brake_share": 0.5, "deadletter.brake_window": 20}, env={}, file=None
    ).settings
    async with app.test(settings=settings) as bus:
        for number in range(100):
            await bus.publish(Job(number))
        await bus.settle()
        # Those that ran already when it was pulled went on.
        assert 20 <= (died := len(bus.dead_letters)) <= 24
        broken[0] = False
        await bus.advance(59)
        assert not done
        await bus.advance(2)
        assert len(done) == 100 - died


async def test_a_message_of_a_paused_type_is_not_used_as_a_probe() -> None:
    app = App("brake@tests")
    down, done = [True], []
    at_work, blamed = asyncio.Barrier(11), asyncio.Event()

    @app.on(Job)
    async def handle(job: Job) -> None:
        await at_work.wait()
        if job.number == 0:
            blamed.set()
            raise DependencyDown("db")
        await blamed.wait()
        raise Reject("broken deploy")

    @app.on(Done)
    async def handle_other(other: Done) -> None:
        if down[0]:
            raise DependencyDown("db")
        done.append(other)

    flags = {"deadletter.brake_share": 0.5, "deadletter.brake_window": 10, "deadletter.brake_pause_s": 600}
    async with app.test(settings=load(flags=flags, env={}, file=None).settings) as bus:
        for number in (*range(1, 11), 0):
            await bus.publish(Job(number), key=f"key-{number}")
        await bus.settle()
        assert len(bus.dead_letters) == 10
        await bus.publish(Done())
        await bus.settle()
        down[0] = False
        # Well before the brake is released.
        await bus.advance(120)
        assert len(done) == 1
