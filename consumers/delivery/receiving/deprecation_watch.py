"""The senders of deprecated fields: one warning for each sender and field, and a count.

Owns the bounded set of warnings already given. A worker has one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus.payloads.payload_types import PayloadType
from bus.protocol.sealing import Message
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.telemetry.terminal import printable

__all__ = ["DeprecationWatch"]

_MAX_WARNINGS: Final = 1_024
_log = get_logger("contract")


class DeprecationWatch:
    """Looks at messages of types that have deprecated fields."""

    def __init__(self, metrics: Metrics) -> None:
        self._counter = metrics.deprecated_fields
        self._warned: set[tuple[str, str, str]] = set()

    def look(self, kind: PayloadType, message: Message) -> None:
        """Count and tell, once per sender, the deprecated fields that *message* has."""
        present = [field for field in kind.deprecated if f'"{field}":'.encode() in message.data]
        if not present:
            return
        data = msgspec.json.decode(message.data)
        for field in present:
            if field not in data or data[field] is None:
                continue
            self._counter.labels(kind.name, field).inc()
            seen = (message.metadata.sender.id or "", kind.name, field)
            if seen in self._warned or len(self._warned) >= _MAX_WARNINGS:
                continue
            self._warned.add(seen)
            deprecation = kind.deprecated[field]
            _log.warning(
                "contract.deprecated_field",
                type=kind.name,
                field=field,
                sender=printable(seen[0]),
                removal=deprecation.removal.isoformat(),
                instead=deprecation.instead,
            )
