"""Trusted files: read the files that decide about trust, and read them again when they change.

Owns the check of their owners and permissions, the files that a path names, and `Reloaded`: a value computed from
files, and computed again within a second of a change. If a changed file cannot be read, the last good value stays and
the fault is reported.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

from bus.clock import Clock
from bus.errors import ConfigurationError, text_of
from bus.telemetry.logs import get_logger
from bus.trust.keys import file_access

__all__ = [
    "CHECK_EVERY_S",
    "Reloaded",
    "alarm_about",
    "check_secret_file",
    "check_trusted_file",
    "files_of",
    "read_files",
]

CHECK_EVERY_S: Final = 1.0
_MAX_FILES: Final = 1000
_OF_KEYS: Final = (".json", ".jwks")
_MAX_BYTES: Final = 16 * 1_048_576
_TRIES: Final = 3
_MOUNTED: Final = (
    ". A Secret volume needs defaultMode 0400 and an fsGroup of its own, a Docker secret uid and mode 0400; systemd "
    "has LoadCredential="
)

_log = get_logger("trust")

_Value = TypeVar("_Value")
_Stamp = tuple[tuple[str, int, int, int, int, int], ...]


def files_of(path: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return the files that *path* names: itself, or in a folder all with one of *endings*, sorted.

    Raises ConfigurationError where there is none, or a file leads out of its folder.
    """
    try:
        if not path.is_dir():
            _check_link(path, path.parent.resolve())
            return [path]
        inside = path.resolve()
        found = sorted(entry for entry in path.iterdir() if entry.suffix in endings and not entry.name.startswith("."))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    if not found:
        raise ConfigurationError(f"the folder {path} holds no {' or '.join(endings)} file")
    if len(found) > _MAX_FILES:
        raise ConfigurationError(f"the folder {path} holds {len(found)} files, at most {_MAX_FILES} are read")
    for entry in found:
        _check_link(entry, inside)
    return found


def _check_link(path: Path, inside: Path) -> None:
    if not path.resolve().is_relative_to(inside):
        raise ConfigurationError(
            f"{path} is a link out of its folder; the owner of its target could change keys or policy"
        )


def check_trusted_file(path: Path) -> None:
    """Raise ConfigurationError unless only its owner can write *path*, and nobody can replace a folder on its way."""
    _check(path, _writers)


def check_secret_file(path: Path) -> None:
    """Raise ConfigurationError unless only its owner and this process can read *path*; folders as for a trusted file.

    The layouts of Kubernetes, systemd and Docker are accepted: `bus.trust.keys.file_access.secret_fault`.
    """
    _check(path, _readers)


def _check(path: Path, fault_of: Callable[[Path], tuple[str, str, str] | None]) -> None:
    if sys.platform == "win32":
        return
    try:
        fault = fault_of(path)
        folder = file_access.writable_folder(path)
        if fault is None and folder is None:
            return
        place = path if folder is None or fault is not None else folder
        mode = stat.S_IMODE(place.stat().st_mode)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    who, cure, hint = fault or ("group or others may write", "chmod go-w", "")
    raise ConfigurationError(f"{who} {place} (mode {mode:04o}), which decides about trust: {cure} {place}{hint}")


def _writers(path: Path) -> tuple[str, str, str] | None:
    is_safe = not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return None if is_safe else ("group or others may write", "chmod go-w", "")


def _readers(path: Path) -> tuple[str, str, str] | None:
    facts = file_access.file_facts_of(path)
    if not facts.mode & (stat.S_IRWXG | stat.S_IRWXO):
        return None
    fault = file_access.secret_fault(facts, file_access.reader_of(facts.group), file_access.mount_of(path))
    hint = _MOUNTED if facts.owner == 0 != os.geteuid() else ""
    return None if fault is None else (fault, "chmod 600", hint)


def read_files(paths: list[Path], check: Callable[[Path], None]) -> dict[str, bytes]:
    """Return the contents of *paths* by name, each one looked at by *check* first. Raises ConfigurationError."""
    texts = {}
    for path in paths:
        check(path)
        try:
            with open(path, "rb", opener=_open_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ConfigurationError(f"{path} is not a regular file")
                texts[str(path)] = text = file.read(_MAX_BYTES + 1)
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError) and path.suffix in _OF_KEYS
            hint = "; `sealbus key new AGENT` creates it" if is_missing else ""
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}{hint}") from error
        if len(text) > _MAX_BYTES:
            raise ConfigurationError(f"{path} has more than {_MAX_BYTES // 1_048_576} MiB")
    return texts


def _open_at_once(path: str, flags: int) -> int:
    # A pipe in the place of a file would hold its reader until somebody writes to it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def alarm_about(what: str, path: Path | str, consequence: str) -> Callable[[str | None], None]:
    """Return a function that logs unusable files: events `trust.WHAT_unusable`, `trust.WHAT_good_again`.

    *consequence* is the text about the behaviour until the files are good again.
    """

    def alarm(fault: str | None) -> None:
        if fault is None:
            _log.warning(f"trust.{what}_good_again", path=str(path))
        else:
            _log.error(f"trust.{what}_unusable", path=str(path), error=fault, detail=consequence)

    return alarm


class Reloaded(Generic[_Value]):
    """The value of the files at *path*; `current` looks at them at most once a second.

    *make* turns their contents by name into the value and raises ConfigurationError. *alarm* is told of each change
    that cannot be used, and with None when the files are good again. The constructor raises ConfigurationError.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[Mapping[str, bytes]], _Value],
        *,
        clock: Clock,
        endings: tuple[str, ...],
        check: Callable[[Path], None] = check_trusted_file,
        alarm: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self.path = path
        self._make = make
        self._clock = clock
        self._endings = endings
        self._check = check
        self._alarm = alarm
        self._stamp: _Stamp | None = None
        self._fault: str | None = None
        self._next_check_s = 0.0
        self.generation = 0
        """Rises with each change that is used."""
        self.good_at_s = 0.0
        """When the files were good last, by the monotonic clock."""
        self._value = self._read()
        self._next_check_s = clock.monotonic_s() + CHECK_EVERY_S

    def current(self) -> _Value:
        """Return the value, of at most a second ago."""
        if self._clock.monotonic_s() >= self._next_check_s:
            self.refresh()
        return self._value

    def refresh(self) -> bool:
        """Look at the files now; return whether the value has changed."""
        self._next_check_s = self._clock.monotonic_s() + CHECK_EVERY_S
        try:
            stamp = self._look()
            if stamp == self._stamp and self._fault is None:
                self.good_at_s = self._clock.monotonic_s()
                return False
            value = self._read()
        except ConfigurationError as error:
            self._report(text_of(error))
            return False
        self._report(None)
        self._value = value
        self.generation += 1
        return True

    def age_s(self) -> float:
        """Return how long ago the files were good, in seconds; 0 while they are."""
        self.current()
        return 0.0 if self._fault is None else self._clock.monotonic_s() - self.good_at_s

    def _report(self, fault: str | None) -> None:
        if fault != self._fault:
            self._fault = fault
            self._alarm(fault)

    def _look(self) -> _Stamp:
        return tuple(_stamp_of(path) for path in files_of(self.path, self._endings))

    def _read(self) -> _Value:
        for _ in range(_TRIES):
            stamp = self._look()
            texts = read_files([Path(entry[0]) for entry in stamp], self._check)
            # A file that changed meanwhile would be remembered under the older stamp, or be read half.
            if self._look() == stamp:
                break
        value = self._make(texts)
        self._stamp, self.good_at_s = stamp, self._clock.monotonic_s()
        return value


def _stamp_of(path: Path) -> tuple[str, int, int, int, int, int]:
    try:
        found, folder = path.stat(), path.resolve().parent.stat()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    # Modes are part of it: a file or folder that others may write from now on is refused from now on.
    return str(path), found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, folder.st_mode
