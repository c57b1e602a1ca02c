"""Ends of messages while their workers die: `python tests/faults/end_deaths.py --help`.

Owns workers that are killed at random failpoints while their handler and their policy change their minds. Then it reads
what the requester was told, the dead letters, and the effects: no request is both refused and done, each has one end,
and all repeats of an end have one id.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(HERE)]

import asyncpg  # noqa: E402 - after the path
from end_app import Order  # noqa: E402

from bus.protocol import sealing  # noqa: E402
from bus.settings.loading import load  # noqa: E402
from bus.topics.specs import reply_topics  # noqa: E402
from bus.transports import open_transport  # noqa: E402
from bus.transports.read_all import scan_topic  # noqa: E402
from sealbus import Receipt, connect  # noqa: E402
from tests.databases import postgres_server  # noqa: E402

PLACES = ("claimed", "handled", "inboxed", "buried", "reported", "sent", "retried", "settled", "committing")
REPLY = "ends._reply.asker-svc-0a1b2c3d"


class Scene:
    """One log, one store and the workers on them."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/bus.db"
        self.store = store
        self.env = os.environ | {
            "SEALBUS_BUS__URL": self.url,
            "SEALBUS_BUS__NAMESPACE": "ends",
            "SEALBUS_INBOX__URL": store,
            "SEALBUS_INBOX__LEASE_S": "1s",
            "SEALBUS_DEADLETTER__BRAKE_SHARE": "1",
            "SEALBUS_WORKER__STATE_DIR": "off",
            "LEDGER": str(folder / "ledger.txt"),
            "PYTHONPATH": f"{ROOT}:{HERE}",
        }

    def start(self, failpoint: str = "") -> subprocess.Popen[bytes]:
        with (self.folder / "workers.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "consumers.cli", "run", "end_app:app"],
                env=self.env | {"SEALBUS_FAILPOINT": failpoint},
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    async def prepare(self) -> None:
        statement = "CREATE TABLE IF NOT EXISTS ends_effects (number bigint)"
        if self.store.startswith("postgres"):
            connection = await asyncpg.connect(self.store)
            await connection.execute(statement)
            await connection.close()
        else:
            with sqlite3.connect(self.store.removeprefix("sqlite:///")) as database:
                database.execute(statement)
            database.close()
        settings = load(flags={"bus.namespace": "ends", "bus.url": self.url}, env={}, file=None).settings
        transport = open_transport(self.url)
        await transport.admin.create_topics(reply_topics(settings, [REPLY]))
        await transport.close()

    async def publish(self, first: int, count: int) -> None:
        async with connect(self.url, agent="asker@svc", namespace="ends") as bus:
            for number in range(first, first + count):
                receipt = await bus.publish(Order(number=number), reply_to=REPLY, ttl_s=86_400)
                assert isinstance(receipt, Receipt)

    async def effects(self) -> Counter[int]:
        query = "SELECT number FROM ends_effects"
        if self.store.startswith("postgres"):
            connection = await asyncpg.connect(self.store)
            rows = await connection.fetch(query)
            await connection.close()
        else:
            database = sqlite3.connect(self.store.removeprefix("sqlite:///"))
            rows = database.execute(query).fetchall()
            database.close()
        return Counter(int(row[0]) for row in rows)

    async def told(self) -> tuple[dict[int, set[tuple[str, str]]], dict[int, set[str]]]:
        """By order: what its requester was told (type and id), and the ids of its dead letters."""
        said: dict[int, set[tuple[str, str]]] = defaultdict(set)
        letters: dict[int, set[str]] = defaultdict(set)
        transport = open_transport(self.url)
        numbers = {}
        async for record in scan_topic(transport, "ends.ends.order"):
            message = sealing.parse(record.value)
            numbers[message.message_id] = int(message.data.split(b":")[1].rstrip(b"}"))
        async for record in scan_topic(transport, REPLY):
            message = sealing.parse(record.value)
            number = numbers[message.metadata.correlation_id or message.metadata.causation_id or ""]
            said[number].add((message.message_type, message.message_id))
        if "ends.ends.order.dlq" in await transport.admin.topics():
            async for record in scan_topic(transport, "ends.ends.order.dlq"):
                message = sealing.parse(record.value)
                letters[numbers[message.message_id]].add(dict(record.headers)["sb-dlq-id"].decode())
        await transport.close()
        return said, letters


async def die(scene: Scene, deaths: int, seed: int, orders_per_death: int) -> tuple[int, Counter[str]]:
    """Kill workers, at a failpoint or any moment, until there were *deaths*; return what was published, and where."""
    chance, published, died_at = random.Random(seed), 0, Counter[str]()
    lives: list[tuple[subprocess.Popen[bytes], str, float]] = []
    while died_at.total() < deaths:
        if published < (died_at.total() + 3) * orders_per_death:
            await scene.publish(published, orders_per_death)
            published += orders_per_death
        while len(lives) < 2:
            place = chance.choice(PLACES)
            worker = scene.start(f"{place}:{chance.randrange(1, 5)}")
            lives.append((worker, place, time.monotonic() + chance.uniform(3, 8)))
        await asyncio.sleep(0.05)
        for life in list(lives):
            worker, place, until_s = life
            if worker.poll() is None and time.monotonic() > until_s:
                place = "any moment"
                worker.kill()
                worker.wait()
            if worker.poll() is not None:
                assert worker.returncode == -signal.SIGKILL, f"a worker ended by itself: {worker.returncode}"
                died_at[place] += 1
                lives.remove(life)
    for worker, _, _ in lives:
        worker.kill()
        worker.wait()
    return published, died_at


async def finish(scene: Scene, published: int) -> None:
    """Let one worker live until every requester was told something."""
    last, ends_s = scene.start(), time.monotonic() + 120
    while len((await scene.told())[0]) < published and time.monotonic() < ends_s:  # noqa: ASYNC110 - it looks at a log
        await asyncio.sleep(0.5)
    last.terminate()
    last.wait(60)


async def faults_of(scene: Scene, published: int) -> list[str]:
    """Return what went wrong; print what was counted."""
    said, letters = await scene.told()
    effects, refused = await scene.effects(), 0
    faults = []
    for number in range(published):
        kinds = {kind for kind, _ in said[number]}
        refused += kinds == {"error.reported"}
        if len(kinds) != 1:
            faults.append(f"{number}: its requester was told {sorted(said[number]) or 'nothing'}")
        elif len(said[number]) > 1:
            faults.append(f"{number}: one end under several ids: {sorted(said[number])}")
        if (effects[number] > 0) != ("ends.done" in kinds) or effects[number] > 1:
            faults.append(f"{number}: {effects[number]} effects, and told {sorted(kinds)}")
        if len(letters[number]) > 1:
            faults.append(f"{number}: {len(letters[number])} ids of dead letters")
    print(f"{published} orders: {refused} refused, {effects.total()} done; {len(faults)} faults")
    return faults


async def run(scene: Scene, deaths: int, seed: int, orders_per_death: int) -> list[str]:
    """Kill workers until there were *deaths*; return what went wrong."""
    await scene.prepare()
    published, died_at = await die(scene, deaths, seed, orders_per_death)
    print(f"{scene.store.partition(':')[0]}: {died_at.total()} deaths at {dict(sorted(died_at.items()))}", flush=True)
    await finish(scene, published)
    return await faults_of(scene, published)


def main() -> None:
    """Run it on the stores that were asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--deaths", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--orders", type=int, default=6, help="published for each death")
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    asked = parser.parse_args()
    faults: list[str] = []
    with ExitStack() as stack:
        for store in ("sqlite", "postgres") if asked.store == "both" else (asked.store,):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ends-")))
            url = f"sqlite:///{folder}/inbox.db"
            if store == "postgres":
                server = postgres_server()
                stack.callback(server.stop)
                url = asyncio.run(server.create_database())
            faults += asyncio.run(run(Scene(folder, url), asked.deaths, asked.seed, asked.orders))
    for fault in faults[:40]:
        print(fault)
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
