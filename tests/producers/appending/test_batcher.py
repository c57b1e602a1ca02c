"""Concurrent appends become few, each keeps its own deadline, and a full buffer waits before it refuses. With a log
made of futures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bus.clock import ManualClock
from bus.errors import AppendUnknownError, ClosedError, DeadlineError, RecordTooLargeError, UnreachableError
from bus.transports.base import Appended, AppendOutcome, Features, NewRecord, OnOutcomes
from producers.appending.batcher import Batcher


class FakeLog:
    """Notes each append and answers when told to: at once unless `held`."""

    def __init__(self, appends_in_flight: int = 1) -> None:
        self.features = Features(
            name="fake",
            durable=False,
            between_processes=False,
            max_record_bytes=1 << 20,
            creates_topics_at_start=False,
            appends_in_flight=appends_in_flight,
        )
        self.appends: list[list[NewRecord]] = []
        self.timeouts: list[float] = []
        self.held = False
        self.answers: list[asyncio.Future[None]] = []
        self.error: Exception | None = None
        self.refused: dict[bytes, AppendOutcome] = {}
        self.silent = b""
        """Records of this value are not answered while `held`; all others of their append are, if somebody wants to be
        told."""

    async def append(
        self, records: Sequence[NewRecord], *, timeout_s: float, on_outcomes: OnOutcomes | None = None
    ) -> Sequence[AppendOutcome]:
        self.appends.append(list(records))
        self.timeouts.append(timeout_s)
        if self.held:
            if on_outcomes is not None and self.silent:
                known = [
                    None if record.value == self.silent else Appended(record.topic, 0, at, 0)
                    for at, record in enumerate(records)
                ]
                asyncio.get_running_loop().call_soon(on_outcomes, known)
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.answers.append(answer)
            await answer
        if self.error is not None:
            raise self.error
        return [
            self.refused.get(record.value or b"") or Appended(record.topic, 0, offset, 0)
            for offset, record in enumerate(records)
        ]


class Case:
    def __init__(self, buffer_bytes: int = 10_000, appends_in_flight: int = 1) -> None:
        self.clock = ManualClock()
        self.log = FakeLog(appends_in_flight)
        self.batcher = Batcher(self.log, self.clock, buffer_bytes=buffer_bytes)

    def append(self, *values: bytes, timeout_s: float = 10.0) -> asyncio.Task[Sequence[AppendOutcome]]:
        records = [NewRecord("t", b"k", value) for value in values]
        return asyncio.get_running_loop().create_task(self._append(records, timeout_s))

    async def _append(self, records: list[NewRecord], timeout_s: float) -> Sequence[AppendOutcome]:
        return await self.batcher.append(records, timeout_s=timeout_s)

    def values(self) -> list[list[bytes | None]]:
        return [[record.value for record in records] for records in self.log.appends]


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_concurrent_appends_leave_in_one() -> None:
    case = Case()
    outcomes = await asyncio.gather(*(case.append(b"%d" % number) for number in range(100)))
    assert case.values() == [[b"%d" % number for number in range(100)]]
    assert [outcome[0].offset for outcome in outcomes] == list(range(100))


async def test_an_idle_batcher_waits_for_nothing() -> None:
    case = Case()
    task = case.append(b"a")
    await turns(4)
    assert case.values() == [[b"a"]]
    assert await task == [Appended("t", 0, 0, 0)]


async def in_consecutive_turns(case: Case, count: int, between_s: float = 0.0) -> None:
    """Append *count* records; each call begins the next one, as handlers of one fetch begin."""

    async def append(number: int) -> None:
        case.clock.advance(between_s)
        following = asyncio.create_task(append(number + 1)) if number + 1 < count else None
        await case.batcher.append([NewRecord("t", b"k", b"%d" % number)], timeout_s=10)
        if following is not None:
            await following

    await append(0)


async def test_records_of_consecutive_turns_leave_in_one_append() -> None:
    case = Case()
    await in_consecutive_turns(case, 20)
    assert case.values() == [[b"%d" % number for number in range(20)]]


async def test_a_trickle_of_records_delays_an_append_by_milliseconds_at_most() -> None:
    case = Case(appends_in_flight=64)
    await in_consecutive_turns(case, 20, between_s=0.004)
    assert all(2 <= len(values) <= 4 for values in case.values()), case.values()


async def test_records_that_arrive_during_an_append_go_with_the_next() -> None:
    case = Case()
    case.log.held = True
    first = case.append(b"a")
    await turns()
    later = [case.append(b"b"), case.append(b"c", b"d")]
    await turns()
    assert case.values() == [[b"a"]]
    case.log.held = False
    case.log.answers[0].set_result(None)
    await asyncio.gather(first, *later)
    assert case.values() == [[b"a"], [b"b", b"c", b"d"]]


async def test_each_caller_gets_the_outcomes_of_its_own_records() -> None:
    case = Case()
    case.log.refused[b"b"] = RecordTooLargeError("x")
    one, two = case.append(b"a", b"b"), case.append(b"c")
    assert [type(outcome) for outcome in await one] == [Appended, RecordTooLargeError]
    assert [type(outcome) for outcome in await two] == [Appended]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnreachableError("x"), UnreachableError),
        (AppendUnknownError("x"), AppendUnknownError),
        (RuntimeError("x"), AppendUnknownError),
    ],
)
async def test_an_append_that_fails_whole_fails_for_each_record(error: Exception, kind: type[Exception]) -> None:
    case = Case()
    case.log.error = error
    outcomes = await asyncio.wait_for(asyncio.gather(case.append(b"a", b"b"), case.append(b"c")), 30)
    assert [[type(outcome) for outcome in told] for told in outcomes] == [[kind, kind], [kind]]
    case.log.error = None
    assert isinstance((await case.append(b"d"))[0], Appended)


async def test_a_record_not_taken_up_by_its_deadline_is_certainly_not_written() -> None:
    case = Case()
    case.log.held = True
    first = case.append(b"a", timeout_s=100)
    await turns()
    second = case.append(b"b", timeout_s=5)
    await turns()
    case.clock.advance(5.1)
    assert [type(outcome) for outcome in await second] == [DeadlineError]
    case.log.answers[0].set_result(None)
    await first
    await turns()
    assert case.values() == [[b"a"]]


async def test_a_record_in_flight_at_its_deadline_is_unknown() -> None:
    case = Case()
    case.log.held = True
    patient, hasty = case.append(b"a", timeout_s=100), case.append(b"b", timeout_s=5)
    await turns()
    case.clock.advance(5.1)
    assert [type(outcome) for outcome in await hasty] == [AppendUnknownError]
    assert not patient.done()
    case.log.answers[0].set_result(None)
    assert [type(outcome) for outcome in await patient] == [Appended]


async def test_deadlines_are_kept_whatever_their_order() -> None:
    case = Case()
    case.log.held = True
    tasks = [case.append(b"x", timeout_s=seconds) for seconds in (7, 3, 5)]
    await turns()
    for seconds, done in ((3, [False, True, False]), (2, [False, True, True]), (2, [True, True, True])):
        case.clock.advance(seconds + 0.001)
        await turns()
        assert [task.done() for task in tasks] == done


async def test_a_full_buffer_waits_for_room() -> None:
    case = Case(buffer_bytes=400)
    case.log.held = True
    first = case.append(b"a" * 300)
    await turns()
    second = case.append(b"b" * 300)
    await turns()
    assert not second.done()
    case.log.held = False
    case.log.answers[0].set_result(None)
    await asyncio.gather(first, second)
    assert [type(outcome) for outcome in await second] == [Appended]


async def test_a_full_buffer_refuses_at_the_deadline() -> None:
    case = Case(buffer_bytes=400)
    case.log.held = True
    first = case.append(b"a" * 300, timeout_s=100)
    await turns()
    second = case.append(b"b" * 300, timeout_s=5)
    await turns()
    case.clock.advance(5.1)
    (outcome,) = await second
    assert isinstance(outcome, DeadlineError)
    case.log.answers[0].set_result(None)
    await first
    assert case.values() == [[b"a" * 300]]


async def test_those_who_wait_for_room_get_it_in_the_order_they_came() -> None:
    case = Case(buffer_bytes=1_000)
    case.log.held = True
    tasks = [case.append(b"a" * 300)]
    await turns()
    tasks.append(case.append(b"b" * 800))
    await turns()
    # There is room for these, and yet not before it is the large one's turn: as they keep coming, that would be never.
    tasks += [case.append(b"c" * 300), case.append(b"d" * 300)]
    await turns()
    while not all(task.done() for task in tasks):
        case.log.answers[len(case.log.appends) - 1].set_result(None)
        await turns()
    assert [[value[:1] for value in values if value] for values in case.values()] == [[b"a"], [b"b"], [b"c", b"d"]]


async def test_a_caller_that_stops_waiting_for_buffer_space_lets_others_in() -> None:
    case = Case(buffer_bytes=1_000)
    case.log.held = True
    first = case.append(b"a" * 300, timeout_s=100)
    await turns()
    impatient, cancelled = case.append(b"b" * 800, timeout_s=5), case.append(b"c" * 800)
    small = case.append(b"d" * 300, timeout_s=100)
    await turns()
    case.clock.advance(5.1)
    await turns()
    assert isinstance((await impatient)[0], DeadlineError)
    cancelled.cancel()
    await turns()
    case.log.answers[0].set_result(None)
    await turns()
    case.log.answers[1].set_result(None)
    await asyncio.gather(first, small)
    assert [[value[:1] for value in values if value] for values in case.values()] == [[b"a"], [b"d"]]


async def test_a_record_larger_than_the_buffer_goes_alone() -> None:
    case = Case(buffer_bytes=10)
    assert isinstance((await case.append(b"a" * 1_000))[0], Appended)


async def test_a_caller_that_went_away_is_not_written_for() -> None:
    case = Case()
    case.log.held = True
    first = case.append(b"a")
    await turns()
    gone = case.append(b"b")
    last = case.append(b"c")
    await turns()
    gone.cancel()
    await turns()
    case.log.held = False
    case.log.answers[0].set_result(None)
    await asyncio.gather(first, last)
    assert case.values() == [[b"a"], [b"c"]]


async def test_closing_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    case = Case()
    task = case.append(b"a")
    await turns(1)
    await case.batcher.close()
    assert isinstance((await task)[0], Appended)
    (outcome,) = await case.append(b"b")
    assert isinstance(outcome, ClosedError)


async def test_closing_refuses_those_who_wait_for_room() -> None:
    case = Case(buffer_bytes=400)
    case.log.held = True
    first = case.append(b"a" * 300)
    await turns()
    waiting = [case.append(b"b" * 300), case.append(b"c" * 300)]
    await turns()
    closing = asyncio.get_running_loop().create_task(case.batcher.close())
    await turns()
    case.log.answers[0].set_result(None)
    await closing
    await first
    assert [type((await task)[0]) for task in waiting] == [ClosedError, ClosedError]


async def test_the_log_is_given_longer_than_the_most_patient_caller() -> None:
    case = Case()
    await asyncio.gather(case.append(b"a", timeout_s=3), case.append(b"b", timeout_s=8))
    assert case.log.timeouts == [9.0]


async def test_records_of_one_caller_stay_together_and_in_order() -> None:
    case = Case()
    mixed: list[Any] = [case.append(*(b"%d-%d" % (caller, number) for number in range(3))) for caller in range(20)]
    await asyncio.gather(*mixed)
    assert [value for values in case.values() for value in values] == [
        b"%d-%d" % (caller, number) for caller in range(20) for number in range(3)
    ]


async def test_whoever_travels_with_a_record_that_is_not_answered_gets_an_outcome_at_once() -> None:
    case = Case(appends_in_flight=2)
    case.log.held, case.log.silent = True, b"sick"
    sick, well, both = case.append(b"sick"), case.append(b"well"), case.append(b"well", b"sick")
    await turns()
    assert case.values() == [[b"sick", b"well", b"well", b"sick"]]
    assert await well == [Appended("t", 0, 1, 0)]
    case.clock.advance(10)
    assert [type(outcome) for outcome in (*await sick, *await both)] == [AppendUnknownError] * 3


async def test_acknowledged_records_free_their_buffer_space() -> None:
    case = Case(buffer_bytes=300, appends_in_flight=2)
    case.log.held, case.log.silent = True, b"sick"
    sick, well = case.append(b"sick"), case.append(b"w" * 150)
    await well
    assert await case.append(b"v" * 150) == [Appended("t", 0, 0, 0)]
    assert not sick.done()
    case.clock.advance(10)
    await sick


async def saturated(case: Case) -> asyncio.Task[Sequence[AppendOutcome]]:
    """Something that waits behind two appends, between which something else was answered."""
    case.log.held, case.log.silent = True, b"sick"
    case.append(b"sick")
    await turns()
    case.log.held = False
    await case.append(b"well")
    case.log.held = True
    case.append(b"sick")
    await turns()
    waiting = case.append(b"well")
    await turns()
    assert case.values() == [[b"sick"], [b"well"], [b"sick"]]
    return waiting


async def test_appends_that_are_not_answered_keep_no_others_on_the_ground() -> None:
    case = Case(appends_in_flight=2)
    well = await saturated(case)
    case.clock.advance(0.5)
    await turns()
    assert case.values()[3:] == [[b"well"]]
    assert well.done()
    case.clock.advance(10)
    await turns()
    for answer in case.log.answers:
        answer.set_result(None)
    await case.batcher.close()


async def test_unsent_records_of_a_silent_log_are_certainly_not_written() -> None:
    case = Case(appends_in_flight=2)
    case.log.held = True
    case.log.silent = b"sick"
    gone = []
    for _ in range(2):
        gone.append(case.append(b"sick"))
        await turns()
    waiting = case.append(b"well")
    await turns()
    for _ in range(20):
        case.clock.advance(0.5)
        await turns()
    assert [type(outcome) for outcome in (*await gone[0], *await gone[1], *await waiting)] == [
        AppendUnknownError
    ] * 2 + [DeadlineError]
