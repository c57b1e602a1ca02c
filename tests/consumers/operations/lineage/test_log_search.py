"""A message is found by the time in its id, and by an index where there is one, without reading all of the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from bus.clock import ManualClock
from bus.protocol.identifiers import uuid7_ms
from bus.protocol.sealing import Message
from bus.settings.loading import load
from bus.topics.names import dead_letter_topic, message_topic, retry_topic
from bus.transports import open_transport
from bus.transports.base import Appended, NewRecord, TopicSpec, Transport
from consumers.operations.lineage.log_search import KnownPlaces, Search, find_conversation, find_lineage, find_message
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealer import make_sealer
from tests.kit import Done, Job

JOBS, NOTES = message_topic("agents", "job.asked"), message_topic("agents", "job.done")
LETTERS, RETRIES = dead_letter_topic(JOBS), retry_topic("agents", "g", "30s")
FILLER = b'{"metadata":{"message_id":"other","conversation_id":"other"}}'
HOUR_S = 3_600.0


class Log:
    """A log in which each hour 100 other records come."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.transport: Transport = open_transport("memory://", clock=self.clock)
        settings = load(flags={"bus.url": "memory://"}, env={}, file=None).settings
        self._sealer = make_sealer(settings, "a@svc", clock=self.clock)
        self.looked = 0

    def seal(self, kind: Any = Job, cause: Message | None = None, **options: Any) -> Message:
        return self._sealer.seal(Outgoing(kind(number=1), **options), SealRequest(cause=cause)).message

    async def append(self, message: Message, topic: str = "") -> Appended:
        record = NewRecord(topic or message_topic("agents", message.message_type), None, message.value, partition=0)
        (outcome,) = await self.transport.append([record], timeout_s=5)
        assert isinstance(outcome, Appended)
        return outcome

    async def hours(self, count: int) -> None:
        for _ in range(count):
            await self.transport.append(
                [NewRecord((JOBS, NOTES, LETTERS, RETRIES)[n % 4], None, FILLER) for n in range(100)], timeout_s=5
            )
            self.clock.advance(HOUR_S)

    async def find(self, message: Message, **options: Any) -> Search:
        return await find_message(
            self.transport, "agents", message.message_id, **({"limit": 400} | options), on_progress=lambda _: None
        )


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    log = Log()
    await log.transport.admin.create_topics(
        [TopicSpec(name=name, partitions=2) for name in (JOBS, NOTES, LETTERS, RETRIES)]
    )
    await log.hours(20)
    yield log
    await log.transport.close()


def topics(search: Search) -> list[str]:
    return [copy.record.topic for copy in search.copies]


async def test_a_message_is_found_by_the_time_in_its_id(log: Log) -> None:
    job = log.seal()
    await log.append(job)
    await log.hours(20)
    found = await log.find(job)
    assert topics(found) == [JOBS]
    assert not found.looked.is_whole
    assert found.looked.records < 800


async def test_its_letter_and_its_retry_of_later_hours_are_found_too(log: Log) -> None:
    job = log.seal()
    await log.append(job)
    await log.hours(1)
    await log.append(job, RETRIES)
    await log.hours(1)
    await log.append(job, LETTERS)
    await log.hours(20)
    assert topics(await log.find(job)) == [JOBS, RETRIES, LETTERS]


async def test_a_search_reports_up_to_when_dead_letters_were_read(log: Log) -> None:
    job = log.seal()
    await log.append(job)
    await log.hours(40)
    await log.append(job, LETTERS)
    found = await log.find(job)
    assert topics(found) == [JOBS]
    assert 0 < found.letters_until_ms < log.clock.now_ms()
    assert topics(await log.find(job, whole=True)) == [JOBS, LETTERS]


async def test_a_message_that_was_appended_hours_after_its_sealing_is_found_by_widening(log: Log) -> None:
    job = log.seal()
    await log.hours(2)
    await log.append(job)
    await log.hours(20)
    assert topics(await log.find(job, limit=1000)) == [JOBS]


async def test_a_message_of_a_clock_that_was_an_hour_ahead_is_found_by_widening(log: Log) -> None:
    log.clock.advance(HOUR_S)
    job = log.seal()
    log.clock.advance(-HOUR_S)
    await log.append(job)
    await log.hours(20)
    assert topics(await log.find(job)) == [JOBS]


async def test_a_search_without_result_reports_its_range(log: Log) -> None:
    job = log.seal()
    await log.hours(20)
    found = await log.find(job)
    assert not found.copies
    assert found.looked.records <= 400
    assert found.looked.since_ms < log.clock.now_ms() - 20 * HOUR_S * 1000 < found.looked.until_ms
    whole = await log.find(job, whole=True)
    assert whole.looked.is_whole
    assert whole.looked.records == 4000


async def test_an_id_without_a_time_is_found_by_reading_all(log: Log) -> None:
    job = log.seal(message_id="mine")
    await log.append(job)
    await log.hours(20)
    found = await log.find(job)
    assert (topics(found), found.looked.is_whole, found.looked.records) == ([JOBS], True, 4001)


async def test_an_index_finds_the_location_of_any_id(log: Log) -> None:
    job = log.seal(message_id="mine")
    first = await log.append(job)
    await log.hours(20)
    ends = {
        (topic, partition): kept.end
        for topic in (JOBS, NOTES, LETTERS, RETRIES)
        for partition, kept in (await log.transport.admin.ranges(topic)).items()
    }
    # What came after the index was written is read.
    await log.append(job, LETTERS)
    known = KnownPlaces(records=[(JOBS, 0, first.offset)], indexed=ends)
    found = await log.find(job, known=known)
    assert topics(found) == [JOBS, LETTERS]
    assert found.looked.records == 1


async def test_an_unindexed_id_without_time_is_searched_in_later_records(log: Log) -> None:
    await log.hours(10)
    ends = {
        (topic, partition): kept.end
        for topic in (JOBS, NOTES, LETTERS, RETRIES)
        for partition, kept in (await log.transport.admin.ranges(topic)).items()
    }
    job = log.seal(message_id="mine")
    known = KnownPlaces(records=[], indexed=ends)
    absent = (await log.find(job, known=known)).looked
    assert (absent.is_index_asked, absent.is_whole, absent.records) == (True, False, 0)
    await log.append(job)
    assert topics(await log.find(job, known=known)) == [JOBS]


async def test_a_wrong_index_gives_no_wrong_result(log: Log) -> None:
    job = log.seal()
    await log.append(job)
    await log.hours(20)
    known = KnownPlaces(records=[(JOBS, 0, 1), (NOTES, 1, 99_999), ("agents.gone", 0, 1)], indexed={})
    assert topics(await log.find(job, known=known)) == [JOBS]


async def test_the_effects_of_a_message_are_found_with_it(log: Log) -> None:
    job = log.seal()
    await log.append(job)
    log.clock.advance(60)
    await log.append(log.seal(Done, cause=job))
    await log.hours(20)
    assert topics(await log.find(job)) == [JOBS, NOTES]


async def test_a_conversation_is_followed_to_its_last_message(log: Log) -> None:
    said = log.seal()
    conversation = said.metadata.conversation_id
    for _ in range(5):
        await log.append(said)
        log.clock.advance(600)
        said = log.seal(Done, cause=said)
    await log.hours(40)
    found = await find_conversation(log.transport, "agents", conversation, limit=2_000)
    assert len(found.copies) == 5
    assert not found.looked.is_whole


async def test_a_cause_of_hours_before_is_found(log: Log) -> None:
    job = log.seal()
    await log.append(job)
    await log.hours(10)
    note = log.seal(Done, cause=job)
    await log.append(note)
    await log.hours(20)
    moment_ms = uuid7_ms(note.message_id)
    lineage = await find_lineage(log.transport, "agents", note.message_id, moment_ms=moment_ms, limit=400)
    assert {copy.message_id for copy in lineage.copies} >= {job.message_id, note.message_id}
    assert not lineage.looked.is_whole
