"""The demo's second act: agents that ask a person, bid for work and follow a workflow, while their workers are killed.

Owns the order of events and what is expected. It has a log of its own, with keys and a policy: here every message is
signed, and nothing is allowed that no rule allows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from bus.clock import SystemClock
from bus.errors import BusError, TopicMissingError
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import payload_type
from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.topics.names import message_topic
from bus.transports.read_all import scan_topic
from bus.trust.keys.key_folder import KeyFolder
from bus.vocabulary.act import ActRequest
from bus.vocabulary.approval import ApprovalRequest
from bus.vocabulary.bus import WorkflowStart
from bus.vocabulary.task import StatusUpdate, TaskResult
from consumers.cli.demo import partners
from consumers.cli.demo.crew import Crew
from consumers.cli.demo.partners import ChangeMade, PurchaseResult, PurchaseWanted, WantedChange
from consumers.cli.demo.story import Check, StuckError
from consumers.processes.approvals.deciding import decision_about, seal_decision
from producers.connection import Bus, connect

__all__ = ["tell_second"]

_PLANNER: Final = "planner@demo"
_PERSON: Final = "person@demo"
_ROLES: Final = ("changer", "buyer", "cheap", "dear", "greeter", "engine")
_DEADLINE_S: Final = 40.0
_LOOK_S: Final = 0.05
_SIGNED_MS: Final = 60_000
_POLICY: Final = f"""
[[agents]]
id = "{_PERSON}"
kind = "human"
owner = "somebody"

[[rules]]
id = "these-agents"
effect = "allow"
action = ["publish", "handle"]
agents = ["*@demo", "workflow@sealbus"]
types = "**"

[[rules]]
id = "a-person-approves"
effect = "allow"
action = "approve"
agents = "{_PERSON}"
types = "demo.*"
"""
_WORKFLOW: Final[dict[str, Any]] = {
    "name": "greeting",
    "version": "1.0.0",
    "nodes": [
        {
            "id": "say",
            "type": "emit",
            "message": {"performative": "request", "receiver": "greeter@demo", "content": {"task": "greet"}},
            "out": {"on": "inform", "to": "done"},
        },
        {"id": "done", "type": "end"},
    ],
}


async def tell_second(folder: Path, say: Callable[[str], None]) -> tuple[Check, ...]:
    """Run the act on a log in *folder*; return what was expected and observed. Raises StuckError, BusError."""
    settings = _settings(folder)
    environment = {
        "SEALBUS_TRUST__KEYS": settings.trust.keys,
        "SEALBUS_TRUST__KEY_FILE": settings.trust.key_file,
        "SEALBUS_POLICY__FILE": settings.policy.file,
    }
    crew = Crew(folder, settings.bus.url, settings.bus.namespace, module=partners.__name__, environment=environment)
    try:
        for role in _ROLES:
            crew.start(role)
        say("second act: six agents with keys and a policy, on a log of their own")
        async with connect(settings=settings, agent=_PLANNER) as bus, asyncio.timeout(_DEADLINE_S):
            await _until_there(bus)
            async with asyncio.TaskGroup() as group:
                acts = [group.create_task(act(bus, crew, settings, say)) for act in (_change, _purchase, _workflow)]
        return tuple(check for act in acts for check in act.result())
    except TimeoutError as error:
        raise StuckError(f"waited {_DEADLINE_S:.0f} s for the second act in vain\n{crew.tail()}") from error
    except ExceptionGroup as group_of_errors:
        raise StuckError(f"{group_of_errors.exceptions[0]}\n{crew.tail()}") from group_of_errors
    finally:
        await crew.stop()


async def _change(bus: Bus, crew: Crew, settings: Settings, say: Callable[[str], None]) -> list[Check]:  # noqa: ARG001
    asking = asyncio.ensure_future(
        bus.request(WantedChange(service="shop"), ChangeMade, to="changer@demo", timeout_s=600)
    )
    request = await _before(asking, _first(bus, ApprovalRequest))
    made_before = [message async for message in _messages(bus, ChangeMade)]
    async with connect(settings=settings, agent=_PERSON) as person:
        decision = decision_about(request, "approve", by=_PERSON)
        await person.publisher.send(seal_decision(person.publisher.sealer, decision, request))
    say(f"{_PERSON} has read what would be changed, and signed that it may")
    made = await asking
    return [
        Check("a change that needs a person, before", "not made", "made" if made_before else "not made"),
        Check("the same change, after a signed decision", f"agreed by {_PERSON}", f"agreed by {made.agreed_by}"),
    ]


async def _purchase(bus: Bus, crew: Crew, settings: Settings, say: Callable[[str], None]) -> list[Check]:  # noqa: ARG001
    wanted = PurchaseWanted(what="tea")
    asking = asyncio.ensure_future(bus.request(wanted, PurchaseResult, to="buyer@demo", timeout_s=600))
    await _before(asking, _first(bus, StatusUpdate, by=partners.cheap.agent_id))
    crew.kill("cheap")
    say("killed the winner of an auction (-9) at work; its award is a lease, and the next bidder is asked")
    bought = await asking
    return [Check("an auction whose winner was killed", "delivered by dear@demo", f"delivered by {bought.supplier}")]


async def _workflow(bus: Bus, crew: Crew, settings: Settings, say: Callable[[str], None]) -> list[Check]:  # noqa: ARG001
    start = WorkflowStart(definition=_WORKFLOW)
    asking = asyncio.ensure_future(
        bus.request(start, TaskResult, to=partners.engine.agent_id, timeout_s=600, idempotency_key="demo-run")
    )
    await _before(asking, _first(bus, ActRequest))
    crew.kill("engine")
    crew.start("engine")
    say("killed the workflow's engine (-9) while it waited for an answer, and started another")
    ended = await asking
    return [Check("a workflow whose engine was killed", "completed", ended.status)]


def _settings(folder: Path) -> Settings:
    for name in ("second.db", "second.db-wal", "second.db-shm"):
        (folder / name).unlink(missing_ok=True)
    keys = KeyFolder(folder / f"keys-{os.urandom(4).hex()}")
    since_ms = SystemClock().now_ms() - _SIGNED_MS
    agents = [getattr(partners, role).agent_id for role in _ROLES]
    for agent in (*agents, _PLANNER, _PERSON):
        keys.add(agent, principals=[agent], types=(), not_before_ms=since_ms)
    policy = folder / "policy.toml"
    # Who is listed counts as somebody's; of others nobody takes instructions.
    listed = "".join(f'[[agents]]\nid = "{agent}"\nowner = "demo"\n\n' for agent in (*agents, _PLANNER))
    policy.write_text(listed + _POLICY, "utf-8")
    policy.chmod(0o600)
    flags = {
        "bus.url": f"sqlite:///{folder}/second.db",
        "bus.namespace": "demo",
        "trust.keys": str(keys.jwks),
        "trust.key_file": str(keys.folder),
        "policy.file": str(policy),
    }
    return load(flags=flags, env={}, file=None).settings


async def _until_there(bus: Bus) -> None:
    missing = {getattr(partners, role).agent_id for role in _ROLES}
    missing -= {agent.agent_id for agent in await bus.directory.find()}
    async for change in bus.directory.watch():
        missing.discard(change.agent.agent_id)
        if not missing:
            return


async def _before(asking: asyncio.Future[Any], seen: Coroutine[Any, Any, Message]) -> Message:
    """Return what is *seen* while an answer is awaited; raise what the request raises, where that ends first."""
    looking = asyncio.ensure_future(seen)
    await asyncio.wait([asking, looking], return_when=asyncio.FIRST_COMPLETED)
    if not looking.done():
        looking.cancel()
        raise BusError(f"answered before it was seen at work: {asking.result()}")
    return looking.result()


async def _first(bus: Bus, kind: type[Payload], *, by: str | None = None) -> Message:
    """Return the first message of a type, of an agent where it is named, once there is one."""
    while True:
        async for message in _messages(bus, kind):
            if by in (None, message.metadata.sender.id):
                return message
        await asyncio.sleep(_LOOK_S)


async def _messages(bus: Bus, kind: type[Payload]) -> AsyncIterator[Message]:
    try:
        async for record in scan_topic(bus.transport, message_topic("demo", payload_type(kind).name)):
            yield sealing.parse(record.value)
    except TopicMissingError:
        return
