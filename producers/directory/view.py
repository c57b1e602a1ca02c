"""Directory: what a process knows about which agents are there, kept by following two topics.

Owns which cards and heartbeats are believed (their record's key names the sealed sender, and where keys are configured
its signature holds), following them, and the answers. The rules of health are `presence`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Literal

import msgspec

from bus import gates
from bus.clock import Clock
from bus.errors import BusError, ClosedError, ContractError, TopicMissingError
from bus.own_context import OwnContext
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import Risk, payload_type
from bus.protocol import sealing
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.telemetry.logs import get_logger
from bus.topics.names import own_topic
from bus.transports.base import Appended, NewRecord, Record, Transport
from bus.trust.policy import NO_POLICY, Policy, rules_source
from bus.vocabulary.agent import AgentGoodbye, AgentHandshake, AgentHeartbeat
from producers.directory.presence import AgentEntry, Presence, accepts_version
from producers.outcomes import PublishRejected

__all__ = ["AgentEntry", "Directory", "DirectoryChange", "record_key"]

_PAUSE_S: Final = 0.5
_PROBE_S: Final = 5.0
_PAGE_RECORDS: Final = 500
_PAGE_BYTES: Final = 4 * 1_048_576
_KINDS: Final = {kind.name: kind for kind in map(payload_type, (AgentHandshake, AgentHeartbeat, AgentGoodbye))}

_log = get_logger("directory")


class DirectoryChange(msgspec.Struct, frozen=True):
    """An agent whose health has changed."""

    agent: AgentEntry
    before: Literal["unknown", "healthy", "unhealthy", "gone"]


class Directory:
    """Which agents are there, and what they take; opened at the first question.

        for agent in await bus.directory.find(type="research.request"):
            print(agent.agent_id, agent.capabilities)

    Cards advertise, the policy grants: a capability that the policy does not give an agent is not found, unless asked
    for with `claimed=True`. A health is at most as old as the topics' last half second.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        namespace: str,
        verifier: Verifier | None = None,
        policy: Policy | None = None,
        clock: Clock,
        healthy_s: float,
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._verifier = verifier
        self._policy = policy or NO_POLICY
        self._clock = clock
        self._presence = Presence(healthy_s)
        self._cards = own_topic(namespace, "_directory")
        self._beats = own_topic(namespace, "_heartbeats")
        self._offsets: dict[tuple[str, int], int] = {}
        self._own = OwnContext()
        self._opening: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self.refused = 0
        """Cards and heartbeats that were not believed."""

    async def find(
        self,
        *,
        capability: str | None = None,
        type: str | None = None,  # noqa: A002 - the word for it
        role: str | None = None,
        healthy: bool | None = True,
        claimed: bool = False,
    ) -> Sequence[AgentEntry]:
        """Return the agents with all that is asked for, healthy ones by default; `healthy=None`: whatever they are.

        *claimed*: also by capabilities that only the agent itself says it has.
        """
        await self.ready()
        found = []
        for agent_id in self._presence.agents():
            entry = self._entry(agent_id)
            if entry is None or (healthy is not None and entry.is_healthy != healthy):
                continue
            able = (*entry.capabilities, *entry.claimed) if claimed else entry.capabilities
            takes = {each.partition("@")[0] for ranges in entry.accepts for each in ranges}
            if capability is not None and capability not in able:
                continue
            if (type is None or type in takes) and (role is None or role in entry.roles):
                found.append(entry)
        return found

    async def get(self, agent_id: str) -> AgentEntry | None:
        """Return what is known about *agent_id*; None where it was never heard of."""
        await self.ready()
        return self._entry(agent_id)

    async def watch(self) -> AsyncIterator[DirectoryChange]:
        """Yield every agent whose health changes, first as they are now."""
        await self.ready()
        before: dict[str, Any] = {}
        while True:
            for agent_id in self._presence.agents():
                entry = self._entry(agent_id)
                if entry is not None and before.get(agent_id) != entry.health:
                    yield DirectoryChange(entry, before.get(agent_id, "unknown"))
                    before[agent_id] = entry.health
            await self._clock.sleep(_PAUSE_S)

    async def require(self, to: str | Agent | None, payload: Payload) -> None:
        """Raise PublishRejected unless every healthy instance of *to*, and at least one, takes *payload*."""
        agent_id = to if isinstance(to, str) else None if to is None else to.id
        if agent_id is None:
            raise _rejected("require_receiver needs `to`: only an agent that is named can be looked for")
        kind = payload_type(payload)
        entry = await self.get(agent_id)
        if entry is None or not entry.is_healthy:
            state = "was never heard of" if entry is None else f"is {entry.health}"
            raise _rejected(f"{agent_id} {state}: `sealbus agents list` shows who is there")
        if not all(accepts_version(ranges, kind.name, kind.version) for ranges in entry.accepts):
            raise _rejected(f"{agent_id} does not take {kind.name} {kind.version} in every instance that is healthy")

    async def ready(self) -> None:
        """Read both topics to their present end, once. Raises BusError where they cannot be read."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = self._own.begin(self._open())
        await asyncio.shield(self._opening)
        if self._following is None:
            self._following = self._own.begin(self._follow())

    async def close(self) -> None:
        """Stop following."""
        for task in (self._opening, self._following):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])

    def _entry(self, agent_id: str) -> AgentEntry | None:
        rules = rules_source(self._policy)()
        granted = None if rules is None else rules.agent(agent_id).capabilities
        return self._presence.entry(agent_id, self._clock.monotonic_s(), granted)

    async def _open(self) -> None:
        log_ms = await self._log_ms()
        records = await self._news(self._beats)
        # What was there before counts by its distance from the log's own time: no wall clock is read here.
        newest_ms, now_s = max((record.timestamp_ms for record in records), default=0), self._clock.monotonic_s()
        newest_ms = max(newest_ms, log_ms)
        for record in await self._news(self._cards):
            self._take(record, now_s)
        for record in records:
            self._take(record, now_s - (newest_ms - record.timestamp_ms) / 1000)

    async def _log_ms(self) -> int:
        """Return the log's time now, by an empty record to the heartbeats; 0 where this reader may not write.

        Without it a reader who comes when every agent is dead would take the last beat for one of this moment.
        """
        try:
            if self._beats not in await self._transport.admin.topics():
                return 0
            outcomes = await self._transport.append([NewRecord(self._beats, b"", None, ())], timeout_s=_PROBE_S)
        except BusError:
            return 0
        return outcomes[0].timestamp_ms if isinstance(outcomes[0], Appended) else 0

    async def _follow(self) -> None:
        while True:
            await self._clock.sleep(_PAUSE_S)
            try:
                for topic in (self._cards, self._beats):
                    for record in await self._news(topic):
                        self._take(record, self._clock.monotonic_s())
            except ClosedError:
                return
            except BusError as error:
                _log.warning("directory.unreadable", error=str(error))

    async def _news(self, topic: str) -> list[Record]:
        found: list[Record] = []
        try:
            ranges = await self._transport.admin.ranges(topic)
        except TopicMissingError:
            return found
        for partition, kept in ranges.items():
            place = (topic, partition)
            offset = self._offsets.get(place, kept.start)
            offset = kept.start if offset > kept.end else max(offset, kept.start)
            while offset < kept.end:
                records = await self._transport.read(
                    topic, partition, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES
                )
                if not records:
                    break
                found += records
                offset = records[-1].offset + 1
            self._offsets[place] = offset
        return found

    def _take(self, record: Record, at_s: float) -> None:
        if record.value is None:
            return
        try:
            message = sealing.parse(record.value)
            payload = self._believed(record, message)
        except ContractError:
            self.refused += 1
            return
        sender = message.metadata.sender
        agent_id, session = sender.id or "", sender.session_id or ""
        if isinstance(payload, AgentHandshake):
            self._presence.carded(agent_id, session, payload.agent_card)
        elif isinstance(payload, AgentHeartbeat):
            self._presence.heard(
                agent_id,
                session,
                at_s,
                is_well=payload.status == "healthy",
                active_tasks=payload.active_tasks,
                draining=payload.draining,
            )
        else:
            self._presence.left(agent_id, session)

    def _believed(self, record: Record, message: Message) -> object:
        """Return what *message* says, where it is its sender's. Raises ContractError."""
        kind = _KINDS.get(message.message_type)
        if kind is None or message.metadata.namespace != self._namespace:
            raise ContractError("is none of a directory's", "/metadata/message_type", "wrong_audience")
        sender = message.metadata.sender
        if record.key != record_key(sender.id or "", sender.session_id or "") or record.key != message.key:
            raise ContractError("the record's key does not name its sender", "/routing/key", "key_mismatch")
        # Without keys nobody's name is proven.
        risk: Risk = "low" if self._verifier is None else "medium"
        gates.prove(message, risk, self._verifier, append_ms=record.timestamp_ms or None)
        return kind.open(message)


def record_key(agent_id: str, session: str) -> bytes:
    """Return the record key of an instance's cards and heartbeats."""
    return f"{agent_id}#{session}".encode()


def _rejected(text: str) -> PublishRejected:
    error = ContractError(text, "to", "unauthorized")
    return PublishRejected(f"not sent: {error}", error)
