"""What the command line is tested with: calls in this process, and real processes in a folder of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from consumers.cli import main

ROOT = Path(__file__).resolve().parents[2]

APP = """
import os
from typing import Any
import msgspec
from sealbus import App, Context, Reject, payload

@payload("job.run", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    label: str = ""

app = App("worker@svc")

@app.on(Job)
async def run(job: Job, context: Context) -> None:
    if job.label == "reject":
        raise Reject("not this one")
    with open("handled.txt", "a") as out:
        out.write(f"{job.number} {os.getpid()}\\n")
"""


class Folder:
    """A folder with a user's app in it, and calls of `sealbus` there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._processes: list[subprocess.Popen[str]] = []
        (path / "agents.py").write_text(APP)

    def call(self, *arguments: str, stdin: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
        """In this process, with standard output and error apart."""
        return CliRunner().invoke(main, arguments, input=stdin, env=env)

    @staticmethod
    def environment() -> dict[str, str]:
        """For processes of their own."""
        return {key: value for key, value in os.environ.items() if not key.startswith("SEALBUS_")} | {
            "PYTHONPATH": str(ROOT)
        }

    def apart(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """In a process of its own, until it has ended."""
        return subprocess.run(
            [sys.executable, "-m", "consumers.cli", *arguments],
            cwd=self.path,
            env=self.environment() | environment,
            input=stdin,
            text=True,
            capture_output=True,
            check=False,
            timeout=90,
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """In a process of its own."""
        streams: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        } | options
        command = [sys.executable, "-W", "error", "-m", "consumers.cli", *arguments]
        process = subprocess.Popen(command, cwd=self.path, env=self.environment(), text=True, **streams)
        self._processes.append(process)
        return process

    def worker(self, *arguments: str, ready: int = 1) -> subprocess.Popen[str]:
        """A worker of the app, when *ready* of its processes work."""
        log = self.path / "worker.log"
        with log.open("w") as out:
            process = self.start("run", "agents:app", *arguments, stdout=out, stderr=out)
        self.wait_until(lambda: log.read_text().count("working; Ctrl-C") >= ready or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return process

    def handled(self) -> list[list[str]]:
        """Number and process of every message that was handled."""
        path = self.path / "handled.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def jobs(self, count: int) -> str:
        """A file of *count* payloads."""
        (self.path / "jobs.ndjson").write_text("".join(f'{{"number":{number}}}\n' for number in range(count)))
        return "jobs.ndjson"

    @staticmethod
    def free_port() -> int:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
            return port

    @staticmethod
    def wait_until(holds: Callable[[], bool], within_s: float = 45.0) -> None:
        deadline_s = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline_s, "waited too long"
            time.sleep(0.02)

    @staticmethod
    def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
        """Send a signal; the exit code."""
        process.send_signal(number)
        return process.wait(45)

    @staticmethod
    def objects(text: str) -> list[dict[str, Any]]:
        """The JSON lines of an output."""
        return [json.loads(line) for line in text.splitlines()]

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in os.environ if name.startswith("SEALBUS_")]:
        monkeypatch.delenv(name)
    sys.modules.pop("agents", None)
    made = Folder(tmp_path)
    yield made
    made.close()
    sys.modules.pop("agents", None)
