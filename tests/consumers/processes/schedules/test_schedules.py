"""Schedules: handlers that run at times, each due time once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.processes.schedules.schedule import GRACE_MS, Schedule, due_now, next_due_ms
from sealbus import App, Context, DependencyDown, Reject, RetryLater
from sealbus.errors import ConfigurationError
from sealbus.vocabulary import ScheduleDue


def schedule(**options: Any) -> Schedule:
    return Schedule(name="s", function=print, **options)


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_an_interval_is_counted_from_the_epoch() -> None:
    every = schedule(every_ms=10_000)
    assert [next_due_ms(every, now) for now in (0, 9_999, 10_000, 15_000)] == [10_000, 10_000, 20_000, 20_000]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("2026-03-28T12:00", "2026-03-29T06:00"),  # the clocks go forward in the night between
        ("2026-10-24T12:00", "2026-10-25T07:00"),  # and back
    ],
)
def test_a_cron_expression_follows_its_time_zone(after: str, expected: str) -> None:
    daily = schedule(cron="0 8 * * *", timezone="Europe/Berlin")
    assert next_due_ms(daily, at(after)) == at(expected)


def test_what_is_late_by_little_runs_each_time() -> None:
    every = schedule(every_ms=1_000)
    due, following, missed = due_now(every, 10_000, 12_500, 0)
    assert ([each.due_ms for each in due], following, missed) == ([10_000, 11_000, 12_000], 13_000, 0)


def test_missed_times_run_once_for_all() -> None:
    every = schedule(every_ms=600_000)
    due, following, missed = due_now(every, 600_000, 3_700_000, 0)
    assert [(each.due_ms, each.missed) for each in due] == [(3_600_000, 5)] or (due[0].missed, missed) == (4, 0)
    assert following == 4_200_000


def test_missed_times_are_left_out_and_told() -> None:
    every = schedule(every_ms=600_000, missed="skip")
    due, following, missed = due_now(every, 600_000, 3_500_000, 0)
    assert (due, following, missed) == ([], 3_600_000, 5)
    due, following, missed = due_now(every, following, 3_600_100, missed)
    assert ([(each.due_ms, each.missed) for each in due], missed) == ([(3_600_000, 5)], 0)


@given(
    every_ms=st.integers(1_000, 100_000),
    steps=st.lists(st.integers(0, 300_000), min_size=1, max_size=30),
    missed=st.sampled_from(["once", "skip"]),
)
def test_each_due_time_is_met_once_or_counted(every_ms: int, steps: list[int], missed: Any) -> None:
    every, now, left_out, met = schedule(every_ms=every_ms, missed=missed), 0, 0, []
    following, told = next_due_ms(every, 0), 0
    for step in steps:
        now += step
        due, following, left_out = due_now(every, following, now, left_out)
        met += [each.due_ms for each in due]
        told += sum(each.missed for each in due)
        assert following > max([0, *met[-1:]])
    assert len(met) == len(set(met))
    assert met == sorted(met)
    all_due = (following - every_ms) // every_ms
    assert len(met) + told + left_out == all_due
    assert GRACE_MS == 60_000


def scheduled(**options: Any) -> tuple[App, list[datetime]]:
    app, runs = App("clock@svc"), list[datetime]()

    @app.every(**options)
    async def tick(due: ScheduleDue) -> None:
        runs.append(due.due_at)

    return app, runs


async def test_a_schedule_runs_at_each_of_its_times() -> None:
    app, runs = scheduled(minutes=10)
    async with app.test() as bus:
        await bus.advance(3_601)
        assert [each.minute for each in runs] == [10, 20, 30, 40, 50, 0]
        bus.assert_all_handled()


async def test_times_whose_runs_waited_for_more_than_a_minute_are_left_out_and_told() -> None:
    app, runs, is_down = App("clock@svc"), list[tuple[float, int]](), [True]

    @app.every(seconds=10)
    async def tick(due: ScheduleDue, context: Context) -> None:
        if is_down:
            raise DependencyDown("db")
        runs.append((context.now_ms / 1000 - due.due_at.timestamp(), due.missed))

    async with app.test() as bus:
        await bus.advance(300)
        is_down.clear()
        await bus.advance(900)
        assert max(late_s for late_s, _ in runs) <= 60
        assert len(runs) + sum(missed for _, missed in runs) == 120
        assert bus.dead_letters == []


async def test_a_run_that_is_repeated_or_sent_back_late_is_not_left_out() -> None:
    app, runs = App("clock@svc"), list[int]()

    @app.every(minutes=1, ttl_s=7_200)
    async def tick(due: ScheduleDue, context: Context) -> None:
        runs.append(due.due_at.minute)
        if len(runs) == 1:
            raise RetryLater(after_s=600)

    async with app.test() as bus:
        await bus.advance(1_201)
        assert runs.count(runs[0]) == 2
        assert len(runs) == 21


async def test_a_schedule_by_cron_runs_with_its_context() -> None:
    app, seen = App("clock@svc"), []

    @app.every("30 7 * * *", timezone="Europe/Berlin", name="morning")
    async def report(due: ScheduleDue, context: Context) -> None:
        seen.append((due.name, context.message.metadata.sender.id))

    async with app.test() as bus:
        await bus.advance(86_401)
        assert seen == [("morning", "clock@svc")]


async def test_another_agent_cannot_tell_a_time() -> None:
    app, runs = scheduled(hours=1)
    async with app.test() as bus:
        await bus.as_agent("stranger@svc").publish(
            ScheduleDue(name="tick", due_at=datetime(2026, 1, 1, tzinfo=UTC)), to="clock@svc"
        )
        await bus.settle()
        assert runs == []
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]


async def test_a_run_that_fails_for_good_is_a_dead_letter_and_the_next_time_comes() -> None:
    app, runs = App("clock@svc"), []

    @app.every(minutes=1)
    async def tick(due: ScheduleDue) -> None:
        runs.append(due.due_at)
        if len(runs) == 1:
            raise Reject("no")

    async with app.test() as bus:
        await bus.advance(121)
        assert len(runs) == 2
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give a cron expression"),
        ({"cron": "* * * * *", "seconds": 1}, "give one of both"),
        ({"seconds": 1, "timezone": "Nope/X"}, "not a time zone"),
        ({"seconds": 1, "timezone": "../etc"}, "not a time zone"),
        ({"seconds": 1, "timezone": None}, "not a time zone"),
        ({"seconds": 1, "ttl_s": 0}, "ttl_s=0"),
        ({"seconds": 1, "ttl_s": "1h"}, "ttl_s='1h'"),
        ({"cron": "every day"}, "not a cron expression"),
        ({"cron": "0 8 * * *", "timezone": "Mars/Olympus"}, "not a time zone"),
        ({"seconds": 0.1}, "from 1 second"),
        ({"seconds": 1, "missed": "never"}, "once or skip"),
        ({"seconds": 1, "name": "a b"}, "illegal name"),
        ({"minutes": "x"}, "minutes="),
        ({"hours": float("nan")}, "hours="),
        ({"cron": "0 8 * * * *"}, "of five fields"),
    ],
)
def test_a_wrong_schedule_is_refused_where_it_is_declared(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        scheduled(**options)


def test_two_schedules_of_one_name_are_refused() -> None:
    app, _ = scheduled(seconds=5)
    with pytest.raises(ConfigurationError, match="two schedules"):
        app.every(seconds=7, name="tick")(lambda_tick)


async def lambda_tick(due: ScheduleDue) -> None:
    """Do nothing."""
