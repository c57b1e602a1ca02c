"""What the console costs in a large namespace: `python -m tests.benchmarks.console`.

Owns measuring its pages and its memory with many open dead letters, agents and open processes, on the embedded log.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import msgspec

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.topics.specs import directory_topics
from bus.transports import open_transport
from bus.vocabulary import AgentHandshake, AgentHeartbeat
from bus.vocabulary.parts import AgentCard
from consumers.delivery.inbox.open import open_inbox
from consumers.processes.sagas.process import Process
from consumers.processes.sagas.store import ProcessChange, ProcessStore
from producers.connection import make_publisher
from producers.directory.view import record_key
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from tests.letters import write_letters

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "/", "/letters", "/conversations", "/agents", "/groups", "/processes", "/approvals", "/costs", "/audit", "/tail",
)  # fmt: skip


async def fill(folder: Path, letters: int, agents: int, processes: int) -> None:
    """Write the namespace."""
    transport = open_transport(f"sqlite:///{folder}/log.db")
    await write_letters(transport, letters, 1_000)
    await transport.close()
    clock = SystemClock()
    inbox = open_inbox(f"sqlite:///{folder}/inbox.db", owner="bench", clock=clock, shared_files=False)
    await inbox.open()
    store = ProcessStore(inbox, namespace="agents", group="bench", clock=clock)
    await store.open()
    now_ms = clock.now_ms()
    for number in range(processes):
        row = Process(
            id=secrets.token_bytes(32), namespace="agents", group="bench", saga="workflow", key=f"order-{number}",
            version=1, status="open", shape="1.0.0", state=b"{}", opener=b"{}", trust="user_request", opened_ms=now_ms,
            changed_ms=now_ms,
        )  # fmt: skip
        await store.change(ProcessChange(before=None, after=row))
    await inbox.close()
    await beat(folder, agents, first=True)


async def beat(folder: Path, agents: int, *, first: bool = False) -> None:
    """Append what the workers of *agents* agents say of themselves."""
    settings = load(flags={"bus.url": f"sqlite:///{folder}/log.db"}, env={}, file=None).settings
    transport = open_transport(settings.bus.url)
    if first:
        await transport.admin.create_topics(directory_topics(settings))
    for number in range(agents):
        name = f"agent-{number}@lab"
        publisher = make_publisher(transport, settings, name, clock=SystemClock(), metrics=Metrics())
        sender = msgspec.structs.replace(publisher.sealer.origin.sender, session_id="s")
        request = SealRequest(
            topic=f"{settings.bus.namespace}._directory",
            origin=msgspec.structs.replace(publisher.sealer.origin, sender=sender),
        )
        card = AgentCard(agent_id=name, name=name, version="1.0.0", capabilities=("work",))
        values = [AgentHeartbeat(status="healthy", active_tasks=number % 9)]
        for value in [AgentHandshake(agent_card=card), *values] if first else values:
            draft = Outgoing(value, key=record_key(name, "s").decode())
            await transport.append(publisher.sealer.seal(draft, request).records, timeout_s=5)
    await transport.close()


def memory_mb(pid: int) -> float:
    """Return the largest memory of a process, in megabytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def measure(folder: Path, agents: int) -> None:
    """Print the slowest of 20 answers of each page."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "SEALBUS_BUS__URL": f"sqlite:///{folder}/log.db",
        "SEALBUS_INBOX__URL": f"sqlite:///{folder}/inbox.db",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "consumers.cli", "serve", "console", "--port", "0", "--read-only"],
        env=environment, cwd=folder, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stderr is not None
    url = next(found[1] for line in process.stderr if (found := re.search(r"(http://\S+)/", line)))
    threading.Thread(target=process.stderr.read, daemon=True).start()

    def get(path: str) -> tuple[float, str]:
        began_s = time.perf_counter()
        with urllib.request.urlopen(url + path, timeout=60) as answer:  # noqa: S310 - our own
            text = answer.read().decode()
        return time.perf_counter() - began_s, text

    began_s = time.perf_counter()
    while "Still reading" in get("/letters")[1] or 'class="figure' not in get("/")[1]:
        time.sleep(0.3)
    print(f"first look whole after {time.perf_counter() - began_s:.1f} s")
    if agents:
        asyncio.run(beat(folder, agents))
    name = re.search(r"/letters/cause\?name=([0-9a-f]+)", get("/letters")[1])
    for path in (*PAGES, f"/letters/cause?name={name[1]}") if name else PAGES:
        times = sorted(get(path) for _ in range(20))
        shown = path.partition("?")[0]
        print(
            f"{shown:<16} median {times[10][0] * 1000:5.0f} ms, slowest {times[-1][0] * 1000:5.0f} ms, "
            f"{len(times[0][1]) / 1000:5.0f} kB"
        )
    print(f"memory at most {memory_mb(process.pid):.0f} MB")
    process.terminate()
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--letters", type=int, default=50_000)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--processes", type=int, default=10_000)
    options = parser.parse_args()
    load(env={}, file=None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a process of its own: a child's largest memory is at least that of its parent.
        pid = os.fork()
        if pid == 0:
            asyncio.run(fill(folder, options.letters, options.agents, options.processes))
            os._exit(0)
        os.waitpid(pid, 0)
        measure(folder, options.agents)


if __name__ == "__main__":
    main()
