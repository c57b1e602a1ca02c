"""The demo's worker processes: start, stop, freeze and kill them.

Owns the processes and their log files. Each runs the command a user would: `sealbus worker MODULE:APP`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from consumers import cli
from consumers.cli.demo import agents
from consumers.cli.demo.agents import NOTES_VARIABLE

__all__ = ["Crew"]

_STOP_S = 8.0


class Crew:
    """Worker processes by role; a replaced one stays listed as dead."""

    def __init__(
        self,
        folder: Path,
        url: str,
        namespace: str,
        *,
        module: str = agents.__name__,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._folder = folder
        self._url = url
        self._namespace = namespace
        self._module = module
        self._environment = environment
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def start(self, role: str) -> int:
        """Start a worker of *role*; return its process id."""
        self._started += 1
        command = [sys.executable, "-m", cli.__name__, "worker", f"{self._module}:{role}"]
        # Supervised: the worker drains when its standard input ends, so also when the demo crashes.
        command += ["--bus", self._url, "--namespace", self._namespace, "--supervised"]
        # With this timeout a killed agent's work moves on within seconds on Kafka too.
        environment = {"SEALBUS_KAFKA__SESSION_TIMEOUT_S": "6s"} | os.environ
        environment |= self._environment
        environment |= {NOTES_VARIABLE: str(self._folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with (self._folder / f"worker-{self._started}-{role}.log").open("wb") as log:
            self._processes[role] = subprocess.Popen(  # noqa: S603 - our own command
                command, cwd=self._folder, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        return self._processes[role].pid

    def kill(self, role: str) -> None:
        """Kill a worker (SIGKILL), without a chance to commit or leave its group."""
        self._processes[role].kill()
        _wait(self._processes[role])

    def freeze(self, role: str) -> None:
        """Suspend a worker (SIGSTOP), and return once it is suspended."""
        self._processes[role].send_signal(signal.SIGSTOP)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._processes[role].pid, os.WUNTRACED)

    def thaw(self, role: str) -> None:
        """Resume a suspended worker."""
        self._processes[role].send_signal(signal.SIGCONT)

    def ended(self) -> str | None:
        """Return the role of a worker that ended by itself."""
        return next((role for role, process in self._processes.items() if process.poll() is not None), None)

    async def stop(self) -> dict[str, int]:
        """Send SIGTERM to all workers, kill those that do not drain; return exit codes by role."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        return {role: await asyncio.to_thread(_wait, process) for role, process in self._processes.items()}

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of every worker's log, to explain a failure."""
        parts = []
        for path in sorted(self._folder.glob("worker-*.log")):
            text = path.read_text("utf-8", "replace").splitlines()[-lines:]
            parts.append("\n".join([f"--- {path.name}", *text]))
        return "\n".join(parts)


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        if process.stdin is not None:
            process.stdin.close()
