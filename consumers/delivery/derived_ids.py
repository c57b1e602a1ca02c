"""Derived ids: what a run sends under the same id whenever it runs again. Pure.

A run that begins anew says again what it has said before. A message with a derived id is known by it, whatever time it
carries. The id is made of the row of the run's message in the inbox, what is sent to whom, and how many like it the
run has sent before.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import NamedTuple

import msgspec

from bus.protocol import canonical
from bus.protocol.identifiers import uuid7
from consumers.delivery.inbox.base import InboxKey

__all__ = ["DerivedId", "DerivedIds"]

_ENTROPY_BYTES = 10


class DerivedId(NamedTuple):
    """The ids of one message."""

    message_id: str
    idempotency_key: str


class DerivedIds:
    """The ids of what one run sends; a later run of the same message makes the same ones.

    *row* is the key of the message's row in the inbox, *sealed_ms* is when the message was sealed.
    """

    def __init__(self, row: InboxKey, sealed_ms: int) -> None:
        self._row = row
        self._sealed_ms = sealed_ms
        self._sent: Counter[str] = Counter()

    def next(self, kind: str, addressee: str, data: bytes) -> DerivedId:
        """Return the ids of the next message of *kind* ("request", "send_now", "progress") with *data*, as JSON."""
        content = hashlib.sha256(_timeless(data)).hexdigest()
        like = hashlib.sha256(
            canonical.encode([msgspec.structs.astuple(self._row), kind, addressee, content])
        ).hexdigest()
        count = self._sent[like]
        self._sent[like] += 1
        digest = hashlib.sha256(f"{like} {count}".encode()).digest()
        return DerivedId(uuid7(self._sealed_ms, digest[:_ENTROPY_BYTES]), f"run-{digest.hex()[:40]}")


def _timeless(data: bytes) -> bytes:
    """Return *data* without its `timestamp`, which differs from run to run."""
    if b'"timestamp"' not in data:
        return data
    fields = msgspec.json.decode(data)
    if isinstance(fields, dict):
        fields.pop("timestamp", None)
    return canonical.encode(fields)
