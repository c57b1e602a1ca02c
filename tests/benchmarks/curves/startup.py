"""How long things take to begin: importing, the command line's help, and a worker from its start to its first message.

Owns these measurements. The message is in the log already when the worker starts; both logs are measured with `sealbus
worker` as people run it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from speed.ratios import Spread, spread

__all__ = ["Start", "started"]

ROOT = Path(__file__).resolve().parents[3]
_TIMEOUT_S = 60.0
_APP = """
import sys, time
import msgspec
from sealbus import App, payload

@payload("bench.first", version="1.0.0")
class First(msgspec.Struct, frozen=True):
    number: int

app = App("first@svc", group="{group}")

@app.on(First)
async def handle(first: First) -> None:
    print(f"handled {{time.time()}}", flush=True)
"""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was started several times."""

    name: str
    ms: Spread
    goal_ms: float | None = None


def started(folder: Path, urls: Sequence[str], rounds: int) -> list[Start]:
    """Measure all; a worker on each of *urls*."""
    nothing = _ended(["-c", "pass"], folder, rounds)
    found = [
        Start(name="python -c pass (the interpreter alone, within all that follows)", ms=nothing),
        Start(name="import bus", ms=_ended(["-c", "import bus"], folder, rounds), goal_ms=150),
        Start(name="import sealbus", ms=_ended(["-c", "import sealbus"], folder, rounds)),
        Start(name="sealbus --help", ms=_ended(["-m", "consumers.cli", "--help"], folder, rounds)),
    ]
    for url in urls:
        times = [_first_message(folder, url, number) for number in range(max(1, rounds // 2))]
        name = "Kafka, joining its group included" if url.startswith("kafka") else "the embedded log"
        made = spread(times)
        assert made is not None
        found.append(Start(name=f"sealbus run, from process start to the first message handled: {name}", ms=made))
    return found


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def _ended(arguments: Sequence[str], folder: Path, rounds: int) -> Spread:
    times = []
    for _ in range(rounds + 1):
        started_s = time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=_environment(),
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=_TIMEOUT_S,
        )
        times.append((time.perf_counter() - started_s) * 1000)
    # The first one writes byte code, or finds the disk cold.
    found = spread(times[1:])
    assert found is not None
    return found


def _first_message(folder: Path, url: str, number: int) -> float:
    """Milliseconds from starting the worker's process."""
    place = folder / f"first-{url.partition(':')[0]}-{number}"
    place.mkdir()
    (place / "first_app.py").write_text(_APP.format(group=f"first-{number}"), "utf-8")
    cli = [sys.executable, "-m", "consumers.cli"]
    where = ["--bus", url if url.startswith("kafka") else "sqlite:///log.db", "--namespace", f"first{number}"]
    environment = _environment() | {"SEALBUS_TOPICS__CREATE": "true"}
    publish = [*cli, "publish", "bench.first", "-", "--app", "first_app:app", *where]
    subprocess.run(
        publish,
        cwd=place,
        env=environment,
        input=b'{"number":1}\n',
        capture_output=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    started_s = time.time()
    worker = subprocess.Popen(
        [*cli, "run", "first_app:app", *where],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert worker.stdout is not None
        handled = next((line for line in worker.stdout if line.startswith("handled ")), None)
        if handled is None:
            raise RuntimeError(f"a worker on {url.partition(':')[0]} ended without having handled the message")
        return (float(handled.split()[1]) - started_s) * 1000
    finally:
        worker.terminate()
        worker.communicate(timeout=_TIMEOUT_S)
