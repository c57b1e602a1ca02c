"""HeartbeatSender: publishes a worker's agent card and, every ten seconds, its heartbeat.

The worker's own event loop sends the heartbeats, so a blocked loop sends none. If the worker has not fetched for longer
than the readers' limit, the heartbeat reports it as unhealthy. A draining worker sends a goodbye.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from bus.clock import Clock, Interval
from bus.errors import BusError, ContractError
from bus.payloads.class_forms import Payload
from bus.protocol.identifiers import uuid7
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import versions
from bus.telemetry.own_process import ProcessorShare, memory_limit_mb, memory_mb
from bus.topics.names import own_topic
from bus.vocabulary.agent import AgentGoodbye, AgentHandshake, AgentHeartbeat, CurrentTask, RecentRuns
from bus.vocabulary.parts import AgentCard
from consumers.delivery.declaration import Declaration
from consumers.delivery.state.delivery import Accepted
from producers.directory.card_schemas import schema_texts
from producers.directory.hold_ups import HoldUp, on_card
from producers.directory.presence import MAX_DOING, member_on_card
from producers.directory.view import record_key
from producers.publisher import Publisher
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest

__all__ = ["HeartbeatSender", "WorkProgress", "card_of", "current_tasks"]

_SPREAD: Final = 0.2
_CARD_AGAIN_S: Final = 300.0
"""A card lives for a day. It is repeated much earlier, because any process with write access to the topic can have it
compacted away."""
_MAX_CAPABILITIES: Final = 50
_MAX_MISSING: Final = 20
_APPEND_S: Final = 5.0
_GOODBYE_S: Final = 1.0
"""The longest time that a stopping worker waits for an unreachable log."""
_URGENT_S: Final = 2.0
"""Messages that come and go quickly must not make a card for each."""
_LOOK_S: Final = 1.0
"""Seconds between two looks at the worker's state; a change is sent before the next beat is due."""

_log = get_logger("directory")


class WorkProgress(msgspec.Struct, frozen=True):
    """How long ago a worker has fetched, and how much it is at."""

    fetched_s_ago: float
    active_tasks: int
    is_stuck: bool = False
    """Whether a handler ignores its deadline, or offsets are not committed."""
    missing: tuple[str, ...] = ()
    """Topics that do not exist, and for which an output waits."""
    hold_ups: tuple[HoldUp, ...] = ()
    """The messages for which others wait."""
    doing: tuple[CurrentTask, ...] = ()
    """What its handlers run for, the longest first."""
    places: int | None = None
    """How many handlers may be at work at once."""
    busy: int | None = None
    """How many are."""
    runs: RecentRuns | None = None
    """How long they took lately."""

    @property
    def news(self) -> tuple[object, ...]:
        """What a new card has to tell, at the next beat."""
        return self.missing, self.hold_ups

    @property
    def urgent(self) -> tuple[object, ...]:
        """What it has to tell at once: what is held up, and by what."""
        return self.missing, frozenset((each.reason, each.topic, each.partition, each.offset) for each in self.hold_ups)


def current_tasks(runs: Iterable[tuple[Accepted, float]], *, now_s: float, now_ms: int) -> tuple[CurrentTask, ...]:
    """Return what *runs*, each since a time of the monotonic clock, are at: the longest 8, the longest first."""
    longest = sorted(runs, key=lambda run: run[1])[:MAX_DOING]
    return tuple(
        CurrentTask(
            message_type=delivery.message.message_type,
            message_id=delivery.message.message_id,
            conversation_id=delivery.message.metadata.conversation_id,
            since_ms=max(0, now_ms - round((now_s - since_s) * 1000)),
        )
        for delivery, since_s in longest
    )


class HeartbeatSender:
    """The sign of life of one worker of *app*."""

    def __init__(
        self,
        app: Declaration,
        publisher: Publisher,
        settings: Settings,
        *,
        clock: Clock,
        progress: Callable[[], WorkProgress],
        learn: Callable[[int], None] = lambda _: None,
        member: str = "",
        inbox: str = "",
        randomness: Callable[[], float] = random.random,
    ) -> None:
        self._app = app
        self._publisher = publisher
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._learn = learn
        """Hears the log's time of a beat just now: an idle worker would not notice that its clock is wrong."""
        self._member = member_on_card(member, inbox)
        self._randomness = randomness
        self._session = uuid7(clock.now_ms(), os.urandom(10))
        origin = publisher.sealer.origin
        sender = msgspec.structs.replace(origin.sender, session_id=self._session)
        self._origin = msgspec.structs.replace(origin, sender=sender)
        self._schemas: Mapping[str, str] = {}
        self._is_failing = False
        self._rarely = Interval(clock)
        self._processors = ProcessorShare()
        self._cpu = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sending; a log that refuses is reported once, and tried again."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Send a goodbye, and stop sending."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        await self._send(AgentGoodbye(reason_code="SHUTDOWN"), "_directory", timeout_s=_GOODBYE_S)

    async def _run(self) -> None:
        beat_s, healthy_s = self._settings.directory.beat_s, self._settings.directory.healthy_s
        carded_s, heard_s, news = -_CARD_AGAIN_S, -math.inf, WorkProgress(0.0, 0).news
        self._schemas = schema_texts(self._app.registry)
        while True:
            now_s = self._clock.monotonic_s()
            # Readers forget who is silent for long, and the card with it.
            is_due = now_s - carded_s >= _CARD_AGAIN_S or now_s - heard_s > healthy_s
            progress = self._progress()
            card = card_of(self._app, progress.missing, self._schemas, progress.hold_ups, self._member)
            if (is_due or progress.news != news) and await self._send(AgentHandshake(agent_card=card), "_directory"):
                carded_s, news = self._clock.monotonic_s(), progress.news
            self._cpu = self._processors.look()
            heartbeat = self._heartbeat(progress)
            if await self._send(heartbeat, "_heartbeats"):
                heard_s = self._clock.monotonic_s()
            left_s = beat_s * (1 + _SPREAD * (2 * self._randomness() - 1))
            while left_s > 0:
                await self._clock.sleep(min(left_s, _LOOK_S))
                left_s -= _LOOK_S
                now = self._progress()
                # Getting stuck is told at once, and what an output waits for; what did not leave, with the next beat.
                is_urgent = now.urgent != progress.urgent and self._rarely.is_due("urgent", _URGENT_S)
                if self._heartbeat(now).status != heartbeat.status or is_urgent:
                    break

    def _heartbeat(self, progress: WorkProgress) -> AgentHeartbeat:
        is_well = progress.fetched_s_ago <= self._settings.directory.healthy_s and not progress.is_stuck
        memory = memory_mb()
        return AgentHeartbeat(
            status="healthy" if is_well else "unhealthy",
            active_tasks=progress.active_tasks,
            cpu=round(self._cpu, 3),
            memory_mb=None if memory is None else round(memory, 1),
            doing=progress.doing[:MAX_DOING],
            places=progress.places,
            busy=progress.busy,
            runs=progress.runs,
        )

    async def _send(self, payload: Payload, name: str, timeout_s: float = _APPEND_S) -> bool:
        """Append *payload*; a beat that does not leave is replaced by the next one."""
        topic = own_topic(self._origin.namespace, "_directory" if name == "_directory" else "_heartbeats")
        key = record_key(self._app.agent_id, self._session).decode()
        try:
            sealed = self._publisher.sealer.seal(
                Outgoing(payload, key=key), SealRequest(topic=topic, origin=self._origin)
            )
            receipt = await self._publisher.send(sealed, timeout_s=timeout_s)
        except (BusError, ContractError) as error:
            if not self._is_failing:
                _log.warning("directory.not_told", agent=self._app.agent_id, error=str(error))
            self._is_failing = True
            return False
        self._is_failing = False
        self._learn(receipt.timestamp_ms)
        return True


def card_of(
    app: Declaration,
    missing: Sequence[str] = (),
    schemas: Mapping[str, str] = MappingProxyType({}),
    hold_ups: Sequence[HoldUp] = (),
    member: Mapping[str, str] = MappingProxyType({}),
) -> AgentCard:
    """Return the card of *app*: its identity, its types, versions and *schemas*, the *missing* topics it waits for, the
    messages for which others wait, and which *member* of its group sends it.
    """
    kinds = [subscription.kind for subscription in app.subscriptions.values()]
    accepts = sorted(
        f"{kind.name}@{major}" for kind in kinds for major in range(kind.major + 1) if kind.reads(f"{major}.0.0")
    )
    capabilities = app.capabilities or tuple(sorted(kind.name for kind in kinds)) or ("none",)
    schema_versions = sorted({kind.version for kind in kinds})
    return AgentCard(
        agent_id=app.agent_id,
        name=app.agent_id[:100],
        version=app.version,
        capabilities=capabilities[:_MAX_CAPABILITIES],
        schema_versions=tuple(schema_versions),
        accepts=tuple(accepts),
        roles=tuple(sorted(app.roles)),
        metadata={
            "group": app.group,
            "types": sorted(app.topic_types),
            "missing": list(missing[:_MAX_MISSING]),
            "hold_ups": on_card(hold_ups),
            "sealbus": versions()[0],
            **member,
        }
        | ({} if (limit := memory_limit_mb()) is None else {"memory_limit_mb": round(limit)})
        | ({"schemas": dict(schemas)} if schemas else {}),
    )
