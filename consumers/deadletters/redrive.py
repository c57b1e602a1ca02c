"""Redrive: sends dead letters back to the groups they died in; it can be interrupted and resumed at any moment.

Owns the order: state `sending`, then the record in `<ns>._redrive.<group>`, then state `redriven`. After a run that was
killed, the next run looks into the redrive topic for what `sending` left open. The decisions are in
`consumers.deadletters.redrive_rules`, the journal in `consumers.deadletters.journal`.
`consumers.deadletters.redrive_watch` sees letters die again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from bus.clock import Clock
from bus.errors import AppendUnknownError, BusError, NotPermittedError, RecordTooLargeError, TopicMissingError
from bus.settings.schema import Settings
from bus.topics.names import dead_letter_topic, redrive_topic
from bus.topics.specs import creates_topics, group_topics
from bus.transports.base import Appended, AppendOutcome, NewRecord, Transport
from bus.transports.read_all import scan_topic
from bus.vocabulary.bus import RedriveOrdered
from consumers.deadletters.death_times import DeathTimes
from consumers.deadletters.journal import Begun, Journal, log_time_ms, one_at_work, this_process, unended_runs
from consumers.deadletters.letter_state import (
    LetterAction,
    LetterState,
    follow_states,
    is_free,
    resolve,
    state_of,
)
from consumers.deadletters.letters import DeadLetter, dead_letter_ends, list_dead_letters
from consumers.deadletters.recorded_states import RecordedStates
from consumers.deadletters.redrive_rules import (
    Leave,
    Park,
    RateLimit,
    RedriveCount,
    RedriveCounts,
    RedrivenDeath,
    RedriveOrders,
    RedriveResult,
    RedriveVerdict,
    Send,
    death_noted,
    death_of,
    death_told,
    decide_redrive,
    send_back,
)
from consumers.deadletters.redrive_watch import Watch
from consumers.deadletters.selection import Selection, with_causes
from producers.sealing.options import Outgoing
from producers.sealing.sealer import Sealer

__all__ = ["Destinations", "Redrive"]

_PIECE_BYTES: Final = 8 * 1_048_576
_APPEND_S: Final = 30.0


class Redrive:
    """One redrive: call `plan` any number of times, then `run` once."""

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        clock: Clock,
        selection: Selection,
        orders: RedriveOrders,
        *,
        journal: Journal | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        self._transport = transport
        self._namespace = settings.bus.namespace
        self._settings = settings
        self._clock = clock
        self._selection = selection
        self._orders = orders
        self._journal = journal
        self._sealer = sealer
        self._undone = DeathTimes()
        """When each death was undone, as far as states tell."""
        self._recorded = RecordedStates(transport, self._namespace, self._undone)
        self._meant = DeathTimes()
        """When this pass has come to a letter of each death, to send it."""
        self._states: dict[str, LetterState] = {}
        """By location, the states with their steps of the letters that are being sent."""
        self._destinations = Destinations(transport, settings)

    async def plan(self) -> RedriveCounts:
        """Judge every selected letter; writes nothing. Raises TopicMissingError."""
        await self._load()
        unended = await unended_runs(self._transport, self._namespace, "redrive")
        plan = RedriveCounts(
            unresolved=len(self._recorded.sending()),
            unended=[str(begun) for begun in unended.values()],
            unreachable=self._destinations.unreachable,
        )
        async for letter, verdict in self._judge(None, create=False):
            plan.counts[RedriveCount(_name(verdict), letter.reason, letter.message_type, letter.group)] += 1
            self._remember(letter, verdict)
        return plan

    async def run(
        self,
        *,
        stop: asyncio.Event,
        rate: float | None = None,
        stop_after: int | None = None,
        wait: bool = False,
        on_progress: Callable[[RedriveResult], object] = lambda _: None,
    ) -> RedriveResult:
        """Redrive letters until none is left, *stop* is set, or *stop_after* of them have died again.

        With *wait* it returns after their groups have settled them, and the result counts those that died again.
        """
        journal = self._written()
        result = RedriveResult(run=journal.run, unreachable=self._destinations.unreachable)
        facts = self._facts(journal, rate, stop_after)
        await journal.note("started", **facts)
        try:
            async with journal.repeating("started", facts):
                earlier, now_ms = await self._earlier(journal.run)
                await self._load()
                result.rival = one_at_work(earlier, self._recorded.wrote_ms, now_ms)
                if result.rival:
                    result.outcome = "withdrawn"
                    return result
                await self._take_over(journal, result, earlier)
                pace = RateLimit(rate=rate, watchful=stop_after is not None)
                result.outcome = await self._send_all(
                    journal,
                    result,
                    stop=stop,
                    pace=pace,
                    stop_after=stop_after,
                    wait=wait,
                    on_progress=on_progress,
                )
        finally:
            # A log that is gone cannot be written to; the next run then notes that this one was cut off.
            with contextlib.suppress(BusError):
                await journal.note("ended", **msgspec.structs.asdict(result) | {"run": journal.run})
        return result

    async def _send_all(
        self,
        journal: Journal,
        result: RedriveResult,
        *,
        stop: asyncio.Event,
        pace: RateLimit,
        stop_after: int | None,
        wait: bool,
        on_progress: Callable[[RedriveResult], object],
    ) -> str:
        """Send piece by piece; return the outcome."""
        ends = await dead_letter_ends(self._transport, self._namespace, self._selection.message_type)
        is_watched = stop_after is not None or wait
        watch = await Watch.begin(self._transport, self._namespace, self._clock) if is_watched else None
        started_s = self._clock.monotonic_s()
        async with contextlib.aclosing(self._pieces(ends, pace, stop, result)) as pieces:
            async for piece in pieces:
                if not await self._wait(stop, started_s + pace.due_s()):
                    return "interrupted"
                await self._pass_piece(journal, await self._still_open(piece, journal.run), result, watch)
                outcome = await self._look(watch, stop, result, stop_after)
                pace.passed(len(piece), result.failures)
                on_progress(result)
                if outcome is not None:
                    return outcome
        if stop.is_set():
            return "interrupted"
        if wait and watch is not None:
            result.is_settled = await watch.wait_settled(stop)
            result.failures = await watch.failures()
            on_progress(result)
            if not result.is_settled:
                return "interrupted" if stop.is_set() else "unread"
        return "finished"

    def _facts(self, journal: Journal, rate: float | None, stop_after: int | None) -> dict[str, Any]:
        return {
            "extend_ms": self._orders.extend_ms,
            "force": self._orders.force,
            "rate": f"{rate:g}/s" if rate else "",
            "selection": self._selection.describe(),
            "stop_after": stop_after or 0,
            "why": journal.why,
            **({} if self._orders.answer is None else {"step": msgspec.to_builtins(self._orders.answer)}),
            **this_process(),
        }

    async def _earlier(self, own: str) -> tuple[dict[str, Begun], int]:
        """Return the runs without an end before this one in the journal, and the log's time.

        Of two concurrent runs the first continues.
        """
        unended = await unended_runs(self._transport, self._namespace, "redrive")
        return dict(itertools.takewhile(lambda entry: entry[0] != own, unended.items())), log_time_ms(unended)

    async def _look(
        self, watch: Watch | None, stop: asyncio.Event, result: RedriveResult, stop_after: int | None
    ) -> str | None:
        """Return the outcome of the run when it must end here."""
        if watch is None or stop_after is None:
            return None
        settled = await watch.wait_settled(stop)
        result.failures = await watch.failures()
        if result.failures >= stop_after:
            return "stopped"
        if settled:
            return None
        return "interrupted" if stop.is_set() else "unread"

    def _order(self, letter: DeadLetter, extend_until_ms: int) -> bytes:
        """Return the sealed order that *letter* is sent back with, where it needs one and can be sealed."""
        answer = self._orders.answer
        if not (extend_until_ms or answer) or self._sealer is None or letter.message is None:
            return b""
        until = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=extend_until_ms) if extend_until_ms else None
        why = (self._journal.why if self._journal is not None else "") or "redrive"
        order = RedriveOrdered(
            group=letter.group,
            seals=(letter.message.seal,),
            extend_until=until,
            reason=why,
            step=None if answer is None else answer.step,
            answer=None if answer is None else answer.answer,
            result=None if answer is None or answer.answer == "again" else {"value": answer.result},
        )
        return self._sealer.seal(Outgoing(order)).record.value or b""

    async def _load(self) -> None:
        await self._recorded.read_on()
        self._meant = DeathTimes()
        self._selection = await with_causes(self._transport, self._namespace, self._selection)

    async def _take_over(self, journal: Journal, result: RedriveResult, earlier: Iterable[str]) -> None:
        """Find out what runs that were cut off have sent, and note it."""
        unresolved = self._recorded.sending()
        arrived = {group: await self._read_arrived(group) for group in {state.group for state in unresolved.values()}}
        news = {}
        for location, state in unresolved.items():
            came = death_noted(state) in arrived[state.group]
            news[location] = resolve(state, journal.step("redriven" if came else "unsent"), arrived=came)
            result.found += came
        await journal.write(news)
        self._recorded.put(news)
        by_run = Counter((state.sending, news[location].state == "redriven") for location, state in unresolved.items())
        for run in earlier:
            await journal.note(
                "abandoned", run=run, found_by=journal.run, sent=by_run[run, True], unsent=by_run[run, False]
            )

    async def _read_arrived(self, group: str) -> set[RedrivenDeath]:
        """Return the deaths that records in the redrive topic of *group* undo, in all their forms."""
        topic = redrive_topic(self._namespace, group)
        if topic not in await self._transport.admin.topics():
            return set()
        return {form async for record in scan_topic(self._transport, topic) for form in death_told(record, group).forms}

    async def _judge(
        self, ends: Mapping[tuple[str, int], int] | None, stop: asyncio.Event | None = None, *, create: bool
    ) -> AsyncGenerator[tuple[DeadLetter, RedriveVerdict]]:
        async for letter in list_dead_letters(
            self._transport, self._namespace, self._selection.message_type, ends=ends
        ):
            if stop is not None and stop.is_set():
                return
            known = self._recorded.of(letter)
            if self._selection.takes(letter, state_of(letter, known)):
                undone_ms = [
                    times.get(form) for form in death_of(letter).forms for times in (self._undone, self._meant)
                ]
                sent_ms = max((at_ms for at_ms in undone_ms if at_ms is not None), default=None)
                verdict = decide_redrive(letter, known, self._orders, sent_ms=sent_ms, now_ms=self._clock.now_ms())
                if isinstance(verdict, Send) and not await self._destinations.has(letter.group, create=create):
                    verdict = Leave("unreachable")
                yield letter, verdict

    async def _pieces(
        self, ends: Mapping[tuple[str, int], int], pace: RateLimit, stop: asyncio.Event, result: RedriveResult
    ) -> AsyncGenerator[list[tuple[DeadLetter, RedriveVerdict]]]:
        """Yield letters with something to do, in batches of the current size, until *stop* is set."""
        piece: list[tuple[DeadLetter, RedriveVerdict]] = []
        size, wanted = 0, pace.next_piece()
        async for letter, verdict in self._judge(ends, stop, create=True):
            if isinstance(verdict, Leave):
                result.left += verdict.why == "unreachable"
                continue
            self._remember(letter, verdict)
            piece.append((letter, verdict))
            size += len(letter.record.value or b"")
            if len(piece) >= wanted or size >= _PIECE_BYTES:
                yield piece
                piece, size, wanted = [], 0, pace.next_piece()
        if piece:
            yield piece

    async def _still_open(
        self, piece: list[tuple[DeadLetter, RedriveVerdict]], run: str
    ) -> list[tuple[DeadLetter, RedriveVerdict]]:
        """Return *piece* without letters that other runs than *run* have dealt with since it was judged.

        A paced redrive may take hours.
        """
        await self._recorded.read_on()
        free = [(letter, verdict) for letter, verdict in piece if is_free(letter, self._recorded.of(letter), run)]
        known = {letter.place: await self._recorded.with_steps(letter) for letter, _ in free}
        self._states = {location: state for location, state in known.items() if state is not None}
        return free

    async def _pass_piece(
        self,
        journal: Journal,
        piece: list[tuple[DeadLetter, RedriveVerdict]],
        result: RedriveResult,
        watch: Watch | None,
    ) -> None:
        states: dict[str, LetterState] = {}
        records: dict[str, NewRecord] = {}
        letters = {letter.place: letter for letter, _ in piece}
        for letter, verdict in piece:
            match verdict:
                case Send(extend_until_ms):
                    records[letter.place] = send_back(
                        letter, self._namespace, extend_until_ms, self._order(letter, extend_until_ms)
                    )
                    states[letter.place] = self._followed(letter, "sending", extend_until_ms)
                case Park():
                    states[letter.place] = self._followed(letter, "parked")
                    result.parked += 1
                case _:
                    states[letter.place] = self._followed(letter, "twin")
                    result.twins += 1
        await self._note_states(journal, states)
        outcomes = await self._transport.append(list(records.values()), timeout_s=_APPEND_S) if records else []
        by_location = dict(zip(records, outcomes, strict=True))
        await self._note_states(
            journal,
            {
                location: after
                for location in records
                if (after := self._after(letters[location], by_location[location])) is not None
            },
        )
        result.sent += sum(isinstance(outcome, Appended) for outcome in outcomes)
        result.refused += sum(isinstance(outcome, RecordTooLargeError) for outcome in outcomes)
        if watch is not None:
            watch.sent(
                [
                    (death_of(letters[location]), outcome)
                    for location, outcome in by_location.items()
                    if isinstance(outcome, Appended)
                ]
            )
        for location, outcome in by_location.items():
            if isinstance(outcome, TopicMissingError):
                # It existed when its topic was checked.
                self._destinations.lose(letters[location].group, outcome)
                result.left += 1
            elif isinstance(outcome, BusError) and not isinstance(outcome, RecordTooLargeError):
                raise outcome

    def _after(self, letter: DeadLetter, outcome: AppendOutcome) -> LetterState | None:
        """Return the state after the append; None while its fate is unknown, which the next run finds out."""
        if isinstance(outcome, AppendUnknownError):
            return None
        return self._followed(letter, "redriven" if isinstance(outcome, Appended) else "unsent")

    def _followed(self, letter: DeadLetter, action: LetterAction, extend_until_ms: int = 0) -> LetterState:
        return follow_states(
            letter, self._states.get(letter.place), self._written().step(action, extend_until_ms=extend_until_ms)
        )

    async def _note_states(self, journal: Journal, states: Mapping[str, LetterState]) -> None:
        await journal.write(states)
        self._states.update(states)
        self._recorded.put(states)

    def _remember(self, letter: DeadLetter, verdict: RedriveVerdict) -> None:
        if isinstance(verdict, Send):
            # A second letter of the same death is not sent, in this run either.
            self._meant.put(death_of(letter), self._clock.now_ms())

    async def _wait(self, stop: asyncio.Event, due_s: float) -> bool:
        """Wait until *due_s*; return False when *stop* was set meanwhile."""
        left_s = due_s - self._clock.monotonic_s()
        if left_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), left_s)
        return not stop.is_set()

    def _written(self) -> Journal:
        assert self._journal is not None  # noqa: S101 - `run` is given one
        return self._journal


def _name(verdict: RedriveVerdict) -> str:
    return verdict.why if isinstance(verdict, Leave) else type(verdict).__name__.lower()


class Destinations:
    """The redrive topics of the groups in one redrive."""

    def __init__(self, transport: Transport, settings: Settings) -> None:
        self._transport = transport
        self._settings = settings
        self._prepared: set[str] = set()
        self.unreachable: dict[str, str] = {}
        """By group, why no dead letter can be redriven to it."""

    async def has(self, group: str, *, create: bool) -> bool:
        """Return whether letters can be sent back to *group*.

        A missing topic is created where the settings allow it and *create* is set.
        """
        if group not in self._prepared and group not in self.unreachable:
            try:
                await self._prepare(group, create=create)
                self._prepared.add(group)
            except (TopicMissingError, NotPermittedError) as error:
                self.lose(group, error)
        return group not in self.unreachable

    def lose(self, group: str, error: BusError) -> None:
        """Send no more letters to *group*."""
        self.unreachable[group] = str(error)

    async def _prepare(self, group: str, *, create: bool) -> None:
        existing = await self._transport.admin.topics()
        topic = redrive_topic(self._settings.bus.namespace, group)
        if topic in existing:
            return
        if not creates_topics(self._settings, self._transport.features):
            raise TopicMissingError(f"{topic} does not exist")
        if create:
            wanted = {topic, dead_letter_topic(topic)} - existing.keys()
            await self._transport.admin.create_topics(
                [spec for spec in group_topics(self._settings, group) if spec.name in wanted]
            )
