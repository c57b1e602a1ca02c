"""The queue of one partition: order, bounds, and what a failure or a deadline leaves."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus import native
from bus.errors import AppendUnknownError, DeadlineError
from bus.transports.base import Appended, NewRecord
from bus.transports.kafka.producer.batches import AppendBatch, AppendCall, Queue, RecordRun
from tests.twins_alone import twins_alone

SIZES = st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=8), max_size=8)


def call(count: int) -> AppendCall:
    loop = asyncio.new_event_loop()
    try:
        return AppendCall(count, loop.create_future())
    finally:
        loop.close()


def queued(sizes: list[list[int]]) -> tuple[Queue, list[AppendCall], list[NewRecord]]:
    """A queue with one call per list, its records numbered."""
    queue = Queue()
    calls: list[AppendCall] = []
    records: list[NewRecord] = []
    for group in sizes:
        made = [NewRecord("t", b"%d" % (len(records) + number), b"x" * size) for number, size in enumerate(group)]
        calls.append(call(len(made)))
        queue.add(RecordRun(calls[-1], made, list(range(len(made))), native.record_sizes(made)))
        records += made
    return queue, calls, records


def drained(queue: Queue, max_bytes: int) -> list[AppendBatch]:
    batches = []
    while (batch := queue.take(max_bytes)) is not None:
        batches.append(batch)
    return batches


@given(SIZES, st.integers(1, 1000))
def test_batches_hold_every_record_once_and_in_order(sizes: list[list[int]], max_bytes: int) -> None:
    queue, _, records = queued(sizes)
    batches = drained(queue, max_bytes)
    assert [record for batch in batches for record in batch.records()] == records


@given(SIZES, st.integers(1, 1000))
def test_a_batch_fits_its_limit_or_holds_one_record(sizes: list[list[int]], max_bytes: int) -> None:
    queue, _, _ = queued(sizes)
    for batch in drained(queue, max_bytes):
        assert len(batch) == 1 or sum(native.record_sizes(list(batch.records()))) <= max_bytes


@given(SIZES, st.integers(1, 1000), st.integers(1, 1000))
def test_returned_records_are_sent_first_in_their_order(sizes: list[list[int]], first: int, second: int) -> None:
    queue, _, records = queued(sizes)
    taken = [batch for batch in (queue.take(first), queue.take(first)) if batch is not None]
    for batch in reversed(taken):
        queue.put_back(batch.spans)
    assert [record for batch in drained(queue, second) for record in batch.records()] == records


@given(SIZES, st.integers(1, 1000))
def test_each_record_gets_its_own_outcome(sizes: list[list[int]], max_bytes: int) -> None:
    queue, calls, records = queued(sizes)
    offset = 0
    for batch in drained(queue, max_bytes):
        batch.acknowledge("t", 0, offset, 7)
        offset += len(batch)
    offsets = [outcome.offset for made in calls for outcome in made.results() if isinstance(outcome, Appended)]
    assert offsets == list(range(len(records)))
    assert all(made.left == 0 for made in calls)


@given(
    st.integers(0, 9),
    st.lists(st.integers(0, 9), unique=True, max_size=9),
    st.sets(st.integers(0, 9)),
    st.integers(0, 2**62),
)
def test_compiled_and_python_code_report_acknowledged_records_alike(
    extra: int, indices: list[int], settled: set[int], offset: int
) -> None:
    told = []
    for way in (nullcontext, twins_alone):
        made = call(10 + extra)
        for index in settled:
            made.settle(index, DeadlineError("late"))
        with way():
            made.acknowledge(indices, "t", 2, offset, 7)
        told.append(([repr(outcome) for outcome in made.outcomes], made.left))
    assert told[0] == told[1]


@given(SIZES, st.sets(st.integers(0, 7)), st.integers(1, 1000))
def test_records_without_a_waiting_caller_are_not_sent(sizes: list[list[int]], gone: set[int], max_bytes: int) -> None:
    queue, calls, _ = queued(sizes)
    for number in gone & set(range(len(calls))):
        calls[number].given_up = True
    assert all(not span.call.given_up for batch in drained(queue, max_bytes) for span in batch.spans)


@given(SIZES)
def test_refused_neighbours_travel_alone(sizes: list[list[int]]) -> None:
    queue, _, records = queued(sizes)
    batch = queue.take(1_000_000)
    if batch is not None:
        for span in batch.spans:
            span.solo = True
        queue.put_back(batch.spans)
        assert [len(batch) for batch in drained(queue, 1_000_000)] == [1] * len(records)


def test_a_deadline_distinguishes_unsent_records_from_sent_ones() -> None:
    made = call(3)
    span = RecordRun(made, [NewRecord("t", None, b"")] * 3, [0, 1, 2], [40] * 3)
    first, rest = span.cut(1)
    first.hand_over()
    made.give_up(lambda: DeadlineError("late"), lambda: AppendUnknownError("unknown"))
    assert [type(outcome) for outcome in made.results()] == [AppendUnknownError, DeadlineError, DeadlineError]
    assert len(rest) == 2


@pytest.mark.parametrize(
    ("failures", "kind"), [([True], DeadlineError), ([False], AppendUnknownError), ([False, True], AppendUnknownError)]
)
def test_a_record_possibly_written_stays_unknown(failures: list[bool], kind: type[Exception]) -> None:
    made = call(1)
    span = RecordRun(made, [NewRecord("t", None, b"")], [0], [40])
    for certain in failures:
        span.hand_over()
        span.take_back(certain=certain)
    made.give_up(lambda: DeadlineError("late"), lambda: AppendUnknownError("unknown"))
    assert [type(outcome) for outcome in made.results()] == [kind]


@pytest.mark.parametrize(("certain", "rest"), [(False, AppendUnknownError), (True, DeadlineError)])
def test_parts_cut_from_a_run_keep_its_outcome(certain: bool, rest: type[Exception]) -> None:
    made = call(2)
    span = RecordRun(made, [NewRecord("t", None, b"")] * 2, [0, 1], [40] * 2)
    span.hand_over()
    span.take_back(certain=certain)
    first, _ = span.cut(1)
    first.hand_over()
    made.give_up(lambda: DeadlineError("late"), lambda: AppendUnknownError("unknown"))
    assert [type(outcome) for outcome in made.results()] == [AppendUnknownError, rest]


@pytest.mark.parametrize(
    "ends",
    [lambda made: made.acknowledge([0, 1], "t", 0, 5, 7), lambda made: made.give_up(DeadlineError, AppendUnknownError)],
)
def test_records_are_free_as_soon_as_their_append_is_over(ends: Callable[[AppendCall], None]) -> None:
    made = call(2)
    record = NewRecord("t", None, b"".join([b"some", b"thing"]))
    holders = sys.getrefcount(record)
    gc.disable()
    try:
        RecordRun(made, [record] * 2, [0, 1], [40] * 2).hand_over()
        assert sys.getrefcount(record) > holders
        ends(made)
        assert sys.getrefcount(record) == holders
    finally:
        gc.enable()
