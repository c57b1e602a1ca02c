"""The closed set of gates and reasons (PROTOCOL.md section 7), used in dead letters, logs, metric labels and `verify`.

Owns only the names; `bus.gates` implements the gates.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

__all__ = ["GATES", "REASONS", "gate_of"]

GATES: Final = MappingProxyType(
    {
        "size": ("oversized",),
        "parse": ("malformed", "unsupported_protocol"),
        "integrity": ("hash_mismatch", "seal_mismatch"),
        "recipient": (),
        "audience": ("wrong_audience", "type_mismatch", "key_mismatch"),
        "authenticity": (
            "signature_missing",
            "signature_invalid",
            "key_unknown",
            "key_revoked",
            "key_expired",
            "sender_mismatch",
            "proof_invalid",
        ),
        "schema": ("unknown_type", "unsupported_version", "schema_violation", "semantic_violation", "critical_field"),
        "lifetime": ("ttl_too_long", "expired", "too_many_hops", "clock_skew"),
        "policy": ("unauthorized", "untrusted_instruction"),
        "approval": ("approval_invalid", "approval_rejected", "approval_timeout"),
        "inbox": ("idempotency_conflict", "crash_loop"),
        "process": ("invalid_transition", "conversation_closed"),
        "handler": ("rejected", "retries_exhausted"),
    }
)
"""Gate -> the reasons it can fail with, in the order in which a record passes the gates."""

REASONS: Final = frozenset(reason for reasons in GATES.values() for reason in reasons)

_GATE_OF: Final = {reason: gate for gate, reasons in GATES.items() for reason in reasons}


def gate_of(reason: str) -> str:
    """Return the gate that fails with *reason*; raise KeyError for a reason outside the closed set."""
    return _GATE_OF[reason]
