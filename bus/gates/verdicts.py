"""The verdict on one record outside a worker: the gates that need no log, in their order.

Owns which gates apply and the words of the verdict; `bus.gates` owns the gates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from bus import gates
from bus.payloads.payload_types import Registry, RiskClass, raised_risk
from bus.protocol.reasons import gate_of
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.telemetry.terminal import printable
from bus.transports.base import Record

__all__ = ["FileChecks", "FileVerdict", "judge_line"]

OK: Final = "ok"
DEAD: Final = "dead"
SKIPPED: Final = "skipped"


class FileChecks(msgspec.Struct, frozen=True, kw_only=True):
    """The checks besides size, parse and integrity; None skips a gate."""

    max_message_bytes: int
    max_ttl_ms: int = gates.MAX_TTL_MS
    risk: RiskClass | None = None
    registry: Registry
    """Knows the risk of types."""
    schemas: Registry | None = None
    recipient: str | None = None
    namespace: str | None = None
    message_type: str | None = None
    key: bytes | None = None
    now_ms: Callable[[], int] | None = None
    append_ms: int | None = None
    """The append time of the records; None: unknown, and keys are judged by sealed times alone."""
    verifier: Verifier | None = None
    """The trusted keys; None: signatures are not checked."""
    admit: gates.Admit | None = None
    """The policy's check; None skips it."""


class FileVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict: `ok`, `dead` with gate and reason, or `skipped` if addressed to another agent."""

    verdict: str
    gate: str = ""
    reason: str = ""
    pointer: str = ""
    detail: str = ""
    message: Message | None = None

    def sentence(self) -> str:
        """For people."""
        if self.verdict == OK:
            return "sealed ok"
        if self.verdict == SKIPPED:
            return "skipped: addressed to another"
        location = f" at {printable(self.pointer)}" if self.pointer else ""
        return f"{self.reason} ({self.gate}){location}: {printable(self.detail)}"


def judge_line(record: Record, checks: FileChecks) -> FileVerdict:
    """Return the verdict on *record*; the first refusing gate decides."""
    now_ms = None if checks.now_ms is None else checks.now_ms()
    case = gates.Case(
        record=record,
        expected_type=msgspec.UNSET if checks.message_type is None else checks.message_type,
        key=msgspec.UNSET if checks.key is None else checks.key,
        now_ms=now_ms,
        append_ms=now_ms or 0,
    )
    match gates.judge(case, _gate_checks(checks)):
        case gates.Passed(message=message):
            return FileVerdict(verdict=OK, message=message)
        case gates.NotAddressed(message=message):
            return FileVerdict(verdict=SKIPPED, gate="recipient", message=message)
        case gates.Failed(error=error, message=message):
            return FileVerdict(
                verdict=DEAD,
                gate=gate_of(error.reason),
                reason=error.reason,
                pointer=error.pointer,
                detail=error.text,
                message=message,
            )


def _gate_checks(checks: FileChecks) -> gates.Checks:
    recipient, schemas = checks.recipient, checks.schemas
    return gates.Checks(
        max_message_bytes=checks.max_message_bytes,
        is_addressed=None if recipient is None else lambda message: gates.is_addressed(message, recipient, ()),
        namespace=checks.namespace,
        risk_of=lambda message: _risk(message, checks),
        kind_of=None if schemas is None else lambda message: gates.known_type(message, schemas),
        max_ttl_ms=checks.max_ttl_ms,
        verifier=checks.verifier,
        admit=checks.admit,
    )


def _risk(message: Message, checks: FileChecks) -> RiskClass:
    if checks.risk is not None:
        return checks.risk
    return raised_risk(checks.registry.get(message.message_type), ())
