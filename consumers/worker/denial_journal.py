"""Denial journal: the refusals of the policy, as events in `<ns>._audit`.

Owns which denials get a row of their own (security S40): ten a minute for one sender and rule; the rest share one row
with their number. An event has rule, facts and locations, never a payload. Denials are buffered until they are
appended, up to a limit; beyond it they are only counted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from bus.clock import Clock
from bus.errors import BusError
from bus.protocol import canonical
from bus.protocol.identifiers import uuid7
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.topics.names import own_topic
from bus.transports.base import Appended, NewRecord, Transport
from bus.trust.admission import Denial

__all__ = ["DenialJournal", "DenialRate"]

_SINGLE: Final = 10
_MINUTE_MS: Final = 60_000
_MAX_KEPT: Final = 1000
_MAX_RATES: Final = 1000
_MAX_TEXT: Final = 256
_APPEND_S: Final = 5.0
_ENTROPY_BYTES: Final = 10

_log = get_logger("trust")


class _MinuteOfDenials(msgspec.Struct):
    """The denials of one sender and rule in one minute."""

    began_ms: int
    count: int = 0
    last: Denial | None = None


class DenialRate:
    """Decides which denials get a row of their own. Pure except for its bounded memory."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], _MinuteOfDenials] = {}

    def take(self, denial: Denial, now_ms: int) -> bool:
        """Count *denial*; return whether it gets a row of its own."""
        location = denial.sender[:_MAX_TEXT], denial.rule
        tally = self._tallies.get(location)
        if tally is None:
            if len(self._tallies) >= _MAX_RATES:
                # More senders than anybody has: one tally for all of them.
                location = "(others)", "(others)"
            tally = self._tallies.setdefault(location, _MinuteOfDenials(now_ms))
        tally.count += 1
        tally.last = denial
        return tally.count <= _SINGLE

    def due(self, now_ms: int) -> list[tuple[Denial, int]]:
        """Return, for each minute that has ended, the last unreported denial, with their number."""
        over = [location for location, tally in self._tallies.items() if now_ms - tally.began_ms >= _MINUTE_MS]
        ended = [self._tallies.pop(location) for location in over]
        return [(t.last, t.count - _SINGLE) for t in ended if t.last is not None and t.count > _SINGLE]


class DenialJournal:
    """Notes the denials of one worker, in the name of the agent *by*."""

    def __init__(self, transport: Transport, settings: Settings, *, by: str, clock: Clock, metrics: Metrics) -> None:
        self._transport = transport
        self._topic = own_topic(settings.bus.namespace, "_audit")
        self._by = by
        self._clock = clock
        self._metrics = metrics
        self._rate = DenialRate()
        self._waiting: list[dict[str, Any]] = []
        self._failed = ""

    def note(self, denial: Denial) -> None:
        """Count *denial*, and keep it until `flush`."""
        self._metrics.policy_denials.labels(denial.action, denial.reason).inc()
        if self._rate.take(denial, self._clock.now_ms()):
            self._keep(denial, 1)

    async def flush(self) -> None:
        """Append what waits. A log that refuses it is asked again at the next flush."""
        for denial, count in self._rate.due(self._clock.now_ms()):
            self._keep(denial, count)
        if not self._waiting:
            return
        entries, self._waiting = self._waiting, []
        records = [NewRecord(self._topic, entry["run"].encode(), canonical.encode(entry)) for entry in entries]
        outcomes: Sequence[object]
        try:
            outcomes = await self._transport.append(records, timeout_s=_APPEND_S)
        except BusError as error:
            outcomes = [error] * len(records)
        left = [
            (entry, outcome)
            for entry, outcome in zip(entries, outcomes, strict=True)
            if not isinstance(outcome, Appended)
        ]
        if not left:
            self._failed = ""
            return
        self._waiting = [entry for entry, _ in left] + self._waiting
        if (text := str(left[0][1])) != self._failed:
            self._failed = text
            _log.warning("trust.denials_not_noted", topic=self._topic, denials=len(left), error=text)

    def _keep(self, denial: Denial, count: int) -> None:
        if len(self._waiting) >= _MAX_KEPT:
            return
        self._waiting.append(_entry(denial, count, by=self._by, now_ms=self._clock.now_ms()))


def _entry(denial: Denial, count: int, *, by: str, now_ms: int) -> dict[str, Any]:
    """Return *denial* as an event of the journal; foreign texts are bounded."""
    fields = {
        "action": denial.action,
        "at": format_ms(now_ms),
        "by": by,
        "count": count,
        "differing": list(denial.differing),
        "event": "policy.denied",
        "how": denial.how,
        "message_id": denial.message_id,
        "message_type": denial.message_type,
        "reason": denial.reason,
        "rule": denial.rule,
        "run": uuid7(now_ms, os.urandom(_ENTROPY_BYTES)),
        "sender": denial.sender[:_MAX_TEXT],
    }
    optional = {"actor": denial.actor, "group": denial.group, "policy": denial.policy}
    return fields | {name: value for name, value in optional.items() if value is not None}
