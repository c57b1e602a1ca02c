"""Approvals while deciders race, time runs out and workers die: `python tests/faults/approval_races.py --help`.

Owns one scene on each log with each store: clients ask, two people decide at random or not at all, two workers die at
random failpoints. Then it reads mailbox, database and what each client was told, and exits 1 where a message ran twice,
ran without an approval, was told otherwise than it ended, or where the first decision in the log did not count.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "faults")]

import asyncpg  # noqa: E402 - after the path
import msgspec  # noqa: E402
from approvals_app import Deploy, Deployed, deployer  # noqa: E402
from saga_deaths import on_each  # noqa: E402

from bus.protocol import sealing  # noqa: E402
from bus.topics.names import mailbox_topic, message_topic  # noqa: E402
from bus.transports import open_transport  # noqa: E402
from bus.transports.read_all import scan_topic  # noqa: E402
from bus.vocabulary.approval import ApprovalDecision  # noqa: E402
from bus.vocabulary.bus import ApprovalClosed, WaitDue  # noqa: E402
from consumers.processes.approvals.deciding import decision_about, request_in, seal_decision  # noqa: E402
from sealbus import RequestFailed, RequestTimedOut, connect  # noqa: E402
from tests.databases import postgres_server  # noqa: E402

PLACES = ("claimed", "stepped", "sent", "nudged", "handled", "inboxed", "settled")
CLIENTS = 10
DECIDERS = ("lead@acme", "boss@acme")
ENDS = frozenset({"consumed", "rejected", "timed_out", "expired", "void"})
POLICY = """
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
types = "race.**"
"""


def work(env: dict[str, str], log: str) -> NoReturn:
    """What a forked worker does: read its failpoint anew, and be the command `sealbus run`."""
    os.environ.update(env)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    import importlib

    from bus import failpoints
    from consumers.cli import main

    importlib.reload(failpoints)
    main(["run", "approvals_app:deployer", "--bus", env["SEALBUS_BUS__URL"]], prog_name="sealbus")
    raise SystemExit(0)


class Scene:
    """One log, one store, who asks, who decides, and who dies."""

    def __init__(self, folder: Path, env: dict[str, str], seed: int) -> None:
        self.folder = folder
        self.env = env
        self.chance = random.Random(seed)
        self.told: dict[int, list[str]] = {}
        self.deaths = 0
        self.namespace = env["SEALBUS_BUS__NAMESPACE"]

    def prepare(self) -> None:
        agents = [*DECIDERS, "deployer@tests", *(f"client{n}@tests" for n in range(CLIENTS))]
        rows = [f'[[agents]]\nid = "{agent}"\nowner = "{agent}"\n' for agent in agents]
        rows = [row + ('kind = "human"\n' if "@acme" in row else "") for row in rows]
        policy = self.folder / "policy.toml"
        policy.write_text("\n".join(rows) + POLICY, "utf-8")
        policy.chmod(0o600)
        self.command("key", "new", *agents, "--dir", str(self.folder / "keys"))

    def command(self, *words: str) -> str:
        environment = os.environ | self.env | {"PYTHONPATH": os.pathsep.join(sys.path[:3])}
        done = subprocess.run(
            [sys.executable, "-m", "consumers.cli", *words],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            check=True,
        )
        return done.stdout.decode()

    def start(self, failpoint: str = "") -> multiprocessing.process.BaseProcess:
        env = self.env | {"SEALBUS_FAILPOINT": failpoint}
        worker = multiprocessing.get_context("forkserver").Process(
            target=work, args=(env, str(self.folder / "workers.log"))
        )
        worker.start()
        return worker

    async def die(self, until: asyncio.Event) -> None:
        """Two workers at a time, each of them dying at a random place."""
        lives: list[tuple[multiprocessing.process.BaseProcess, float]] = []
        while not until.is_set():
            while len(lives) < 2:
                place = f"{self.chance.choice(PLACES)}:{self.chance.randrange(2, 15)}"
                lives.append((self.start(place), time.monotonic() + 12.0))
            await asyncio.sleep(0.05)
            for life in list(lives):
                worker, until_s = life
                if worker.exitcode is None and time.monotonic() > until_s:
                    worker.kill()
                if worker.exitcode is not None or time.monotonic() > until_s:
                    worker.join()
                    self.deaths += worker.exitcode == -signal.SIGKILL
                    lives.remove(life)
        for worker, _ in lives:
            worker.kill()
            worker.join()

    async def ask(self, count: int) -> None:
        """Ask for *count* deployments, by several clients, and note what each is told."""

        async def client(name: str, numbers: list[int]) -> None:
            async with connect(agent=name, env=self.env) as bus:
                waiting = asyncio.Semaphore(15)

                async def one(number: int) -> None:
                    async with waiting:
                        said = "nothing"
                        try:
                            answer = await bus.request(
                                Deploy(number=number), Deployed, timeout_s=300, idempotency_key=f"d-{number}"
                            )
                            said = "deployed" if answer.number == number else "another"
                        except RequestFailed as error:
                            said = error.reason
                        except RequestTimedOut:
                            pass
                        self.told.setdefault(number, []).append(said)

                async with asyncio.TaskGroup() as group:
                    for number in numbers:
                        group.create_task(one(number))

        async with asyncio.TaskGroup() as group:
            for index in range(CLIENTS):
                group.create_task(client(f"client{index}@tests", list(range(index, count, CLIENTS))))

    async def decide(self, name: str, until: asyncio.Event) -> None:
        """Be a person who approves, rejects, or does not care, early, late or twice."""
        async with connect(agent=name, env=self.env) as bus, asyncio.TaskGroup() as group:
            topic, seen = message_topic(self.namespace, "approval.request"), set[str]()

            async def one(message: sealing.Message) -> None:
                mood = self.chance.random()
                if mood < 0.25:
                    return
                await asyncio.sleep(self.chance.choice([0.0, 0.5, 3.0, 24.0, 26.0]))
                verb: Any = "approve" if self.chance.random() < 0.6 else "reject"
                for _ in range(2 if mood > 0.9 else 1):
                    decision = decision_about(message, verb, by=name, reason="because")
                    with suppress(Exception):
                        await bus.publisher.send(seal_decision(bus.publisher.sealer, decision, message))

            while not until.is_set():
                if topic in await bus.transport.admin.topics():
                    async for record in scan_topic(bus.transport, topic):
                        message = sealing.parse(record.value)
                        if message.message_id not in seen:
                            seen.add(message.message_id)
                            group.create_task(one(message))
                await asyncio.sleep(0.3)

    async def deployed(self) -> Counter[int]:
        url, query = self.env["SEALBUS_INBOX__URL"], "SELECT number FROM deployed"
        if url.startswith("postgres"):
            connection = await asyncpg.connect(url)
            try:
                return Counter(row[0] for row in await connection.fetch(query))
            finally:
                await connection.close()
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            return Counter(row[0] for row in database.execute(query))

    async def make_table(self) -> None:
        url, statement = self.env["SEALBUS_INBOX__URL"], "CREATE TABLE deployed (number bigint NOT NULL)"
        if url.startswith("postgres"):
            connection = await asyncpg.connect(url)
            await connection.execute(statement)
            await connection.close()
            return
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            database.execute(statement)
            database.commit()

    async def judged(self, count: int) -> list[str]:
        """What went wrong, by kind; prints what was counted."""
        transport = open_transport(self.env["SEALBUS_BUS__URL"])
        try:
            mail = [
                sealing.parse(record.value)
                async for record in scan_topic(transport, mailbox_topic(self.namespace, deployer.group))
            ]
            asked = {
                message.message_id: message
                async for record in scan_topic(transport, message_topic(self.namespace, "approval.request"))
                if (message := sealing.parse(record.value))
            }
            closed: dict[str, set[str]] = {}
            async for record in scan_topic(transport, message_topic(self.namespace, "approval.closed")):
                told = msgspec.json.decode(sealing.parse(record.value).data, type=ApprovalClosed)
                closed.setdefault(told.approval_id, set()).add(told.state)
        finally:
            await transport.close()
        numbers = {
            request_in(message).approval_id: int(request_in(message).action.description) for message in asked.values()
        }
        first: dict[str, str] = {}
        for message in mail:
            if message.message_type == "approval.decision":
                decision = msgspec.json.decode(message.data, type=ApprovalDecision)
                first.setdefault(decision.approval_id, decision.decision)
            elif message.message_type == "wait.due":
                waited = asked.get(msgspec.json.decode(message.data, type=WaitDue).wait)
                if waited is not None:
                    first.setdefault(request_in(waited).approval_id, "silence")
        runs, ends = await self.deployed(), {name: states & ENDS for name, states in closed.items()}
        wanted = {"approve": {"consumed", "expired"}, "reject": {"rejected"}, "silence": {"timed_out"}}
        said = {number: tuple(texts) for number, texts in self.told.items()}
        by_number = {numbers[name]: states for name, states in ends.items() if name in numbers}
        faults = {
            "not told": count - len(said),
            "told twice": sum(len(texts) > 1 for texts in said.values()),
            "told nothing": sum("nothing" in texts for texts in said.values()),
            "run twice": sum(times > 1 for times in runs.values()),
            "told no and run": sum(texts[0] != "deployed" and runs[number] > 0 for number, texts in said.items()),
            "told yes and not run": sum(texts == ("deployed",) and not runs[number] for number, texts in said.items()),
            "two ends": sum(len(states) > 1 for states in ends.values()),
            "no end": sum(not ends.get(name) for name in numbers),
            "the first did not count": sum(
                not ends.get(name, set()) <= wanted[how] for name, how in first.items() if name in numbers
            ),
            "run without consent": sum(by_number.get(number) != {"consumed"} for number in runs),
        }
        outcomes = Counter(texts[0] for texts in said.values())
        print(f"  {count} asked, {self.deaths} deaths; told {dict(outcomes)}; first {dict(Counter(first.values()))}")
        print("  " + ", ".join(f"{name} {number}" for name, number in faults.items()))
        return [name for name, number in faults.items() if number]


async def run(options: argparse.Namespace, log: str, store: str, bootstrap: str) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="approval-races-"))
    inbox = f"sqlite:///{folder}/inbox.db" if store == "sqlite" else await postgres_server().create_database()
    env = {
        "SEALBUS_BUS__URL": f"sqlite:///{folder}/log.db" if log == "sqlite" else f"kafka://{bootstrap}",
        "SEALBUS_BUS__NAMESPACE": f"n{uuid.uuid4().hex[:8]}",
        "SEALBUS_INBOX__URL": inbox,
        "SEALBUS_INBOX__LOCAL": "true",
        "SEALBUS_INBOX__LEASE_S": "1",
        "SEALBUS_TOPICS__CREATE": "true",
        "SEALBUS_TRUST__KEYS": str(folder / "keys" / "jwks.json"),
        "SEALBUS_TRUST__KEY_FILE": str(folder / "keys"),
        "SEALBUS_POLICY__FILE": str(folder / "policy.toml"),
        "SEALBUS_KAFKA__SESSION_TIMEOUT_S": "2s",
        "SEALBUS_KAFKA__HEARTBEAT_S": "0.2s",
    }
    scene = Scene(folder, env, options.seed)
    print(f"log {log}, store {store}, seed {options.seed}", flush=True)
    began_s = time.monotonic()
    scene.prepare()
    await scene.make_table()
    asked, over = asyncio.Event(), asyncio.Event()
    deciders = [asyncio.create_task(scene.decide(name, over)) for name in DECIDERS]
    dying = asyncio.create_task(scene.die(asked))
    await scene.ask(options.approvals)
    asked.set()
    await dying
    worker = scene.start()
    await asyncio.sleep(30)
    worker.terminate()
    worker.join(30)
    over.set()
    for decider in deciders:
        await decider
    found = await scene.judged(options.approvals)
    print(
        f"  {time.monotonic() - began_s:.0f} s" + (f"; WRONG: {', '.join(found)}; files in {folder}" if found else "")
    )
    return not found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--approvals", type=int, default=500)
    parser.add_argument("--log", choices=["sqlite", "kafka"], action="append", default=[], help="both without it")
    parser.add_argument("--store", choices=["sqlite", "postgres"], action="append", default=[], help="as --log")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.exit(0 if on_each(options, run, "approvals_app") else 1)


if __name__ == "__main__":
    main()
