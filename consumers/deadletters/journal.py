"""The journal of what operators do to dead letters: states of letters, and runs of commands.

Owns appending both durably (`<ns>._deadletters`, `<ns>._audit`), who is written down as having done it, and finding
runs that never ended. What a state may become is `consumers.deadletters.letter_state`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from bus.clock import Clock
from bus.errors import BusError, TopicMissingError
from bus.protocol import canonical
from bus.protocol.identifiers import uuid7
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.topics.names import own_topic
from bus.topics.specs import creates_topics, namespace_topics
from bus.transports.base import Appended, NewRecord, Transport
from bus.transports.read_all import scan
from consumers.deadletters.letter_state import Action, LetterState, Step
from consumers.deadletters.park_orders import ParkOrder

__all__ = [
    "Begun",
    "Journal",
    "QUIET_S",
    "is_at_work",
    "log_time_ms",
    "one_at_work",
    "operator",
    "prepare_journal",
    "process_of",
    "unended_runs",
    "whereabouts",
]

QUIET_S: Final = 20.0
"""After so long without a word, a run that is at work says so again."""

_PATIENCE: Final = 6
_FIRST_PAUSE_S: Final = 0.2

_log = get_logger("journal")


class Begun(msgspec.Struct, frozen=True):
    """An entry of the journal, as far as it says which run began, by whom, when and where.

    *pid* is of a *process* on *host*.
    """

    event: str
    run: str
    by: str = ""
    at: str = ""
    host: str = ""
    pid: int = 0
    process: str = ""
    appended_ms: int = 0
    """When it was last said, by the log's clock, which is nobody's own."""

    def __str__(self) -> str:
        return f"{self.run} (by {self.by} at {self.at})"


_decode = msgspec.json.Decoder(Begun).decode


class Journal:
    """What one run of a command writes down."""

    def __init__(
        self, transport: Transport, settings: Settings, clock: Clock, *, verb: str, why: str, by: str | None = None
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._clock = clock
        self._namespace = settings.bus.namespace
        self._verb = verb
        self.why = why
        self.by = by or operator()
        self.run = uuid7(clock.now_ms(), os.urandom(10))
        self._wrote_s = clock.monotonic_s()

    def step(self, action: Action, *, extend_until_ms: int = 0) -> Step:
        """Something this run does to a letter now."""
        return Step(
            at=format_ms(self._clock.now_ms()),
            action=action,
            by=self.by,
            run=self.run,
            why=self.why,
            extend_until=format_ms(extend_until_ms) if extend_until_ms else "",
        )

    async def write(self, states: Mapping[str, LetterState]) -> None:
        """Make the *states* of letters, by place, durable; raises BusError when that can't be had."""
        await self._append([state.record(self._namespace, place) for place, state in states.items()])

    async def order(self, order: ParkOrder) -> None:
        """Make an *order* to workers durable; raises BusError when that can't be had."""
        await self._append([order.record(self._namespace)])

    async def note(self, event: str, *, run: str | None = None, **facts: Any) -> None:
        """Write down that `VERB.event` happened in this run, or to an earlier *run*."""
        entry = {
            "at": format_ms(self._clock.now_ms()),
            "by": self.by,
            "event": f"{self._verb}.{event}",
            "run": run or self.run,
            **facts,
        }
        key = str(entry["run"]).encode()
        await self._append([NewRecord(own_topic(self._namespace, "_audit"), key, canonical.encode(entry))])

    @asynccontextmanager
    async def repeating(self, event: str, facts: Mapping[str, Any]) -> AsyncIterator[None]:
        """Note *event* again whenever nothing was written for a while.

        From another machine there is nothing else to be seen of this run.
        """
        turn = asyncio.Lock()
        repeating = asyncio.create_task(self._repeat(event, facts, turn))
        try:
            yield
        finally:
            # Not in the middle: it would stand behind what is noted next.
            async with turn:
                repeating.cancel()

    async def _repeat(self, event: str, facts: Mapping[str, Any], turn: asyncio.Lock) -> None:
        while True:
            await self._clock.sleep(QUIET_S)
            async with turn:
                if self._clock.monotonic_s() - self._wrote_s >= QUIET_S:
                    # A log that is gone can't be told.
                    with contextlib.suppress(BusError):
                        await self.note(event, **facts)

    async def _append(self, records: Sequence[NewRecord]) -> None:
        """Append all, repeating what may pass: a repeated record says the same."""
        waiting, pause_s = list(records), _FIRST_PAUSE_S
        for attempt in range(_PATIENCE):
            outcomes = (
                await self._transport.append(waiting, timeout_s=self._settings.publish.timeout_s) if waiting else []
            )
            failed = [
                (record, outcome)
                for record, outcome in zip(waiting, outcomes, strict=True)
                if not isinstance(outcome, Appended)
            ]
            if not failed:
                self._wrote_s = self._clock.monotonic_s()
                return
            waiting, error = [record for record, _ in failed], failed[0][1]
            if not isinstance(error, BusError) or not error.retriable or attempt == _PATIENCE - 1:
                raise error
            _log.warning("journal.append_failed", records=len(waiting), error=str(error), again_in_s=pause_s)
            await self._clock.sleep(pause_s)
            pause_s *= 2


def operator() -> str:
    """`user@host`: who this process runs as. It says what the system says, and proves nothing."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()}"[:256]


async def prepare_journal(transport: Transport, settings: Settings, *, create: bool = True) -> None:
    """Have the topics of states and journal, or raise TopicMissingError saying how to get them.

    Without *create* nothing is changed.
    """
    existing = await transport.admin.topics()
    missing = [spec for spec in namespace_topics(settings) if spec.name not in existing]
    if missing and not creates_topics(settings, transport.features):
        names = [spec.name for spec in missing]
        does = "does" if len(names) == 1 else "do"
        error = TopicMissingError(
            f"the states of dead letters and the journal have no topic: {', '.join(names)} {does} not exist"
        )
        error.add_note("`sealbus topics apply MODULE:APP` creates the topics of an app, these among them")
        raise error
    if missing and create:
        await transport.admin.create_topics(missing)


async def unended_runs(transport: Transport, namespace: str, verb: str) -> dict[str, Begun]:
    """By run, how each run of *verb* began of which no end is written down: it was killed, or is at work now."""
    begun: dict[str, Begun] = {}
    topic = own_topic(namespace, "_audit")
    if topic not in await transport.admin.topics():
        return begun
    async for record in scan(transport, topic):
        try:
            entry = _decode(record.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if entry.event == f"{verb}.started":
            # It may be said again and again: then it began at the first, and is known to have been at work at the last.
            begun[entry.run] = msgspec.structs.replace(begun.get(entry.run, entry), appended_ms=record.timestamp_ms)
        elif entry.event in (f"{verb}.ended", f"{verb}.abandoned"):
            begun.pop(entry.run, None)
    return begun


def log_time_ms(unended: Mapping[str, Begun]) -> int:
    """What time it is by the log's clock: when the last of these said that it had begun.

    For the run that asks, that is its own beginning.
    """
    return max((begun.appended_ms for begun in unended.values()), default=0)


SILENCE_MS: Final = round(3 * QUIET_S * 1000)
"""A run on another machine that has written nothing for so long was cut off."""


def whereabouts() -> dict[str, Any]:
    """Where this run is at work, for its entry in the journal."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "process": process_of(os.getpid())}


def process_of(pid: int) -> str:
    """What tells the process *pid* from all others that have had, or will have, its number.

    Empty where the system does not say.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        # The second field is the program's name in parentheses, which may hold anything; the twenty-second is when the
        # process began.
        began = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return ""
    return f"{boot}/{began.decode('ascii', 'replace')}"


def is_at_work(
    begun: Begun, *, wrote_ms: int, now_ms: int, here: Mapping[str, object], lives: Callable[[int], bool] | None = None
) -> bool:
    """Whether the run that *begun* tells of, and that last wrote at *wrote_ms*, is at work now, as seen from *here*.

    Times are the log's: that of another machine may be wrong by more than anybody is silent.
    """
    if begun.host == here["host"] and begun.pid:
        # One process does one thing at a time: an earlier run of this very process has ended.
        its_own = not begun.process or process_of(begun.pid) in ("", begun.process)
        return begun.pid != here["pid"] and (lives or _lives)(begun.pid) and its_own
    return now_ms - max(wrote_ms, begun.appended_ms) < SILENCE_MS


def one_at_work(earlier: Mapping[str, Begun], wrote_ms: Mapping[str, int], now_ms: int) -> str:
    """One of *earlier* runs that is not through yet, or nothing; *wrote_ms* says when they last recorded a state."""
    for run, begun in earlier.items():
        if is_at_work(begun, wrote_ms=wrote_ms.get(run, 0), now_ms=now_ms, here=whereabouts()):
            return str(begun)
    return ""


def _lives(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
