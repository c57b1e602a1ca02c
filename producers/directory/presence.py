"""Presence: the agents that are up, from cards, heartbeats and goodbyes. Pure.

An agent is healthy if one of its instances is. An instance is healthy if it sent a heartbeat within `healthy_s`, by the
reader's monotonic clock, and does not report itself unhealthy. Records of an instance count in the order in which they
were sealed: a repeated or older record changes nothing, whatever the order of reading. An instance without heartbeat
for ten times `healthy_s` is removed. The numbers of agents, instances and cards are limited: if all entries belong to
live agents, new ones are dropped and counted.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec

from bus.protocol.identifiers import is_message_type, uuid7_ms
from bus.topics.names import read_topic
from bus.vocabulary.agent import CurrentTask, RecentRuns
from bus.vocabulary.parts import AgentCard
from producers.directory.hold_ups import HoldUp, of_card

__all__ = [
    "FORGET_AFTER",
    "MAX_DOING",
    "NO_WORK",
    "AgentEntry",
    "DirectorySize",
    "GroupMember",
    "Health",
    "Instance",
    "Presence",
    "PresenceLimits",
    "RefusedRecords",
    "Work",
    "accepts_version",
    "member_of_card",
    "member_on_card",
]

_MAX_TYPES: Final = 256
_MAX_VERSION: Final = 64
_MEMBER_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MARK: Final = re.compile(r"[0-9a-z]{1,16}")
MAX_DOING: Final = 8
"""Maximum tasks in one heartbeat: it is small, and the longest ones matter."""
_MAX_DOING: Final = 64
"""Maximum tasks of one agent."""
Health: TypeAlias = Literal["healthy", "unhealthy", "gone"]

FORGET_AFTER: Final = 10.0
"""An instance that is silent for so many times `healthy_s` is forgotten."""
_SILENT: Final = 0.7
"""An instance that is silent for this share of `healthy_s`, two heartbeats, is called silent."""
_STEADY: Final = 3.0
"""An agent that has lost no instance for so many times `healthy_s` is steady again."""
_OFFSETS: Final = 3
_AT_A_STEP: Final = 64
_NEVER: Final = float("-inf")
_ALWAYS: Final = float("inf")
_carded: Final = attrgetter("carded_ms")


class GroupMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One worker of an agent, by its card. An older card lacks parts of it, which are then not known."""

    group: str
    name: str = ""
    """Its member name in the group: host, process, and some digits; empty: not known."""
    inbox: str = ""
    """The mark of its inbox (`consumers.delivery.inbox.store_mark`); empty: not known."""
    handled: tuple[str, ...] = ()
    """The message types that it handles, sorted."""
    since_ms: int | None = None
    """When it began, by its own clock, Unix time in milliseconds; None: not known."""


class Work(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a heartbeat tells of the work of an instance."""

    doing: tuple[CurrentTask, ...] = ()
    places: int | None = None
    busy: int | None = None
    runs: RecentRuns | None = None


NO_WORK: Final = Work()


class PresenceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a directory. In total it has at most 4 * *agents* instances."""

    agents: int = 10_000
    instances: int = 1_000
    """Maximum instances of one agent."""
    card_bytes: int = 32 * 1_048_576
    """Maximum bytes of all cards, as stored in the log."""
    card_bytes_of_agent: int = 1_048_576


class RefusedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Cards and heartbeats that a gate refused for one reason, and that name one sender."""

    reason: str
    agent_id: str
    """The sender by the records' keys, which nothing proves; empty: no legal id."""
    count: int


class DirectorySize(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a directory, and the records it has dropped."""

    agents: int = 0
    instances: int = 0
    refused: int = 0
    """Records that a gate refused."""
    refused_lately: tuple[RefusedRecords, ...] = ()
    """Those that came within the last minute, most first."""
    dropped: int = 0
    """Records for which there was no place."""

    @property
    def unbelieved(self) -> frozenset[str]:
        """The agents that records name which were refused for their key: whether those are silent is not known."""
        return frozenset(each.agent_id for each in self.refused_lately if each.reason.startswith("key_"))


class Instance(msgspec.Struct, kw_only=True, gc=False):
    """One running copy of an agent. Times in milliseconds are those at which the instance sealed its records."""

    seen_s: float
    """When its last counted record arrived, on the reader's monotonic clock."""
    card: AgentCard | None = None
    types: frozenset[str] = frozenset()
    """Which it takes, by its card."""
    topic_types: tuple[str, ...] = ()
    """The types on its card whose topics it reads or appends to."""
    missing: tuple[str, ...] = ()
    """Topics that do not exist, and for which an output of it waits, by its card."""
    sealbus_version: str = ""
    """On which it runs, by its card; empty: an older one, or one that does not say."""
    group: str = ""
    """The consumer group of which it is a member, by its card."""
    hold_ups: tuple[HoldUp, ...] = ()
    """The messages for which others wait, by its card."""
    member: GroupMember | None = None
    """What it is in its group, by its card."""
    card_bytes: int = 0
    carded_ms: int = -1
    heard_s: float | None = None
    """When its newest heartbeat was heard, on the reader's monotonic clock."""
    heard_ms: int = -1
    left_ms: int = -1
    is_well: bool = True
    """Whether its last heartbeat reports it as healthy."""
    active_tasks: int | None = None
    doing: tuple[CurrentTask, ...] = ()
    """What its handlers run for, by its last heartbeat; times are of its own clock."""
    places: int | None = None
    busy: int | None = None
    runs: RecentRuns | None = None
    memory_mb: float | None = None
    """What its process uses, by its last heartbeat."""
    least_memory_mb: float = math.inf
    memory_limit_mb: float | None = None
    """What its process may use, by its card."""
    clock_offsets_s: tuple[float, ...] = ()
    """How far its clock was ahead of the log's when it sealed its last heartbeats (negative: behind, or under way)."""
    first_s: float = 0.0
    """When its first record arrived, on the reader's monotonic clock."""

    @property
    def clock_offset_s(self) -> float:
        """How far its clock is ahead of the log's (negative: behind).

        A heartbeat that was long under way looks like a clock that is behind: only several in a row do count.
        """
        offsets_s = self.clock_offsets_s
        return max(offsets_s, default=0.0) if len(offsets_s) == _OFFSETS else max(0.0, *offsets_s, 0.0)

    is_draining: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether its newest record is a goodbye."""
        return self.left_ms >= 0 and self.heard_ms <= self.left_ms >= self.carded_ms


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The known facts about an agent. Its name and description are untrusted text."""

    agent_id: str
    health: Health
    instances: int
    """Those that are healthy."""
    heard_s_ago: float | None
    name: str = ""
    capabilities: tuple[str, ...] = ()
    """The capabilities that count: granted by the policy, or without a policy those claimed."""
    claimed: tuple[str, ...] = ()
    """The capabilities on its card that the policy does not grant."""
    accepts: tuple[tuple[str, ...], ...] = ()
    """By healthy instance, the types and versions that it takes."""
    roles: tuple[str, ...] = ()
    active_tasks: int | None = None
    types: tuple[str, ...] = ()
    """The message types whose topics its healthy instances read or append to, by their cards."""
    missing: tuple[str, ...] = ()
    """Missing topics for which its instances have outputs waiting."""
    unwell: int = 0
    """Live instances that report that they are stuck or disconnected."""
    lost: int = 0
    """Instances that fell silent in the last minutes without a goodbye, and that no later one replaces."""
    heard_groups: tuple[str, ...] = ()
    """The group of each instance that is heard."""
    lost_groups: tuple[str, ...] = ()
    """The group of each of them, where no other instance of the group is heard."""
    silent: int = 0
    """All that fell silent so."""
    is_steady: bool = True
    """Whether the last one of them fell silent some time ago."""
    memory_mb: float | None = None
    """What the process of its largest live instance uses, in megabytes; None: it does not say."""
    memory_limit_mb: float | None = None
    """What that process may use; None: no limit is known."""
    clock_offset_s: float = 0.0
    """How far the worst clock of its live instances is ahead of the log's (negative: behind), in seconds."""
    grown_mb: float = 0.0
    """By how much that process has grown since it was first heard."""
    hold_ups: tuple[tuple[str, HoldUp], ...] = ()
    """By group, the messages for which others wait, as its live instances say."""
    members: tuple[GroupMember, ...] = ()
    """Its live instances as members of their groups, by their cards."""
    doing: tuple[CurrentTask, ...] = ()
    """What handlers of its live instances run for, as of their last heartbeats: the longest first, at most 8 of each
    instance and 64 in all."""
    places: int | None = None
    """How many handlers its live instances may run at once; None: no instance says."""
    busy: int | None = None
    """How many of these places are taken; None: no instance says."""
    runs: tuple[RecentRuns, ...] = ()
    """How long handlers took lately, by live instance; those that do not say are left out."""
    versions: tuple[str, ...] = ()
    """The versions of its app that run, by the cards of its healthy instances."""
    sealbus_versions: tuple[str, ...] = ()
    """The versions of sealbus on which they run; empty: no card says."""

    @property
    def is_healthy(self) -> bool:
        """Whether it is there and well."""
        return self.health == "healthy"


class _Agent:
    """The instances of one agent, the longest silent first, and its entry as long as that is true."""

    __slots__ = (
        "card",
        "card_bytes",
        "claimed",
        "entry",
        "granted",
        "heard_s",
        "instances",
        "stamped_s",
        "types",
        "until_s",
    )

    def __init__(self) -> None:
        self.instances: OrderedDict[str, Instance] = OrderedDict()
        self.card_bytes = 0
        self.entry: AgentEntry | None = None
        self.card: AgentCard | None = None
        """The card whose capabilities are divided into granted and only claimed ones."""
        self.granted: tuple[str, ...] | None = None
        """None: they have to be divided again."""
        self.claimed: tuple[str, ...] = ()
        self.types: frozenset[str] = frozenset()
        self.heard_s: float | None = None
        self.stamped_s = _NEVER
        """The time for which the entry's age of the last heartbeat was computed."""
        self.until_s = _NEVER
        """The time until which the entry is right if no record arrives."""


class Presence:
    """The instances of all agents. *granted_of* returns an agent's capabilities by the policy, None without one."""

    def __init__(
        self,
        healthy_s: float,
        *,
        limits: PresenceLimits | None = None,
        granted_of: Callable[[str], frozenset[str] | None] = lambda _: None,
    ) -> None:
        self._healthy_s = healthy_s
        self._limits = limits or PresenceLimits()
        self._granted_of = granted_of
        self._agents: dict[str, _Agent] = {}
        self._names: list[str] = []
        """Sorted."""
        self._silent: OrderedDict[tuple[str, str], None] = OrderedDict()
        """All instances, the longest silent first."""
        self._card_bytes = 0
        self.dropped = 0
        """Records for which there was no place."""

    @property
    def instances(self) -> int:
        """The number of known instances."""
        return len(self._silent)

    # What is heard.

    def carded(
        self, agent_id: str, session: str, card: AgentCard, *, sealed_ms: int, at_s: float, size: int = 0
    ) -> None:
        """Record the card of an instance, sealed at *sealed_ms*, *size* bytes in the log. It does not count as a
        heartbeat."""
        instance = self._instance(agent_id, session, at_s)
        if instance is None or sealed_ms <= instance.carded_ms:
            return
        agent, limits = self._agents[agent_id], self._limits
        more = size - instance.card_bytes
        if (
            agent.card_bytes + more > limits.card_bytes_of_agent or self._card_bytes + more > limits.card_bytes
        ) and more > 0:
            self.dropped += 1
            return
        agent.card_bytes += more
        self._card_bytes += more
        instance.card, instance.card_bytes, instance.carded_ms = card, size, sealed_ms
        instance.types = frozenset([each.partition("@")[0] for each in card.accepts])
        instance.topic_types = _listed(card, "types", is_message_type)
        instance.missing = _listed(card, "missing", _is_topic)
        group = card.metadata.get("group")
        instance.group = group if isinstance(group, str) else ""
        instance.hold_ups = of_card(card.metadata.get("hold_ups"))
        instance.member = member_of_card(card, session)
        version = card.metadata.get("sealbus")
        instance.sealbus_version = version[:_MAX_VERSION] if isinstance(version, str) else ""
        limit = card.metadata.get("memory_limit_mb")
        instance.memory_limit_mb = float(limit) if isinstance(limit, int | float) and limit > 0 else None
        self._note_status(agent_id, session, instance, at_s)

    def heard(
        self,
        agent_id: str,
        session: str,
        at_s: float,
        *,
        sealed_ms: int,
        is_well: bool,
        active_tasks: int | None,
        draining: bool,
        memory_mb: float | None = None,
        clock_offset_s: float = 0.0,
        work: Work = NO_WORK,
    ) -> None:
        """Note a heartbeat, sealed at *sealed_ms* and heard at *at_s*."""
        instance = self._instance(agent_id, session, at_s)
        if instance is None or sealed_ms <= instance.heard_ms:
            return
        instance.heard_ms, instance.is_well = sealed_ms, is_well
        instance.heard_s = at_s if instance.heard_s is None else max(instance.heard_s, at_s)
        instance.active_tasks, instance.is_draining = active_tasks, draining
        instance.clock_offsets_s = (*instance.clock_offsets_s, clock_offset_s)[-_OFFSETS:]
        instance.memory_mb = memory_mb
        instance.doing, instance.places, instance.busy = work.doing[:MAX_DOING], work.places, work.busy
        instance.runs = work.runs
        if memory_mb is not None:
            instance.least_memory_mb = min(instance.least_memory_mb, memory_mb)
        self._note_status(agent_id, session, instance, at_s)

    def left(self, agent_id: str, session: str, *, sealed_ms: int, at_s: float) -> None:
        """Record a goodbye of this instance only; records that it sealed later take precedence."""
        instance = self._instance(agent_id, session, at_s)
        if instance is None or sealed_ms <= instance.left_ms:
            return
        instance.left_ms = sealed_ms
        self._note_status(agent_id, session, instance, at_s)

    def forget(self, now_s: float) -> None:
        """Drop the instances that have been silent for ten times `healthy_s`."""
        while self._silent:
            agent_id, session = location = next(iter(self._silent))
            seen_s = self._agents[agent_id].instances[session].seen_s
            if now_s - seen_s <= FORGET_AFTER * self._healthy_s:
                return
            self._drop(*location)

    def regranted(self) -> None:
        """Note that the policy has changed."""
        for agent in self._agents.values():
            agent.until_s, agent.granted = _NEVER, None

    # What is known.

    def agents(self) -> Sequence[str]:
        """Return the ids of all agents that are known, in their order."""
        return self._names

    def entry(self, agent_id: str, now_s: float) -> AgentEntry | None:
        """Return the known facts about an agent now."""
        agent = self._agents.get(agent_id)
        return None if agent is None else _at(agent, self._entry(agent_id, agent, now_s), now_s, 0.0)

    def found(
        self,
        now_s: float,
        *,
        capability: str | None = None,
        message_type: str | None = None,
        role: str | None = None,
        healthy: bool | None = True,
        claimed: bool = False,
        late_s: float = 0.0,
    ) -> list[AgentEntry]:
        """Return the agents that match all filters, by their ids; *healthy* None matches any health.

        *late_s* is how late a missing heartbeat may show: entries that expired since then are left to `renewed`. The
        age of the last heartbeat is out of date by at most twice that.
        """
        found, since_s, stamped_s = list[AgentEntry](), now_s - late_s, now_s - 2 * late_s
        for agent_id in self._names:
            agent = self._agents[agent_id]
            entry = agent.entry
            if entry is None or since_s > agent.until_s:
                entry = self._entry(agent_id, agent, now_s)
            if healthy is not None and (entry.health == "healthy") is not healthy:
                continue
            if message_type is not None and message_type not in agent.types:
                continue
            if role is not None and role not in entry.roles:
                continue
            if capability is not None and not (
                capability in entry.capabilities or (claimed and capability in entry.claimed)
            ):
                continue
            found.append(entry if agent.stamped_s >= stamped_s else _at(agent, entry, now_s, late_s))
        return found

    def renewed(self, now_s: float) -> Iterator[None]:
        """Bring every entry up to date, some at each step, so that no query waits for all of them."""
        for number, agent_id in enumerate(list(self._names)):
            agent = self._agents.get(agent_id)
            if agent is not None:
                _at(agent, self._entry(agent_id, agent, now_s), now_s, 0.0)
            if number % _AT_A_STEP == 0:
                yield

    # Its parts.

    def _entry(self, agent_id: str, agent: _Agent, now_s: float) -> AgentEntry:
        if agent.entry is None or now_s > agent.until_s:
            agent.entry, agent.stamped_s = self._made(agent_id, agent, now_s), _NEVER
        return agent.entry

    def _made(self, agent_id: str, agent: _Agent, now_s: float) -> AgentEntry:
        since_s, heard_s, until_s = now_s - self._healthy_s, _NEVER, _ALWAYS
        present, well, at_work = list[Instance](), list[Instance](), list[Instance]()
        for each in agent.instances.values():
            at_s = each.heard_s
            if at_s is not None and at_s > heard_s:
                heard_s = at_s
            if each.left_ms >= 0 and each.is_gone:
                continue
            present.append(each)
            if at_s is None or at_s < since_s:
                continue
            until_s = min(until_s, at_s + self._healthy_s)
            # One that is stuck works on, in other lanes.
            at_work.append(each)
            if each.is_well:
                well.append(each)
        silence_s = _SILENT * self._healthy_s
        silent = [each for each in present if each.heard_s is not None and each.heard_s < now_s - silence_s]
        heard = [each for each in present if each.heard_s is not None and each.heard_s >= now_s - silence_s]
        until_s = min([until_s, *[(each.heard_s or 0.0) + silence_s for each in heard]])
        steady_s = max([_heard_s(each) for each in silent], default=_NEVER) + _STEADY * self._healthy_s
        until_s = until_s if now_s >= steady_s else min(until_s, steady_s)
        lost = _not_replaced(silent, agent.instances.values()) if silent else ()
        largest = max(heard, key=_memory, default=None)
        known = well or present or list(agent.instances.values())
        # The newest card is that of the code that runs now.
        newest = known[0] if len(known) == 1 else max(known, key=_carded)
        card = newest.card
        if card is not agent.card or agent.granted is None:
            granted, stated = self._granted_of(agent_id), () if card is None else card.capabilities
            agent.card, agent.granted = card, stated
            agent.claimed = ()
            if granted is not None:
                agent.granted = tuple(each for each in stated if each in granted)
                agent.claimed = tuple(each for each in stated if each not in granted)
        agent.types = newest.types if len(well) == 1 else frozenset[str]().union(*[each.types for each in well])
        agent.heard_s = None if heard_s == _NEVER else heard_s
        agent.until_s = until_s
        return AgentEntry(
            agent_id=agent_id,
            health="healthy" if well else "unhealthy" if present else "gone",
            instances=len(well),
            heard_s_ago=None,
            name="" if card is None else card.name,
            capabilities=agent.granted or (),
            claimed=agent.claimed,
            accepts=tuple([() if each.card is None else each.card.accepts for each in well]),
            roles=() if card is None else card.roles,
            active_tasks=sum([each.active_tasks or 0 for each in at_work]) if at_work else None,
            types=_united([each.topic_types for each in well]),
            missing=_united([each.missing for each in well]),
            unwell=len(at_work) - len(well),
            hold_ups=tuple([(each.group, found) for each in heard for found in each.hold_ups]),
            members=tuple([each.member for each in heard if each.member is not None]),
            doing=_longest(at_work),
            places=_sum([each.places for each in at_work]),
            busy=_sum([each.busy for each in at_work]),
            runs=tuple([each.runs for each in at_work if each.runs is not None]),
            versions=tuple(sorted({each.card.version for each in well if each.card is not None})),
            sealbus_versions=tuple(sorted({each.sealbus_version for each in well if each.sealbus_version})),
            silent=len(silent),
            is_steady=now_s >= steady_s,
            lost=len(lost),
            heard_groups=tuple([each.group for each in heard]),
            lost_groups=_unheard([each.group for each in lost], heard),
            clock_offset_s=max([each.clock_offset_s for each in heard], key=abs, default=0.0),
            memory_mb=None if largest is None else largest.memory_mb,
            memory_limit_mb=None if largest is None else largest.memory_limit_mb,
            grown_mb=0.0 if largest is None else max(0.0, _memory(largest) - largest.least_memory_mb),
        )

    def _instance(self, agent_id: str, session: str, at_s: float) -> Instance | None:
        """Return the instance; a new one where there is a place for it, else None."""
        agent = self._agents.get(agent_id)
        known = None if agent is None else agent.instances.get(session)
        if known is not None:
            known.first_s = min(known.first_s, at_s)
            return known
        if not self._has_room(agent_id, agent, at_s):
            self.dropped += 1
            return None
        # It may have been the last instance of this very agent that has made room.
        agent = self._agents.get(agent_id)
        if agent is None:
            agent = self._agents[agent_id] = _Agent()
            insort(self._names, agent_id)
        instance = agent.instances[session] = Instance(seen_s=at_s, first_s=at_s)
        self._silent[agent_id, session] = None
        return instance

    def _has_room(self, agent_id: str, agent: _Agent | None, at_s: float) -> bool:
        """Make room by dropping silent instances; return whether there is any."""
        limits = self._limits
        if agent is not None and len(agent.instances) >= limits.instances:
            session = next(iter(agent.instances))
            if not self._is_silent(agent_id, session, at_s):
                return False
            self._drop(agent_id, session)
        while len(self._silent) >= 4 * limits.agents or (
            agent_id not in self._agents and len(self._agents) >= limits.agents
        ):
            location = next(iter(self._silent))
            if not self._is_silent(*location, at_s):
                return False
            self._drop(*location)
        return True

    def _is_silent(self, agent_id: str, session: str, now_s: float) -> bool:
        instance = self._agents[agent_id].instances[session]
        return instance.is_gone or now_s - instance.seen_s > self._healthy_s

    def _note_status(self, agent_id: str, session: str, instance: Instance, at_s: float) -> None:
        instance.seen_s = max(instance.seen_s, at_s)
        agent = self._agents[agent_id]
        agent.instances.move_to_end(session)
        self._silent.move_to_end((agent_id, session))
        agent.until_s = _NEVER

    def _drop(self, agent_id: str, session: str) -> None:
        agent = self._agents[agent_id]
        instance = agent.instances.pop(session)
        del self._silent[agent_id, session]
        agent.card_bytes -= instance.card_bytes
        self._card_bytes -= instance.card_bytes
        agent.until_s = _NEVER
        if not agent.instances:
            del self._agents[agent_id]
            del self._names[bisect_left(self._names, agent_id)]


def _at(agent: _Agent, entry: AgentEntry, now_s: float, late_s: float) -> AgentEntry:
    """Return *entry* with how long ago the agent was heard, at most *late_s* before *now_s*.

    A copy costs a quarter of `replace`, and there may be very many.
    """
    if agent.stamped_s == now_s or agent.stamped_s >= now_s - late_s:
        return entry
    agent.stamped_s = now_s
    if agent.heard_s is not None:
        agent.entry = entry = copy(entry)
        msgspec.structs.force_setattr(entry, "heard_s_ago", now_s - agent.heard_s)
    return entry


def _not_replaced(silent: Sequence[Instance], known: Iterable[Instance]) -> list[Instance]:
    """Return those of the *silent* instances that have no successor among those *known*: one that began after it.

    A successor may have ended since, in order, or as the next one that fell silent.
    """
    begun_s = sorted(each.first_s for each in known)
    left = list[Instance]()
    for each in sorted(silent, key=_heard_s):
        successor = next((at for at, first_s in enumerate(begun_s) if first_s > _heard_s(each)), None)
        if successor is None:
            left.append(each)
        else:
            del begun_s[successor]
    return left


def _unheard(groups: Sequence[str], heard: Sequence[Instance]) -> tuple[str, ...]:
    known = {each.group for each in heard}
    return tuple([group for group in groups if group not in known])


def _longest(instances: Sequence[Instance]) -> tuple[CurrentTask, ...]:
    doing = [task for each in instances for task in each.doing]
    return tuple(sorted(doing, key=attrgetter("since_ms"))[:_MAX_DOING]) if doing else ()


def _sum(numbers: Sequence[int | None]) -> int | None:
    """Return the sum of what is known; None where nothing is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _heard_s(instance: Instance) -> float:
    return instance.heard_s or 0.0


def _memory(instance: Instance) -> float:
    return instance.memory_mb or 0.0


def _united(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the strings of all *lists*, each once, sorted; instances of one agent are mostly equal."""
    return tuple(sorted({each for listed in set(lists) for each in listed}))


def _listed(card: AgentCard | None, name: str, is_legal: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the strings that *card* lists under *name*. They are untrusted, so only legal ones are returned."""
    listed = () if card is None else card.metadata.get(name, ())
    if not isinstance(listed, list | tuple):
        return ()
    return tuple(each for each in listed[:_MAX_TYPES] if isinstance(each, str) and is_legal(each))


def _is_topic(name: str) -> bool:
    return read_topic(name) is not None


def accepts_version(ranges: Iterable[str], message_type: str, version: str) -> bool:
    """Tell whether one of *ranges* (`order@1`, `order@1.2`) takes *message_type* in *version*.

    `x@1` is any 1.y.z, `x@1.2` is 1.y.z with y of 2 or more, `x@1.2.3` exactly that.
    """
    major, minor, patch = (int(part) for part in version.split("."))
    for each in ranges:
        name, _, wanted = each.partition("@")
        if name != message_type:
            continue
        parts = [int(part) for part in wanted.split(".")]
        if parts[0] != major:
            continue
        if len(parts) == 1 or (len(parts) == 2 and minor >= parts[1]) or parts == [major, minor, patch]:  # noqa: PLR2004
            return True
    return False


def member_on_card(name: str, inbox: str) -> dict[str, str]:
    """Return what a card says of its worker, without what is not known."""
    return {key: value for key, value in (("member", name), ("inbox", inbox)) if value}


def member_of_card(card: AgentCard, session: str) -> GroupMember | None:
    """Return the worker that sends *card* in *session*; None where the card names no group."""
    told: Mapping[str, Any] = card.metadata
    group = _legal(told.get("group"), _MEMBER_NAME)
    if not group:
        return None
    return GroupMember(
        group=group,
        name=_legal(told.get("member"), _MEMBER_NAME),
        inbox=_legal(told.get("inbox"), _MARK),
        handled=tuple(sorted({each.partition("@")[0] for each in card.accepts})[:_MAX_TYPES]),
        since_ms=uuid7_ms(session),
    )


def _legal(value: object, form: re.Pattern[str]) -> str:
    return value if isinstance(value, str) and form.fullmatch(value) else ""
