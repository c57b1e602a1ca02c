"""The gateway beside the bus itself, on one machine and in one run.

    python -m tests.benchmarks.gateway [--seconds 4] [--streams 1000]

Opens tasks over HTTP, 16 at once and one by one, beside `bus.publish` at the same concurrency on the same log; then
measures how soon a snapshot is at its client after the commit, and what idle streams cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.vocabulary import BUILT_IN
from bus.vocabulary.task import TaskRequest, TaskResult
from consumers.gateway.credentials import Credential, Credentials, FixedCredentials, make_token
from consumers.gateway.serving import gateway_declaration, make_gateway, served_gateway
from consumers.worker.embedded import running
from sealbus import App, Context, connect

_WIDTH = 16
_BODY = b'{"to": "researcher@svc", "goal": "compare"}'


def request_of(method: str, path: str, token: str, body: bytes = b"") -> bytes:
    """One request of HTTP/1.1, as bytes."""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{{port}}\r\nauthorization: Bearer {token}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def answered(reader: asyncio.StreamReader) -> bytes:
    """Read one answer, and return its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 20"), head
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    return await reader.readexactly(int(length.split(b":")[1]))


async def client(port: int, token: str, width: int, seconds: float) -> None:
    """Open tasks over *width* connections, and print how many a second."""
    wanted = request_of("POST", "/tasks", token, _BODY).replace(b"{port}", str(port).encode())
    count, end_s = 0, time.perf_counter() + seconds

    async def one() -> None:
        nonlocal count
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end_s:
            writer.write(wanted)
            await answered(reader)
            count += 1
        writer.close()

    begun_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(width)))
    print(round(count / (time.perf_counter() - begun_s)))


async def rate(call: Callable[[int], Awaitable[Any]], width: int, seconds: float) -> float:
    """Return how often *call* ends in a second, with *width* at once."""
    count, end_s = 0, time.perf_counter() + seconds

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < end_s:
            await call(count)
            count += 1

    begun_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(width)))
    return count / (time.perf_counter() - begun_s)


async def by_http(port: int, token: str, width: int, seconds: float) -> float:
    """Return the tasks a second of a client in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.benchmarks.gateway",
        "--client",
        str(port),
        token,
        str(width),
        str(seconds),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    return float(out)


async def main(seconds: float, streams: int) -> None:
    folder = tempfile.mkdtemp()
    flags = {"bus.url": f"sqlite:///{folder}/log.db", "gateway.streams": streams + 10, "log.level": "error"}
    settings = load(flags=flags, env={}, file=None).settings
    token, known = make_token()
    everything: dict[str, Any] = {"rate": 1e6, "burst": 1_000_000, "streams": 10_000, "open_tasks": 10_000_000}
    source = FixedCredentials(
        Credentials([Credential(name="bench", agent="bench@svc", to=("**",), tokens=(known,), **everything)])
    )
    gateway = make_gateway(settings, source, BUILT_IN, SystemClock())
    committed: dict[str, float] = {}
    told = gateway.told
    slow = App("slow@svc")

    @slow.on(TaskRequest)
    async def work(request: TaskRequest, context: Context) -> TaskResult:
        for part in range(20):
            await context.progress(f"part {part}")
            await asyncio.sleep(0.25)
        return TaskResult(status="completed")

    def tell(process: Any) -> None:
        committed[f"{process.key}/{process.version}"] = time.perf_counter()
        told(process)

    gateway.told = tell
    declared = [gateway_declaration(gateway), slow.declaration]
    async with (
        running(declared, None, config=None, settings=settings, metrics=None, on_failure=None),
        connect(settings=settings, agent="bench@svc") as bus,
        served_gateway(gateway, host="127.0.0.1", port=0) as url,
    ):
        port = int(url.rpartition(":")[2])
        print("                      16 at once   one by one")
        figures = {}
        for width in (_WIDTH, 1):

            async def publish(number: int) -> None:
                await bus.publish(TaskRequest(goal=f"g{number}"), to="nobody@svc", task_id=f"p{number}")

            await rate(publish, width, 0.5)
            figures["bus.publish", width] = await rate(publish, width, seconds)
            figures["POST /tasks", width] = await by_http(port, token, width, seconds)
        for name in ("bus.publish", "POST /tasks"):
            print(f"{name:20} {figures[name, _WIDTH]:10,.0f}/s {figures[name, 1]:10,.0f}/s")
        share = figures["POST /tasks", _WIDTH] / figures["bus.publish", _WIDTH]
        print(f"share, 16 at once    {share:10.2f}   (goal 0.25)")
        alone = figures["bus.publish", 1] / figures["POST /tasks", 1]
        print(f"one POST, in publishes {alone:8.2f}   (goal at most 2.5)")
        await latency(port, token, committed)
        await idle(port, token, streams)


async def opened(port: int, token: str, to: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"to": to, "goal": "x"}).encode()
    writer.write(request_of("POST", "/tasks", token, body).replace(b"{port}", str(port).encode()))
    found = json.loads(await answered(reader))
    writer.close()
    return str(found["id"])


async def latency(port: int, token: str, committed: dict[str, float]) -> None:
    """Print how soon snapshots are at a client after their commits."""
    task = await opened(port, token, "slow@svc")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_of("GET", f"/tasks/{task}/events", token).replace(b"{port}", str(port).encode()))
    took = []
    async with asyncio.timeout(60):
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            shown = json.loads(line[6:])
            begun = committed.get(f"{task}/{shown['generation']}")
            if begun is not None and shown["generation"] > 1:
                took.append((time.perf_counter() - begun) * 1000)
            if shown["status"] == "completed":
                break
    writer.close()
    print(f"snapshot at its client {statistics.median(took):8.1f} ms  worst {max(took):.1f} ms   (goal 50)")


async def idle(port: int, token: str, streams: int) -> None:
    """Print what *streams* idle streams cost."""
    task = await opened(port, token, "nobody@svc")
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wanted = request_of("GET", f"/tasks/{task}/events", token).replace(b"{port}", str(port).encode())
    script = (
        "import asyncio,sys\n"
        "async def main():\n"
        f"    wanted={wanted!r}\n"
        "    kept=[]\n"
        f"    for _ in range({streams}):\n"
        f"        reader,writer=await asyncio.open_connection('127.0.0.1',{port})\n"
        "        writer.write(wanted)\n"
        "        await reader.readuntil(b'data: ')\n"
        "        kept.append((reader,writer))\n"
        "    print('ready',flush=True)\n"
        "    await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    await asyncio.sleep(1)
    cpu, begun_s = time.process_time(), time.perf_counter()
    await asyncio.sleep(20)
    share = (time.process_time() - cpu) / (time.perf_counter() - begun_s)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    process.kill()
    await process.wait()
    print(f"{streams} idle streams      {grown_mb:8.0f} MB  {share:.1%} of a core   (goal 100 MB, 5 %)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        asyncio.run(client(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--streams", type=int, default=1000)
    given = parser.parse_args()
    os.environ.setdefault("PYTHONHASHSEED", "random")
    asyncio.run(main(given.seconds, given.streams))
