"""Every built-in part as a stranger deploys it: topics made by `topics apply` alone, keys, a policy, workers killed."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_until
from deployments import Deployment, stores_of
from parts_app import Deploy, Dream, Ended, Fix, Price, Repair, Ship, Write

from bus.vocabulary.blackboard import BlackboardWrite, BlackboardWritten
from bus.vocabulary.bus import WorkflowStart
from bus.vocabulary.subscription import SubscriptionOpen, SubscriptionOpened
from bus.vocabulary.task import TaskRequest, TaskResult
from sealbus import Bus, connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

POLICY = """
[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"

[[agents]]
id = "client@svc"
owner = "ops"

[[agents]]
id = "boss@svc"
owner = "ops"

[[agents]]
id = "helper@svc"
owner = "ops"

[[agents]]
id = "leaky@svc"
owner = "ops"

[[agents]]
id = "workflow@sealbus"
owner = "ops"

[[agents]]
id = "registry@sealbus"
owner = "ops"

[[agents]]
id = "audit@sealbus"
owner = "ops"

[[rules]]
id = "everybody"
effect = "allow"
action = ["publish", "handle", "redrive", "cancel"]
types = "**"

[[rules]]
id = "approvers"
effect = "allow"
action = "approve"
agents = "*@acme"
types = "parts.**"
"""
AGENTS = ("leaky@svc", "client@svc", "boss@svc", "helper@svc", "lead@acme")
OWN = ("workflow@sealbus", "registry@sealbus", "audit@sealbus")
STEP: dict[str, Any] = {
    "name": "find",
    "nodes": [
        {
            "id": "ask",
            "type": "emit",
            "message": {"performative": "request", "receiver": "helper@svc", "content": {"q": "x"}},
            "out": {"on": "inform", "to": "end"},
        },
        {"id": "end", "type": "end"},
    ],
}


@pytest.fixture(params=["sqlite", "kafka"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(*stores_of(request, tmp_path), tmp_path)
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "find.json").write_text(json.dumps(STEP))
    made.run("key", "new", *AGENTS, *OWN)
    for target in ("parts_app:boss", "parts_app:helper", "registry@sealbus"):
        made.run("topic", "apply", target)
    made.run("topic", "apply", "workflow@sealbus", "--workflow", "find.json")
    made.run("topic", "apply", "--agent", "client@svc")
    yield made
    made.stop()


async def used(bus: Bus, deployment: Deployment) -> None:
    """Use every part once, each to its end."""

    async def ended(payload: Any, how: str) -> None:
        key = uuid.uuid4().hex
        assert (await bus.request(payload, Ended, to="boss@svc", timeout_s=120, idempotency_key=key)).how == how

    async def worked(payload: Any, to: str) -> None:
        key = uuid.uuid4().hex
        task = await bus.submit(payload, to=to, task_id=key, idempotency_key=key, ttl_s=300)
        result = await task.result(TaskResult)
        assert result.status == "completed"

    async def noticed() -> None:
        wanted = SubscriptionOpen(subscription_id=uuid.uuid4().hex, subject="tea", lease_s=60)
        await bus.request(wanted, SubscriptionOpened, to="boss@svc", timeout_s=120)
        await bus.publish(Price(sku="tea", cents=3), to="boss@svc")

    async def kept() -> None:
        write = BlackboardWrite(key=uuid.uuid4().hex, expected_version=0, value=1)
        written = await bus.request(write, BlackboardWritten, to="boss@svc", timeout_s=120, idempotency_key=write.key)
        assert written.version == 1

    uses: list[Callable[[], Awaitable[None]]] = [
        lambda: ended(Ship(goal="carry it"), "delivered"),
        lambda: ended(Fix(what="it"), "fixed"),
        lambda: ended(Write(title="it"), "approved in round 1"),
        lambda: worked(TaskRequest(goal="draft"), "helper@svc"),
        lambda: worked(WorkflowStart(definition=STEP), "workflow@sealbus"),
        noticed,
        kept,
        lambda: approved(bus, deployment),
    ]
    async with asyncio.TaskGroup() as group:
        for use in uses:
            group.create_task(use())


async def approved(bus: Bus, deployment: Deployment) -> None:
    """Have a deployment approved from the command line."""
    key = uuid.uuid4().hex
    order = Deploy(service=key)
    waiting = asyncio.create_task(bus.request(order, Ended, to="boss@svc", timeout_s=240, idempotency_key=key))
    while True:
        listed = await asyncio.to_thread(deployment.objects, "approval", "list")
        if mine := [each for each in listed if json.dumps(each).find(key) >= 0]:
            break
        assert not waiting.done(), waiting
        await asyncio.sleep(0.2)
    identity = str(mine[0]["approval"])
    shown = json.loads(await asyncio.to_thread(deployment.run, "approval", "show", identity, "-o", "json"))
    digits = shown["action_hash"].removeprefix("sha256:")[:8]
    await asyncio.to_thread(deployment.run, "approval", "approve", identity, "--as", "lead@acme", "--hash", digits)
    assert (await waiting).how == f"deployed {key}"


async def cancelled(bus: Bus, deployment: Deployment) -> None:
    """Ask for something that lasts, and take it back."""
    task = await bus.submit(Dream(), to="helper@svc", task_id=uuid.uuid4().hex, ttl_s=300)
    for name in ("dreaming", "woken"):
        async with asyncio.timeout(60):
            while not (deployment.folder / name).exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.05)
        if name == "dreaming":
            await task.cancel()


def test_every_part_works_with_the_topics_that_topics_apply_makes(deployment: Deployment) -> None:
    boss = deployment.start("run", "parts_app:boss")
    deployment.start("run", "parts_app:boss")
    for arguments in (("run", "parts_app:helper"), ("serve", "workflows"), ("serve", "registry"), ("serve", "audit")):
        deployment.start(*arguments)

    async def use() -> None:
        env = {name: value for name, value in deployment.environment.items() if name.startswith("SEALBUS_")}
        async with connect(agent="client@svc", env=env) as bus:
            await used(bus, deployment)
            boss.kill()
            await used(bus, deployment)
            # What a supervisor does. Without a successor the killed worker is a fault, and doctor is right.
            deployment.start("run", "parts_app:boss")

            await cancelled(bus, deployment)
            await bus.publish(Repair(), to="helper@svc")

    asyncio.run(use())
    wait_until(lambda: len(deployment.objects("dlq", "list")) == 1, 60, "what is not repaired is dead")
    (deployment.folder / "repaired").touch()
    deployment.run("dlq", "redrive", "--type", "parts.repair", "--yes", "--why", "repaired")
    wait_until(lambda: deployment.lag() == 0, 60, "nothing is left")
    for target in ("parts_app:boss", "parts_app:helper", "workflow@sealbus", "registry@sealbus"):
        faults = [each for each in deployment.objects("doctor", target) if each["state"] == "fault"]
        assert faults == []
    assert deployment.objects("dlq", "list", "--state", "open") == []


def test_a_worker_with_missing_topics_names_them_and_does_not_start(deployment: Deployment) -> None:
    deployment.settings["SEALBUS_BUS__NAMESPACE"] = f"{deployment.namespace}x"
    process = deployment.start("run", "parts_app:helper")
    assert process.wait(60) != 0
    said = deployment.logs()
    assert "auction.award" in said
    assert "sealbus topic apply" in said


def test_doctor_names_a_missing_output_topic_within_a_minute(deployment: Deployment) -> None:
    deployment.run("topic", "apply", "parts_app:leaky")
    deployment.start("run", "parts_app:leaky")
    deployment.run("publish", "parts.leak", "--app", "parts_app:leaky", "--as", "client@svc", given=b"{}\n")

    def is_named() -> bool:
        said = deployment.run("doctor", "-o", "json", codes=(0, 1))
        faults = [each for each in map(json.loads, said.splitlines()) if each["state"] == "fault"]
        return any(f"{deployment.namespace}.parts.undeclared" in each["text"] for each in faults)

    wait_until(is_named, 60, "doctor names the topic")
