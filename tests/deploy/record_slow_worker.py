"""Record what Prometheus sees of a worker that is too slow, for the tests of alerts: `python -m
tests.deploy.record_slow_worker SECONDS`. Four keys in strict order, a handler of 15 s, one message a second."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

AGENTS: Final = """
import asyncio

import msgspec

from sealbus import App, payload


@payload("stuck.job", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int


app = App("slow@svc")


@app.on(Job, order="key_strict", timeout_s=60)
async def run(job: Job) -> None:
    await asyncio.sleep(15)
"""
RECORDED: Final = Path(__file__).with_name("slow_worker.json")
EVERY_S: Final = 15
WANTED: Final = re.compile(r"^(sealbus_(?:lag_seconds|oldest_unsettled_seconds)\{[^}]*\}) (\S+)$", re.MULTILINE)


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return {name: round(float(value), 1) for name, value in WANTED.findall(answer.read().decode())}


def record(seconds: float, port: int) -> dict[str, list[float | None]]:
    """Run it, and return each series, one sample in fifteen seconds."""
    series: dict[str, list[float | None]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "agents.py").write_text(AGENTS)
        call = [sys.executable, "-m", "consumers.cli"]
        options = ["--app", "agents:app", "--bus", "sqlite:///log.db"]
        worker = subprocess.Popen(
            [*call, "run", "agents:app", "--metrics-port", str(port), "--bus", "sqlite:///log.db"], cwd=folder
        )
        senders = [
            subprocess.Popen(
                [*call, "publish", "stuck.job", "--key", f"key-{key}", "--ttl", "1d", *options],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            for key in range(4)
        ]
        begun_s, sent, samples = time.monotonic(), 0, 0
        try:
            while time.monotonic() < begun_s + seconds:
                line = senders[sent % 4].stdin
                assert line is not None
                line.write(f'{{"number": {sent}}}\n')
                line.flush()
                sent += 1
                if time.monotonic() >= begun_s + samples * EVERY_S + 5:
                    for name_, value in scraped(port).items():
                        series.setdefault(name_, [None] * samples).append(value)
                    samples += 1
                time.sleep(max(0.0, begun_s + sent - time.monotonic()))
        finally:
            for sender in senders:
                sender.terminate()
            worker.terminate()
            worker.wait(60)
    return series


if __name__ == "__main__":
    found = record(float(sys.argv[1]), 9_431)
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
