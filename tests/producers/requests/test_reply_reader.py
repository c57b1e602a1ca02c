"""The reader of answers: it outlives whatever the log does, pauses between attempts, and finds its place again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bus.clock import ManualClock
from bus.errors import ClosedError, NotPermittedError, TopicMissingError, UnreachableError
from bus.telemetry.metrics import Metrics
from bus.transports.base import PartitionRange, Record
from producers.requests.pending import PendingRequests
from producers.requests.reply_reader import ReplyFilter, ReplyReader

VIEW = ReplyFilter(namespace="agents", agent_id="a", session_id="s", max_message_bytes=1 << 20, verifier=None)


class Log:
    """Fails as it is told, then waits for ever."""

    def __init__(self, faults: Sequence[Exception], end: int = 7) -> None:
        self.admin = self
        self.faults = list(faults)
        self.asked: list[int] = []
        self.end = end

        self.silent = False
        """Reads find nothing in all the time they wait."""
        self.added: dict[int, PartitionRange] = {}
        self.missing = False
        self.end_of_new = 0
        self.arrived: asyncio.Future[Sequence[Record]] = asyncio.get_running_loop().create_future()
        """What the read that waits returns."""

    async def restore(self, error: Exception) -> None:
        assert isinstance(error, TopicMissingError)
        self.missing, self.end = False, self.end_of_new

    async def ranges(self, topic: str) -> Mapping[int, PartitionRange]:
        if self.missing:
            raise TopicMissingError("x")
        return {0: PartitionRange(0, self.end)} | self.added

    async def read(self, topic: str, partition: int, offset: int, **_: Any) -> Sequence[Record]:
        self.asked.append(offset)
        if self.faults:
            raise self.faults.pop(0)
        if self.silent:
            await asyncio.sleep(0)
            return []
        return await asyncio.shield(self.arrived)


def reader(log: Log, clock: ManualClock) -> ReplyReader:
    metrics = Metrics()
    return ReplyReader(
        log,
        "agents._reply.a-00000000",
        VIEW,
        PendingRequests(clock, metrics),
        restore=log.restore,
        clock=clock,
        metrics=metrics,
    )


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def reading_again(log: Log, clock: ManualClock) -> ReplyReader:
    """A reader from offset 7 on, after its first read has failed and its pause is over."""
    replies = reader(log, clock)
    replies.start({0: 7})
    await turns()
    clock.advance(1)
    await turns()
    return replies


@pytest.mark.medium
@pytest.mark.parametrize("fault", [UnreachableError("x"), NotPermittedError("x"), ValueError("a bug")])
async def test_an_unreachable_log_is_asked_again_after_a_pause(fault: Exception) -> None:
    log, clock = Log([fault, fault]), ManualClock()
    replies = reader(log, clock)
    replies.start({0: 7})
    await turns()
    assert log.asked == [7]
    clock.advance(0.2)
    await turns()
    assert log.asked == [7, 7]
    clock.advance(0.2)
    await turns()
    assert log.asked == [7, 7]
    clock.advance(0.2)
    await turns()
    assert log.asked == [7, 7, 7]
    await replies.close()


async def test_a_topic_made_anew_is_read_from_its_start() -> None:
    log, clock = Log([TopicMissingError("x")], end=3), ManualClock()
    replies = await reading_again(log, clock)
    assert log.asked == [7, 0]
    await replies.close()


async def test_a_topic_that_was_deleted_is_made_again_and_read_from_its_start() -> None:
    log, clock = Log([TopicMissingError("x")]), ManualClock()
    log.missing = True
    replies = await reading_again(log, clock)
    assert not log.missing
    assert log.asked == [7, 0]
    await replies.close()


async def test_a_new_topic_that_has_as_many_records_as_the_old_one_had_is_read_from_its_start() -> None:
    """Its first answer may come between its creation and the next look at it."""
    log, clock = Log([TopicMissingError("x")]), ManualClock()
    log.missing, log.end_of_new = True, 7
    replies = await reading_again(log, clock)
    assert log.asked == [7, 0]
    await replies.close()


async def test_a_missing_topic_that_another_process_has_made_again_is_read_from_its_start() -> None:
    log, clock = Log([TopicMissingError("x")], end=7), ManualClock()
    replies = await reading_again(log, clock)
    assert log.asked == [7, 0]
    await replies.close()


async def test_a_topic_that_its_agent_has_made_again_is_read_from_its_start() -> None:
    log, clock = Log([], end=7), ManualClock()
    log.silent = True
    replies = reader(log, clock)
    replies.start({0: 7})
    await turns()
    replies.read_anew()
    clock.advance(5)
    await turns()
    assert log.asked[-1] == 0
    await replies.close()


async def test_what_arrives_at_a_place_that_was_left_meanwhile_is_read_again_in_its_order() -> None:
    log, clock = Log([]), ManualClock()
    replies = reader(log, clock)
    replies.start({0: 7})
    await turns()
    replies.read_anew()
    clock.advance(5)
    await turns()
    log.silent = True
    log.arrived.set_result([Record("t", 0, 7, 0, b"", b"{}")])
    await turns()
    assert set(log.asked) == {7, 0}
    assert log.asked[-1] == 0
    await replies.close()


async def test_a_closed_log_ends_the_reading() -> None:
    replies = reader(Log([ClosedError("x")]), ManualClock())
    replies.start({0: 0})
    await turns()
    assert replies._tasks[0].done()
    await replies.close()


async def test_a_verifier_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log, clock = Log([]), ManualClock()
    replies = reader(log, clock)
    monkeypatch.setattr("producers.requests.reply_reader.open_reply", lambda *_: 1 / 0)
    replies._take(Record("t", 0, 0, 0, b"", b"{}"))
    assert replies._metrics.registry.get_sample_value("sealbus_refused_replies_total", {"reason": "fault"}) == 1


async def test_a_topic_that_was_made_anew_is_noticed_where_the_log_is_silent_about_it() -> None:
    log, clock = Log([], end=3), ManualClock()
    log.silent = True
    replies = reader(log, clock)
    replies.start({0: 7})
    await turns()
    clock.advance(5)
    await turns()
    assert set(log.asked) == {7, 0}
    assert log.asked[-1] == 0
    await replies.close()


async def test_answers_in_partitions_that_were_added_are_read_too() -> None:
    log, clock = Log([]), ManualClock()
    log.added = {1: PartitionRange(0, 5), 2: PartitionRange(0, 0)}
    replies = reader(log, clock)
    replies.start({0: 7})
    await turns()
    clock.advance(5)
    await turns()
    assert log.asked == [7, 0, 0]
    await replies.close()
