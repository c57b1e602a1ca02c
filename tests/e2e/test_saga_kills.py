"""Processes go on wherever their workers are killed: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import Counter

import msgspec
import pytest
from conftest import Workers
from saga_app import Ended, Order

from bus.protocol import sealing
from bus.transports import open_transport
from bus.transports.read_all import scan_topic
from sealbus import Receipt, connect
from tests.databases import Postgres

PLACES = ("claimed", "stepped", "inboxed", "sent", "settled", "nudged", "committing", "committed")
HOW = "placed,priced,paused,delivered"


async def publish(workers: Workers, count: int) -> None:
    env = {name: value for name, value in workers.env.items() if name.startswith("SEALBUS_")}
    async with connect(workers.url, agent="tests@tests", env=env) as bus:
        orders = (Order(number=number) for number in range(count))
        assert all([isinstance(result, Receipt) async for result in bus.publish_many(orders)])


async def ends(workers: Workers) -> dict[int, set[tuple[str, str]]]:
    """By number, the ids and texts of what said that its process has ended."""
    found: dict[int, set[tuple[str, str]]] = {}
    topic = f"{workers.env.get('SEALBUS_BUS__NAMESPACE', 'agents')}.test.ended"
    transport = open_transport(workers.url)
    try:
        if topic in await transport.admin.topics():
            async for record in scan_topic(transport, topic):
                message = sealing.parse(record.value)
                ended = msgspec.json.decode(message.data, type=Ended)
                found.setdefault(ended.number, set()).add((message.message_id, ended.how))
    finally:
        await transport.close()
    return found


def kill_often(workers: Workers, *, kills: int, count: int, seed: int, lives_s: float = 3.0) -> int:
    """Kill workers at random places until all processes have ended; return how many died."""
    chance, died, deadline_s = random.Random(seed), 0, time.monotonic() + 60 + (lives_s + 1) * kills
    while True:
        is_last = died >= kills
        place = f"{chance.choice(PLACES)}:{chance.randrange(1, 12)}"
        workers.env |= {"SEALBUS_FAILPOINT": "" if is_last else place}
        process = workers.start("saga_app:seller", app="saga_app:buyer")
        until_s = time.monotonic() + (120 if is_last else lives_s)
        while process.poll() is None and time.monotonic() < until_s:
            if is_last and len(asyncio.run(ends(workers))) == count:
                break
            time.sleep(0.05)
        if process.poll() is None:
            process.kill()
        process.wait()
        died += 1
        if len(asyncio.run(ends(workers))) == count:
            return died
        assert time.monotonic() < deadline_s, f"seed {seed}: {len(asyncio.run(ends(workers)))} of {count} ended"


def check(workers: Workers, count: int) -> None:
    found = asyncio.run(ends(workers))
    assert set(found) == set(range(count))
    # The same message may be appended again; another one would be a second act.
    assert all([how for _, how in told] == [HOW] for told in found.values())
    acts = Counter(workers.ledger.read_text("utf-8").splitlines())
    assert set(acts) == {f"{number} {what}" for number in range(count) for what in ("price", "goods")}


def prepare(workers: Workers, store: str) -> None:
    workers.env |= {"SEALBUS_INBOX__LEASE_S": "1", "SEALBUS_WORKER__COMMIT_INTERVAL_S": "0.1"}
    if store:
        workers.env |= {"SEALBUS_INBOX__URL": store}


def move_to_kafka(workers: Workers, bootstrap: str) -> None:
    workers.url = f"kafka://{bootstrap}"
    workers.env |= {
        "SEALBUS_BUS__NAMESPACE": f"n{uuid.uuid4().hex[:8]}",
        "SEALBUS_TOPICS__CREATE": "true",
        # Whoever is killed is missed soon.
        "SEALBUS_KAFKA__SESSION_TIMEOUT_S": "2s",
        "SEALBUS_KAFKA__HEARTBEAT_S": "0.2s",
    }


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_processes_survive_their_workers(workers: Workers, store: str, postgres: Postgres) -> None:
    prepare(workers, asyncio.run(postgres.create_database()) if store == "postgres" else "")
    asyncio.run(publish(workers, 20))
    assert kill_often(workers, kills=6, count=20, seed=1) > 1
    check(workers, 20)


@pytest.mark.slow  # a process that starts takes most of a second
@pytest.mark.timeout(240)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("seed", range(3))
def test_processes_survive_many_deaths(workers: Workers, store: str, seed: int, postgres: Postgres) -> None:
    prepare(workers, asyncio.run(postgres.create_database()) if store == "postgres" else "")
    asyncio.run(publish(workers, 60))
    kill_often(workers, kills=25, count=60, seed=seed)
    check(workers, 60)


@pytest.mark.slow  # whoever is killed is missed after two seconds
@pytest.mark.timeout(240)
def test_processes_survive_their_workers_on_kafka(workers: Workers, kafka: str, postgres: Postgres) -> None:
    move_to_kafka(workers, kafka)
    prepare(workers, asyncio.run(postgres.create_database()))
    asyncio.run(publish(workers, 200))
    assert kill_often(workers, kills=8, count=200, seed=6, lives_s=6.0) > 2
    check(workers, 200)
