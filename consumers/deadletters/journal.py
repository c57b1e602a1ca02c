"""Journal: the actions of operators on dead letters, as states of letters and runs of commands.

Owns appending both durably (`<ns>._deadletters`, `<ns>._audit`), the operator's name in them, and finding runs that
never ended. Which state may follow which is in `consumers.deadletters.letter_state`.
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

from bus.backoff import Backoff
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
from bus.transports.read_all import scan_topic
from consumers.deadletters.letter_state import LetterAction, LetterState, Step
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
    "this_process",
]

QUIET_S: Final = 20.0
"""Seconds without an entry after which a working run notes again that it works."""

_PATIENCE: Final = 6
_BACKOFF: Final = Backoff(0.2, 10.0)

_log = get_logger("journal")


class Begun(msgspec.Struct, frozen=True):
    """The journal entry that says which run began, by whom, when and where.

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
    """When the run last noted that it works, by the log's clock."""

    def __str__(self) -> str:
        return f"{self.run} (by {self.by} at {self.at})"


_decode = msgspec.json.Decoder(Begun).decode


class Journal:
    """The entries of one run of a command."""

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

    def step(self, action: LetterAction, *, extend_until_ms: int = 0) -> Step:
        """Return a step for an action of this run on a dead letter now."""
        return Step(
            at=format_ms(self._clock.now_ms()),
            action=action,
            by=self.by,
            run=self.run,
            why=self.why,
            extend_until=format_ms(extend_until_ms) if extend_until_ms else "",
        )

    async def write(self, states: Mapping[str, LetterState]) -> None:
        """Make the *states* of dead letters, by location, durable. Raises BusError if that fails."""
        await self._append([state.record(self._namespace, location) for location, state in states.items()])

    async def order(self, order: ParkOrder) -> None:
        """Make an *order* to workers durable. Raises BusError where that fails."""
        await self._append([order.record(self._namespace)])

    async def note(self, event: str, *, run: str | None = None, **facts: Any) -> None:
        """Note that `VERB.event` happened in this run, or to an earlier *run*."""
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

        It is all that another machine sees of this run.
        """
        turn = asyncio.Lock()
        repeating = asyncio.create_task(self._repeat(event, facts, turn))
        try:
            yield
        finally:
            # Not in the middle of a note: it would follow what is noted next.
            async with turn:
                repeating.cancel()

    async def _repeat(self, event: str, facts: Mapping[str, Any], turn: asyncio.Lock) -> None:
        while True:
            await self._clock.sleep(QUIET_S)
            async with turn:
                if self._clock.monotonic_s() - self._wrote_s >= QUIET_S:
                    # A log that is gone cannot be written to.
                    with contextlib.suppress(BusError):
                        await self.note(event, **facts)

    async def _append(self, records: Sequence[NewRecord]) -> None:
        """Append all *records*, retrying temporary errors: a repeated record has no further effect."""
        waiting = list(records)
        for tries, pause_s in enumerate(_BACKOFF.delays_s(), 1):
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
            if not isinstance(error, BusError) or not error.retriable or tries == _PATIENCE:
                raise error
            _log.warning("journal.append_failed", records=len(waiting), error=str(error), again_in_s=pause_s)
            await self._clock.sleep(pause_s)


def operator() -> str:
    """Return `user@host`, who this process runs as. It is the system's word, and proves nothing."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()}"[:256]


async def prepare_journal(transport: Transport, settings: Settings, *, create: bool = True) -> None:
    """Create the missing topics of states and journal, or raise TopicMissingError with the remedy.

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
        error.add_note("`sealbus topic apply MODULE:APP` creates the topics of an app, these among them")
        raise error
    if missing and create:
        await transport.admin.create_topics(missing)


async def unended_runs(transport: Transport, namespace: str, verb: str) -> dict[str, Begun]:
    """Return, by run, how each run of *verb* began that has no end: it was killed, or works now."""
    begun: dict[str, Begun] = {}
    topic = own_topic(namespace, "_audit")
    if topic not in await transport.admin.topics():
        return begun
    async for record in scan_topic(transport, topic):
        try:
            entry = _decode(record.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if entry.event == f"{verb}.started":
            # The start may be noted repeatedly: the run began at the first note, and worked at least until the last.
            begun[entry.run] = msgspec.structs.replace(begun.get(entry.run, entry), appended_ms=record.timestamp_ms)
        elif entry.event in (f"{verb}.ended", f"{verb}.abandoned"):
            begun.pop(entry.run, None)
    return begun


def log_time_ms(unended: Mapping[str, Begun]) -> int:
    """Return the time by the log's clock: when one of *unended* last noted that it works.

    For the asking run that is its own beginning.
    """
    return max((begun.appended_ms for begun in unended.values()), default=0)


SILENCE_MS: Final = round(3 * QUIET_S * 1000)
"""A run on another machine that has written nothing for so many milliseconds was cut off."""


def this_process() -> dict[str, Any]:
    """Return where this run works, for its journal entry."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "process": process_of(os.getpid())}


def process_of(pid: int) -> str:
    """Return what tells the process *pid* from all others with its number.

    Empty where the system does not tell.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        # The second field is the program's name in parentheses, which may hold any characters; the twenty-second is the
        # process's start time.
        began = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19]
    except (OSError, ValueError, IndexError):
        return ""
    return f"{boot}/{began.decode('ascii', 'replace')}"


def is_at_work(
    begun: Begun, *, wrote_ms: int, now_ms: int, here: Mapping[str, object], lives: Callable[[int], bool] | None = None
) -> bool:
    """Return whether the run *begun*, which last wrote at *wrote_ms*, works now, as seen from *here*.

    Times are the log's: another machine's clock may be wrong by more than the longest silence.
    """
    if begun.host == here["host"] and begun.pid:
        # One process runs one command at a time: an earlier run of this process has ended.
        its_own = not begun.process or process_of(begun.pid) in ("", begun.process)
        return begun.pid != here["pid"] and (lives or _lives)(begun.pid) and its_own
    return now_ms - max(wrote_ms, begun.appended_ms) < SILENCE_MS


def one_at_work(earlier: Mapping[str, Begun], wrote_ms: Mapping[str, int], now_ms: int) -> str:
    """Return one of the *earlier* runs that is still active, or ""; *wrote_ms* is when each last recorded a state."""
    for run, begun in earlier.items():
        if is_at_work(begun, wrote_ms=wrote_ms.get(run, 0), now_ms=now_ms, here=this_process()):
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
