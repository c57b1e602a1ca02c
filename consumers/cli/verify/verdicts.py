"""The verdict on one record outside a worker: the gates that need no bus, in their order.

Owns which gates are asked for and the words of the answer. Does not own the gates (`bus.gates`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from bus import gates
from bus.errors import ContractError
from bus.payloads.payload_types import Registry, Risk
from bus.protocol.reasons import gate_of
from bus.protocol.sealing import Message
from bus.telemetry.terminal import printable
from bus.transports.base import Record

__all__ = ["Checks", "Verdict", "judge"]

OK: Final = "ok"
DEAD: Final = "dead"
SKIPPED: Final = "skipped"


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """What to check besides size, parse and integrity; None leaves a gate out."""

    max_message_bytes: int
    max_ttl_ms: int = gates.MAX_TTL_MS
    risk: Risk | None = None
    registry: Registry
    """Knows the risk of types."""
    schemas: Registry | None = None
    recipient: str | None = None
    namespace: str | None = None
    message_type: str | None = None
    key: bytes | None = None
    now_ms: Callable[[], int] | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`ok`, `dead` with gate and reason, or `skipped` because it is addressed to somebody else."""

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
        place = f" at {printable(self.pointer)}" if self.pointer else ""
        return f"{self.reason} ({self.gate}){place}: {printable(self.detail)}"


def judge(record: Record, checks: Checks) -> Verdict:
    """The verdict on *record*; the first gate that refuses decides."""
    message: Message | None = None
    try:
        gates.size_gate(record, checks.max_message_bytes)
        message = gates.parse_gate(record)
        gates.integrity_gate(message)
        if checks.recipient is not None and not gates.is_addressed(message, checks.recipient, ()):
            return Verdict(verdict=SKIPPED, gate="recipient", message=message)
        _judge_meaning(message, checks)
    except ContractError as error:
        return Verdict(
            verdict=DEAD,
            gate=gate_of(error.reason),
            reason=error.reason,
            pointer=error.pointer,
            detail=error.text,
            message=message,
        )
    return Verdict(verdict=OK, message=message)


def _judge_meaning(message: Message, checks: Checks) -> None:
    if checks.namespace is not None or checks.message_type is not None or checks.key is not None:
        gates.audience_gate(
            message,
            checks.namespace or message.metadata.namespace,
            checks.message_type or message.message_type,
            message.key if checks.key is None else checks.key,
        )
    gates.authenticity_gate(message, _risk(message, checks), None)
    if checks.schemas is not None:
        gates.schema_gate(message, checks.schemas)
    if checks.now_ms is not None:
        now_ms = checks.now_ms()
        gates.lifetime_gate(message, now_ms=now_ms, append_ms=now_ms, max_ttl_ms=checks.max_ttl_ms)


def _risk(message: Message, checks: Checks) -> Risk:
    if checks.risk is not None:
        return checks.risk
    kind = checks.registry.get(message.message_type)
    return kind.risk if kind is not None else "medium"
