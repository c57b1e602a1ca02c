"""TCP ports for nodes that stop and come back.

Owns the choice: outside the range from which the kernel hands out ports to clients, so that no connection sits on the
port of a node that is down, and under a lock, so that two clusters starting at once never choose the same. Does not own
who listens.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
from pathlib import Path

from deploy.kafka.errors import KafkaFailedError

__all__ = ["Ports", "is_free"]

_FIRST, _LAST = 20_000, 32_000
_TRIES = 200


class Ports:
    """Ports kept by this process until they are released."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[int, int] = {}

    def take(self) -> int:
        """Choose a port that is free and that no other cluster has taken."""
        for _ in range(_TRIES):
            port = random.randint(_FIRST, _LAST)  # noqa: S311 - spreads, protects nothing
            if port not in self._locks and self._lock(port):
                return port
        raise KafkaFailedError(f"no free port found between {_FIRST} and {_LAST} in {_TRIES} tries")

    def keep(self, *ports: int) -> bool:
        """Take these ports, or go on keeping them; False when one is in use or another cluster's."""
        return all(port in self._locks or self._lock(port) for port in ports)

    def release(self) -> None:
        """Give all of them back."""
        while self._locks:
            port, lock = self._locks.popitem()
            (self._folder / str(port)).unlink(missing_ok=True)
            os.close(lock)

    def _lock(self, port: int) -> bool:
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        if not is_free(port):
            os.close(lock)
            return False
        self._locks[port] = lock
        return True


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise
    return True
