"""What sealbus takes before and without work: imports, commands, the start of a worker, an idle worker. `python
tests/benchmarks/startup.py [--kafka kafka://host:port]`.

Owns the programs that are measured. Times are processor time of the process, so neighbours count little; the medians of
several runs, with byte code written. An idle worker says itself what it has used, in its answers to two requests; the
requests of a second part come seconds apart, and show how long a message to an idle worker takes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from sealbus import Bus, connect, payload

ROOT = Path(__file__).resolve().parents[2]
APP = """
import resource, time
from sealbus import App
from startup import Asked, Used

app = App("idle@bench")

@app.on(Asked{options})
async def answer(asked: Asked) -> Used:
    return Used(process_s=time.process_time(), turns=resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)
"""
PROGRAMS = {
    "asyncio, msgspec, orjson, structlog alone": ["-c", "import asyncio, msgspec, orjson, structlog"],
    "import sealbus": ["-c", "import sealbus"],
    "from sealbus import App": ["-c", "from sealbus import App"],
    "from sealbus import App, Context, Retry, connect, payload": [
        "-c",
        "from sealbus import App, Context, Retry, connect, payload",
    ],
    "from sealbus import *": ["-c", "from sealbus import *"],
    "sealbus --help": ["-m", "sealbus", "--help"],
    "sealbus publish --help": ["-m", "sealbus", "publish", "--help"],
    "sealbus run --help": ["-m", "sealbus", "run", "--help"],
}
NAMESPACE = f"startup{os.getpid()}"
_TIMEOUT_S = 60.0
_SETTLED_S = 3.0
"""A worker that has just begun is not idle yet."""


@payload("bench.asked", performative="request")
class Asked(msgspec.Struct, frozen=True):
    """A question to an idle worker."""


@payload("bench.used", performative="inform")
class Used(msgspec.Struct, frozen=True):
    """What the worker's process has used so far."""

    process_s: float
    turns: int
    """How often one of its threads went to sleep."""


def programs(folder: Path, rounds: int) -> Iterator[str]:
    """A line for each program: its processor time above that of the interpreter alone."""
    nothing_ms = _median_ms(["-c", "pass"], folder, rounds)
    yield f"python -c pass: {nothing_ms:.0f} ms of processor time; each of the following without them"
    for name, arguments in PROGRAMS.items():
        yield f"{name}: {_median_ms(arguments, folder, rounds) - nothing_ms:.0f} ms"


def _median_ms(arguments: Sequence[str], folder: Path, rounds: int) -> float:
    times_s = []
    for _ in range(rounds + 1):
        begun_s = _children_s()
        command = [sys.executable, *arguments]
        subprocess.run(command, env=_environment(folder), stdout=subprocess.DEVNULL, check=True, timeout=_TIMEOUT_S)
        times_s.append(_children_s() - begun_s)
    return statistics.median(times_s[1:]) * 1000  # the first one writes byte code


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment(folder: Path) -> dict[str, str]:
    paths = f"{ROOT}:{Path(__file__).parent}:{folder}"
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": str(folder / "byte-code")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


async def worker(folder: Path, url: str, idle_s: float, asked: int) -> list[str]:
    """Lines about a worker on *url*: its start, *idle_s* seconds of its idleness, *asked* messages to it."""
    name = url.partition(":")[0]
    with _running(folder, url):
        pass  # writes byte code, and makes topics
    with _running(folder, url) as started_ms:
        async with connect(url, agent="asker@bench", namespace=NAMESPACE) as bus:
            await _ask(bus)
            await asyncio.sleep(_SETTLED_S)
            begun, begun_s = await _ask(bus), time.monotonic()
            await asyncio.sleep(idle_s)
            ended, took_s = await _ask(bus), time.monotonic() - begun_s
            latencies_ms = []
            for number in range(asked):
                # At other moments of whatever the worker does at intervals.
                await asyncio.sleep(0.5 + number % 10 * 0.11)
                sent_s = time.perf_counter()
                await _ask(bus)
                latencies_ms.append((time.perf_counter() - sent_s) * 1000)
    used_s, turns = ended.process_s - begun.process_s, ended.turns - begun.turns
    p50_ms, worst_ms = statistics.median(latencies_ms), max(latencies_ms)
    return [
        f"{name}: worker, from its process's start to worker.started: {started_ms:.0f} ms",
        f"{name}: idle worker: {used_s / took_s:.2%} of a core, {turns / took_s:.1f} wake-ups per second",
        f"{name}: a request to an idle worker: p50 {p50_ms:.1f} ms, worst of {asked} {worst_ms:.1f} ms",
    ]


async def _ask(bus: Bus) -> Used:
    return await bus.request(Asked(), Used, to="idle@bench", timeout_s=_TIMEOUT_S)


@contextmanager
def _running(folder: Path, url: str) -> Iterator[float]:
    """A worker in a process of its own; yields the milliseconds that it took to start."""
    # On Kafka an inbox would need a server of its own.
    options = "" if url.startswith("kafka") else ', dedup="always"'
    (folder / "idle_app.py").write_text(APP.format(options=options), "utf-8")
    command = [sys.executable, "-m", "sealbus", "run", "idle_app:app", "--bus", url, "--namespace", NAMESPACE]
    environment = _environment(folder) | {"SEALBUS_TOPICS__CREATE": "true"}
    started_s = time.monotonic()
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if "worker.started" in line:
                break
        else:
            raise RuntimeError(f"the worker on {url} ended:\n{''.join(said)}")
        yield (time.monotonic() - started_s) * 1000
    finally:
        process.terminate()
        process.communicate(timeout=_TIMEOUT_S)


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kafka", metavar="URL", help="measure a worker on this Kafka, too")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a worker is idle (default: 60)")
    parser.add_argument("--rounds", type=int, default=9, help="how often a program is run (default: 9)")
    parser.add_argument("--asked", type=int, default=20, help="how many messages an idle worker gets (default: 20)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sealbus-startup-") as name:
        folder = Path(name)
        for line in programs(folder, options.rounds):
            print(line, flush=True)
        for url in [f"sqlite:///{folder}/log.db", *([options.kafka] if options.kafka else [])]:
            for line in asyncio.run(worker(folder, url, options.seconds, options.asked)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
