"""Approved steps under `kill -9`: what was paid for is not paid again, and nothing runs that nobody agreed to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import steps_app
from deployments import Deployment, stores_of
from steps_app import Choice, Chosen, Work, Worked

from bus.protocol import sealing
from bus.topics.names import message_topic
from bus.transports.read_all import scan_topic
from bus.vocabulary.task import TaskClarification
from consumers.processes.approvals.deciding import decision_about, seal_decision
from sealbus import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

POLICY = """
[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"

[[agents]]
id = "boss@acme"
kind = "human"
owner = "boss"

[[agents]]
id = "client@svc"
owner = "ops"
trust_ceiling = "user_request"

[[agents]]
id = "desk@svc"
owner = "ops"

[[rules]]
id = "everybody"
effect = "allow"
action = ["publish", "handle"]
types = "**"

[[rules]]
id = "approvers"
effect = "allow"
action = "approve"
agents = "*@acme"

[[rules]]
id = "tools"
effect = "allow"
action = "use"
tools = ["push", "pay"]
"""
COUNT = 12
PLACES = ("held:2", "kept:3", "consumed:1", "begun:2", "handled:1", "inboxed:2")


@pytest.fixture(params=["sqlite", "kafka"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    made = Deployment(*stores_of(request, tmp_path), tmp_path)
    made.settings["STEPS_FOLDER"] = str(tmp_path)
    monkeypatch.setattr(steps_app, "FOLDER", tmp_path)
    (tmp_path / "policy.toml").write_text(POLICY)
    made.run("key", "new", "desk@svc", "client@svc", "lead@acme", "boss@acme")
    made.run("topic", "apply", "steps_app:desk")
    made.run("topic", "apply", "--agent", "client@svc")
    yield made
    made.stop()


async def decide(deployment: Deployment, name: str, until: asyncio.Event) -> None:
    """Be one of two people who approve everything, as fast as they can."""
    env = {name: value for name, value in deployment.environment.items() if name.startswith("SEALBUS_")}
    async with connect(agent=name, env=env) as bus:
        topic, seen = message_topic(deployment.namespace, "approval.request"), set[str]()
        while not until.is_set():
            async for record in scan_topic(bus.transport, topic):
                message = sealing.parse(record.value)
                if message.message_id not in seen:
                    seen.add(message.message_id)
                    decision = decision_about(message, "approve", by=name)
                    with suppress(Exception):
                        await bus.publisher.send(seal_decision(bus.publisher.sealer, decision, message))
            await asyncio.sleep(0.2)


def test_kills_at_every_place_pay_for_nothing_twice(deployment: Deployment) -> None:
    deaths = 0

    async def ask() -> list[Worked]:
        env = {name: value for name, value in deployment.environment.items() if name.startswith("SEALBUS_")}
        async with connect(agent="client@svc", env=env) as bus, asyncio.TaskGroup() as group:
            asked = [
                group.create_task(
                    bus.request(
                        Work(number=number),
                        Worked,
                        to="desk@svc",
                        timeout_s=400,
                        idempotency_key=f"w{number}",
                    )
                )
                for number in range(COUNT)
            ]
            return [await each for each in asked]

    async def kill() -> None:
        nonlocal deaths
        for place in PLACES:
            worker = deployment.start("run", "steps_app:desk", SEALBUS_FAILPOINT=place)
            with suppress(TimeoutError):
                async with asyncio.timeout(12):
                    while worker.poll() is None:  # noqa: ASYNC110 - another process ends
                        await asyncio.sleep(0.1)
            deaths += worker.poll() is not None
            worker.kill()
        deployment.start("run", "steps_app:desk")
        deployment.start("run", "steps_app:desk")

    async def everything() -> list[Worked]:
        until = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for name in ("lead@acme", "boss@acme"):
                group.create_task(decide(deployment, name, until))
            killing = group.create_task(kill())
            answers = await ask()
            await killing
            until.set()
        return answers

    answers = asyncio.run(everything())
    assert sorted(each.number for each in answers) == list(range(COUNT))
    assert Counter(steps_app.noted("push")) == Counter(range(COUNT)), deployment.logs()
    assert Counter(steps_app.noted("pay")) == Counter(range(COUNT)), deployment.logs()
    thought = Counter(steps_app.noted("think"))
    assert sum(thought.values()) <= COUNT + deaths
    assert deaths >= 3, deployment.logs()
    assert deployment.objects("dlq", "list") == []
    assert deployment.objects("approval", "list") == []


def test_kills_around_a_question_ask_it_once_and_lose_no_answer(deployment: Deployment) -> None:
    async def died(place: str) -> None:
        worker = deployment.start("run", "steps_app:desk", SEALBUS_FAILPOINT=place)
        async with asyncio.timeout(60):
            while worker.poll() is None:  # noqa: ASYNC110 - another process ends
                await asyncio.sleep(0.1)

    async def ask() -> tuple[Chosen, set[str]]:
        env = {name: value for name, value in deployment.environment.items() if name.startswith("SEALBUS_")}
        async with connect(agent="client@svc", env=env) as bus:
            task = await bus.submit(Choice(number=1), to="desk@svc", ttl_s=600, idempotency_key="c1")
            for place in ("held:1", "sent:1"):
                await died(place)
            await task.answer(["dev"])
            # Its step is committed, and the stored message has not left; then the kept answer is not used yet.
            for place in ("stepped:1", "kept:1"):
                await died(place)
            deployment.start("run", "steps_app:desk")
            events = [event async for event in task.events(Chosen)]
            asked = {event.message.message_id for event in events if isinstance(event.payload, TaskClarification)}
            return await task.result(Chosen), asked

    chosen, asked = asyncio.run(ask())
    assert (chosen, len(asked)) == (Chosen(branch="dev"), 1)
    assert steps_app.noted("think") == [1], deployment.logs()
    assert deployment.objects("dlq", "list") == []
