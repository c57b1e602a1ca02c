"""Survey: the state of a namespace, read once: groups, dead letters, processes, approvals, agents.

Every door (doctor, exporter, top) shows the same value, so they tell one story.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from bus.clock import Clock
from bus.errors import BusError, NotPermittedError
from bus.protocol.signatures import Verifier
from bus.settings.schema import Settings
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import GroupInfo, PartitionRange, Transport
from bus.trust.opening import believed_keys, keyless, open_trust
from consumers.delivery.inbox.open import inbox_url, is_missing_file, open_inbox
from consumers.operations.survey.approval_watch import ApprovalWatch
from consumers.operations.survey.audit_view import AuditState, look_at_audit
from consumers.operations.survey.group_state import (
    GroupState,
    dropped_out,
    first_unsettled,
    group_ranges,
    state_of_group,
    topics_of,
)
from consumers.operations.survey.letter_watch import LetterWatch, OpenLetters
from consumers.operations.survey.log_probe import LogHealth, LogProbe
from consumers.operations.survey.results import CheckResult
from consumers.operations.survey.topics_view import TopicsView, look_at_topics
from consumers.processes.approvals.state import APPROVAL_SAGA
from consumers.processes.sagas.process import Process, failure_of
from consumers.processes.sagas.store import ProcessStore
from producers.directory.hold_ups import HoldUp
from producers.directory.presence import AgentEntry, DirectorySize
from producers.directory.view import Directory

__all__ = [
    "FailedProcesses",
    "HeldUp",
    "Survey",
    "Surveyor",
    "WorkState",
    "opened_directory",
    "opened_surveyor",
]

_OVERDUE_MS: Final = 60_000
_MAX_WAITS: Final = 1_000
_TOPICS_EVERY_S: Final = 10.0
"""Settings of topics are read more rarely: on Kafka each look at them asks for every topic."""
_LATELY_MS: Final = 900_000
_MAX_ENDED: Final = 200
_TREND_S: Final = 20.0
"""A backlog is compared with what it was so long ago."""
_MAX_READ: Final = 64
"""How many partitions are read at a look for the age of their first unsettled record, those with most records first."""


class HeldUp(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose records lie behind a transaction that another program has left open."""

    topic: str
    partition: int
    records: int
    for_s: float
    """For how long, as far as this surveyor has watched."""


class FailedProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of one saga that have failed or timed out lately."""

    saga: str
    failed: int
    ended: int
    """How many have ended in that time, whatever their outcome."""
    reason: str
    """The most frequent one, with its number where there are others; untrusted."""


class WorkState(msgspec.Struct, frozen=True, kw_only=True):
    """What processes wait for. *error* is why it is unknown."""

    open: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Open processes by saga."""
    overdue: int = 0
    approvals: int = 0
    oldest_approval_ms: int | None = None
    failed: tuple[FailedProcesses, ...] = ()
    """Sagas of which processes have failed or timed out in the last quarter of an hour, most first."""
    elsewhere: Mapping[str, int] | None = msgspec.field(default_factory=dict)
    """By group, the approvals that are open in the log, and that this inbox does not know; None: not looked at."""
    error: str = ""
    unseen: str = ""
    """Why they were not looked at."""


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The namespace at one moment; texts of agents are untrusted."""

    taken_ms: int
    groups: tuple[GroupState, ...]
    letters: OpenLetters
    work: WorkState
    agents: tuple[AgentEntry, ...]
    held_up: tuple[HeldUp, ...] = ()
    log: LogHealth = LogHealth()
    topics: TopicsView | None = None
    """None: not looked at."""
    audit: AuditState | None = None
    """None: there is none."""
    directory: DirectorySize = DirectorySize()
    checks: tuple[CheckResult, ...] = ()
    """What it means, worst first, where that is told with it."""


class Surveyor:
    """Takes surveys of one namespace; reuses data that need not be read again."""

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        directory: Directory,
        clock: Clock,
        *,
        letters_within_s: float | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        """Survey the namespace of *settings*; *letters_within_s* is how long a look waits for dead letters to be read.

        None: until all are read.
        """
        self._letters_within_s = letters_within_s
        self._transport = transport
        self._settings = settings
        self._directory = directory
        self._clock = clock
        self.letters = LetterWatch(transport, settings.bus.namespace)
        self._approvals = ApprovalWatch(transport, settings.bus.namespace, verifier)
        self._moves: dict[str, tuple[Mapping[tuple[str, int], int], float]] = {}
        """By group, its committed offsets and since when they are unchanged."""
        self._stalled_since_s: dict[tuple[str, int, int], float] = {}
        """By partition and its last readable offset, since when records are behind a transaction."""
        self._probe = LogProbe(transport, settings.bus.namespace, clock)
        self._appended_ms: dict[tuple[str, int, int], int] = {}
        """By topic, partition and offset of each first unsettled record, when it was appended."""
        self._lags: dict[str, deque[tuple[float, int]]] = {}
        """By group, its backlog at the last looks."""
        self._failed: tuple[tuple[FailedProcesses, ...], float] = ((), -math.inf)
        """Processes that failed lately, and when they were looked for."""
        self._topics: TopicsView | None = None
        self._topics_s = -math.inf
        self._audit: tuple[AuditState | None, float] = (None, -math.inf)
        """How the audit is, and when that was looked at."""

    async def take(self) -> Survey:
        """Look at everything. Raises BusError where the log cannot be read."""
        existing = frozenset(await self._transport.admin.topics())
        loop = asyncio.get_running_loop()
        probing = loop.create_task(self._probe.look(existing))
        # A database that hangs must not keep the look at the log, nor at another database, waiting.
        working, auditing = loop.create_task(self._look_at_work()), loop.create_task(self._look_at_audit())
        try:
            return await self._take(existing, probing, working, auditing)
        finally:
            for task in (probing, working, auditing):
                task.cancel()
            # Where the log cannot be read, each of them fails for it.
            await asyncio.gather(probing, working, auditing, return_exceptions=True)

    async def _take(
        self,
        existing: frozenset[str],
        probing: asyncio.Task[LogHealth],
        working: asyncio.Task[WorkState],
        auditing: asyncio.Task[AuditState | None],
    ) -> Survey:
        agents = tuple(each for each in await self._directory.find(healthy=None) if each.health != "gone")
        infos = await NamespaceGroups(self._transport.admin, self._settings.bus.namespace).infos()
        ranges = await group_ranges(self._transport, infos, self._settings.bus.namespace)
        held_up, letters = await self._held_up(ranges), await self.letters.look(self._letters_within_s)
        log = await probing
        return Survey(
            taken_ms=self._clock.now_ms(),
            groups=await self._groups(infos, ranges, agents, log.clock_offset_s or 0.0),
            held_up=held_up,
            letters=letters,
            work=await working,
            agents=agents,
            log=log,
            topics=await self._look_at_topics(existing, infos),
            audit=await auditing,
            directory=self._directory.size,
        )

    async def look_at_group(self, info: GroupInfo) -> GroupState | None:
        """Look at one group alone; None where it reads nothing of this namespace. Raises BusError."""
        ranges = await group_ranges(self._transport, [info], self._settings.bus.namespace)
        agents = await self._directory.find(healthy=None)
        return next(iter(await self._groups([info], ranges, agents, 0.0)), None)

    async def _look_at_audit(self) -> AuditState | None:
        if self._clock.monotonic_s() - self._audit[1] >= _TOPICS_EVERY_S:
            found = await look_at_audit(self._transport, self._settings, self._clock.now_ms())
            self._audit = found, self._clock.monotonic_s()
        return self._audit[0]

    async def _look_at_topics(self, existing: frozenset[str], infos: Sequence[GroupInfo]) -> TopicsView | None:
        if self._clock.monotonic_s() - self._topics_s >= _TOPICS_EVERY_S:
            read = {topic for info in infos for topic in topics_of(info)}
            now_ms = self._clock.now_ms()
            self._topics = await look_at_topics(self._transport, self._settings, existing, read, now_ms)
            self._topics_s = self._clock.monotonic_s()
        return self._topics

    async def _read_first(self, infos: Sequence[GroupInfo], ranges: Mapping[tuple[str, int], PartitionRange]) -> None:
        """Learn when the first unsettled record of each group was appended, by partition.

        A partition whose commit stands is not read again.
        """
        wanted = {
            (*location, at): ranges[location].end - at
            for info in infos
            for location, at in first_unsettled(info, ranges)
        }
        self._appended_ms = {place: known for place, known in self._appended_ms.items() if place in wanted}
        unknown = sorted(wanted.keys() - self._appended_ms.keys(), key=lambda place: -wanted[place])
        for topic, partition, at in unknown[:_MAX_READ]:
            records = await self._transport.read(topic, partition, at, max_records=1, max_bytes=1)
            if records:
                self._appended_ms[topic, partition, at] = records[0].timestamp_ms

    def _oldest_s(self, info: GroupInfo, ranges: Mapping[tuple[str, int], PartitionRange], now_ms: int) -> float | None:
        places = [(*location, at) for location, at in first_unsettled(info, ranges)]
        ages_s = [(now_ms - known) / 1000 for place in places if (known := self._appended_ms.get(place)) is not None]
        return max(0.0, *ages_s) if ages_s else None

    def _lag_before(self, group: str, lag: int) -> int | None:
        """Return the backlog of *group* some time ago, and keep *lag*, the present one."""
        now_s, kept = self._clock.monotonic_s(), self._lags.setdefault(group, deque())
        while len(kept) > 1 and kept[1][0] <= now_s - _TREND_S:
            kept.popleft()
        before = kept[0][1] if kept else None
        kept.append((now_s, lag))
        return before

    async def _held_up(self, ranges: Mapping[tuple[str, int], PartitionRange]) -> tuple[HeldUp, ...]:
        counts = await self._transport.admin.held_up(ranges)
        now_s = self._clock.monotonic_s()
        # As long as it stands at the same offset it is the same transaction.
        self._stalled_since_s = {
            (*location, ranges[location].end): self._stalled_since_s.get((*location, ranges[location].end), now_s)
            for location in counts
        }
        return tuple(
            HeldUp(topic=topic, partition=partition, records=counts[topic, partition], for_s=now_s - since_s)
            for (topic, partition, _), since_s in sorted(self._stalled_since_s.items())
        )

    async def _groups(
        self,
        infos: Sequence[GroupInfo],
        ranges: Mapping[tuple[str, int], PartitionRange],
        agents: Sequence[AgentEntry],
        clock_offset_s: float,
    ) -> tuple[GroupState, ...]:
        await self._read_first(infos, ranges)
        # A wrong clock of this machine must not make records older than they are.
        now_ms = self._clock.now_ms() - round(clock_offset_s * 1000)
        told: dict[str, list[HoldUp]] = {}
        for agent in agents:
            for group, hold_up in agent.hold_ups:
                told.setdefault(group, []).append(hold_up)
        unbelieved = self._directory.size.unbelieved
        lost = Counter(group for agent in agents if agent.agent_id not in unbelieved for group in agent.lost_groups)
        heard = Counter(group for agent in agents for group in agent.heard_groups)
        states = []
        for info in infos:
            if not any(location[0] in topics_of(info) for location in ranges):
                continue
            lag = sum(ranges[location].end - at for location, at in first_unsettled(info, ranges))
            state = state_of_group(
                info,
                ranges,
                self._still_s(info),
                oldest_s=self._oldest_s(info, ranges, now_ms),
                lag_before=self._lag_before(info.name, lag),
                hold_ups=sorted(told.get(info.name, ()), key=lambda each: each.since_ms),
                lost=dropped_out(info, lost, heard),
            )
            states.append(state)
        return tuple(sorted(states, key=lambda state: (-state.stands, state.members > 0, -state.lag, state.name)))

    def _still_s(self, info: GroupInfo) -> float:
        now_s = self._clock.monotonic_s()
        known = self._moves.get(info.name)
        if known is None or known[0] != info.committed:
            known = self._moves[info.name] = (dict(info.committed), now_s)
        return now_s - known[1]

    async def _failed_lately(self, store: ProcessStore) -> tuple[FailedProcesses, ...]:
        found, looked_s = self._failed
        if self._clock.monotonic_s() - looked_s < _TOPICS_EVERY_S:
            return found
        since_ms = self._clock.now_ms() - _LATELY_MS
        ended = [
            each
            for each in await store.processes(status="finished", max_rows=_MAX_ENDED)
            if each.changed_ms >= since_ms
        ]
        self._failed = failed_processes(ended), self._clock.monotonic_s()
        return self._failed[0]

    async def _look_at_work(self) -> WorkState:
        # The log first: what it asks for has been stored before.
        return await self._work(await self._open_in_log())

    async def _open_in_log(self) -> Mapping[str, frozenset[str]] | None:
        """Return the approvals that are open in the log; None where this reader may not see them. Raises BusError."""
        try:
            return await self._approvals.look(self._clock.now_ms())
        except NotPermittedError:
            return None

    async def _work(self, open_in_log: Mapping[str, frozenset[str]] | None) -> WorkState:
        url = inbox_url(self._settings)
        if url is None:
            return WorkState(unseen="inbox.url names no database")
        if url.startswith("memory:") or is_missing_file(url):
            return WorkState(unseen="the inbox does not exist yet")
        inbox = open_inbox(
            url, owner="sealbus operations", clock=self._clock, shared_files=self._settings.bus.shared_files
        )
        try:
            await inbox.open()
            store = ProcessStore(inbox, namespace=self._settings.bus.namespace, group=None, clock=self._clock)
            await store.open()
            overdue = await store.waits(overdue_ms=_OVERDUE_MS, max_rows=_MAX_WAITS)
            open_by_saga = await store.open_by_saga()
            return WorkState(
                open=open_by_saga,
                overdue=len(overdue),
                approvals=open_by_saga.get(APPROVAL_SAGA, 0),
                oldest_approval_ms=await store.oldest_open_ms(APPROVAL_SAGA),
                failed=await self._failed_lately(store),
                elsewhere=None
                if open_in_log is None
                else {
                    group: unknown
                    for group, ids in sorted(open_in_log.items())
                    if (unknown := len(ids - await store.known_keys(APPROVAL_SAGA, group, sorted(ids))))
                },
            )
        except BusError as error:
            return WorkState(error=str(error))
        finally:
            await inbox.close()


def failed_processes(ended: Sequence[Process]) -> tuple[FailedProcesses, ...]:
    """Return by saga how many of the processes *ended*, the last one first, have failed or timed out. Pure."""
    counts, failed, reasons = Counter[str](), Counter[str](), dict[str, Counter[str]]()
    for process in ended:
        counts[process.saga] += 1
        if (ending := failure_of(process)) is not None:
            failed[process.saga] += 1
            reasons.setdefault(process.saga, Counter())[ending.reason] += 1
    return tuple(
        FailedProcesses(saga=saga, failed=number, ended=counts[saga], reason=_mostly(reasons[saga]))
        for saga, number in failed.most_common()
    )


def _mostly(reasons: Counter[str]) -> str:
    """Return the most frequent of *reasons*, with its number where there are others."""
    (reason, number), *others = reasons.most_common()
    return f"{number:,} of them {reason}" if others else reason


@asynccontextmanager
async def opened_directory(transport: Transport, settings: Settings, clock: Clock) -> AsyncGenerator[Directory]:
    """Yield the directory of the namespace of *settings*. Raises ConfigurationError for keys or policy that are
    wrong."""
    trust = open_trust(keyless(settings), "", clock=clock)
    directory = Directory(
        transport,
        namespace=settings.bus.namespace,
        verifier=trust.verifier,
        policy=trust.policy,
        clock=clock,
        healthy_s=settings.directory.healthy_s,
        max_agents=settings.directory.max_agents,
    )
    try:
        yield directory
    finally:
        await directory.close()


@asynccontextmanager
async def opened_surveyor(
    transport: Transport, settings: Settings, clock: Clock, *, letters_within_s: float | None = None
) -> AsyncGenerator[Surveyor]:
    """Yield what surveys the namespace of *settings*. Raises ConfigurationError for keys or policy that are wrong."""
    async with opened_directory(transport, settings, clock) as directory:
        keys = believed_keys(settings, clock)
        surveyor = Surveyor(transport, settings, directory, clock, letters_within_s=letters_within_s, verifier=keys)
        try:
            yield surveyor
        finally:
            await surveyor.letters.close()
