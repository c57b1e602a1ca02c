"""The demo's first act: three agents review code, one of them is killed, and other trouble is made.

Owns the order of events, the trouble, and what is expected of it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec

from bus.clock import ManualClock, SystemClock
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import payload_type
from bus.settings.schema import Settings
from bus.topics.names import message_topic
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import Appended, NewRecord
from bus.vocabulary.review import DraftOutput, ResearchOutput, ResearchRequest, ReviewOutput
from bus.vocabulary.task import StatusUpdate, TaskHandoff, TaskSpec
from bus.vocabulary.tool import ToolResult
from consumers.agents.demo import agents
from consumers.agents.demo.crew import Crew
from consumers.agents.demo.watch import Check, Event, until, watched_events
from consumers.deadletters.letters import list_dead_letters
from producers.connection import Bus, connect
from producers.outcomes import Receipt
from producers.sealing.options import Outgoing
from producers.sealing.sealer import make_sealer

__all__ = ["Story", "tell"]

_PLANNER: Final = "planner@demo"
_ROLES: Final = ("researcher", "writer", "reviewer")
_HOUR_MS: Final = 3_600_000
_OF_REVIEWS: Final = (ResearchRequest, StatusUpdate, ResearchOutput, DraftOutput, ReviewOutput)

_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class Story(msgspec.Struct, frozen=True):
    """Everything there is to show."""

    timeline: Sequence[Event]
    report: DraftOutput
    review: ReviewOutput
    checks: Sequence[Check]


class Trouble(msgspec.Struct, frozen=True):
    """One fault: the location of its record, and the expected outcome (`done` or a dead letter's reason)."""

    what: str
    expected: str
    at: Receipt | Appended


async def tell(settings: Settings, folder: Path, repository: str, say: Callable[[str], None]) -> Story:
    """Run the act on the log of *settings*, with *folder* for the workers' files. Raises StuckError, BusError."""
    crew = Crew(folder, settings, agents.__name__)
    try:
        async with connect(settings=settings, agent=_PLANNER) as bus:
            return await _play(bus, crew, settings, repository, say)
    finally:
        crew.stop()


async def _play(bus: Bus, crew: Crew, settings: Settings, repository: str, say: Callable[[str], None]) -> Story:
    troubles = await _make_trouble(bus, settings)
    say("made trouble: " + "; ".join(trouble.what for trouble in troubles))
    say("starting three agents, each a process of its own")
    first_pid, *_ = [crew.start(role) for role in _ROLES]
    to = agents.researcher.agent_id
    conversation = (await bus.publish(ResearchRequest(repository=repository), to=to)).message_id
    say(f"asked {to} to look at {repository}")

    async def reported(*kinds: type[Payload]) -> list[Event]:
        return [
            event
            for event in await watched_events(bus, *kinds)
            if event.message.metadata.conversation_id == conversation
        ]

    async def approved() -> bool:
        return any(review.verdict == "approved" for review in _opened(await reported(ReviewOutput), ReviewOutput))

    await until(crew, "the researcher's progress", lambda: reported(StatusUpdate))
    crew.kill("researcher")
    say(f"killed the researcher (process {first_pid}, -9) in the middle of its work, and started another")
    second_pid = crew.start("researcher")
    await until(crew, "an approved report", approved)
    outcomes = await until(crew, "the trouble to be settled", lambda: _outcomes(bus, troubles))
    await until(crew, "every offset to be committed", lambda: _all_settled(bus))
    say("stopping the agents")
    codes = await asyncio.to_thread(crew.stop)
    timeline = await reported(*_OF_REVIEWS)
    texts = [update.message or "" for update in _opened(timeline, StatusUpdate)]
    workers = [pid for pid in (first_pid, second_pid) if any(f"process {pid} " in text for text in texts)]
    by_another = "taken over by another process"
    report, reviews = _opened(timeline, DraftOutput)[-1], _opened(timeline, ReviewOutput)
    checks = [
        Check("the researcher was killed at work", by_another, by_another if len(workers) == 2 else f"by {workers}"),  # noqa: PLR2004 - both
        Check(
            "the reviewer's verdicts",
            "changes_requested, approved" if report.sections else "approved",
            ", ".join(review.verdict for review in reviews),
        ),
        Check(
            "seals of the conversation that hold",
            f"{len(timeline)} of {len(timeline)}",
            f"{sum(event.is_sealed for event in timeline)} of {len(timeline)}",
        ),
        *(Check(trouble.what, trouble.expected, outcome) for trouble, outcome in zip(troubles, outcomes, strict=True)),
        Check("messages neither done, skipped nor dead", "0", str(await _lag(bus))),
        Check("agents that drained and left in order", "3", str(codes.count(0))),
    ]
    return Story(timeline, report, reviews[-1], checks)


def _opened(timeline: Sequence[Event], cls: type[_Kind]) -> list[_Kind]:
    kind = payload_type(cls)
    return [cast("_Kind", kind.open(each.message)) for each in timeline if each.message.message_type == kind.name]


async def _make_trouble(bus: Bus, settings: Settings) -> list[Trouble]:
    """Append the faulty records before the readers start."""

    def task(action: str) -> TaskHandoff:
        spec = TaskSpec(action=action, input={"invoice": "4821"})
        return TaskHandoff(task_id=action, from_agent=_PLANNER, to_agent="writer@demo", task_spec=spec)

    past = make_sealer(settings, _PLANNER, clock=ManualClock(SystemClock().now_ms() - _HOUR_MS))
    expired = past.seal(Outgoing(task("use-tool"), ttl_s=60))
    troubles = [
        await _altered(bus, settings.bus.url, task("pay-invoice")),
        Trouble("a message that had expired", "expired", await bus.publisher.send(expired)),
        Trouble("a handler that fails twice", "done", await bus.publish(task("use-flaky-tool"))),
        Trouble("a handler that always fails", "retries_exhausted", await bus.publish(task("use-broken-tool"))),
    ]
    (garbage,) = await bus.transport.append(
        [NewRecord(message_topic(bus.namespace, "task.handoff"), b"garbage", b"\x00\xff{not a message")], timeout_s=10
    )
    if not isinstance(garbage, Appended):
        raise garbage
    return [*troubles, Trouble("bytes that are not a message", "malformed", garbage)]


async def _altered(bus: Bus, url: str, task: TaskHandoff) -> Trouble:
    """Change one word of a record: in the log's file, as a person with access to the disk could, where there is one."""
    sealed = bus.publisher.sealer.seal(Outgoing(task))
    good, bad = b"pay-invoice", b"pay-attacker"
    if not url.startswith("sqlite:///"):
        record = msgspec.structs.replace(sealed.record, value=(sealed.record.value or b"").replace(good, bad))
        receipt = await bus.publisher.send(msgspec.structs.replace(sealed, record=record))
        return Trouble("a record altered on its way to the log", "hash_mismatch", receipt)
    receipt = await bus.publisher.send(sealed)
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)) as connection, connection:
        connection.execute(
            """UPDATE records SET value = CAST(replace(CAST(value AS TEXT), ?1, ?2) AS BLOB)
               WHERE instr(CAST(value AS TEXT), ?1)""",
            (good.decode(), bad.decode()),
        )
    return Trouble("a record altered in the log", "hash_mismatch", receipt)


async def _outcomes(bus: Bus, troubles: Sequence[Trouble]) -> list[str] | None:
    dead = {
        (letter.topic, letter.partition, letter.offset): letter.reason
        async for letter in list_dead_letters(bus.transport, bus.namespace)
    }
    done = {event.message.metadata.causation_id for event in await watched_events(bus, ToolResult)}
    outcomes = [
        "done"
        if isinstance(at := trouble.at, Receipt) and at.message_id in done
        else dead.get((at.topic, at.partition, at.offset), "")
        for trouble in troubles
    ]
    return outcomes if all(outcomes) else None


async def _all_settled(bus: Bus) -> bool:
    return await _lag(bus) == 0


async def _lag(bus: Bus) -> int:
    """Count the records that the agents' groups have not settled."""
    groups = {getattr(agents, role).group for role in _ROLES}
    committed = [
        place
        for group in await NamespaceGroups(bus.transport.admin, bus.namespace).infos()
        if group.name in groups
        for place in group.committed.items()
    ]
    ranges = {topic: await bus.transport.admin.ranges(topic) for topic in {topic for (topic, _), _ in committed}}
    return sum(ranges[topic][partition].end - offset for (topic, partition), offset in committed)
