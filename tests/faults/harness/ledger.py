"""The ledger of effects: what handlers have done, one row each, whatever becomes of their process.

Owns the file and reading it back. All workers of a run append to it, each row in one write: nobody waits for anybody,
least of all for one that is halted, and the order of the rows is the order in which effects happened.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

__all__ = ["Ledger", "Run", "payments_in", "runs_of"]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One row: a handler began (`began`), did its work (`effect`), failed (`failed`) or was cancelled (`cut`)."""

    order: int
    at_ms: float
    worker: str
    pid: int
    kind: str
    message_type: str
    message_id: str
    idempotency_key: str
    lane: str
    number: int
    attempt: int
    expires_ms: int
    content: str


class Ledger:
    """The ledger as a worker writes it. Failures are in a file of their own as well: workers count them while they are
    at work."""

    def __init__(self, path: Path) -> None:
        self._rows = _appendable(path)
        self._failed = _appendable(path.with_suffix(".failed"))
        self._counted = 0
        self._failures: Counter[bytes] = Counter()

    def note(self, *values: object) -> None:
        """Write a row, the values of a `Run` after its order; no death of this process takes it away when this
        returns."""
        os.write(self._rows, msgspec.json.encode(values) + b"\n")
        _, _, _, kind, _, message_id, *_ = values
        if kind == "failed":
            os.write(self._failed, f"{message_id}\n".encode())

    def failures(self, message_id: str) -> int:
        """How often that message has failed so far, anywhere."""
        size = os.fstat(self._failed).st_size
        lines = os.pread(self._failed, size - self._counted, self._counted)
        # Each line came in one write: there are no halves.
        self._failures.update(lines.split(b"\n"))
        self._counted += len(lines)
        return self._failures[message_id.encode()]

    def close(self) -> None:
        """Release the files."""
        os.close(self._rows)
        os.close(self._failed)


def runs_of(path: Path) -> Sequence[Run]:
    """Every row, in order."""
    if not path.exists():
        return ()
    names = Run.__struct_fields__
    decode = msgspec.json.Decoder(list[str | int | float]).decode
    with path.open("rb") as file:
        return [Run(**dict(zip(names, (order, *decode(line)), strict=True))) for order, line in enumerate(file, 1)]


def _appendable(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)


def payments_in(path: Path) -> dict[str, int]:
    """Idempotency key -> how many payments were made under it, in the transaction of the inbox in the file at
    *path*."""
    if not path.exists():
        return {}
    connection = sqlite3.connect(path, timeout=60.0)
    try:
        return dict(connection.execute("SELECT idempotency_key, count(*) FROM payments GROUP BY idempotency_key"))
    except sqlite3.OperationalError:
        return {}
    finally:
        connection.close()
