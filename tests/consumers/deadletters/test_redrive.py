"""Dead letters go back to the group they died in, once each, whatever happens on the way. On a log in memory."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from bus.clock import ManualClock
from bus.errors import AppendUnknownError, NotPermittedError, Reject, TopicMissingError, UnreachableError
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.transports.base import AppendOutcome, NewRecord, Record, TopicSpec, Transport
from bus.transports.read_all import scan_topic
from consumers.app.app import App
from consumers.app.testing import TestBus
from consumers.deadletters.dismissal import Dismissal
from consumers.deadletters.journal import Journal, prepare_journal, unended_runs
from consumers.deadletters.letter_state import follow_states, load_states, state_of
from consumers.deadletters.letters import list_dead_letters
from consumers.deadletters.redrive import Redrive
from consumers.deadletters.redrive_rules import RedriveOrders, RedriveResult
from consumers.deadletters.selection import Selection
from consumers.delivery.context import Context
from consumers.delivery.resilience.retry import Retry
from tests.kit import Job

LETTERS = 25


class World:
    """An app whose handler rejects until it is mended, and a redrive of what it rejected."""

    def __init__(self) -> None:
        self.mended = False
        self.handled: Counter[int] = Counter()
        self.contexts: list[Context] = []
        self.app = App("worker@svc")
        self.app.on(Job, retry=Retry(attempts=2, base_s=5))(self._handle)
        self.settings: Settings = load(flags={"bus.url": "memory://"}, env={}, file=None).settings
        self.bus: TestBus

    async def _handle(self, job: Job, context: Context) -> None:
        self.contexts.append(context)
        if not self.mended:
            raise Reject("no")
        self.handled[job.number] += 1

    async def redrive(
        self,
        transport: Any = None,
        *,
        selection: Selection | None = None,
        stop_after: int | None = None,
        stop: asyncio.Event | None = None,
        rate: float | None = None,
        **orders: Any,
    ) -> RedriveResult:
        transport = transport or self.bus.transport
        journal = Journal(transport, self.settings, self.bus.clock, verb="redrive", why="mended", by="me@here")
        run = Redrive(
            transport, self.settings, self.bus.clock, selection or Selection(), RedriveOrders(**orders), journal=journal
        )
        return await run.run(stop=stop or asyncio.Event(), stop_after=stop_after, rate=rate)

    async def dismiss(self, place: str) -> int:
        journal = Journal(self.bus.transport, self.settings, self.bus.clock, verb="dismiss", why="noise", by="me@here")
        dismiss = Dismissal(self.bus.transport, self.settings, Selection(places=frozenset({place})))
        planned = (await dismiss.plan()).total()
        assert planned == 0 or (await dismiss.run(journal, stop=asyncio.Event())).dismissed == planned
        return planned

    async def states(self) -> Counter[str]:
        known = await load_states(self.bus.transport, "agents")
        return Counter(
            [
                state_of(letter, known.get(letter.place))
                async for letter in list_dead_letters(self.bus.transport, "agents")
            ]
        )

    async def audit(self) -> list[dict[str, Any]]:
        return [
            msgspec.json.decode(record.value)
            async for record in scan_topic(self.bus.transport, "agents._audit")
            if record.value
        ]


@asynccontextmanager
async def world(letters: int = LETTERS, ttl_s: float = 3600) -> AsyncIterator[World]:
    made = World()
    async with made.app.test() as made.bus:
        for n in range(letters):
            await made.bus.publish(Job(number=n), ttl_s=ttl_s)
        await made.bus.settle()
        assert len(made.bus.dead_letters) == letters
        yield made


async def another_life(it: World) -> int:
    """Let a message die where another did, as one does when the topic was deleted and made anew; its number."""
    first, second = it.bus.dead_letters
    assert second.message is not None
    letter = NewRecord(first.record.topic, second.record.key, second.record.value, first.record.headers)
    await it.bus.transport.append([letter], timeout_s=1)
    return msgspec.json.decode(second.message.data, type=Job).number


async def die_elsewhere(it: World, group: str) -> None:
    """Let what died in the app's group have died in *group* too, before and after it."""
    letters = [letter.record for letter in it.bus.dead_letters]
    headers = [
        [(name, group.encode() if name == "__dlq.errors.group" else value) for name, value in record.headers]
        for record in letters
    ]
    copies = [
        NewRecord(record.topic, record.key, record.value, tuple(own))
        for record, own in zip(letters, headers, strict=True)
    ]
    again = [NewRecord(record.topic, record.key, record.value, record.headers) for record in letters]
    for piece in (copies, again):
        await it.bus.transport.append(piece, timeout_s=1)


class Topicless:
    """A transport on which *topic* is gone whenever somebody appends to it; without one, no topic may be made."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport, self._topic = transport, topic
        self.features, self.read, self.admin = transport.features, transport.read, self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport.admin, name)

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        if not self._topic:
            raise NotPermittedError(f"{specs[0].name} may not be created")
        await self._transport.admin.create_topics(specs)

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
        taken = [record for record in records if record.topic != self._topic]
        done = iter(await self._transport.append(taken, timeout_s=timeout_s) if taken else ())
        return [
            TopicMissingError(f"no topic {self._topic}") if record.topic == self._topic else next(done)
            for record in records
        ]


class Breaking:
    """A transport whose append number *at* fails: before it was written, or after, or with its fate unknown."""

    def __init__(self, transport: Transport, at: int, how: str) -> None:
        self._transport = transport
        self.admin, self.features, self.read = transport.admin, transport.features, transport.read
        self._left = at
        self._how = how

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
        self._left -= 1
        if self._left > 0:
            return await self._transport.append(records, timeout_s=timeout_s)
        if self._left < 0:
            raise KilledError
        if self._how == "killed before":
            raise KilledError
        done = await self._transport.append(
            records[: len(records) // 2] if self._how == "half" else records, timeout_s=timeout_s
        )
        if self._how == "killed after":
            raise KilledError
        lost: Callable[[str], Any] = AppendUnknownError if self._how == "unknown" else UnreachableError
        return (
            [lost("gone")] * len(records)
            if self._how == "unknown"
            else [*done, *[lost("gone")] * (len(records) - len(done))]
        )


class KilledError(BaseException):
    """The process ends here."""


async def test_letters_are_handled_once_by_their_group_with_their_own_bytes() -> None:
    async with world() as it:
        it.mended = True
        result = await it.redrive()
        await it.bus.settle()
        assert (result.outcome, result.sent) == ("finished", LETTERS)
        assert it.handled == Counter(range(LETTERS))
        assert await it.states() == {"redriven": LETTERS}
        assert {context.attempt for context in it.contexts} == {1}
        assert (await it.redrive()).sent == 0
        events = [(entry["event"], entry.get("why"), entry.get("sent")) for entry in await it.audit()]
        assert events[:2] == [("redrive.started", "mended", None), ("redrive.ended", None, LETTERS)]


async def test_a_letter_that_fails_three_redrives_is_parked() -> None:
    async with world(1) as it:
        for count in range(1, 4):
            assert (await it.redrive()).sent == 1
            await it.bus.settle()
            assert [letter.redrive_count for letter in it.bus.dead_letters] == list(range(count + 1))
        assert {letter.record.topic for letter in it.bus.dead_letters} == {"agents.job.asked.dlq"}
        assert len({(letter.topic, letter.partition, letter.offset) for letter in it.bus.dead_letters}) == 1
        assert await it.states() == {"redriven": 3, "parked": 1}
        it.mended = True
        parked = await it.redrive()
        assert (parked.sent, parked.parked) == (0, 1)
        assert (await it.redrive()).parked == 0, "that is written down once"
        assert (await it.redrive(force=True)).sent == 1
        await it.bus.settle()
        assert it.handled == {0: 1}


async def test_an_expired_message_lives_as_long_as_the_operator_says() -> None:
    async with world(2, ttl_s=60) as it:
        await it.bus.advance(120)
        it.mended = True
        assert (await it.redrive()).sent == 0
        assert await it.states() == {"open": 2}
        assert (await it.redrive(extend_ms=60_000)).sent == 2
        await it.bus.settle()
        assert it.handled == {0: 1, 1: 1}
        (state, *_) = (await load_states(it.bus.transport, "agents")).values()
        assert any(step.extend_until for step in state.steps)


async def test_an_extension_that_has_passed_kills_as_expiry_does() -> None:
    async with world(1, ttl_s=60) as it:
        it.mended = True
        await it.bus.advance(120)
        assert (await it.redrive(extend_ms=1_000)).sent == 1
        it.bus.clock.advance(30)
        await it.bus.settle()
        assert [letter.reason for letter in it.bus.dead_letters] == ["rejected", "expired"]
        assert it.bus.dead_letters[-1].redrive_count == 1


async def test_two_letters_of_one_death_are_sent_once() -> None:
    async with world(1) as it:
        (letter,) = it.bus.dead_letters
        record = letter.record
        await it.bus.transport.append([NewRecord(record.topic, record.key, record.value, record.headers)], timeout_s=1)
        it.mended = True
        result = await it.redrive()
        await it.bus.settle()
        assert (result.sent, result.twins) == (1, 1)
        assert it.handled == {0: 1}
        assert await it.states() == {"redriven": 2}


async def test_another_message_that_died_at_the_same_place_is_sent_too() -> None:
    async with world(2) as it:
        number = await another_life(it)
        it.mended = True
        result = await it.redrive()
        await it.bus.settle()
        assert (result.sent, result.twins) == (3, 0)
        assert it.handled == Counter([0, 1, number])
        assert await it.states() == {"redriven": 3}


async def test_another_message_at_the_same_location_does_not_complete_an_interrupted_redrive() -> None:
    async with world(2) as it:
        it.mended = True
        assert (await it.redrive()).sent == 2
        number = await another_life(it)
        with pytest.raises(KilledError):
            await it.redrive(Breaking(it.bus.transport, 3, "killed before"))
        result = await it.redrive()
        await it.bus.settle()
        assert (result.found, result.sent) == (0, 1)
        assert it.handled == Counter([0, 1, number])


async def test_a_state_without_content_applies_to_every_letter_at_its_location() -> None:
    async with world(2) as it:
        it.mended = True
        assert (await it.redrive()).sent == 2
        journal = Journal(it.bus.transport, it.settings, it.bus.clock, verb="redrive", why="", by="me@here")
        known = await load_states(it.bus.transport, "agents")
        await journal.write({place: msgspec.structs.replace(state, content="") for place, state in known.items()})
        await another_life(it)
        result = await it.redrive()
        assert (result.sent, result.twins) == (0, 1)


@pytest.mark.parametrize("create", [False, True])
async def test_a_group_that_cannot_be_sent_anything_back_holds_up_no_other(create: bool) -> None:
    async with world(3) as it:
        it.settings = load(flags={"bus.url": "memory://", "topics.create": create}, env={}, file=None).settings
        await die_elsewhere(it, "gone")
        it.mended = True
        transport = Topicless(it.bus.transport, "")
        plan = await Redrive(transport, it.settings, it.bus.clock, Selection(), RedriveOrders()).plan()
        assert plan.total("unreachable") == (0 if create else 3), "what may be made is not missing yet"
        result = await it.redrive(transport)
        await it.bus.settle()
        assert (result.outcome, result.sent, result.twins, result.left) == ("finished", 3, 3, 3)
        assert "agents._redrive.gone" in result.unreachable["gone"]
        assert it.handled == Counter(range(3))
        assert await it.states() == {"redriven": 6, "open": 3}


async def test_a_redrive_topic_deleted_during_redrive_does_not_block_other_groups() -> None:
    async with world(3) as it:
        await die_elsewhere(it, "gone")
        it.mended = True
        result = await it.redrive(Topicless(it.bus.transport, "agents._redrive.gone"))
        assert (result.outcome, result.sent, result.left) == ("finished", 3, 3)
        assert await it.states() == {"redriven": 6, "open": 3}
        assert (await it.redrive()).sent == 3, "and when it is back they are sent"


async def test_filters_choose_what_is_sent() -> None:
    async with world(4) as it:
        it.mended = True
        places = frozenset(letter.place for letter in it.bus.dead_letters[:1])
        assert (await it.redrive(selection=Selection(reasons=frozenset({"expired"})))).sent == 0
        assert (await it.redrive(selection=Selection(places=places))).sent == 1
        assert (await it.redrive(selection=Selection(message_type="job.asked", sender="test@sealbus"))).sent == 3


async def test_it_stops_in_order_and_goes_on() -> None:
    async with world() as it:
        it.mended = True
        stop = asyncio.Event()
        stop.set()
        assert (await it.redrive(stop=stop)).outcome == "interrupted"
        assert (await it.redrive()).sent == LETTERS


async def test_it_stops_in_order_also_where_nothing_is_found_to_send() -> None:
    async with world(3) as it:
        stop = asyncio.Event()
        stop.set()
        assert (await it.redrive(selection=Selection(sender="nobody"), stop=stop)).outcome == "interrupted"


async def test_a_purge_that_is_stopped_goes_through_no_more_letters() -> None:
    async with world(3) as it:
        journal = Journal(it.bus.transport, it.settings, it.bus.clock, verb="dismiss", why="", by="me@here")
        stop = asyncio.Event()
        stop.set()
        result = await Dismissal(it.bus.transport, it.settings, Selection()).run(journal, stop=stop)
        assert (result.outcome, result.dismissed) == ("interrupted", 0)


async def test_it_stops_when_letters_die_again() -> None:
    async with world() as it:

        async def work() -> None:
            while True:
                await it.bus.settle()
                await asyncio.sleep(0.01)

        working = asyncio.create_task(work())
        result = await it.redrive(stop_after=3)
        working.cancel()
        await asyncio.wait([working])
        assert result.outcome == "stopped"
        assert 3 <= result.failures <= result.sent < LETTERS
        assert (await it.states())["open"] == LETTERS


@pytest.mark.medium
@pytest.mark.parametrize("how", ["killed before", "killed after", "unknown", "half"])
@pytest.mark.parametrize("at", range(1, 13))
async def test_cut_off_at_any_append_every_letter_is_still_handled_once(
    how: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.deadletters.redrive_rules._LARGEST_PIECE", 10)
    monkeypatch.setattr(ManualClock, "sleep", lambda *_: asyncio.sleep(0))
    async with world() as it:
        it.mended = True
        cut = False
        # The second cut falls upon what the first one left.
        for place in (at, 2):
            try:
                await it.redrive(Breaking(it.bus.transport, place, how))
            except (KilledError, UnreachableError, AppendUnknownError):
                cut = True
        assert cut or at > 11
        finished = await it.redrive()
        assert finished.outcome == "finished"
        await it.bus.settle()
        assert it.handled == Counter(range(LETTERS))
        assert await it.states() == {"redriven": LETTERS}
        assert not await unended_runs(it.bus.transport, "agents", "redrive")
        assert not any(state.sending for state in (await load_states(it.bus.transport, "agents")).values())


@pytest.mark.parametrize(
    "entry",
    [
        b'{"event":"redrive.started","run":[]}',
        b'{"event":"redrive.started","run":"r","pid":"1"}',
        b'{"event":"redrive.started","run":"r","by":{}}',
        b'{"event":["redrive.started"],"run":"r"}',
        b"[]",
        b"\xff",
        b"",
        pytest.param(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="100,000 levels"),
    ],
)
async def test_foreign_records_in_the_journal_do_not_stop_a_redrive(entry: bytes) -> None:
    async with world(1) as it:
        it.mended = True
        await prepare_journal(it.bus.transport, it.settings)
        await it.bus.transport.append([NewRecord("agents._audit", b"r", entry)], timeout_s=1.0)
        assert (await it.redrive()).sent == 1


@pytest.mark.parametrize("group", ["../..", "", "Upper", "a" * 300, "\ud83d"])
async def test_a_state_of_no_group_there_can_be_stops_no_redrive(group: str) -> None:
    async with world(1) as it:
        it.mended = True
        await prepare_journal(it.bus.transport, it.settings)
        step = {"at": "", "action": "sending", "by": "x", "run": "r"}
        state = {"state": "open", "origin": "a/0/0", "group": group, "count": 0, "steps": [step]}
        await it.bus.transport.append(
            [NewRecord("agents._deadletters", b"a.dlq/0/0", json.dumps(state).encode())], timeout_s=1.0
        )
        assert (await it.redrive()).sent == 1


async def test_purged_letters_are_left_alone() -> None:
    async with world(3) as it:
        it.mended = True
        (first, *_) = it.bus.dead_letters
        assert await it.dismiss(first.place) == 1
        assert await it.dismiss(first.place) == 0
        assert await it.states() == {"open": 2, "dismissed": 1}
        assert (await it.redrive()).sent == 2
        assert [entry["event"] for entry in await it.audit()][:2] == ["dismiss.started", "dismiss.ended"]


class Meanwhile:
    """A transport that does something else once, right before its first append of several records."""

    def __init__(self, transport: Transport, act: Callable[[], Any]) -> None:
        self._transport = transport
        self.admin, self.features, self.read = transport.admin, transport.features, transport.read
        self._act: Callable[[], Any] | None = act

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
        if len(records) > 1 and self._act is not None:
            act, self._act = self._act, None
            await act()
        return await self._transport.append(records, timeout_s=timeout_s)


@pytest.mark.medium
async def test_letters_that_are_purged_while_a_redrive_runs_are_not_sent() -> None:
    async with world() as it:
        it.mended = True
        letters = [letter async for letter in list_dead_letters(it.bus.transport, "agents")]
        result = await it.redrive(Meanwhile(it.bus.transport, lambda: it.dismiss(letters[-1].place)), rate=50)
        assert result.sent == LETTERS - 1
        assert await it.states() == {"redriven": LETTERS - 1, "dismissed": 1}


async def test_a_redrive_of_another_machine_is_at_work_whatever_that_machines_clock_says() -> None:
    async with world(3) as it:
        await prepare_journal(it.bus.transport, it.settings)
        there = Journal(
            it.bus.transport, it.settings, ManualClock(it.bus.clock.now_ms() - 3_600_000), verb="redrive", why=""
        )
        await there.note("started", host="there", pid=7)
        it.bus.clock.advance(50)
        letter = it.bus.dead_letters[0]
        await there.write({letter.place: follow_states(letter, None, there.step("redriven"))})
        it.bus.clock.advance(50)
        assert (await it.redrive()).outcome == "withdrawn"
        it.bus.clock.advance(50)
        assert (await it.redrive()).outcome == "finished"


async def test_a_redrive_that_waits_for_long_is_at_work_for_another_machine_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world(3) as it:
        monkeypatch.setattr(
            "consumers.deadletters.redrive.this_process", lambda: {"host": "there", "pid": 7, "process": ""}
        )
        stop = asyncio.Event()
        waiting = asyncio.create_task(it.redrive(stop=stop, stop_after=3))
        for turn in range(1200):
            await asyncio.sleep(0)
            it.bus.clock.advance(10 if turn % 100 == 99 else 0)
        assert (await it.redrive()).outcome == "withdrawn"
        stop.set()
        assert (await waiting).outcome == "interrupted"
        assert not await unended_runs(it.bus.transport, "agents", "redrive")


class Slow:
    """A transport that does something else once, between the judging of letters and the look at what has become of them
    since."""

    def __init__(self, transport: Transport, act: Callable[[], Any]) -> None:
        self._transport = transport
        self.features, self.append, self.admin = transport.features, transport.append, self
        self._act: Callable[[], Any] | None = act
        self._judged = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport.admin, name)

    async def read(self, topic: str, partition: int, offset: int, **options: Any) -> Sequence[Record]:
        self._judged = self._judged or topic.endswith(".dlq")
        return await self._transport.read(topic, partition, offset, **options)

    async def topics(self) -> Mapping[str, TopicSpec]:
        if self._judged and self._act is not None:
            act, self._act = self._act, None
            await act()
        return await self._transport.admin.topics()


async def test_letters_sent_by_a_concurrent_redrive_are_not_sent_again() -> None:
    async with world() as it:
        it.mended = True
        result = await it.redrive(Slow(it.bus.transport, it.redrive))
        await it.bus.settle()
        assert (result.outcome, result.sent) == ("finished", 0)
        assert it.handled == Counter(range(LETTERS))


async def test_a_letter_that_another_redrive_is_sending_is_left_to_it() -> None:
    async with world(2) as it:
        it.mended = True
        first, _ = it.bus.dead_letters
        another = Journal(it.bus.transport, it.settings, it.bus.clock, verb="redrive", why="", by="me@there")
        result = await it.redrive(
            Slow(
                it.bus.transport,
                lambda: another.write({first.place: follow_states(first, None, another.step("sending"))}),
            )
        )
        assert result.sent == 1
        assert await it.states() == {"open": 1, "redriven": 1}


async def test_control_headers_of_a_sender_still_count_for_nothing_elsewhere() -> None:
    async with world(0) as it:
        it.mended = True
        receipt = await it.bus.publish(Job(number=1), ttl_s=60)
        await it.bus.settle()
        (record,) = [record async for record in scan_topic(it.bus.transport, "agents.job.asked")]
        forged = (*record.headers, ("sb-extend-until", b"9999999999999"), ("sb-redrive-count", b"2"))
        await it.bus.advance(120)
        await it.bus.transport.append([NewRecord(receipt.topic, record.key, record.value, forged)], timeout_s=1)
        await it.bus.settle()
        assert [(letter.reason, letter.redrive_count) for letter in it.bus.dead_letters] == [("expired", 0)]
        assert (await it.redrive()).sent == 0
