"""Directory: a process's view of the agents that are up, kept by following two topics.

Owns which cards and heartbeats are accepted. They must pass every gate of a message, at their own append time; the
record's key must name the sealed sender; and no rule may forbid the sender to announce its presence. Also owns
following the topics, and the answers to queries. The rules of health are in `presence`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal

import msgspec

from bus import gates
from bus.clock import Clock
from bus.errors import BusError, ClosedError, ContractError, TopicMissingError
from bus.own_context import OwnContext
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import PayloadType, RiskClass, payload_type
from bus.protocol.envelope import Agent
from bus.protocol.identifiers import is_text_id
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.protocol.timestamps import parse_ms
from bus.telemetry.logs import get_logger
from bus.topics.names import own_topic
from bus.transports.base import Appended, NewRecord, Record, Transport
from bus.trust.admission import Admission, Party
from bus.trust.policy.policy import NO_POLICY, Policy, rules_source
from bus.vocabulary.agent import AgentGoodbye, AgentHandshake, AgentHeartbeat
from producers.directory.card_schemas import CardSchemas, without_schemas
from producers.directory.presence import (
    AgentEntry,
    DirectorySize,
    Presence,
    PresenceLimits,
    RefusedRecords,
    Work,
    accepts_version,
)
from producers.outcomes import PublishRejected

__all__ = ["AgentEntry", "Directory", "DirectoryChange", "record_key"]

_PAUSE_S: Final = 0.5
_PROBE_S: Final = 5.0
_PAGE_RECORDS: Final = 500
_PAGE_BYTES: Final = 4 * 1_048_576
_LATELY_S, _MAX_REFUSALS, _MAX_REFUSED = 60.0, 10_000, 100
_MAX_BYTES: Final = 65_536
"""Maximum size of one card or heartbeat."""
_LONGEST_MS: Final = 86_400_000 + gates.SKEW_TOLERANCE_MS
"""Records appended longer ago are expired: a card lives for a day."""
_PIECE_S: Final = 0.005
"""Records are processed in pieces of this duration, so a query waits for at most one piece."""
_KINDS: Final = {kind.name: kind for kind in map(payload_type, (AgentHandshake, AgentHeartbeat, AgentGoodbye))}

_HEARTBEAT: Final = payload_type(AgentHeartbeat).name

_log = get_logger("directory")


class DirectoryChange(msgspec.Struct, frozen=True):
    """An agent whose health has changed."""

    agent: AgentEntry
    before: Literal["unknown", "healthy", "unhealthy", "gone"]


class Directory:
    """The agents that are up, and the types they handle; opened at the first query.

        for agent in await bus.directory.find(type="research.request"):
            print(agent.agent_id, agent.capabilities)

    Cards only claim capabilities: one that the policy does not grant is not found, unless the query has `claimed=True`.
    The health of agents is at most half a second old.
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
        max_agents: int = PresenceLimits().agents,
        schemas: CardSchemas | None = None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._healthy_s = healthy_s
        self._schemas = schemas
        self._rules_of = rules_source(policy or NO_POLICY)
        self._rules = self._rules_of()
        self._presence = Presence(
            healthy_s, limits=PresenceLimits(agents=max_agents), granted_of=self._granted_capabilities
        )
        # Without keys nobody's name is proven.
        risk: RiskClass = "low" if verifier is None else "medium"
        party = Party(agent_id="", namespace=namespace, group="directory")
        admission = Admission(party, verifier=verifier, policy=policy or NO_POLICY, now_ms=clock.now_ms)
        self._checks = gates.Checks(
            max_message_bytes=_MAX_BYTES,
            namespace=namespace,
            risk_of=lambda _: risk,
            verifier=verifier,
            kind_of=_kind_of,
            admit=lambda message, kind, payload, _: admission.admit_presence(message, kind, payload),
        )
        self._cards = own_topic(namespace, "_directory")
        self._beats = own_topic(namespace, "_heartbeats")
        self._offsets: dict[tuple[str, int], int] = {}
        self._looked_s = 0.0
        """When the topics were last read to their end."""
        self._own = OwnContext()
        self._opening: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self.refused = 0
        """Rejected cards and heartbeats."""
        self._refusals: deque[tuple[float, str, str]] = deque(maxlen=_MAX_REFUSALS)
        """When the last of them came, on the monotonic clock, why they were rejected, and whom they name as sender."""

    @property
    def size(self) -> DirectorySize:
        """The number of known entries, and of dropped ones."""
        presence = self._presence
        return DirectorySize(
            agents=len(presence.agents()),
            instances=presence.instances,
            refused=self.refused,
            refused_lately=self._refused_lately(),
            dropped=presence.dropped,
        )

    def _refused_lately(self) -> tuple[RefusedRecords, ...]:
        since_s = self._clock.monotonic_s() - _LATELY_S
        counts = Counter((reason, agent_id) for at_s, reason, agent_id in self._refusals if at_s >= since_s)
        return tuple(
            RefusedRecords(reason=reason, agent_id=agent_id, count=count)
            for (reason, agent_id), count in counts.most_common(_MAX_REFUSED)
        )

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
        self._look_at_policy()
        return self._presence.found(
            self._clock.monotonic_s(),
            capability=capability,
            message_type=type,
            role=role,
            healthy=healthy,
            claimed=claimed,
            late_s=_PAUSE_S,
        )

    async def get(self, agent_id: str) -> AgentEntry | None:
        """Return the entry of *agent_id*; None if it is unknown."""
        await self.ready()
        return self._entry(agent_id)

    async def watch(self) -> AsyncIterator[DirectoryChange]:
        """Yield every agent whose health changes, first as they are now. One that is silent for long is gone."""
        await self.ready()
        before: dict[str, AgentEntry] = {}
        while True:
            found = {entry.agent_id: entry for entry in await self.find(healthy=None)}
            for agent_id in [each for each in before if each not in found]:
                last = before.pop(agent_id)
                if last.health != "gone":
                    yield DirectoryChange(msgspec.structs.replace(last, health="gone", instances=0), last.health)
            for agent_id, entry in found.items():
                known = before.get(agent_id)
                before[agent_id] = entry
                if known is None or known.health != entry.health:
                    yield DirectoryChange(entry, "unknown" if known is None else known.health)
            await self._clock.sleep(_PAUSE_S)

    async def require(self, to: str | Agent | None, payload: Payload) -> None:
        """Raise PublishRejected unless every healthy instance of *to*, and at least one, takes *payload*."""
        agent_id = to if isinstance(to, str) else None if to is None else to.id
        if agent_id is None:
            raise _rejected("require_receiver needs `to`: only an agent that is named can be looked for")
        kind = payload_type(payload)
        entry = await self.get(agent_id)
        if entry is None or not entry.is_healthy:
            state = "is unknown: no worker has announced it" if entry is None else f"is {entry.health}"
            raise _rejected(f"{agent_id} {state}: `sealbus agent list` shows the agents that are up")
        if not all(accepts_version(ranges, kind.name, kind.version) for ranges in entry.accepts):
            raise _rejected(f"{agent_id} does not take {kind.name} {kind.version} in every instance that is healthy")

    async def ready(self) -> None:
        """Read both topics to their present end, once. Raises BusError where they cannot be read."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = self._own.begin(self._open())
        await asyncio.shield(self._opening)
        if self._following is None:
            self._following = self._own.begin(self._follow())

    async def read_cards(self) -> None:
        """Read the cards alone, once to their present end, for their schemas. Raises BusError."""
        ends = await self._ends(self._cards)
        newest_ms = await self._newest_ms(self._cards, ends)
        for partition, (start, end) in (await self._since(self._cards, ends, newest_ms - _LONGEST_MS)).items():
            await self._advance((self._cards, partition), start, end, newest_ms=newest_ms, since_s=None)

    async def close(self) -> None:
        """Stop following."""
        for task in (self._opening, self._following):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])

    def _entry(self, agent_id: str) -> AgentEntry | None:
        self._look_at_policy()
        return self._presence.entry(agent_id, self._clock.monotonic_s())

    def _granted_capabilities(self, agent_id: str) -> frozenset[str] | None:
        return None if self._rules is None else self._rules.agent(agent_id).capabilities

    def _look_at_policy(self) -> None:
        if (rules := self._rules_of()) is not self._rules:
            self._rules = rules
            self._presence.regranted()

    async def _open(self) -> None:
        await self._look(await self._log_ms())

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
                # What lies there after a long pause of this reader is as old as what lies there at its start.
                is_late = self._clock.monotonic_s() - self._looked_s > self._healthy_s / 2
                log_ms = await self._log_ms() if is_late else 0
                await self._look(log_ms, since_s=self._looked_s, is_news=not is_late)
            except ClosedError:
                return
            except BusError as error:
                _log.warning("directory.unreadable", error=str(error))

    async def _look(self, log_ms: int, since_s: float | None = None, *, is_news: bool = False) -> None:
        """Read both topics to their end; *since_s* is when that was done before, *log_ms* the log's time if known.

        *is_news*: what lies there has come a moment ago.
        """
        looked_s = self._clock.monotonic_s()
        # Beats first: a card alone is dropped where it is old.
        ends = {topic: await self._ends(topic) for topic in (self._beats, self._cards)}
        newest_ms = log_ms
        if not is_news:
            # What was there before counts by its distance from the log's own time: no wall clock is read here.
            newest_ms = max([log_ms, *[await self._newest_ms(topic, found) for topic, found in ends.items()]])
            ends = {topic: await self._since(topic, found, newest_ms - _LONGEST_MS) for topic, found in ends.items()}
        for topic, found in ends.items():
            for partition, (start, end) in found.items():
                await self._advance((topic, partition), start, end, newest_ms=newest_ms, since_s=since_s)
        self._looked_s = looked_s
        now_s = self._clock.monotonic_s()
        self._presence.forget(now_s)
        self._look_at_policy()
        begun_s = now_s
        for _ in self._presence.renewed(now_s):
            begun_s = await self._breathe(begun_s)

    async def _ends(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return by partition with news where reading goes on, and where it ends."""
        try:
            ranges = await self._transport.admin.ranges(topic)
        except TopicMissingError:
            return {}
        found = {}
        for partition, retained in ranges.items():
            offset = self._offsets.get((topic, partition), retained.start)
            # The topic may have been made anew.
            offset = retained.start if offset > retained.end else max(offset, retained.start)
            if offset < retained.end:
                found[partition] = (offset, retained.end)
        return found

    async def _since(self, topic: str, ends: dict[int, tuple[int, int]], since_ms: int) -> dict[int, tuple[int, int]]:
        """Skip older records: they are expired, and each start of a worker leaves a card in the topic."""
        if since_ms <= 0 or not ends:
            return ends
        starts = await self._transport.admin.offsets_at([(topic, partition) for partition in ends], since_ms)
        return {partition: (max(start, starts[topic, partition]), end) for partition, (start, end) in ends.items()}

    async def _newest_ms(self, topic: str, ends: dict[int, tuple[int, int]]) -> int:
        newest = 0
        for partition, (_, end) in ends.items():
            last = await self._transport.read(topic, partition, end - 1, max_records=1, max_bytes=_PAGE_BYTES)
            newest = max([newest, *(record.timestamp_ms for record in last)])
        return newest

    async def _advance(
        self, location: tuple[str, int], offset: int, end: int, *, newest_ms: int, since_s: float | None
    ) -> None:
        begun_s = self._clock.monotonic_s()
        while offset < end:
            records = await self._transport.read(*location, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES)
            if not records:
                offset = end
            for record in records:
                age_s = max(0, newest_ms - record.timestamp_ms) / 1000
                at_s = self._clock.monotonic_s() - age_s
                # What comes now was not there at the last look.
                self._take(record, at_s if since_s is None else max(at_s, since_s), newest_ms)
                offset = record.offset + 1
                begun_s = await self._breathe(begun_s)
            self._offsets[location] = offset

    async def _breathe(self, begun_s: float) -> float:
        """Let other tasks run when a piece is done; return when the present one began."""
        if self._clock.monotonic_s() - begun_s < _PIECE_S:
            return begun_s
        await asyncio.sleep(0)
        return self._clock.monotonic_s()

    def _take(self, record: Record, at_s: float, log_ms: int) -> None:
        if not record.value:
            # The question of a reader what time it is, or a card that somebody has removed.
            return
        try:
            message, payload = self._believed(record)
        except ContractError as error:
            self.refused += 1
            self._refusals.append((at_s, error.reason, _named_by(record.key)))
            return
        sender, sealed_ms = message.metadata.sender, parse_ms(message.metadata.timestamp) or 0
        agent_id, session = sender.id or "", sender.session_id or ""
        if isinstance(payload, AgentHeartbeat):
            self._presence.heard(
                agent_id,
                session,
                at_s,
                sealed_ms=sealed_ms,
                is_well=payload.status == "healthy",
                active_tasks=payload.active_tasks,
                draining=payload.draining,
                memory_mb=payload.memory_mb,
                work=Work(doing=payload.doing, places=payload.places, busy=payload.busy, runs=payload.runs),
                clock_offset_s=(sealed_ms - record.timestamp_ms) / 1000,
            )
            return
        # A card that is put there again is as old as its seal: it is no news of an instance that nobody hears.
        said_s = at_s - max(0, record.timestamp_ms - sealed_ms) / 1000
        if log_ms > (parse_ms(message.routing.expires_at) or 0) + gates.EXPIRY_TOLERANCE_MS:
            # It was good when it was appended, and its time is over.
            return
        if isinstance(payload, AgentHandshake):
            if self._schemas is not None:
                self._schemas.note(agent_id, payload.agent_card, sealed_ms=sealed_ms)
            card = without_schemas(payload.agent_card)
            size = len(record.value) if card is payload.agent_card else len(msgspec.json.encode(card))
            self._presence.carded(agent_id, session, card, sealed_ms=sealed_ms, at_s=said_s, size=size)
        else:
            self._presence.left(agent_id, session, sealed_ms=sealed_ms, at_s=said_s)

    def _believed(self, record: Record) -> tuple[Message, object]:
        """Return the message of *record* and its payload, if it passes every gate. Raises ContractError."""
        append_ms = record.timestamp_ms
        case = gates.Case(
            record=record, is_own=True, key=record.key, now_ms=append_ms, append_ms=append_ms, how="topic"
        )
        verdict = gates.judge(case, self._checks)
        if isinstance(verdict, gates.Failed):
            raise verdict.error
        message = verdict.message
        metadata = message.metadata
        if metadata.recipient is not None:
            raise ContractError(
                "an announcement to all agents must not have a recipient", "/metadata/recipient", "wrong_audience"
            )
        if record.topic != (self._beats if metadata.message_type == _HEARTBEAT else self._cards):
            raise ContractError(
                f"{metadata.message_type} is none of {record.topic}", "/metadata/message_type", "type_mismatch"
            )
        if record.key != record_key(metadata.sender.id or "", metadata.sender.session_id or ""):
            raise ContractError("the record's key does not name its sender", "/routing/key", "key_mismatch")
        return message, case.payload


def _kind_of(message: Message) -> PayloadType:
    kind = _KINDS.get(message.message_type)
    if kind is None:
        raise ContractError("is not a type of the directory", "/metadata/message_type", "wrong_audience")
    return kind


def record_key(agent_id: str, session: str) -> bytes:
    """Return the record key of an instance's cards and heartbeats."""
    return f"{agent_id}#{session}".encode()


def _named_by(key: bytes | None) -> str:
    """Return the agent that the record key *key* names; empty where it is no legal id."""
    name = (key or b"").partition(b"#")[0].decode("utf-8", "replace")
    return name if is_text_id(name) else ""


def _rejected(text: str) -> PublishRejected:
    error = ContractError(text, "to", "unauthorized")
    return PublishRejected(f"not sent: {error}", error)
