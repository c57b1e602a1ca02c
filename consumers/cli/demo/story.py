"""The demo's story: what happens in which order, what is observed, and whether that was expected.

Owns the run itself; agents, trouble, processes and output are modules of their own. Every observation is read from the
log: no process's own word is trusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from bus import gates
from bus.clock import SystemClock
from bus.errors import BusError, ContractError
from bus.payloads.payload_types import payload_type
from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.settings.schema import Settings
from bus.telemetry.metrics import Metrics
from bus.topics.names import message_topic, read_topic
from bus.topics.namespace_groups import NamespaceGroups
from bus.topics.specs import group_topics, message_topics
from bus.transports import open_configured
from bus.transports.base import Record, Transport
from bus.transports.read_all import scan_topic
from bus.vocabulary import BUILT_IN
from bus.vocabulary.review import DraftOutput, ResearchRequest, ReviewOutput
from bus.vocabulary.task import StatusUpdate
from bus.vocabulary.tool import ToolResult
from consumers.cli.demo import agents
from consumers.cli.demo.crew import Crew
from consumers.cli.demo.trouble import PLANNER, Trouble, alter_in_file, is_locked, make_trouble
from consumers.deadletters.letters import list_dead_letters
from producers.connection import make_publisher
from producers.publisher import Publisher
from producers.sealing.options import Draft

__all__ = ["Check", "Event", "Story", "StuckError", "freeze", "tell"]

_ROLES = ("researcher", "writer", "reviewer")
_DEADLINE_S = 40.0
_LOOK_S = 0.05
_FREEZES = 10
_GROUPS = {role: getattr(agents, role).group for role in _ROLES}
_Found = TypeVar("_Found")


class StuckError(BusError):
    """An expected event did not happen in time; the text names it and shows the workers' logs."""


class Event(msgspec.Struct, frozen=True):
    """A message of the conversation, its place in the log, and whether its seal holds."""

    message: Message
    record: Record
    sealed: bool


class Check(msgspec.Struct, frozen=True):
    """One expectation: the demo fails unless *observed* equals *expected*."""

    what: str
    expected: str
    observed: str

    @property
    def holds(self) -> bool:
        return self.expected == self.observed


class Story(msgspec.Struct, frozen=True):
    """Everything there is to show."""

    timeline: tuple[Event, ...]
    report: DraftOutput | None
    review: ReviewOutput | None
    checks: tuple[Check, ...]


class _Log:
    """The demo's own view of the log: every record of every topic, read without a group."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self.transport = transport
        self.namespace = namespace

    async def events(self, conversation_id: str | None = None) -> list[Event]:
        """Messages of all types, oldest first."""
        found = []
        for topic in await self.transport.admin.topics():
            name = read_topic(topic)
            if name is not None and name.kind == "message" and name.namespace == self.namespace:
                found += [event async for event in self.messages(topic)]
        if conversation_id is not None:
            found = [event for event in found if event.message.metadata.conversation_id == conversation_id]
        return sorted(found, key=lambda event: (event.record.timestamp_ms, event.message.metadata.hops))

    async def messages(self, topic: str) -> AsyncIterator[Event]:
        """Return the records of one topic that are messages."""
        async for record in scan_topic(self.transport, topic):
            if (event := _event(record)) is not None:
                yield event

    async def lag(self, groups: Sequence[str]) -> int:
        """Count the records not settled by *groups*."""
        committed = [
            place
            for group in await NamespaceGroups(self.transport.admin, self.namespace).infos()
            if group.name in groups
            for place in group.committed.items()
        ]
        ranges = {topic: await self.transport.admin.ranges(topic) for topic in {topic for (topic, _), _ in committed}}
        return sum(ranges[topic][partition].end - offset for (topic, partition), offset in committed)


async def tell(settings: Settings, folder: Path, repository: str, say: Callable[[str], None]) -> Story:
    """Run the demo on the log of *settings*, with *folder* for the workers' files. Raises StuckError."""
    transport = open_configured(settings)
    crew = Crew(folder, settings.bus.url, settings.bus.namespace)
    try:
        own = [spec for group in _GROUPS.values() for spec in group_topics(settings, group)]
        await transport.admin.create_topics([*message_topics(settings, [kind.name for kind in BUILT_IN]), *own])
        return await _play(_Log(transport, settings.bus.namespace), crew, settings, repository, say)
    finally:
        await crew.stop()
        await transport.close()


async def _play(log: _Log, crew: Crew, settings: Settings, repository: str, say: Callable[[str], None]) -> Story:
    publisher = make_publisher(log.transport, settings, PLANNER, clock=SystemClock(), metrics=Metrics())
    say("starting three agents, each a process of its own")
    first_pid = {role: crew.start(role) for role in _ROLES}["researcher"]
    await _until(crew, "all three agents to join", lambda: _all_joined(log))
    request = await publisher.publish(
        Draft(payload=ResearchRequest(repository=repository), to=agents.researcher.agent_id)
    )
    conversation = request.message_id
    say(f"asked {agents.researcher.agent_id} to look at {repository}")
    await _until(crew, "the researcher's progress", lambda: _progress_of(log, conversation))
    crew.kill("researcher")
    say(f"killed the researcher (process {first_pid}, -9) in the middle of its work, and started another")
    second_pid = crew.start("researcher")
    troubles = await _make_trouble(log, crew, settings, publisher, run=conversation[-8:], say=say)
    review = await _until(crew, "an approved report", lambda: _approved(log, conversation))
    outcomes = await _until(crew, "the trouble to be settled", lambda: _settled(log, troubles))
    await _until(crew, "every offset to be committed", lambda: _nothing_left(log))
    say("stopping the agents")
    codes = await crew.stop()
    await publisher.close()
    timeline = await log.events(conversation)
    checks = [
        Check(
            "the researcher was killed at work",
            "taken over by another process",
            _taken_over(timeline, first_pid, second_pid),
        ),
        *_conversation_checks(timeline),
        *(Check(trouble.what, trouble.expected, outcome) for trouble, outcome in zip(troubles, outcomes, strict=True)),
        Check("messages neither done, skipped nor dead", "0", str(await log.lag(list(_GROUPS.values())))),
        Check("agents that drained and left in order", "3", str(sum(code == 0 for code in codes.values()))),
    ]
    return Story(tuple(timeline), _latest(timeline, DraftOutput), review, tuple(checks))


async def _make_trouble(
    log: _Log, crew: Crew, settings: Settings, publisher: Publisher, *, run: str, say: Callable[[str], None]
) -> list[Trouble]:
    path = sqlite_path(settings.bus.url)
    try:
        # A frozen writer cannot read the record before it is altered.
        await freeze(crew, "writer", path)
        troubles = await make_trouble(log.transport, settings, publisher, run, altered=path is None)
        if path is not None:
            alter_in_file(path, troubles[0])
    finally:
        crew.thaw("writer")
    say("made trouble: " + "; ".join(trouble.what for trouble in troubles))
    return troubles


async def freeze(crew: Crew, role: str, path: str | None) -> None:
    """Freeze a worker, but not during a transaction.

    It would keep the lock of the log at *path*, and no other process could write.
    """
    crew.freeze(role)
    for _ in range(_FREEZES):
        if path is None or not is_locked(path):
            return
        crew.thaw(role)
        await asyncio.sleep(_LOOK_S)
        crew.freeze(role)


def sqlite_path(url: str) -> str | None:
    """Return the file of an embedded log; None for any other log, whose records cannot be altered in place."""
    return url.removeprefix("sqlite:///") if url.startswith("sqlite:///") else None


async def _until(crew: Crew, what: str, look: Callable[[], Awaitable[_Found | None]]) -> _Found:
    clock = SystemClock()
    give_up_s = clock.monotonic_s() + _DEADLINE_S
    while (found := await look()) is None:
        ended = crew.ended()
        if ended is not None:
            raise StuckError(f"the {ended} ended by itself while waiting for {what}\n{crew.tail()}")
        if clock.monotonic_s() > give_up_s:
            raise StuckError(f"waited {_DEADLINE_S:.0f} s for {what} in vain\n{crew.tail()}")
        await asyncio.sleep(_LOOK_S)
    return found


async def _all_joined(log: _Log) -> bool | None:
    holding = {
        group.name
        for group in await NamespaceGroups(log.transport.admin, log.namespace).infos()
        if any(group.members.values())
    }
    return True if holding >= set(_GROUPS.values()) else None


async def _progress_of(log: _Log, conversation: str) -> bool | None:
    async for event in log.messages(message_topic(log.namespace, payload_type(StatusUpdate).name)):
        if event.message.metadata.conversation_id == conversation:
            return True
    return None


async def _approved(log: _Log, conversation: str) -> ReviewOutput | None:
    review = _latest(await log.events(conversation), ReviewOutput)
    return review if review is not None and review.verdict == "approved" else None


async def _settled(log: _Log, troubles: Sequence[Trouble]) -> list[str] | None:
    dead = {
        (letter.topic, letter.partition, letter.offset): letter.reason
        async for letter in list_dead_letters(log.transport, log.namespace)
    }
    done = {
        event.message.metadata.causation_id
        for event in await log.events()
        if event.message.message_type == payload_type(ToolResult).name
    }
    outcomes = [
        "done" if trouble.message_id in done else dead.get((trouble.topic, trouble.partition, trouble.offset), "")
        for trouble in troubles
    ]
    return outcomes if all(outcomes) else None


async def _nothing_left(log: _Log) -> bool | None:
    return True if await log.lag(list(_GROUPS.values())) == 0 else None


def _taken_over(timeline: Sequence[Event], first_pid: int, second_pid: int) -> str:
    texts = [update.message or "" for update in _payloads(timeline, StatusUpdate)]
    workers = [pid for pid in (first_pid, second_pid) if any(f"process {pid} " in text for text in texts)]
    return "taken over by another process" if workers == [first_pid, second_pid] else f"worked on by {workers}"


def _conversation_checks(timeline: Sequence[Event]) -> list[Check]:
    verdicts = [review.verdict for review in _payloads(timeline, ReviewOutput)]
    findings = any(draft.sections for draft in _payloads(timeline, DraftOutput))
    expected = "changes_requested, approved" if findings else "approved"
    good = sum(event.sealed for event in timeline)
    return [
        Check("the reviewer's verdicts", expected, ", ".join(verdicts)),
        Check(
            "seals of the conversation that hold", f"{len(timeline)} of {len(timeline)}", f"{good} of {len(timeline)}"
        ),
    ]


def _event(record: Record) -> Event | None:
    try:
        message = sealing.parse(record.value)
    except ContractError:
        return None
    try:
        kind = BUILT_IN.get(message.message_type)
        gates.prove(message, kind.risk if kind else "medium", None)
    except ContractError:
        return Event(message, record, False)
    return Event(message, record, True)


def _payloads(timeline: Sequence[Event], cls: type[_Found]) -> list[_Found]:
    opened = []
    for event in timeline:
        kind = BUILT_IN.get(event.message.message_type)
        if kind is not None and kind.cls is cls:
            opened.append(kind.open(event.message))
    return [payload for payload in opened if isinstance(payload, cls)]


def _latest(timeline: Sequence[Event], cls: type[_Found]) -> _Found | None:
    return next(iter(reversed(_payloads(timeline, cls))), None)
