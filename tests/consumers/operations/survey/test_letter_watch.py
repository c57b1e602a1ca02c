"""The dead letters of a namespace in little memory: counted, listed and kept up to date without their payloads."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bus.settings.loading import load
from bus.topics.specs import namespace_topics
from bus.transports import open_transport
from bus.transports.base import Appended, NewRecord, Record, TopicSpec, Transport
from consumers.deadletters.letter_state import LetterState, LetterStatus, Step, load_states
from consumers.deadletters.letters import list_letter_facts
from consumers.deadletters.records import Control, Failure, dead_letter_record
from consumers.operations.survey.letter_watch import LetterWatch, ListedLetter, WantedLetters
from tests.letters import write_letters

SETTINGS = load(flags={"bus.url": "memory://"}, env={}, file=None).settings
STEP = Step(at="2026-01-02T00:00:00.000Z", action="redriven", by="me@here", run="r", why="mended")


def letter(number: int, text: str = "no", *, failed_ms: int | None = None, kind: str = "job.run") -> NewRecord:
    record = Record(f"agents.{kind}", 0, number, 0, None, b"%d" % number, ())
    failure = Failure(reason="rejected", error="Reject", text=text)
    return dead_letter_record(
        record,
        Control(record.topic, 0, number),
        failure,
        group="g",
        now_ms=number if failed_ms is None else failed_ms,
        honoured=False,
        details=True,
    )


class Letters:
    """A log in memory with dead letters, and a watch of it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.watch = LetterWatch(transport, "agents")

    async def die(self, letters: Iterable[NewRecord]) -> None:
        outcomes = await self.transport.append(list(letters), timeout_s=5)
        assert all(isinstance(each, Appended) for each in outcomes)

    async def note(self, state: LetterStatus | None, *numbers: int, kind: str = "job.run") -> None:
        """Record *state* for the letters at these offsets; None withdraws it."""
        records = []
        async for each in list_letter_facts(self.transport, "agents", kind):
            if each.record.offset in numbers:
                noted = LetterState(
                    state=state or "open", origin=each.origin, group="g", count=0, content=each.content, steps=(STEP,)
                ).record("agents", each.place)
                records.append(noted if state else NewRecord(noted.topic, noted.key, None))
        await self.die(records)

    async def listed(self, page: int = 1, size: int = 50, **wanted: str) -> list[ListedLetter]:
        await self.watch.read_on()
        return list((await self.watch.page(WantedLetters(**wanted), page, size)).letters)


def changed(folder: Path, *statements: str) -> None:
    """Change the log of *folder* behind its back, as retention does; `?` is the partition of the dead letters."""
    log = sqlite3.connect(folder / "log.db", timeout=10)
    query = "SELECT p.id FROM partitions p JOIN topics t ON t.id = p.topic_id WHERE t.name = 'agents.job.run.dlq'"
    (part,) = log.execute(query).fetchone()
    with log:
        for statement in statements:
            log.execute(statement, (part,))
    log.close()


@asynccontextmanager
async def letters(*kinds: str, folder: Path | None = None) -> AsyncIterator[Letters]:
    transport = open_transport("memory://" if folder is None else f"sqlite:///{folder}/log.db")
    specs = [TopicSpec(name=f"agents.{kind}.dlq", partitions=1) for kind in kinds or ("job.run",)]
    await transport.admin.create_topics([*specs, *namespace_topics(SETTINGS)])
    yield Letters(transport)
    await transport.close()


async def test_open_letters_are_counted_by_cause_type_and_reason_as_they_come_and_go() -> None:
    async with letters("job.run", "job.bill") as it:
        await it.die([letter(n, f"no tea for {n}") for n in range(30)])
        await it.die([letter(n, f"no ink for {n}", kind="job.bill") for n in range(20)])
        found = await it.watch.look()
        assert (found.count, found.oldest_ms) == (50, 0)
        assert [(cause.error, count) for cause, count, _ in found.causes] == [
            ("Reject: no tea for #", 30),
            ("Reject: no ink for #", 20),
        ]
        assert found.by_type == (("job.bill", "rejected", 20), ("job.run", "rejected", 30))
        await it.note("redriven", *range(10))
        await it.note("dismissed", *range(20), kind="job.bill")
        await it.die([letter(31, "no tea for 31")])
        found = await it.watch.look()
        assert (found.count, found.oldest_ms) == (21, 10)
        assert found.by_type == (("job.run", "rejected", 21),)
        await it.note(None, 3)
        assert ((await it.watch.look()).count, (await it.watch.look()).oldest_ms) == (22, 3)


async def test_a_topic_that_was_deleted_and_made_anew_starts_again(tmp_path: Path) -> None:
    async with letters(folder=tmp_path) as it:
        await it.die([letter(n) for n in range(3)])
        await it.note("redriven", 0, 1)
        assert (await it.watch.look()).count == 1
        changed(tmp_path, "DELETE FROM records WHERE part = ?", "UPDATE partitions SET next_offset = 0 WHERE id = ?")
        assert (await it.watch.look()).count == 0
        await it.die([letter(7), letter(8)])
        # What was recorded was about letters that lay there before.
        assert (await it.watch.look()).count == 2
        assert [each.failed_ms for each in await it.listed()] == [8, 7]
        changed(tmp_path, "DELETE FROM records WHERE part = ?", "DELETE FROM partitions WHERE id = ?")
        assert (await it.watch.look()).count == 0


async def test_a_list_is_the_newest_first_on_every_page_with_every_filter() -> None:
    chosen = random.Random(1)
    async with letters("job.run", "job.bill") as it:
        deaths = [(kind, n, chosen.randrange(5_000)) for kind in ("job.run", "job.bill") for n in range(9_000)]
        await it.die(
            letter(n, f"no {'tea' if n % 3 else 'ink'} for {n}", failed_ms=at, kind=kind) for kind, n, at in deaths
        )
        await it.note("redriven", *range(0, 9_000, 2))
        await it.watch.read_on()
        for wanted in ({}, {"state": ""}, {"state": "redriven"}, {"message_type": "job.bill"}, {"reason": "none"}):
            expected = [
                (-at, f"agents.{kind}.dlq/0/{n}", kind)
                for kind, n, at in deaths
                if wanted.get("message_type") in (None, kind)
                and "reason" not in wanted
                and wanted.get("state", "open") in ("", "redriven" if kind == "job.run" and n % 2 == 0 else "open")
            ]
            # By the offset as a number, not as text.
            expected.sort(key=lambda each: (each[0], each[2], int(each[1].rpartition("/")[2])))
            pages = max(1, -(-len(expected) // 100))
            for page in {1, 2, pages // 3 + 1, pages // 2 + 1, max(1, pages - 1), pages}:
                found = await it.watch.page(WantedLetters(**wanted), page, 100)
                assert (found.total, found.pages) == (len(expected), pages)
                assert [each.place for each in found.letters] == [
                    place for _, place, _ in expected[(page - 1) * 100 : page * 100]
                ]


async def test_letters_that_retention_took_are_neither_counted_nor_listed(tmp_path: Path) -> None:
    async with letters(folder=tmp_path) as it:
        await it.die([letter(n) for n in range(5_000)])
        await it.note("redriven", *range(4_000, 4_010))
        assert (await it.watch.look()).count == 4_990
        changed(
            tmp_path,
            "DELETE FROM records WHERE off < 4005 AND part = ?",
            "UPDATE partitions SET start_offset = 4005 WHERE id = ?",
        )
        await it.die([letter(5_000)])
        found = await it.watch.look()
        assert (found.count, found.oldest_ms, it.watch.count) == (991, 4_010, 996)
        assert found.by_type == (("job.run", "rejected", 991),)
        listed = await it.listed(size=1_000, state="")
        assert [each.place for each in listed] == [f"agents.job.run.dlq/0/{n}" for n in range(5_000, 4_004, -1)]
        assert it.watch.letter_at("agents.job.run.dlq/0/17") is None
        again = await LetterWatch(it.transport, "agents").look()
        assert (again.count, again.oldest_ms, again.by_type) == (found.count, found.oldest_ms, found.by_type)


@pytest.mark.medium
async def test_fifty_thousand_letters_take_a_hundred_bytes_each_and_no_pass_over_all_to_look_again() -> None:
    transport = open_transport("memory://")
    await write_letters(transport, 50_000, 100, redriven=25_000)
    watch = LetterWatch(transport, "agents")
    tracemalloc.start()
    try:
        found = await watch.look()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.count, len(found.causes)) == (25_000, 3)
    assert used / 50_000 < 100
    began_s = time.process_time()
    for _ in range(10):
        await watch.look()
    assert time.process_time() - began_s < 0.5
    await transport.close()


async def test_large_letters_are_read_in_little_memory(tmp_path: Path) -> None:
    transport = open_transport(f"sqlite:///{tmp_path}/log.db")
    await write_letters(transport, 60, 1_000_000)
    watch = LetterWatch(transport, "agents")
    tracemalloc.start()
    try:
        found = await watch.look()
        left, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.count == 60
    # A page of two megabytes, the one before it, and what reads them.
    assert most < 12_000_000
    assert left < 4_000_000
    await transport.close()


async def test_the_event_loop_has_its_turn_while_letters_are_read(tmp_path: Path) -> None:
    transport = open_transport(f"sqlite:///{tmp_path}/log.db")
    await write_letters(transport, 20_000, 100)
    watch, waits = LetterWatch(transport, "agents"), list[float]()
    reading = asyncio.create_task(watch.look())
    while not reading.done():
        began_s = time.perf_counter()
        await asyncio.sleep(0)
        waits.append(time.perf_counter() - began_s)
        await asyncio.sleep(0.001)
    assert (await reading).count == 20_000
    assert sorted(waits)[len(waits) * 9 // 10] < 0.05
    await transport.close()


async def test_a_page_does_not_wait_for_a_long_reading() -> None:
    async with letters() as it:
        await it.die([letter(n, f"no tea for {n}") for n in range(20_000)])
        await it.watch.read_on_within(0.0)
        assert not (await it.watch.page(WantedLetters(), 1, 50)).is_whole
        await it.watch.read_on()
        found = await it.watch.page(WantedLetters(), 1, 50)
        assert (found.is_whole, found.total, found.read) == (True, 20_000, 20_000)


async def test_many_pages_may_read_on_at_once() -> None:
    transport = open_transport("memory://")
    await write_letters(transport, 300, 100)
    watch = LetterWatch(transport, "agents")

    async def visitor(number: int) -> None:
        for turn in range(40):
            await watch.read_on_within(1.0)
            for _ in range((number + turn) % 5):
                await asyncio.sleep(0)

    await asyncio.gather(*(visitor(number) for number in range(20)))
    assert (await watch.look(1.0)).count == 300
    await watch.close()
    await transport.close()


async def test_letters_of_one_sender_are_found_among_many_senders() -> None:
    transport = open_transport("memory://")
    await write_letters(transport, 700, 100)
    watch = LetterWatch(transport, "agents")
    await watch.read_on()
    found = await watch.page(WantedLetters(sender="shop-3@svc"), 1, 1_000)
    assert 0 < found.total < 700
    assert {each.sender for each in found.letters} == {"shop-3@svc"}
    assert sum(each.count for each in found.causes) == found.total == len(found.letters)
    assert (await watch.page(WantedLetters(sender="nobody"), 1, 50)).total == 0
    assert {each.sender for each in (await watch.page(WantedLetters(), 1, 50)).causes} == {"(several)"}
    await transport.close()


async def test_the_state_of_one_letter_is_read_with_its_steps() -> None:
    async with letters() as it:
        await it.die([letter(n) for n in range(3)])
        await it.note("dismissed", 1)
        await it.watch.read_on()
        whole = await it.watch.states.at("agents.job.run.dlq/0/1")
        assert whole == (await load_states(it.transport, "agents"))["agents.job.run.dlq/0/1"]
        assert await it.watch.states.at("agents.job.run.dlq/0/2") is None
        assert await it.watch.states.at("nowhere") is None
