"""The demo's worker processes: start, kill and stop them. Each runs what a user would: `sealbus run MODULE:APP`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bus.settings.schema import Settings
from consumers.worker.respawn import COMMAND_MODULE

__all__ = ["Crew"]

_STOP_S = 8.0


class Crew:
    """Worker processes by role: the apps of *module*, at work on the log of *settings*."""

    def __init__(
        self, folder: Path, settings: Settings, module: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._module = module
        # Supervised: the worker drains when its standard input ends, so also when the demo crashes.
        self._options = ["--bus", settings.bus.url, "--namespace", settings.bus.namespace, "--supervised"]
        # With this timeout a killed agent's work moves on within seconds on Kafka too.
        self._environment = {"SEALBUS_KAFKA__SESSION_TIMEOUT_S": "6s", **os.environ, "SEALBUS_TOPICS__CREATE": "true"}
        self._environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(environment or {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def start(self, role: str) -> int:
        """Start a worker of *role*; return its process id."""
        self._started += 1
        command = [sys.executable, "-m", COMMAND_MODULE, "run", f"{self._module}:{role}", *self._options]
        with (self._folder / f"worker-{self._started}-{role}.log").open("wb") as log:
            self._processes[role] = subprocess.Popen(  # noqa: S603 - our own command
                command, cwd=self._folder, env=self._environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        return self._processes[role].pid

    def kill(self, role: str) -> None:
        """Kill a worker (SIGKILL), without a chance to commit or leave its group."""
        process = self._processes.pop(role)
        process.kill()
        _wait(process)

    def check(self, waiting_for: str) -> str | None:
        """Return a report if a worker has ended unexpectedly."""
        ended = [role for role, process in self._processes.items() if process.poll() is not None]
        return f"the {ended[0]} ended unexpectedly while waiting for {waiting_for}" if ended else None

    def stop(self) -> list[int]:
        """Send SIGTERM to all workers, kill those that do not drain; return their exit codes."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        return [_wait(process) for process in self._processes.values()]

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of every worker's log, to explain a failure."""
        logs = sorted(self._folder.glob("worker-*.log"))
        return "\n".join(
            "\n".join([f"--- {path.name}", *path.read_text("utf-8", "replace").splitlines()[-lines:]]) for path in logs
        )


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        if process.stdin is not None:
            process.stdin.close()
