"""How long a request and its answer take on Kafka, beside plain aiokafka: `python tests/benchmarks/requests.py`.

Starts a Kafka of its own. A worker and a client of sealbus, and the same two of plain aiokafka (JSON, an idempotent
producer, acks=all, a reply topic of its own), take turns within each round. Clients are bound to one processor, workers
and broker to the other. Prints a Markdown table of medians: latency, requests per second, processor time per request of
client and worker, and how many times slower sealbus is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from speed.broker import bound_to, started

from bus.settings.loading import load
from bus.settings.schema import Settings
from sealbus import App, connect, payload

_CLIENT_CPU, _WORKER_CPU = 0, 1
_PARTITIONS, _WARM_UP = 4, 300
_TEXT = "a question of two hundred bytes, about as long as what agents ask each other. " * 3


@payload("bench.question", version="1.0.0")
class Question(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    text: str


@payload("bench.answer", version="1.0.0")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    text: str


class Figures(msgspec.Struct):
    """What one client measured; times of the processor are per request."""

    p50_ms: float
    p99_ms: float
    per_second: float
    client_us: float
    worker_us: float


Ask = Callable[[int], Awaitable[None]]


def settings_of(bootstrap: str, namespace: str) -> Settings:
    flags = {
        "bus.url": f"kafka://{bootstrap}",
        "bus.namespace": namespace,
        "topics.create": True,
        "topics.partitions": _PARTITIONS,
        "inbox.url": "off",
    }
    return load(flags=flags, env={}, file=None).settings


app = App("answerer@bench", types=[Question, Answer])


@app.on(Question)
async def answer(question: Question) -> Answer:
    return Answer(number=question.number, text=question.text)


async def sealbus_worker(bootstrap: str, namespace: str) -> None:
    async with app.running(settings=settings_of(bootstrap, namespace)):
        await asyncio.Event().wait()


@asynccontextmanager
async def sealbus_client(bootstrap: str, namespace: str) -> AsyncIterator[Ask]:
    async with connect(settings=settings_of(bootstrap, namespace), agent="asker@bench") as bus:

        async def ask(number: int) -> None:
            answered = await bus.request(Question(number=number, text=_TEXT), Answer, timeout_s=30)
            assert answered.number == number

        yield ask


def plain_producer(bootstrap: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)


async def plain_worker(bootstrap: str, namespace: str) -> None:
    consumer = AIOKafkaConsumer(
        f"{namespace}.questions", bootstrap_servers=bootstrap, group_id=namespace, auto_offset_reset="earliest"
    )
    producer = plain_producer(bootstrap)
    await consumer.start()
    await producer.start()
    async for record in consumer:
        asked = json.loads(record.value)
        answered = json.dumps({"number": asked["number"], "text": asked["text"]}).encode()
        await producer.send(dict(record.headers)["reply-to"].decode(), answered, headers=list(record.headers))


@asynccontextmanager
async def plain_client(bootstrap: str, namespace: str) -> AsyncIterator[Ask]:
    topic, waiting = f"{namespace}.answers", dict[bytes, asyncio.Future[bytes]]()
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="latest")
    producer = plain_producer(bootstrap)
    await consumer.start()
    await consumer.seek_to_end()
    await consumer.position(next(iter(consumer.assignment())))
    await producer.start()

    async def follow() -> None:
        async for record in consumer:
            future = waiting.pop(dict(record.headers)["id"], None)
            if future is not None and not future.done():
                future.set_result(record.value)

    async def ask(number: int) -> None:
        identity = uuid.uuid4().hex.encode()
        future = waiting[identity] = asyncio.get_running_loop().create_future()
        await producer.send(
            f"{namespace}.questions",
            json.dumps({"number": number, "text": _TEXT}).encode(),
            headers=[("reply-to", topic.encode()), ("id", identity)],
        )
        assert json.loads(await asyncio.wait_for(future, 30))["number"] == number

    following = asyncio.create_task(follow())
    try:
        yield ask
    finally:
        following.cancel()
        await producer.stop()
        await consumer.stop()


CLIENTS = {"sealbus": sealbus_client, "plain": plain_client}
WORKERS = {"sealbus": sealbus_worker, "plain": plain_worker}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measured(given: argparse.Namespace) -> Figures:
    """Ask so many at a time for so many seconds, after a warm-up."""
    concurrent: int = given.concurrent
    took_ms: list[float] = []
    async with CLIENTS[given.ask](given.at, given.namespace) as ask:

        async def work(until_s: float, most: int) -> None:
            for number in range(most):
                begun_s = time.perf_counter()
                if begun_s >= until_s:
                    return
                await ask(number)
                took_ms.append((time.perf_counter() - begun_s) * 1000)

        # The worker may still be joining its group.
        await ask(0)
        await asyncio.gather(*(work(float("inf"), _WARM_UP // concurrent + 1) for _ in range(concurrent)))
        took_ms.clear()
        begun_s, own_s, worker_s = time.perf_counter(), time.process_time(), cpu_s(given.worker)
        await asyncio.gather(*(work(begun_s + given.seconds, sys.maxsize) for _ in range(concurrent)))
        elapsed_s, count = time.perf_counter() - begun_s, len(took_ms)
        own_s, worker_s = time.process_time() - own_s, cpu_s(given.worker) - worker_s
    took_ms.sort()
    return Figures(
        p50_ms=took_ms[count // 2],
        p99_ms=took_ms[int(count * 0.99)],
        per_second=count / elapsed_s,
        client_us=own_s / count * 1e6,
        worker_us=worker_s / count * 1e6,
    )


def child(*arguments: object, cpu: int | None, **streams: int) -> subprocess.Popen[bytes]:
    with bound_to(cpu):
        return subprocess.Popen([sys.executable, __file__, *map(str, arguments)], **streams)  # type: ignore[call-overload]


def run(rounds: int, seconds: float, levels: list[int]) -> dict[tuple[str, int], list[Figures]]:
    """Start Kafka and both workers, and let the clients take turns."""
    found: dict[tuple[str, int], list[Figures]] = {}
    two = {_CLIENT_CPU, _WORKER_CPU} <= os.sched_getaffinity(0)
    client_cpu, worker_cpu = (_CLIENT_CPU, _WORKER_CPU) if two else (None, None)
    with tempfile.TemporaryDirectory() as folder, started(Path(folder), worker_cpu) as broker:
        namespace = f"r{uuid.uuid4().hex[:8]}"
        broker.make_topic(f"{namespace}.questions", _PARTITIONS)
        broker.make_topic(f"{namespace}.answers", 1)
        workers = {
            name: child("--work", name, "--at", broker.bootstrap, "--namespace", namespace, cpu=worker_cpu)
            for name in WORKERS
        }
        try:
            for number in range(rounds):
                for concurrent in levels:
                    for name in (*CLIENTS,) if number % 2 else (*reversed(CLIENTS),):
                        where = ("--at", broker.bootstrap, "--namespace", namespace, "--worker", workers[name].pid)
                        how = ("--ask", name, "--concurrent", concurrent, "--seconds", seconds)
                        asking = child(*how, *where, cpu=client_cpu, stdout=subprocess.PIPE)
                        figures = msgspec.json.decode(asking.communicate()[0], type=Figures)
                        found.setdefault((name, concurrent), []).append(figures)
                        print(f"round {number + 1}, {concurrent} at once, {name}: {figures}", file=sys.stderr)
        finally:
            for worker in workers.values():
                worker.kill()
                worker.wait()
    return found


def table(found: dict[tuple[str, int], list[Figures]], levels: list[int]) -> str:
    """The medians, and the median over rounds of each round's ratio."""
    lines = [
        "| at once | | p50 ms | p99 ms | per second | client us | worker us | times slower [least..most] |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for concurrent in levels:
        ratios = [
            plain.per_second / ours.per_second
            for ours, plain in zip(found["sealbus", concurrent], found["plain", concurrent], strict=True)
        ]
        for name in CLIENTS:
            rows = found[name, concurrent]
            cells = [
                f"{median(getattr(row, field) for row in rows):,.{digits}f}"
                for field, digits in (
                    ("p50_ms", 1),
                    ("p99_ms", 1),
                    ("per_second", 0),
                    ("client_us", 0),
                    ("worker_us", 0),
                )
            ]
            ratio = f"{median(ratios):.2f} [{min(ratios):.2f}..{max(ratios):.2f}]" if name == "sealbus" else "1"
            lines.append(f"| {concurrent} | {name} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 16, 64], help="requests at once")
    for inner in ("--work", "--ask", "--at", "--namespace"):
        parser.add_argument(inner, help=argparse.SUPPRESS)
    for inner in ("--concurrent", "--worker"):
        parser.add_argument(inner, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        asyncio.run(WORKERS[given.work](given.at, given.namespace))
    elif given.ask:
        figures = asyncio.run(measured(given))
        print(msgspec.json.encode(figures).decode())
    else:
        print(table(run(given.rounds, given.seconds, given.levels), given.levels))


if __name__ == "__main__":
    main()
