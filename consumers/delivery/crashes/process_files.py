"""ProcessFiles: the directory of one group on one machine, with one file per working process.

A further file holds the crash counts.

Owns who is alive, counting each death once, and writing the counts as a whole. A live process holds the lock on its
file; the kernel releases it however the process ends. Several workers and supervisors of a group share the directory;
one at a time changes it. Its place is in `consumers.delivery.crashes.open`.
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

from consumers.delivery.crashes.crash_rules import CrashCount, Death, RecordLocation, after, unexpired
from consumers.delivery.crashes.running_messages import RunningMessages, read

__all__ = ["ProcessFiles", "machine"]

_RUNNING: Final = ".running"
_TOLLS: Final = "deaths.json"
_LOCK: Final = "lock"
_MAX_DEATHS_KEPT: Final = 32
_KEPT_MS: Final = 30 * 86_400_000
_PATIENCE_S, _LOOK_S = 1.0, 0.002

_locked: set[Path] = set()
"""The files of this process: closing any descriptor of one of them would release its lock."""


class _WrittenFile(msgspec.Struct, rename={"crash_counts": "tolls"}):
    crash_counts: list[CrashCount] = []
    deaths: list[Death] = []


class ProcessFiles:
    """The files in the directory *path*, which exists. Every method may raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mine: tuple[Path, int, RunningMessages] | None = None

    def join(self, count: int, member: str) -> RunningMessages:
        """Register this process as the *member* of the group, with *count* slots."""
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
            # The slots have a descriptor of their own: closing it when they are freed would release the lock.
            self._mine = path, descriptor, slots
            _locked.add(path)
        return slots

    def leave(self) -> None:
        """Note that this process ends in order."""
        if self._mine is not None:
            path, descriptor, _ = self._mine
            with contextlib.suppress(OSError):
                path.unlink()
            _locked.discard(path)
            os.close(descriptor)
            self._mine = None

    def count(self, now_ms: int, *, excused: int | None = None) -> list[Death]:
        """Count the deaths since the last call, and return them.

        The process *excused* was killed on purpose: no message counts for it.
        """
        with self._turn():
            deaths = [
                death for path in sorted(self.path.glob(f"*{_RUNNING}")) if (death := _ended(path, now_ms)) is not None
            ]
            deaths = [msgspec.structs.replace(death, running=()) if death.pid == excused else death for death in deaths]
            if deaths:
                written = self._load()
                crash_counts = _by_key(written)
                for death in deaths:
                    crash_counts = after(crash_counts, death)
                self._save(crash_counts, [*written.deaths, *deaths], now_ms)
        return deaths

    def crash_counts(self) -> dict[RecordLocation, CrashCount]:
        """Return the crash counts of messages."""
        return _by_key(self._load())

    def death_of(self, pid: int, since_ms: int) -> Death | None:
        """Return the death of the process *pid*, whichever process counted it, unless before *since_ms*."""
        return next((death for death in reversed(self.deaths(since_ms)) if death.pid == pid), None)

    def deaths(self, since_ms: int) -> list[Death]:
        """Return the last deaths since *since_ms*, whichever process counted them."""
        return [death for death in self._load().deaths if death.at_ms >= since_ms]

    def change(
        self, change: Callable[[dict[RecordLocation, CrashCount]], Mapping[RecordLocation, CrashCount]], now_ms: int
    ) -> dict[RecordLocation, CrashCount]:
        """Replace the crash counts by the result of *change*, under the lock; return them."""
        with self._turn():
            written = self._load()
            return self._save(change(_by_key(written)), written.deaths, now_ms)

    def _load(self) -> _WrittenFile:
        try:
            return msgspec.json.decode((self.path / _TOLLS).read_bytes(), type=_WrittenFile)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            # Not written yet, or the machine's end left only half of it.
            return _WrittenFile()

    def _save(
        self, crash_counts: Mapping[RecordLocation, CrashCount], deaths: list[Death], now_ms: int
    ) -> dict[RecordLocation, CrashCount]:
        left = unexpired(crash_counts, now_ms)
        beside = self.path / f"{_TOLLS}.new"
        beside.write_bytes(msgspec.json.encode(_WrittenFile([*left.values()], deaths[-_MAX_DEATHS_KEPT:])))
        beside.replace(self.path / _TOLLS)
        return left

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock under which processes count, enter and write."""
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            _take(descriptor)
            yield
        finally:
            os.close(descriptor)


def _take(descriptor: int) -> None:
    """Lock *descriptor*, waiting up to a second: a suspended holder must not block all others. Raises OSError."""
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
    """Return the death of the process with the file *path*, and delete the file.

    None where it lives, or nothing is known about it.
    """
    pid, _, rest = path.name.partition("-")
    if path in _locked:
        return None
    if not rest.startswith(f"{machine()}-"):
        # A shared network directory may have locks per machine. A file of an earlier boot: the machine's end is no
        # message's fault.
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
    """Return the id of this boot of this machine, the same in all its containers.

    If the system has no such id, it is the hash of the machine's name.
    """
    try:
        machine_name = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        machine_name = socket.gethostname()
    return hashlib.sha256(machine_name.encode()).hexdigest()[:8]


def _by_key(written: _WrittenFile) -> dict[RecordLocation, CrashCount]:
    return {crash_count.key: crash_count for crash_count in written.crash_counts}
