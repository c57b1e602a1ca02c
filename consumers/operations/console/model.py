"""Model of the console: one survey of the namespace after another, and redrives that are at work.

Every page shows the last survey, so that pages, exporter and doctor tell one story. A redrive goes on when its browser
is closed, and ends in order with the console.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from bus.clock import Clock
from bus.errors import BusError, ConfigurationError, text_of
from bus.payloads.payload_types import Registry
from bus.protocol.signatures import Verifier
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.transports.base import Transport
from bus.trust.opening import believed_keys
from bus.vocabulary import BUILT_IN
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.deadletters.letter_state import LetterState, load_states
from consumers.deadletters.recipients import check_recipients, recipients_of
from consumers.deadletters.redrive import Redrive
from consumers.deadletters.redrive_rules import RedriveCounts, RedriveOrders, RedriveResult
from consumers.deadletters.selection import Selection
from consumers.operations.audit.reading import read_audit
from consumers.operations.audit.store import AuditStore
from consumers.operations.console.changes import Changes, SeenChange
from consumers.operations.console.samples import Samples
from consumers.operations.survey.examination import opened_examiner
from consumers.operations.survey.letter_watch import LetterWatch
from consumers.operations.survey.results import CheckResult, fault
from consumers.operations.survey.run_times import run_times_of
from consumers.operations.survey.survey import Survey, Surveyor
from consumers.processes.sagas.opening import opened_store
from consumers.processes.sagas.store import ProcessStore
from producers.directory.presence import AgentEntry

__all__ = ["Console", "NotRead", "RedriveRun"]

_T = TypeVar("_T")

_EVERY_S: Final = 3.0
_AUDIT_S: Final = 2.0
_INBOX_S: Final = 2.0
_LONGEST_S: Final = 15.0
_LETTERS_S: Final = 0.2
"""So long a page waits for dead letters that have come since the last look; more of them are on a later page."""
_MAX_RUNS: Final = 50
_MAX_GROUPS: Final = 64
_MAX_AGENTS: Final = 256
_LONGEST_RUN_S: Final = 600.0
_MAX_CAUSES: Final = 30
_TYPES_S: Final = 30.0
_FIRST_LETTERS_S: Final = 2.0
"""A look does not wait for the first reading of a million dead letters."""
_log = get_logger("console")

Phase: TypeAlias = Literal["queued", "counting", "planned", "sending", "waiting", "done", "failed"]


class NotRead(msgspec.Struct, frozen=True):
    """Why a part of a page was not looked at."""

    why: str


class RedriveRun(msgspec.Struct, kw_only=True, eq=False):
    """One redrive that was started in the console."""

    number: int
    who: str
    why: str
    selection: Selection
    is_dry: bool
    phase: Phase = "queued"
    """queued: another redrive is at work; there is one at a time in a namespace."""
    plan: RedriveCounts | None = None
    result: RedriveResult | None = None
    error: str = ""
    stop: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    """Set where it ends before all is handled."""
    stopped_groups: tuple[str, ...] = ()
    """The groups without a worker for which it does not wait any more."""

    @property
    def is_ended(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.phase in ("planned", "done", "failed")

    @property
    def groups(self) -> frozenset[str]:
        """The groups that get its letters, as far as they are known."""
        return frozenset(each.group for each in self.plan.counts) if self.plan is not None else frozenset()

    @property
    def meant(self) -> int:
        """The number of dead letters to send."""
        return 0 if self.plan is None else self.plan.meant

    @property
    def sent(self) -> int:
        """The number of dead letters sent so far."""
        return 0 if self.result is None else self.result.sent + self.result.twins + self.result.parked


class Console:
    """The data of the pages. `async with console.opened():` keeps it up to date."""

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        clock: Clock,
        *,
        person: str = "",
        person_settings: Settings | None = None,
        types: Callable[[], Awaitable[Registry]] | None = None,
    ) -> None:
        self.transport = transport
        self.settings = settings
        self.clock = clock
        self.person = person
        """The person as whom the console decides about approvals; empty: it shows the command instead."""
        self.person_settings = person_settings
        self._read_types = types
        self._types: tuple[Registry, float] | None = None
        """The message types that are known, and when they were read, on the monotonic clock."""
        self.survey: Survey | None = None
        self.surveyor: Surveyor | None = None
        self.checks: list[CheckResult] = []
        self.looked_ms = 0
        """When the last look began that *checks* is of."""
        self.samples = Samples()
        self.changes = Changes()
        self.version = 0
        """Counts surveys and steps of redrives."""
        self.looked = asyncio.Semaphore(2)
        """Searches through the whole log, of which few may run at once."""
        self.runs: dict[int, RedriveRun] = {}
        self._before: Survey | None = None
        """The survey before the last one: rates are differences."""
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Keep the survey up to date until the body ends; then end redrives in order."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self.stop()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=10.0)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    @property
    def is_stopping(self) -> bool:
        """Whether the console is about to end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End redrives and streams in order."""
        self._stop.set()
        for run in self.runs.values():
            run.stop.set()
        self._tell()

    async def changed(self, timeout_s: float) -> None:
        """Return when something has changed, or after *timeout_s*."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)

    async def letters(self) -> LetterWatch | None:
        """Return the dead letters, read as far as that takes little time; None before the first look. Raises
        BusError."""
        if self.surveyor is not None:
            watch = self.surveyor.letters
            await watch.read_on_within(_LETTERS_S if watch.is_whole else 0.0)
        return None if self.surveyor is None else self.surveyor.letters

    async def letter_state(self, place: str) -> LetterState | None:
        """Return the state recorded for the dead letter at *place*. Raises BusError."""
        watch = await self.letters()
        if watch is not None and watch.is_whole:
            return await watch.states.at(place)
        found = await load_states(self.transport, self.settings.bus.namespace, lambda each, _: each == place)
        return found.get(place)

    async def registry(self) -> Registry:
        """Return the message types of the apps, and those that agents of the namespace describe.

        They are read again after half a minute; where they cannot be read, those that were known count.
        """
        now_s = self.clock.monotonic_s()
        known = self._types
        if known is not None and now_s - known[1] < _TYPES_S:
            return known[0]
        found = Registry([], below=BUILT_IN) if known is None else known[0]
        if self._read_types is not None:
            with contextlib.suppress(BusError):
                found = await self._read_types()
        self._types = found, now_s
        return found

    def verifier(self) -> Verifier | None:
        """Return the trusted keys. Raises ConfigurationError."""
        return believed_keys(self.settings, self.clock)

    def audit(self) -> AbstractAsyncContextManager[AuditStore | None]:
        """Open the audit's store; None if there is none yet. Raises BusError where it does not answer."""
        return read_audit(self.settings)

    async def of_audit(self, read: Callable[[AuditStore], Awaitable[_T]]) -> _T | NotRead | None:
        """Return what *read* returns of the audit; None if there is none yet.

        Waits little: for a part of a page that is of use without it.
        """
        known = None if self.survey is None or self.survey.audit is None else self.survey.audit.error
        if known:
            return NotRead(known)
        try:
            async with asyncio.timeout(_AUDIT_S), self.audit() as store:
                return None if store is None else await read(store)
        except TimeoutError:
            return NotRead(f"its database did not answer in {_AUDIT_S:g} s")
        except BusError as error:
            return NotRead(text_of(error))

    async def of_processes(self, read: Callable[[ProcessStore], Awaitable[_T]]) -> _T | NotRead:
        """Return what *read* returns of the store of processes, in the inbox. Waits as little as for the audit."""
        try:
            async with asyncio.timeout(_INBOX_S), opened_store(self.settings, None) as store:
                return await read(store)
        except TimeoutError:
            return NotRead(f"the inbox did not answer in {_INBOX_S:g} s")
        except (ConfigurationError, BusError) as error:
            return NotRead(text_of(error))

    def start_redrive(self, selection: Selection, *, who: str, why: str, is_dry: bool) -> RedriveRun:
        """Begin to count what *selection* means, and unless *is_dry* to send it back.

        Where that is being done already, return the run that does it.
        """
        for known in self.runs.values():
            same = (known.selection.cause, known.selection.places) == (selection.cause, selection.places)
            if same and known.is_dry == is_dry and not known.is_ended:
                return known
        number = max(self.runs, default=0) + 1
        run = self.runs[number] = RedriveRun(number=number, who=who, why=why, selection=selection, is_dry=is_dry)
        for old in [each for each in self.runs if each <= number - _MAX_RUNS]:
            del self.runs[old]
        task = asyncio.create_task(self._redrive(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    async def _redrive(self, run: RedriveRun) -> None:
        def passed(result: RedriveResult) -> None:
            run.result = result
            if result.sent >= run.meant > 0:
                run.phase = "waiting"
            self._tell()

        try:
            async with self._turn:
                run.phase = "counting"
                self._tell()
                await prepare_journal(self.transport, self.settings, create=not run.is_dry)
                journal = Journal(
                    self.transport, self.settings, self.clock, verb="redrive", why=run.why, by=f"{run.who} (console)"
                )
                redrive = Redrive(
                    self.transport, self.settings, self.clock, run.selection, RedriveOrders(), journal=journal
                )
                run.plan = await redrive.plan()
                run.phase = "planned" if run.is_dry else "sending"
                self._tell()
                if not run.is_dry:
                    check_recipients(await recipients_of(self.transport, self.settings.bus.namespace, run.plan))
                    run.result = await redrive.run(stop=run.stop, wait=True, on_progress=passed)
                    run.phase = "done"
                    self._note_redrive(run)
        except (BusError, ConfigurationError) as error:
            run.phase, run.error = "failed", str(error)
        except Exception as error:  # noqa: BLE001 - the page says what has failed
            run.phase, run.error = "failed", f"{type(error).__name__}: {text_of(error)}"
            _log.exception("console.redrive_failed", run=run.number)
        self._tell()

    def _end_idle_runs(self, survey: Survey) -> None:
        """End the runs that wait for groups without a worker: what was sent waits in the log for the next worker."""
        members = {group.name: group.members for group in survey.groups}
        for run in self.runs.values():
            idle = tuple(sorted(group for group in run.groups if group and not members.get(group, 0)))
            if run.phase == "waiting" and idle:
                run.stopped_groups = idle
                run.stop.set()

    def _note_redrive(self, run: RedriveRun) -> None:
        failures = 0 if run.result is None else run.result.failures
        text = f"{run.sent:,} dead letters were sent back" + (f", {failures:,} died again" if failures else "")
        text += f"; {', '.join(run.stopped_groups)} has no worker" if run.stopped_groups else ""
        kind: Literal["fault", "ok"] = "fault" if failures else "ok"
        self.changes.add(SeenChange(kind, text, f"by {run.who}: {run.why}", self.clock.now_ms(), f"/runs/{run.number}"))

    async def _watch(self) -> None:
        async with opened_examiner(
            self.transport, self.settings, self.clock, letters_within_s=_FIRST_LETTERS_S
        ) as examiner:
            self.surveyor = examiner.surveyor
            while True:
                begun_s = self.clock.monotonic_s()
                try:
                    looked = await examiner.look()
                    self.checks, self.looked_ms = list(looked.results), looked.taken_ms
                    self.survey = looked.survey or self.survey
                    self.changes.look(
                        looked.taken_ms, looked.results, None if looked.survey is None else looked.survey.agents
                    )
                    if looked.survey is not None:
                        self._end_idle_runs(looked.survey)
                        self.samples.add(looked.taken_ms, self._figures(looked.survey))
                except Exception as error:  # noqa: BLE001 - one look that fails must not be the last
                    _log.exception("console.blind")
                    self.checks = [fault("console", text_of(error), "see its log")]
                self._tell()
                # A namespace that takes long to read is read less often.
                pause_s = 2 * (self.clock.monotonic_s() - begun_s)
                await self.clock.sleep(min(max(_EVERY_S, pause_s), _LONGEST_S))

    def _figures(self, survey: Survey) -> dict[str, float]:
        """Return what is kept of a look for the lines of the pages."""
        before, seen = self._before, survey.taken_ms
        self._before = survey
        ages_s = [group.oldest_s for group in survey.groups if group.oldest_s is not None]
        figures = {"oldest_s": max(ages_s, default=0.0)}
        # While dead letters are read for the first time their number grows without any death.
        if survey.letters.is_whole:
            figures["letters"] = float(survey.letters.count)
            for name, (_, count, _) in zip(survey.letters.names, survey.letters.causes[:_MAX_CAUSES], strict=False):
                figures[f"cause {name}"] = float(count)
        if not (survey.work.unseen or survey.work.error):
            figures["approvals"] = float(survey.work.approvals)
        elapsed_s = 0.0 if before is None else max(0, seen - before.taken_ms) / 1000
        known = {} if before is None else {group.name: group for group in before.groups}
        settled_s = 0.0
        for at, group in enumerate(sorted(survey.groups, key=lambda each: -(each.oldest_s or 0.0))):
            last = known.get(group.name)
            out_s = 0.0 if last is None or not elapsed_s else max(0, group.settled - last.settled) / elapsed_s
            settled_s += out_s
            if at >= _MAX_GROUPS:
                continue
            figures[f"{group.name} oldest_s"] = group.oldest_s or 0.0
            figures[f"{group.name} lag"] = float(group.lag)
            if last is not None and elapsed_s:
                figures[f"{group.name} out"] = out_s
                figures[f"{group.name} in"] = max(0, group.appended - last.appended) / elapsed_s
        if elapsed_s:
            figures["settled"] = settled_s
        for agent in survey.agents[:_MAX_AGENTS]:
            figures[f"agent {agent.agent_id}"] = float(agent.active_tasks or 0)
            figures |= _speed_of(agent)
        return figures

    def _tell(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _speed_of(agent: AgentEntry) -> dict[str, float]:
    times = run_times_of(agent.runs)
    if times is None:
        return {}
    figures = {"a_minute": times.a_minute, "retried": times.retried_a_minute}
    if times.half_s is not None and times.most_s is not None:
        # A line needs a number for what is longer than was counted.
        figures |= {"half_s": min(times.half_s, _LONGEST_RUN_S), "most_s": min(times.most_s, _LONGEST_RUN_S)}
    return {f"agent {agent.agent_id} {name}": value for name, value in figures.items()}
