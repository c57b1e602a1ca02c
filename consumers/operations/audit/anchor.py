"""Anchor: checkpoints in a file outside of database and log, one JSON line each, append-only.

An attacker with write access to database and log, and a stolen signing key, can rewrite both. Store the anchor where
such an attacker cannot write: on another disk, as another user, on an append-only mount.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bus.errors import ConfigurationError
from bus.vocabulary.bus import AuditCheckpoint

__all__ = ["check_anchor", "read_anchor", "write_anchor"]


def check_anchor(path: str) -> None:
    """Raise ConfigurationError where the file cannot be appended to; it is created where it is missing."""
    _append(path, b"")


def write_anchor(path: str, checkpoint: AuditCheckpoint) -> None:
    """Append *checkpoint* durably. Raises ConfigurationError where the file cannot be written."""
    _append(path, msgspec.json.encode(checkpoint) + b"\n")


def _append(path: str, line: bytes) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            # One write: two audits at once do not mix their lines.
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        raise ConfigurationError(f"audit.anchor {path} cannot be written: {error.strerror}") from error


def read_anchor(path: str) -> Iterator[AuditCheckpoint]:
    """Yield the checkpoints in the file, the oldest first; a torn line is passed over.

    Raises ConfigurationError where the file cannot be read: whoever removed it may have had reasons.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigurationError(f"audit.anchor {path} cannot be read: {error.strerror}") from error
    for line in lines:
        try:
            yield msgspec.json.decode(line, type=AuditCheckpoint)
        except msgspec.DecodeError:
            continue
