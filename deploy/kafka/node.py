"""One node: a Java process with its folder, and everything that may befall it.

Owns its life, log and data. Does not own the cluster around it, nor what "ready" means (`deploy.kafka.readiness`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.kafka.errors import KafkaFailedError
from deploy.kafka.processes import Processes
from deploy.kafka.properties import Address

__all__ = ["Node"]

_LINES_SHOWN = 15
_STOP_TIMEOUT_S = 10.0
_BROKER_ENDED = b"Transition from SHUTTING_DOWN to SHUTDOWN (BrokerServer)"


class Node:
    """A broker, a controller, or both in one process."""

    def __init__(
        self,
        address: Address,
        folder: Path,
        *,
        command: Sequence[str],
        processes: Processes,
        wait_ready: Callable[[Node], None],
    ) -> None:
        self.address = address
        self.folder = folder
        self.log = folder / "kafka.log"
        self._command = command
        self._processes = processes
        self._wait_ready = wait_ready
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Node {self.id} {self.address.roles} port={self.port} pid={self.pid}>"

    @property
    def id(self) -> int:
        """The value of node.id."""
        return self.address.id

    @property
    def port(self) -> int:
        """Where clients connect; the controller's own port where it takes no clients."""
        port = self.address.client_port or self.address.controller_port
        assert port is not None  # noqa: S101 - a node listens somewhere
        return port

    @property
    def is_broker(self) -> bool:
        """Whether it keeps partitions and takes clients."""
        return self.address.client_port is not None

    @property
    def is_controller(self) -> bool:
        """Whether it has a vote in the quorum."""
        return self.address.controller_port is not None

    @property
    def pid(self) -> int | None:
        """The id of its process while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether its process exists, frozen or not."""
        return self._process is not None and not self._processes.has_ended(self._process)

    def start(self, *, wait: bool = True) -> None:
        """Start it over the data it has; with *wait*, until it answers clients."""
        if self.running:
            return
        with self.log.open("ab") as output:
            self._log_start = output.tell()
            self._process = self._processes.start(self._command, output=output)
        if wait:
            self._wait_ready(self)

    def terminate(self) -> None:
        """Ask it to stop (SIGTERM), and return at once."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a frozen process does not hear that it shall stop

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop it in good order (SIGTERM); SIGKILL if that takes too long."""
        self.terminate()
        if not self.wait(timeout_s):
            self.kill()

    def kill(self) -> None:
        """End it as a power cut does (SIGKILL)."""
        self._signal(signal.SIGKILL)
        self.wait(_STOP_TIMEOUT_S)

    def freeze(self) -> None:
        """Halt it (SIGSTOP): connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has ended; False when it still runs."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, timeout_s))
        return not self.running

    def broker_has_ended(self) -> bool:
        """Whether its broker has stopped in good order since the last start; its part in the quorum may still be
        ending."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return _BROKER_ENDED in file.read()

    def require_running(self) -> None:
        """Raise KafkaFailedError with the end of its log when it has died."""
        if self._process is not None and not self.running:
            raise KafkaFailedError(
                f"node {self.id} died at its start (exit code {self._process.returncode}); {self.last_words()}"
            )

    def last_words(self) -> str:
        """The end of its log, for errors."""
        lines = self.log.read_text("utf-8", "replace").splitlines()[-_LINES_SHOWN:] if self.log.exists() else []
        return "\n  ".join([f"the end of {self.log}:", *lines])

    def _signal(self, number: signal.Signals) -> None:
        if self.running and self._process is not None:
            os.kill(self._process.pid, number)
