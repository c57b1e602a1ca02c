"""Keys and a policy from the settings, on a real Kafka: what is proven and allowed runs, the rest dies."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.topics.names import agent_slug
from bus.transports import open_transport
from bus.transports.read_all import scan_topic
from bus.trust.keys.private_keys import pem_of
from consumers.deadletters.letters import read_dead_letter
from sealbus import App, connect
from sealbus.trust import SigningKey
from tests.keyrings import jwks_of, key_of
from tests.kit import Job

AGENTS = ("planner@svc", "worker@svc", "stranger@svc")
EACH = 100

POLICY = """
[[agents]]
id = "planner@svc"

[[rules]]
id = "planner-asks"
effect = "allow"
action = "publish"
agents = ["planner@svc"]
types = ["job.asked"]

[[rules]]
id = "worker-works"
effect = "allow"
action = "handle"
agents = ["worker@svc"]
types = ["job.asked"]
"""


def write(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    for agent in AGENTS:
        file = folder / f"{agent_slug(agent)}.pem"
        file.write_bytes(pem_of(key_of(agent)))
        file.chmod(0o600)
    for name, text in (("jwks.json", jwks_of(*AGENTS)), ("policy.toml", POLICY.encode())):
        (folder / name).write_bytes(text)
        (folder / name).chmod(0o644)


async def test_only_verified_and_allowed_messages_run(kafka: str, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    write(folder)
    namespace = f"t{uuid.uuid4().hex[:8]}"
    base: dict[str, Any] = {
        "bus": f"kafka://{kafka}",
        "namespace": namespace,
        "inbox.url": f"sqlite:///{tmp_path}/inbox.db",
        "inbox.local": "true",
        "topics.create": "true",
    }
    trusting = base | {"trust.keys": str(folder / "jwks.json"), "trust.key_file": str(folder)}

    def settings(flags: dict[str, Any]) -> Settings:
        return load(flags=flags, env={}, file=None).settings

    runs: Counter[int] = Counter()
    app = App("worker@svc")

    @app.on(Job)
    async def work(job: Job) -> None:
        runs[job.number] += 1

    async with app.running(settings=settings(trusting | {"policy.file": str(folder / "policy.toml")})):
        senders = (
            (0, "planner@svc", trusting, None),
            (1_000, "planner@svc", base, None),  # unsigned, in another's name
            (2_000, "stranger@svc", trusting, None),  # proven, and no rule allows it
            (3_000, "planner@svc", base, SigningKey(folder / f"{agent_slug('stranger@svc')}.pem")),  # another's key
        )
        for first, agent, flags, signer in senders:
            async with connect(settings=settings(flags), agent=agent, signer=signer) as bus:
                outcomes = [each async for each in bus.publish_many(Job(number=first + n) for n in range(EACH))]
                assert not any(isinstance(each, Exception) for each in outcomes)
        letters = await _letters(settings(base), namespace, 3 * EACH)
    assert runs == dict.fromkeys(range(EACH), 1)
    reasons = Counter((letter.reason, letter.gate) for letter in letters)
    assert reasons == {
        ("signature_missing", "authenticity"): EACH,
        ("unauthorized", "policy"): EACH,
        ("sender_mismatch", "authenticity"): EACH,
    }


async def _letters(settings: Settings, namespace: str, count: int) -> list[Any]:
    transport = open_transport(settings.bus.url)
    try:
        async with asyncio.timeout(40):
            while True:
                found = [
                    read_dead_letter(record)
                    for topic in await transport.admin.topics()
                    if topic == f"{namespace}.job.asked.dlq"
                    async for record in scan_topic(transport, topic)
                ]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.2)
    finally:
        await transport.close()
