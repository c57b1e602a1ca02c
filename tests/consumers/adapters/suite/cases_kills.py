"""Real deaths of real workers (`kill -9`) beside a person who approves: nothing is paid twice or runs unapproved."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import kills_app  # noqa: E402

from bus.protocol import sealing  # noqa: E402
from bus.topics.names import message_topic  # noqa: E402
from bus.transports.read_all import scan_topic  # noqa: E402
from consumers.processes.approvals.deciding import decision_about, seal_decision  # noqa: E402
from sealbus import connect  # noqa: E402
from sealbus.vocabulary import TaskRequest, TaskResult  # noqa: E402

ROOT = HERE.parents[3]
COUNT = 4
PLACES = ("kept:2", "held:1", "kept:5", "handled:1", "inboxed:1", "sent:1", "consumed:1")
POLICY = """
[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"

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
"""


class Deployment:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = {
            "SEALBUS_BUS__URL": f"sqlite:///{folder}/log.db",
            "SEALBUS_BUS__NAMESPACE": "kills",
            "SEALBUS_INBOX__URL": f"sqlite:///{folder}/inbox.db",
            "SEALBUS_TRUST__KEYS": str(folder / "keys" / "jwks.json"),
            "SEALBUS_TRUST__KEY_FILE": str(folder / "keys"),
            "SEALBUS_POLICY__FILE": str(folder / "policy.toml"),
            "SEALBUS_LOG__LEVEL": "warning",
            # One run at a time: then one call at most is under way at a kill.
            "SEALBUS_WORKER__CONCURRENCY": "1",
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{ROOT}{os.pathsep}{HERE}"
        return os.environ | {"PYTHONPATH": path, "KILLS_FOLDER": str(self.folder)} | self.settings | more

    def run(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "consumers.cli", *arguments]
        done = subprocess.run(command, env=self.environment(), cwd=self.folder, capture_output=True, check=False)
        assert done.returncode == 0, (arguments, done.stdout.decode(), done.stderr.decode())
        return done.stdout.decode()

    def start(self, **more: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"process-{len(self.running)}.log").open("wb") as log:
            command = [sys.executable, "-m", "consumers.cli", "run", "kills_app:app"]
            process = subprocess.Popen(command, env=self.environment(**more), cwd=self.folder, stdout=log, stderr=log)
        self.running.append(process)
        return process

    def logs(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace")[-3000:] for path in sorted(self.folder.glob("process-*")))

    def stop(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    monkeypatch.setattr(kills_app, "FOLDER", tmp_path)
    (tmp_path / "policy.toml").write_text(POLICY)
    made.run("key", "new", "desk@svc", "client@svc", "lead@acme")
    yield made
    made.stop()


async def decide(deployment: Deployment, until: asyncio.Event) -> None:
    """Be a person who approves everything, as fast as she can."""
    async with connect(agent="lead@acme", env=deployment.settings) as bus:
        topic, seen = message_topic("kills", "approval.request"), set[str]()
        while not until.is_set():
            with suppress(Exception):
                async for record in scan_topic(bus.transport, topic):
                    message = sealing.parse(record.value)
                    if message.message_id not in seen:
                        seen.add(message.message_id)
                        decision = decision_about(message, "approve", by="lead@acme")
                        await bus.publisher.send(seal_decision(bus.publisher.sealer, decision, message))
            await asyncio.sleep(0.2)


async def ask(deployment: Deployment) -> list[Any]:
    async with connect(agent="client@svc", env=deployment.settings) as bus, asyncio.TaskGroup() as group:
        asked = [
            group.create_task(
                bus.request(
                    TaskRequest(goal=f"task-{number}"),
                    TaskResult,
                    to="desk@svc",
                    task_id=f"t-{number}",
                    timeout_s=240,
                    idempotency_key=f"k{number}",
                )
            )
            for number in range(COUNT)
        ]
        return [await each for each in asked]


async def kill(deployment: Deployment) -> int:
    deaths = 0
    for place in PLACES:
        worker = deployment.start(SEALBUS_FAILPOINT=place)
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                while worker.poll() is None:  # noqa: ASYNC110 - another process ends
                    await asyncio.sleep(0.1)
        deaths += worker.poll() is not None
        worker.kill()
    deployment.start()
    return deaths


@pytest.mark.timeout(400)
def test_kills_of_real_workers_pay_for_nothing_twice(deployment: Deployment) -> None:
    async def everything() -> tuple[list[Any], int]:
        until = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(decide(deployment, until))
            killing = group.create_task(kill(deployment))
            answers = await ask(deployment)
            until.set()
            return answers, await killing

    answers, deaths = asyncio.run(everything())
    tasks = [f"task-{number}" for number in range(COUNT)]
    assert sorted(each.summary for each in answers) == [f"done {task}" for task in tasks]
    assert deaths >= 3, deployment.logs()
    pushed = Counter(kills_app.noted("push"))
    assert pushed.keys() == {*tasks}
    # What was under way at a kill is called once more: nothing says `once`.
    assert sum(pushed.values()) <= COUNT + deaths
    model = Counter(kills_app.noted("model"))
    assert len(model) == 3 * COUNT
    assert sum(model.values()) <= 3 * COUNT + deaths, (model, deaths)
    print("deaths", deaths, "models", sum(model.values()), "of", 3 * COUNT, "pushes", sum(pushed.values()))
    assert deployment.run("dlq", "list", "-o", "json") == ""
