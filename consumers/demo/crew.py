"""The demo's worker processes: starting, stopping, freezing and killing them.

Owns the processes and their log files. Each runs the same command a user would: `sealbus worker MODULE:APP`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from consumers import cli
from consumers.demo import agents
from consumers.demo.agents import NOTES_VARIABLE

__all__ = ["Crew"]

_STOP_S = 8.0


class Crew:
    """Worker processes by role; a replaced one stays listed as dead."""

    def __init__(self, folder: Path, url: str, namespace: str) -> None:
        self._folder = folder
        self._url = url
        self._namespace = namespace
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started = 0

    def start(self, role: str) -> int:
        """Start a worker of *role*; its process id."""
        self._started += 1
        command = [sys.executable, "-m", cli.__name__, "worker", f"{agents.__name__}:{role}"]
        # Supervised: it drains when its standard input ends, that is, when the demo is gone, however it went.
        command += ["--bus", self._url, "--namespace", self._namespace, "--supervised"]
        # A killed agent's work moves on within seconds, on a log of either kind.
        environment = {"SEALBUS_KAFKA__SESSION_TIMEOUT_S": "6s"} | os.environ
        environment |= {NOTES_VARIABLE: str(self._folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with (self._folder / f"worker-{self._started}-{role}.log").open("wb") as log:
            self._processes[role] = subprocess.Popen(  # noqa: S603 - our own command
                command, cwd=self._folder, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        return self._processes[role].pid

    def kill(self, role: str) -> None:
        """Kill -9: no chance to commit, to hand over or to say goodbye."""
        self._processes[role].kill()
        _wait(self._processes[role])

    def freeze(self, role: str) -> None:
        """Stop a process where it stands, and return when it does."""
        self._processes[role].send_signal(signal.SIGSTOP)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._processes[role].pid, os.WUNTRACED)

    def thaw(self, role: str) -> None:
        """Let a frozen process go on."""
        self._processes[role].send_signal(signal.SIGCONT)

    def ended(self) -> str | None:
        """The role of a process that ended by itself."""
        return next((role for role, process in self._processes.items() if process.poll() is not None), None)

    async def stop(self) -> dict[str, int]:
        """SIGTERM to all, kill what does not drain; exit codes by role."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        return {role: await asyncio.to_thread(_wait, process) for role, process in self._processes.items()}

    def tail(self, lines: int = 15) -> str:
        """The last lines of every worker's log, for when something went wrong."""
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
