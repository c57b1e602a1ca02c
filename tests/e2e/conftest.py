"""Real worker processes on a real log file, for tests that kill, fill and forge."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


class Workers:
    """Worker processes of the ledger app on one log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/log.db"
        self.ledger = folder / "ledger.txt"
        self.env: dict[str, str] = {}
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, app: str = "ledger_app:app") -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", "LEDGER": str(self.ledger)} | self.env
        with (self.folder / f"worker-{len(self._running)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "consumers.cli", "run", app, "--bus", self.url, *options],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self._running.append(process)
        return process

    def stop(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()

    def handled(self) -> list[int]:
        if not self.ledger.exists():
            return []
        return [int(line.split()[0]) for line in self.ledger.read_text().splitlines()]

    def logs(self) -> str:
        return "\n".join(
            path.read_text("utf-8", "replace")[-3000:] for path in sorted(self.folder.glob("worker-*.log"))
        )


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    group = Workers(tmp_path)
    yield group
    group.stop()


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> float:
    """Seconds it took; fails after *timeout_s*."""
    started_s = time.monotonic()
    while not condition():
        if time.monotonic() - started_s > timeout_s:
            raise AssertionError(f"{what}: not within {timeout_s} s")
        time.sleep(0.02)
    return time.monotonic() - started_s
