"""The roll of one group on one machine: a directory with a file for each process that works.

One more file is for what is held against messages.

Owns who is alive (the process that holds the lock on its file, which the kernel lets go of however a process ends),
counting each death once, and writing the tolls as a whole. Several workers and supervisors of a group share it; one at
a time changes it. Does not own where it lies (`choosing`).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from consumers.crashes.crash_rules import CrashCount, Death, RecordPlace, after, kept
from consumers.crashes.running_messages import RunningMessages, read

__all__ = ["ProcessFiles", "machine"]

_RUNNING: Final = ".running"
_TOLLS: Final = "deaths.json"
_LOCK: Final = "lock"
_MOST_DEATHS_KEPT: Final = 32
_KEPT_MS: Final = 30 * 86_400_000
_PATIENCE_S, _LOOK_S = 1.0, 0.002

_held: set[Path] = set()
"""The files of this very process: whoever opens and closes one of its own lets go of the lock."""


class _WrittenFile(msgspec.Struct):
    tolls: list[CrashCount] = []
    deaths: list[Death] = []


class ProcessFiles:
    """The directory *path*, which exists. Every method may raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mine: tuple[Path, int, RunningMessages] | None = None

    def join(self, count: int, member: str) -> RunningMessages:
        """Enter this process, the *member* of the group, with *count* slots."""
        with self._turn():
            path = self.path / f"{os.getpid()}-{machine()}-{secrets.token_hex(4)}{_RUNNING}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                slots = RunningMessages(descriptor, count, member)
            except OSError:
                path.unlink()
                os.close(descriptor)
                raise
            # The slots have a descriptor of their own: freed, it would let go of the lock.
            self._mine = path, descriptor, slots
            _held.add(path)
        return slots

    def leave(self) -> None:
        """This process ends in order."""
        if self._mine is not None:
            path, descriptor, _ = self._mine
            with contextlib.suppress(OSError):
                path.unlink()
            _held.discard(path)
            os.close(descriptor)
            self._mine = None

    def count(self, now_ms: int, *, excused: int | None = None) -> list[Death]:
        """Count the deaths since the last time, and tell of them.

        The process *excused* was killed on purpose: nothing died of it.
        """
        with self._turn():
            deaths = [
                death for path in sorted(self.path.glob(f"*{_RUNNING}")) if (death := _ended(path, now_ms)) is not None
            ]
            deaths = [msgspec.structs.replace(death, running=()) if death.pid == excused else death for death in deaths]
            if deaths:
                written = self._load()
                tolls = _by_key(written)
                for death in deaths:
                    tolls = after(tolls, death)
                self._save(tolls, [*written.deaths, *deaths], now_ms)
        return deaths

    def tolls(self) -> dict[RecordPlace, CrashCount]:
        """What is held against messages now."""
        return _by_key(self._load())

    def death_of(self, pid: int, since_ms: int) -> Death | None:
        """The death of the process *pid*, whoever has counted it, unless it was before *since_ms*."""
        return next((death for death in reversed(self.deaths(since_ms)) if death.pid == pid), None)

    def deaths(self, since_ms: int) -> list[Death]:
        """The last ones, whoever has counted them."""
        return [death for death in self._load().deaths if death.at_ms >= since_ms]

    def change(
        self, change: Callable[[dict[RecordPlace, CrashCount]], Mapping[RecordPlace, CrashCount]], now_ms: int
    ) -> dict[RecordPlace, CrashCount]:
        """What *change* makes of the tolls, and nobody else does meanwhile."""
        with self._turn():
            written = self._load()
            return self._save(change(_by_key(written)), written.deaths, now_ms)

    def _load(self) -> _WrittenFile:
        try:
            return msgspec.json.decode((self.path / _TOLLS).read_bytes(), type=_WrittenFile)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            # Not written yet, or only half of it came through the machine's own end.
            return _WrittenFile()

    def _save(
        self, tolls: Mapping[RecordPlace, CrashCount], deaths: list[Death], now_ms: int
    ) -> dict[RecordPlace, CrashCount]:
        left = kept(tolls, now_ms)
        beside = self.path / f"{_TOLLS}.new"
        beside.write_bytes(msgspec.json.encode(_WrittenFile([*left.values()], deaths[-_MOST_DEATHS_KEPT:])))
        beside.replace(self.path / _TOLLS)
        return left

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """While nobody else counts, enters or writes."""
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            _take(descriptor)
            yield
        finally:
            os.close(descriptor)


def _take(descriptor: int) -> None:
    """Lock it. Whoever has it needs a moment; who was suspended with it must not keep all others. Raises OSError."""
    give_up_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(_LOOK_S)
        else:
            return


def _ended(path: Path, now_ms: int) -> Death | None:
    """The death of the process that *path* is of, which is forgotten.

    None where it lives, or nothing can be said about it.
    """
    pid, _, rest = path.name.partition("-")
    if path in _held:
        return None
    if not rest.startswith(f"{machine()}-"):
        # A directory may be shared over a network whose locks hold on each machine for itself. Before a restart of this
        # one, the end of the machine was no message's fault.
        _forget_old(path, now_ms)
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        member, running = read(descriptor)
        path.unlink()
    except BlockingIOError:
        return None
    finally:
        os.close(descriptor)
    return Death(int(pid) if pid.isascii() and pid.isdigit() else 0, now_ms, tuple(running), member)


def _forget_old(path: Path, now_ms: int) -> None:
    with contextlib.suppress(OSError):
        if path.stat().st_mtime * 1000 < now_ms - _KEPT_MS:
            path.unlink()


@functools.cache
def machine() -> str:
    """This boot of this machine, the same in all of its containers.

    Where the system does not say, the machine's name.
    """
    try:
        told = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        told = socket.gethostname()
    return hashlib.sha256(told.encode()).hexdigest()[:8]


def _by_key(written: _WrittenFile) -> dict[RecordPlace, CrashCount]:
    return {toll.key: toll for toll in written.tolls}
