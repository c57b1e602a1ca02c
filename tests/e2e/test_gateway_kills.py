"""Gateways, their workers and their clients die: a task that was accepted is seen to its end, and runs once.

At size: `DRILL_CLIENTS=50 DRILL_KILLS=1000 DRILL_S=900 pytest -m "" -s tests/e2e/test_gateway_kills.py -k sqlite`. It
ends after that many deaths of processes and connections, or after that time, and prints what it counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import wait_until
from deployments import Deployment, stores_of

CLIENTS = int(os.environ.get("DRILL_CLIENTS", "8"))
KILLS = int(os.environ.get("DRILL_KILLS", "20"))
DRILL_S = float(os.environ.get("DRILL_S", "120"))
AT_LEAST = 3
"""Deaths of gateways, and of workers: broken connections are many more."""
TASKS = 12
END_S = 420.0
"""How long the last tasks may take once nothing dies any more."""
ENDS = ("completed", "failed", "rejected", "cancelled")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(DRILL_S + END_S + 180)]

POLICY = """
[[agents]]
id = "gateway@sealbus"
kind = "service"
model = false
groups = ["doors"]

[[rules]]
id = "work"
effect = "allow"
action = ["publish", "handle"]
agents = "desk@svc"
types = "**"
"""


class Deaths:
    """How often what has died, until it is enough."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self.killed: set[int] = set()
        self.enough = asyncio.Event()

    def count(self, what: str) -> None:
        self.of[what] += 1
        if self.of.total() >= KILLS and min(self.of["gateway"], self.of["worker"]) >= AT_LEAST:
            self.enough.set()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Doors(Deployment):
    """Two gateways and two workers of one namespace."""

    def __init__(self, url: str, inbox: str, folder: Path) -> None:
        super().__init__(url, inbox, folder)
        self.ledger = folder / "ledger.txt"
        self.settings |= {"LEDGER": str(self.ledger), "SEALBUS_INBOX__LEASE_S": "5"}
        # A member of a group that was killed is missed sooner.
        self.settings |= {"SEALBUS_KAFKA__SESSION_TIMEOUT_S": "6"}
        self.ports = (free_port(), free_port())
        self.gateways: list[subprocess.Popen[bytes] | None] = [None, None]
        self.workers: list[subprocess.Popen[bytes] | None] = [None, None]
        self.token = ""

    def prepare(self) -> None:
        (self.folder / "policy.toml").write_text(POLICY)
        self.run("key", "new", "desk@svc")
        made = self.objects(
            "door",
            "add",
            "ci",
            "--agent",
            "ci@acme",
            "--to",
            "desk@svc",
            "--rate",
            "10000",
            "--open-tasks",
            "1000",
            "--streams",
            "1000",
        )
        self.token = made[0]["token"]
        self.run("topic", "apply", "desk_app:app", "gateway@sealbus", "--yes")

    def start_gateway(self, number: int) -> None:
        self.gateways[number] = self.start("serve", "gateway", "--port", str(self.ports[number]))

    def start_worker(self, number: int) -> None:
        self.workers[number] = self.start("run", "desk_app:app")

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.ports[number % 2]}"

    def ready(self, number: int) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url(number)}/healthz/ready", trust_env=False).status_code == 200
        return False


@pytest.fixture(params=["sqlite", "kafka"])
def doors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Doors]:
    made = Doors(*stores_of(request, tmp_path), tmp_path)
    made.prepare()
    try:
        for number in (0, 1):
            made.start_gateway(number)
            made.start_worker(number)
        wait_until(lambda: made.ready(0) and made.ready(1), 120, "the gateways are ready")
        yield made
    finally:
        made.stop()


class Client:
    """One client that opens tasks under keys, and follows each to its end, from whichever gateway answers."""

    def __init__(self, doors: Doors, number: int, chance: random.Random, deaths: Deaths) -> None:
        self.doors, self.number, self.chance, self.deaths = doors, number, chance, deaths
        self.seen: dict[str, list[int]] = {}
        self.ended: dict[str, dict[str, Any]] = {}
        self.ids: dict[str, set[str]] = {}

    async def run(self) -> None:
        wave = 0
        while not wave or not self.deaths.enough.is_set():
            await asyncio.gather(*(self.task(f"c{self.number}-{wave}-{index}") for index in range(TASKS)))
            wave += 1

    async def task(self, goal: str) -> None:
        identity = await self.opened(goal)
        cursor = ""
        while goal not in self.ended:
            with contextlib.suppress(httpx.HTTPError):
                cursor = await self.follow(goal, identity, cursor)
            await asyncio.sleep(self.chance.random() * 0.2)
        # After its end too, its key is the same task.
        assert await self.opened(goal) == identity

    async def opened(self, goal: str) -> str:
        body = {"to": "desk@svc", "goal": goal}
        while True:
            with contextlib.suppress(httpx.HTTPError):
                async with self.client() as client:
                    answer = await client.post("/tasks", json=body, headers={"Idempotency-Key": goal})
                if answer.status_code in (200, 202):
                    identity = str(answer.json()["id"])
                    self.ids.setdefault(goal, set()).add(identity)
                    return identity
                assert answer.status_code in (503, 429, 401), answer.text
            await asyncio.sleep(self.chance.random() * 0.3)

    async def follow(self, goal: str, identity: str, cursor: str) -> str:
        headers = {"Last-Event-ID": cursor} if cursor else {}
        async with (
            self.client() as client,
            client.stream("GET", f"/tasks/{identity}/events", headers=headers) as stream,
        ):
            if stream.status_code != 200:
                return cursor
            number = ""
            async for line in stream.aiter_lines():
                if line.startswith("id: "):
                    number = line[4:]
                elif line.startswith("data: "):
                    # An event counts once it is whole.
                    shown, cursor = json.loads(line[6:]), number
                    self.seen.setdefault(goal, []).append(shown["generation"])
                    if shown["status"] in ENDS:
                        self.ended[goal] = shown
                if self.chance.random() < 0.05:
                    self.deaths.count("connection")
                    break
        return cursor

    @contextlib.asynccontextmanager
    async def client(self) -> Any:
        headers = {"Authorization": f"Bearer {self.doors.token}"}
        url = self.doors.url(self.chance.randrange(2))
        # Without `verify` each client would read all certificates of this machine.
        async with httpx.AsyncClient(
            base_url=url, headers=headers, trust_env=False, timeout=20, verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        ) as client:
            yield client


async def kill(doors: Doors, what: str, chance: random.Random, deaths: Deaths) -> None:
    """Kill processes of one kind at random, each when the one before has a successor at work."""
    processes = doors.gateways if what == "gateway" else doors.workers
    while not deaths.enough.is_set():
        await asyncio.sleep(0.2 + chance.random())
        number = chance.randrange(2)
        process = processes[number]
        assert process is not None
        deaths.killed.add(process.pid)
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        (doors.start_gateway if what == "gateway" else doors.start_worker)(number)
        deaths.count(what)
        while not await asyncio.to_thread(lambda: doors.ready(0) and doors.ready(1)):
            ended = [each for each in doors.running if each.poll() is not None and each.pid not in deaths.killed]
            assert not ended, [(each.args, each.returncode, doors.log_of(each)) for each in ended]
            await asyncio.sleep(0.1)


async def drill(doors: Doors, seed: int) -> tuple[list[Client], Deaths]:
    deaths = Deaths()
    clients = [Client(doors, number, random.Random(seed + number + 1), deaths) for number in range(CLIENTS)]
    asyncio.get_running_loop().call_later(DRILL_S, deaths.enough.set)
    async with asyncio.timeout(DRILL_S + END_S), asyncio.TaskGroup() as group:
        for what in ("gateway", "worker"):
            group.create_task(kill(doors, what, random.Random(f"{what}{seed}"), deaths))
        for client in clients:
            group.create_task(client.run())
    return clients, deaths


def test_every_client_sees_the_end_of_its_tasks_and_none_runs_twice(doors: Doors) -> None:
    clients, deaths = asyncio.run(drill(doors, 7))
    ran: dict[str, list[int]] = {}
    for line in doors.ledger.read_text().splitlines():
        goal, process = line.split()
        ran.setdefault(goal, []).append(int(process))
    # A worker that dies after its effect and before its result runs again: that is the promise of a plain handler.
    doubled = [goal for goal, processes in ran.items() if not deaths.killed.issuperset(processes[:-1])]
    opened = {goal for client in clients for goal in client.ids}
    print(
        f"\n{dict(deaths.of)} died; {len(opened)} tasks, {len(opened - ran.keys())} never ran, "
        f"{sum(len(processes) - 1 for processes in ran.values())} ran again after a death, {len(doubled)} without one"
    )
    for client in clients:
        assert client.ended.keys() == client.ids.keys()
        for goal, ended in client.ended.items():
            assert ended["status"] == "completed", (ended, doors.logs())
            assert ended["result"]["summary"] == goal.upper()
            generations = client.seen[goal]
            assert generations == sorted(generations), generations
            assert len(client.ids[goal]) == 1
    assert ran.keys() == opened
    assert not doubled
    assert deaths.of["gateway"]
    assert deaths.of["worker"]
