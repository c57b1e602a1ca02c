"""The demo's second act: agents that ask a person, bid for work and follow a workflow, while their workers are killed.

Owns the order of events and what is expected. It has a log of its own, with keys and a policy: here every message is
signed, and nothing is allowed that no rule allows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bus.clock import SystemClock
from bus.errors import BusError
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.trust.keys.key_folder import KeyFolder
from bus.vocabulary.act import ActRequest
from bus.vocabulary.approval import ApprovalRequest
from bus.vocabulary.bus import WorkflowStart
from bus.vocabulary.task import StatusUpdate, TaskResult
from consumers.agents.demo import partners
from consumers.agents.demo.crew import Crew
from consumers.agents.demo.partners import ChangeMade, PurchaseResult, PurchaseWanted, WantedChange
from consumers.agents.demo.watch import Check, StuckError, first, until
from consumers.processes.approvals.deciding import decision_about, seal_decision
from producers.connection import Bus, connect

__all__ = ["tell_second"]

_PLANNER: Final = "planner@demo"
_PERSON: Final = "person@demo"
_ROLES: Final = ("changer", "buyer", "cheap", "dear", "greeter", "engine")
_DEADLINE_S: Final = 40.0
_REQUEST_S: Final = 600.0
"""The lifetime of a request that a person decides about."""
_SIGNED_MS: Final = 60_000
_POLICY: Final = f"""
[[agents]]
id = "{_PERSON}"
kind = "human"
owner = "desk"

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


async def tell_second(folder: Path, say: Callable[[str], None]) -> list[Check]:
    """Run the act on a log in *folder*; return expected and observed outcomes. Raises StuckError."""
    settings = _settings(folder)
    environment = {
        "SEALBUS_TRUST__KEYS": settings.trust.keys,
        "SEALBUS_TRUST__KEY_FILE": settings.trust.key_file,
        "SEALBUS_POLICY__FILE": settings.policy.file,
    }
    crew = Crew(folder, settings, partners.__name__, environment)
    try:
        for role in _ROLES:
            crew.start(role)
        say("second act: six agents with keys and a policy, on a log of their own")
        async with connect(settings=settings, agent=_PLANNER) as bus:
            await until(crew, "six agents to join", lambda: _are_there(bus))
            acts = [act(bus, crew, settings, say) for act in (_change, _purchase, _workflow)]
            async with asyncio.timeout(_DEADLINE_S):
                return [check for checks in await asyncio.gather(*acts) for check in checks]
    except (BusError, TimeoutError) as error:
        raise StuckError(f"{error or 'no answer in time'}\n{crew.tail()}") from error
    finally:
        crew.stop()


async def _change(bus: Bus, crew: Crew, settings: Settings, say: Callable[[str], None]) -> list[Check]:
    wanted = WantedChange(service="shop")
    answer = asyncio.ensure_future(bus.request(wanted, ChangeMade, to="changer@demo", timeout_s=_REQUEST_S))
    request = await until(crew, "a request for approval", lambda: first(bus, ApprovalRequest))
    before = "made" if await first(bus, ChangeMade) else "not made"
    async with connect(settings=settings, agent=_PERSON) as person:
        decision = decision_about(request, "approve", by=_PERSON)
        await person.publisher.send(seal_decision(person.publisher.sealer, decision, request))
    say(f"{_PERSON} has read what would be changed, and signed that it may")
    made = await answer
    return [
        Check("a change that needs a person, before", "not made", before),
        Check("the same change, after a signed decision", f"agreed by {_PERSON}", f"agreed by {made.agreed_by}"),
    ]


async def _purchase(bus: Bus, crew: Crew, _: Settings, say: Callable[[str], None]) -> list[Check]:
    wanted = PurchaseWanted(what="tea")
    answer = asyncio.ensure_future(bus.request(wanted, PurchaseResult, to="buyer@demo", timeout_s=_REQUEST_S))
    await until(crew, "the winner to begin", lambda: first(bus, StatusUpdate, by=partners.cheap.agent_id))
    crew.kill("cheap")
    say("killed the winner of an auction (-9) at work; its award is a lease, and the next bidder is asked")
    bought = await answer
    return [Check("an auction whose winner was killed", "delivered by dear@demo", f"delivered by {bought.supplier}")]


async def _workflow(bus: Bus, crew: Crew, _: Settings, say: Callable[[str], None]) -> list[Check]:
    start, to = WorkflowStart(definition=_WORKFLOW), partners.engine.agent_id
    answer = asyncio.ensure_future(
        bus.request(start, TaskResult, to=to, timeout_s=_REQUEST_S, idempotency_key="demo-run")
    )
    await until(crew, "the workflow to ask", lambda: first(bus, ActRequest))
    crew.kill("engine")
    crew.start("engine")
    say("killed the workflow's engine (-9) while it waited for an answer, and started another")
    ended = await answer
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


async def _are_there(bus: Bus) -> bool:
    return {getattr(partners, role).agent_id for role in _ROLES} <= {
        agent.agent_id for agent in await bus.directory.find()
    }
