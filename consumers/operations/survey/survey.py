"""Survey: the state of a namespace, read once: groups, dead letters, processes, approvals, agents.

Every door (doctor, exporter, top) shows the same value, so they tell one story.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from bus.clock import Clock
from bus.errors import BusError, TopicMissingError
from bus.settings.schema import Settings
from bus.topics.names import read_topic
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import GroupInfo, PartitionRange, Transport
from bus.trust.opening import keyless, open_trust
from consumers.delivery.inbox.open import inbox_url, is_missing_file, open_inbox
from consumers.operations.survey.letter_watch import LetterWatch, OpenLetters
from consumers.processes.approvals.state import APPROVAL_SAGA
from consumers.processes.sagas.store import ProcessStore
from producers.directory.presence import AgentEntry, DirectorySize
from producers.directory.view import Directory

__all__ = [
    "GroupState",
    "HeldUp",
    "Survey",
    "Surveyor",
    "WorkState",
    "group_ranges",
    "opened_directory",
    "opened_surveyor",
    "state_of_group",
    "topics_of",
]

_OVERDUE_MS: Final = 60_000
_MAX_WAITS: Final = 1_000


class GroupState(msgspec.Struct, frozen=True, kw_only=True):
    """One group: its readers and its backlog."""

    name: str
    members: int
    lag: int
    """Stored records that are not settled."""
    worst: str
    """The topic in which most of them are; empty without lag."""
    still_s: float = 0.0
    """For how long records have waited here without a commit, as far as this surveyor has watched."""
    stands: int
    """Partitions whose next record was deleted: no worker reads them."""


class HeldUp(msgspec.Struct, frozen=True, kw_only=True):
    """A partition whose records lie behind a transaction that another program has left open."""

    topic: str
    partition: int
    records: int
    for_s: float
    """For how long, as far as this surveyor has watched."""


class WorkState(msgspec.Struct, frozen=True, kw_only=True):
    """What processes wait for. *error* is why it is unknown."""

    open: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Open processes by saga."""
    overdue: int = 0
    approvals: int = 0
    oldest_approval_ms: int | None = None
    error: str = ""


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The namespace at one moment; texts of agents are untrusted."""

    taken_ms: int
    groups: tuple[GroupState, ...]
    letters: OpenLetters
    work: WorkState
    agents: tuple[AgentEntry, ...]
    held_up: tuple[HeldUp, ...] = ()
    directory: DirectorySize = DirectorySize()


class Surveyor:
    """Takes surveys of one namespace; reuses data that need not be read again."""

    def __init__(self, transport: Transport, settings: Settings, directory: Directory, clock: Clock) -> None:
        self._transport = transport
        self._settings = settings
        self._directory = directory
        self._clock = clock
        self.letters = LetterWatch(transport, settings.bus.namespace)
        self._moves: dict[str, tuple[Mapping[tuple[str, int], int], float]] = {}
        """By group, its committed offsets and since when they are unchanged."""
        self._stalled_since_s: dict[tuple[str, int, int], float] = {}
        """By partition and its last readable offset, since when records are behind a transaction."""

    async def take(self) -> Survey:
        """Look at everything. Raises BusError where the log cannot be read."""
        infos = await NamespaceGroups(self._transport.admin, self._settings.bus.namespace).infos()
        ranges = await group_ranges(self._transport, infos, self._settings.bus.namespace)
        return Survey(
            taken_ms=self._clock.now_ms(),
            groups=self._groups(infos, ranges),
            held_up=await self._held_up(ranges),
            letters=await self.letters.look(),
            work=await self._work(),
            agents=tuple(each for each in await self._directory.find(healthy=None) if each.health != "gone"),
            directory=self._directory.size,
        )

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

    def _groups(
        self, infos: Sequence[GroupInfo], ranges: Mapping[tuple[str, int], PartitionRange]
    ) -> tuple[GroupState, ...]:
        states = [
            state_of_group(info, ranges, self._still_s(info))
            for info in infos
            if any(location[0] in topics_of(info) for location in ranges)
        ]
        return tuple(sorted(states, key=lambda state: (-state.stands, state.members > 0, -state.lag, state.name)))

    def _still_s(self, info: GroupInfo) -> float:
        now_s = self._clock.monotonic_s()
        known = self._moves.get(info.name)
        if known is None or known[0] != info.committed:
            known = self._moves[info.name] = (dict(info.committed), now_s)
        return now_s - known[1]

    async def _work(self) -> WorkState:
        url = inbox_url(self._settings)
        if url is None or url.startswith("memory:") or is_missing_file(url):
            return WorkState()
        inbox = open_inbox(
            url, owner="sealbus operations", clock=self._clock, shared_files=self._settings.bus.shared_files
        )
        try:
            await inbox.open()
            store = ProcessStore(inbox, namespace=self._settings.bus.namespace, group=None, clock=self._clock)
            await store.open()
            overdue = await store.waits(overdue_ms=_OVERDUE_MS, max_rows=_MAX_WAITS)
            pending = await store.processes(saga=APPROVAL_SAGA, status="open", max_rows=_MAX_WAITS)
            return WorkState(
                open=await store.open_by_saga(),
                overdue=len(overdue),
                approvals=len(pending),
                oldest_approval_ms=min((each.opened_ms for each in pending), default=None),
            )
        except BusError as error:
            return WorkState(error=str(error))
        finally:
            await inbox.close()


def topics_of(info: GroupInfo) -> set[str]:
    """Return the topics that a group reads, or has read."""
    return {topic for locations in (info.committed, info.uncommitted, *info.members.values()) for topic, _ in locations}


async def group_ranges(
    transport: Transport, infos: Iterable[GroupInfo], namespace: str
) -> dict[tuple[str, int], PartitionRange]:
    """Return the stored offsets of each partition that *infos* read in *namespace*. Raises BusError."""
    ranges: dict[tuple[str, int], PartitionRange] = {}
    for topic in sorted({topic for info in infos for topic in topics_of(info)}):
        name = read_topic(topic)
        if name is None or name.namespace != namespace:
            continue
        try:
            found = await transport.admin.ranges(topic)
        except TopicMissingError:
            continue
        ranges |= {(topic, partition): retained for partition, retained in found.items()}
    return ranges


def state_of_group(
    info: GroupInfo, ranges: Mapping[tuple[str, int], PartitionRange], still_s: float = 0.0
) -> GroupState:
    """Return the progress of a group, from the stored offsets (`group_ranges`)."""
    lags: dict[str, int] = {}
    stands = 0
    topics = topics_of(info)
    for location, retained in ranges.items():
        if location[0] not in topics:
            continue
        committed = info.committed.get(location)
        stands += committed is not None and not retained.start <= committed <= retained.end
        lag = max(0, retained.end - max(retained.start, retained.start if committed is None else committed))
        lags[location[0]] = lags.get(location[0], 0) + lag
    total = sum(lags.values())
    worst = max(lags, key=lambda topic: lags[topic]) if total else ""
    return GroupState(
        name=info.name,
        members=len(info.members),
        lag=total,
        worst=worst,
        still_s=still_s if total else 0.0,
        stands=stands,
    )


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
async def opened_surveyor(transport: Transport, settings: Settings, clock: Clock) -> AsyncGenerator[Surveyor]:
    """Yield what surveys the namespace of *settings*. Raises ConfigurationError for keys or policy that are wrong."""
    async with opened_directory(transport, settings, clock) as directory:
        yield Surveyor(transport, settings, directory, clock)
