"""Dismissal: marks dead letters as dealt with; their state becomes `dismissed`, their records stay until retention.

Owns going through the selected letters. States are in `consumers.deadletters.letter_state`, the journal in
`consumers.deadletters.journal`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from bus.errors import BusError
from bus.settings.schema import Settings
from bus.transports.base import Transport
from consumers.deadletters.journal import Journal, is_at_work, log_time_ms, this_process, unended_runs
from consumers.deadletters.letter_state import LetterState, follow_states, state_of
from consumers.deadletters.letters import LetterFacts, dead_letter_ends, list_letter_facts
from consumers.deadletters.recorded_states import RecordedStates
from consumers.deadletters.selection import Selection, with_causes

__all__ = ["Dismissal", "DismissalResult"]

_PIECE: Final = 500


class DismissalResult(msgspec.Struct, kw_only=True):
    """The result of a dismiss. *outcome* is `finished`, `interrupted` or `failed`."""

    run: str
    outcome: str = "failed"
    dismissed: int = 0


class Dismissal:
    """One dismiss: call `plan` any number of times, then `run` once."""

    def __init__(self, transport: Transport, settings: Settings, selection: Selection) -> None:
        self._transport = transport
        self._namespace = settings.bus.namespace
        self._selection = selection

    async def plan(self) -> Counter[tuple[str, str, str]]:
        """Count the letters to dismiss, by (reason, message type, group); writes nothing."""
        states = await self._load()
        return Counter(
            [(letter.reason, letter.message_type, letter.group) async for letter in self._meant(states, None)]
        )

    async def run(
        self,
        journal: Journal,
        *,
        stop: asyncio.Event,
        on_progress: Callable[[DismissalResult], object] = lambda _: None,
    ) -> DismissalResult:
        """Dismiss until none is left or *stop* is set."""
        result = DismissalResult(run=journal.run)
        states = await self._load()
        ends = await dead_letter_ends(self._transport, self._namespace, self._selection.message_type)
        here = this_process()
        await journal.note("started", selection=self._selection.describe(), why=journal.why, **here)
        unended = await unended_runs(self._transport, self._namespace, "dismiss")
        for run, begun in unended.items():
            if run != journal.run and not is_at_work(begun, wrote_ms=0, now_ms=log_time_ms(unended), here=here):
                await journal.note("abandoned", run=run, found_by=journal.run)
        piece: dict[str, LetterState] = {}
        try:
            async for letter in self._meant(states, ends, stop):
                known = await states.with_steps(letter)
                piece[letter.place] = follow_states(letter, known, journal.step("dismissed"))
                if len(piece) >= _PIECE:
                    await self._write(journal, piece, result)
                    on_progress(result)
            await self._write(journal, piece, result)
            result.outcome = "interrupted" if stop.is_set() else "finished"
        finally:
            # A log that is gone cannot be written to.
            with contextlib.suppress(BusError):
                await journal.note("ended", outcome=result.outcome, dismissed=result.dismissed)
        return result

    async def _write(self, journal: Journal, piece: dict[str, LetterState], result: DismissalResult) -> None:
        await journal.write(piece)
        result.dismissed += len(piece)
        piece.clear()

    async def _load(self) -> RecordedStates:
        self._selection = await with_causes(self._transport, self._namespace, self._selection)
        states = RecordedStates(self._transport, self._namespace)
        await states.read_on()
        return states

    async def _meant(
        self, states: RecordedStates, ends: dict[tuple[str, int], int] | None, stop: asyncio.Event | None = None
    ) -> AsyncIterator[LetterFacts]:
        async for letter in list_letter_facts(
            self._transport, self._namespace, self._selection.message_type, ends=ends
        ):
            if stop is not None and stop.is_set():
                return
            state = state_of(letter, states.of(letter))
            # One that was sent back has its outcome already: only who names it, or that state, changes it.
            is_named = letter.place in self._selection.places or state in self._selection.states
            wanted = state in ("open", "parked") or (state != "dismissed" and is_named)
            if wanted and self._selection.takes(letter, state):
                yield letter
