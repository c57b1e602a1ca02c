"""Processes of sagas while their workers die: `python tests/faults/saga_deaths.py --help`.

Owns two ways to die, on each log with each store. `--deaths N`: a worker dies at a random failpoint, N times in all.
`--rounds N`: three workers at once, all of them killed every `--every` seconds, N times. Then it reads log, store and
the ledger of the seller, prints what it found, and exits 1 where anything was lost, done twice, early or stuck.
`--versions`: the workers that die are of two releases of the buyer side by side; then the older one is alone for a
while, as after a roll-back, and at last the newer one.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import multiprocessing.forkserver
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "e2e")]

import asyncpg  # noqa: E402 - after the path
import msgspec  # noqa: E402
from rich.progress import Progress, TextColumn  # noqa: E402
from saga_app import PAUSE_S, Asked, Ended, Order  # noqa: E402

from bus.protocol import sealing  # noqa: E402
from bus.transports import open_transport  # noqa: E402
from bus.transports.read_all import scan_topic  # noqa: E402
from deploy.kafka.cluster import Cluster  # noqa: E402
from sealbus import Receipt, connect  # noqa: E402
from tests.databases import postgres_server  # noqa: E402

PLACES = ("claimed", "stepped", "sent", "nudged")
COUNTS = 3, 12
"""At which passing of its place a worker dies. Not at the first: what is there when three in turn die is given up."""
HOW = "placed,priced,paused,delivered"
NEW_HOW = "placed,priced,paused,wrapped,cooled,delivered"
BUYERS = "buyer", "new_buyer"
ROLLED_BACK_S = 30.0
BATCH = 200
KAFKA = {"group.min.session.timeout.ms": "1000"}


def work(env: dict[str, str], log: str) -> NoReturn:
    """What a forked worker does: read its failpoint anew, and be the command `sealbus run`."""
    os.environ.update(env)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    import importlib

    import saga_app

    from bus import failpoints
    from consumers.cli import main

    importlib.reload(failpoints)
    saga_app.open_ledger()
    apps = f"saga_app:{env['BUYER']}", "saga_app:seller"
    main(["run", *apps, "--bus", env["SEALBUS_BUS__URL"]], prog_name="sealbus")
    raise SystemExit(0)


@dataclass
class Scene:
    """One log, one store and the workers on them."""

    folder: Path
    url: str
    store: str
    env: dict[str, str]
    published: int = 0
    deaths: int = 0
    died_at: Counter[str] = field(default_factory=Counter)
    versions: bool = False

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.txt"

    def start(self, failpoint: str = "", buyer: str = "") -> multiprocessing.process.BaseProcess:
        last = BUYERS[-1] if self.versions else BUYERS[0]
        env = self.env | {"SEALBUS_FAILPOINT": failpoint, "LEDGER": str(self.ledger), "BUYER": buyer or last}
        forking = multiprocessing.get_context("forkserver")
        worker = forking.Process(target=work, args=(env, str(self.folder / "workers.log")))
        worker.start()
        return worker

    async def publish(self, count: int) -> None:
        async with connect(self.url, agent="tests@tests", env=self.env) as bus:
            orders = (Order(number=number) for number in range(self.published, self.published + count))
            assert all([isinstance(result, Receipt) async for result in bus.publish_many(orders)])
        self.published += count

    async def messages(self, name: str, kind: type[msgspec.Struct]) -> list[tuple[str, msgspec.Struct]]:
        """Ids and payloads of all that lies in one topic."""
        topic = f"{self.env['SEALBUS_BUS__NAMESPACE']}.{name}"
        transport = open_transport(self.url)
        try:
            if topic not in await transport.admin.topics():
                return []
            found = [sealing.parse(record.value) async for record in scan_topic(transport, topic)]
        finally:
            await transport.close()
        return [(message.message_id, msgspec.json.decode(message.data, type=kind)) for message in found]

    async def counted(self, query: str) -> int:
        if self.store.startswith("postgres"):
            connection = await asyncpg.connect(self.store)
            try:
                return int(await connection.fetchval(query))
            finally:
                await connection.close()
        with closing(sqlite3.connect(self.store.removeprefix("sqlite:///"))) as database:
            return int(database.execute(query).fetchone()[0])

    async def open_processes(self) -> int:
        """How many of them have not finished; those whose order no worker has read yet count, too."""
        try:
            query = "SELECT count(*) FROM sealbus_processes WHERE saga = 'buying' AND status = 'finished'"
            return self.published - await self.counted(query)
        except (sqlite3.OperationalError, asyncpg.UndefinedTableError):
            return self.published


async def die_at_failpoints(scene: Scene, deaths: int, seed: int, lives_s: float) -> None:
    """Two workers at a time, each of them dying at a random place, until there were *deaths*."""
    chance = random.Random(seed)
    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[open]:,} open")) as progress:
        bar = progress.add_task("deaths", total=deaths, open=0)
        lives: list[tuple[multiprocessing.process.BaseProcess, str, float]] = []
        while scene.deaths < deaths:
            left = await scene.open_processes()
            progress.update(bar, completed=scene.deaths, open=left)
            if left < BATCH:
                await scene.publish(BATCH)
            while len(lives) < 2:
                place = chance.choice(PLACES)
                buyer = chance.choice(BUYERS) if scene.versions else ""
                worker = scene.start(f"{place}:{chance.randrange(*COUNTS)}", buyer)
                lives.append((worker, place, time.monotonic() + lives_s))
            await asyncio.sleep(0.05)
            for life in list(lives):
                worker, place, until_s = life
                if worker.exitcode is None and time.monotonic() > until_s:
                    worker.kill()  # its place was not reached: a death like any other, but not counted
                    worker.join()
                    lives.remove(life)
                elif worker.exitcode is not None:
                    if worker.exitcode == -signal.SIGKILL:
                        scene.deaths += 1
                        scene.died_at[place] += 1
                    lives.remove(life)
        for worker, _, _ in lives:
            worker.kill()
            worker.join()


async def die_together(scene: Scene, rounds: int, every_s: float, processes: int, workers: int) -> None:
    """*workers* at once, all killed every *every_s*; the processes are published over all rounds."""
    with Progress(*Progress.get_default_columns(), TextColumn("{task.fields[open]:,} open")) as progress:
        bar = progress.add_task("rounds", total=rounds, open=0)
        for number in range(rounds):
            lives = [scene.start(buyer=BUYERS[n % 2] if scene.versions else "") for n in range(workers)]
            until_s = time.monotonic() + every_s
            await scene.publish(processes * (number + 1) // rounds - scene.published)
            await asyncio.sleep(max(0.0, until_s - time.monotonic()))
            for worker in lives:
                assert worker.exitcode is None, f"a worker ended by itself: {worker.exitcode}"
                worker.kill()
                worker.join()
                scene.deaths += 1
            progress.update(bar, completed=number + 1, open=await scene.open_processes())


async def roll_back(scene: Scene, for_s: float) -> None:
    """Let the older release be alone for a while: what it does not know it leaves alone."""
    worker = scene.start(buyer=BUYERS[0])
    await asyncio.sleep(for_s)
    assert worker.exitcode is None, f"a worker ended by itself: {worker.exitcode}"
    worker.terminate()
    worker.join(30)
    print(f"  rolled back for {for_s:.0f} s: {await scene.open_processes():,} open processes wait for the newer code")


async def finish(scene: Scene, within_s: float) -> float:
    """Let one worker live until all processes have finished; return how long that took."""
    began_s = time.monotonic()
    worker = scene.start()
    left, took_s = 1, 0.0
    while left and took_s < within_s:
        await asyncio.sleep(0.25)
        left, took_s = await scene.open_processes(), time.monotonic() - began_s
    await asyncio.sleep(1.0)  # the last outputs leave after their commit
    worker.terminate()
    worker.join(30)
    return took_s


async def faults(scene: Scene) -> list[str]:
    """What went wrong, by kind; prints what was counted."""
    ended: dict[int, dict[str, Ended]] = {}
    for message_id, payload in await scene.messages("test.ended", Ended):
        assert isinstance(payload, Ended)
        ended.setdefault(payload.number, {})[message_id] = payload
    asked: dict[tuple[int, str], set[str]] = {}
    for message_id, question in await scene.messages("test.asked", Asked):
        assert isinstance(question, Asked)
        asked.setdefault((question.number, question.what), set()).add(message_id)
    acts = Counter(scene.ledger.read_text("utf-8").splitlines())
    last = [next(iter(each.values())) for each in ended.values()]
    counts = {
        "lost": scene.published - len(ended),
        "stuck": await scene.open_processes(),
        "ended twice": sum(len(each) > 1 for each in ended.values()),
        "asked twice": sum(len(each) > 1 for each in asked.values()),
        "not as written": sum(each.how not in ((HOW, NEW_HOW) if scene.versions else (HOW,)) for each in last),
        "waits left": await scene.counted("SELECT count(*) FROM sealbus_waits"),
        "holds left": await scene.counted("SELECT count(*) FROM sealbus_holds"),
        "early timers": sum(each.waited_s < PAUSE_S for each in last),
        "never sold": 2 * scene.published + sum(each.how == NEW_HOW for each in last) - len(acts),
    }
    waited = sorted(each.waited_s - PAUSE_S for each in last)
    late = ", ".join(
        f"p{share:g} {waited[min(len(waited) - 1, len(waited) * share // 100)]:.2f} s" for share in (50, 99)
    )
    print(f"  {scene.published:,} processes, {scene.deaths:,} deaths {dict(scene.died_at) or ''}; timers late: {late}")
    print("  " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    return [name for name, count in counts.items() if count]


async def run(options: argparse.Namespace, log: str, store: str, bootstrap: str) -> bool:
    folder = Path(tempfile.mkdtemp(prefix="saga-deaths-"))
    namespace = f"n{uuid.uuid4().hex[:8]}"
    url = f"sqlite:///{folder}/log.db" if log == "sqlite" else f"kafka://{bootstrap}"
    inbox = f"sqlite:///{folder}/inbox.db" if store == "sqlite" else await postgres_server().create_database()
    env = {
        "SEALBUS_BUS__URL": url,
        "SEALBUS_BUS__NAMESPACE": namespace,
        "SEALBUS_INBOX__URL": inbox,
        "SEALBUS_INBOX__LOCAL": "true",
        "SEALBUS_INBOX__LEASE_S": "1",
        "SEALBUS_TOPICS__CREATE": "true",
        "SEALBUS_WORKER__COMMIT_INTERVAL_S": "0.1",
        "SEALBUS_KAFKA__SESSION_TIMEOUT_S": "2s",  # whoever is killed is missed soon
        "SEALBUS_KAFKA__HEARTBEAT_S": "0.2s",
    }
    scene = Scene(folder, url, inbox, env, versions=options.versions)
    began_s = time.monotonic()
    print(f"log {log}, store {store}, seed {options.seed}", flush=True)
    if options.rounds:
        await die_together(scene, options.rounds, options.every, options.processes, options.workers)
    else:
        await die_at_failpoints(scene, options.deaths, options.seed, 10.0)
    if options.versions:
        await roll_back(scene, ROLLED_BACK_S)
    took_s = await finish(scene, 1500.0 if options.versions else 300.0)
    found = await faults(scene)
    print(f"  {time.monotonic() - began_s:.0f} s, the last {took_s:.0f} s of them by one worker that lived", flush=True)
    if found:
        print(f"  WRONG: {', '.join(found)}; files in {folder}", flush=True)
    return not found


def on_each(
    options: argparse.Namespace,
    run: Callable[[argparse.Namespace, str, str, str], Coroutine[None, None, bool]],
    *preloaded: str,
) -> bool:
    """Await *run* on each log with each store that was asked for; tell whether all went well."""
    paths = (str(ROOT), str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "faults"))
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # what the fork server imports from
    multiprocessing.get_context("forkserver").set_forkserver_preload(["consumers.cli", *preloaded])
    logs, stores = options.log or ["sqlite", "kafka"], options.store or ["sqlite", "postgres"]
    with ExitStack() as stack:
        bootstrap = ""
        if "kafka" in logs:
            cluster = Cluster(Path(tempfile.mkdtemp(prefix="saga-kafka-")), settings=KAFKA)
            cluster.start()
            stack.callback(cluster.stop)
            bootstrap = cluster.bootstrap
        if "postgres" in stores:
            stack.callback(postgres_server().end)
        # Each of them, also after one that went wrong.
        went_well = [asyncio.run(run(options, log, store, bootstrap)) for log in logs for store in stores]
        return all(went_well)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deaths", type=int, default=500, help="at failpoints, on each log with each store; 500")
    parser.add_argument("--versions", action="store_true", help="two releases of the buyer side by side")
    parser.add_argument("--rounds", type=int, default=0, help="instead of that: so often all workers are killed")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between them; 10")
    parser.add_argument("--processes", type=int, default=10_000, help="published over all rounds; 10,000")
    parser.add_argument("--workers", type=int, default=3, help="of each round; 3")
    parser.add_argument("--log", choices=["sqlite", "kafka"], action="append", default=[], help="both without it")
    parser.add_argument("--store", choices=["sqlite", "postgres"], action="append", default=[], help="as --log")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    sys.exit(0 if on_each(options, run, "saga_app") else 1)


if __name__ == "__main__":
    main()
