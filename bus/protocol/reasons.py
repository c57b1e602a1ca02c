"""The closed set of gates and reasons (PROTOCOL.md section 7), used in dead letters, logs, metric labels and `verify`.

Owns their names and what follows from each reason: its class, its HTTP status and A2A code, what would have passed, and
what cures it. `bus.gates` implements the gates.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["DECIDED_BY_BYTES", "FORGED", "GATE_NAMES", "REASONS", "REASON_TABLE", "Meaning", "Reason", "gate_of"]


class Meaning(NamedTuple):
    """The meaning of a reason for the requester, as error class, HTTP status and A2A code. Never retry the same
    message."""

    error_class: str
    http_status: int
    a2a: int | str
    """A JSON-RPC error code where a call is refused; a task state where a task ends of it."""


class Reason(NamedTuple):
    """One reason for which a record is refused."""

    name: str
    meaning: Meaning
    expected: str
    """The condition that the message should have met."""
    cure: str
    """The fix; `{place}`, `{message}`, `{type}` and `{conversation}` are those of the dead letter."""


_REDRIVE: Final = "sealbus dlq redrive {place} --why ..."
_SENDER: Final = "fix the sender and publish a new message; this one stays refused"

_FORM: Final = Meaning("error.semantic", 400, -32600)
_DATA: Final = Meaning("error.semantic", 422, -32602)
_LARGE: Final = Meaning("error.semantic", 413, -32602)
_UNKNOWN: Final = Meaning("error.semantic.unknown_task", 405, -32601)
_VERSION: Final = Meaning("error.semantic.unsupported_version", 400, -32009)
_TRANSITION: Final = Meaning("error.semantic.invalid_transition", 409, -32004)
_REFUSED: Final = Meaning("error.semantic", 409, "FAILED")
_UNPROVEN: Final = Meaning("error.authz", 401, -32600)
_FORBIDDEN: Final = Meaning("error.authz", 403, "REJECTED")
_UNDECIDED: Final = Meaning("error.timeout", 403, "REJECTED")
_LATE: Final = Meaning("error.timeout", 504, "FAILED")
_EXHAUSTED: Final = Meaning("error.transient", 503, "FAILED")
_CRASHED: Final = Meaning("error.internal", 500, "FAILED")

REASON_TABLE: Final = MappingProxyType(
    {
        "size": (
            Reason(
                "oversized",
                _LARGE,
                "a record of at most publish.max_message_bytes",
                "move large data behind a Ref; " + _SENDER,
            ),
        ),
        "parse": (
            Reason("malformed", _FORM, "an envelope in canonical JSON (PROTOCOL.md 1)", _SENDER),
            Reason("unsupported_protocol", _FORM, "an envelope of sealbus/1", _SENDER),
        ),
        "integrity": (
            Reason(
                "hash_mismatch",
                _UNPROVEN,
                "the bytes that were sealed",
                "find the program that writes to this topic (docs/explanation/trust.md)",
            ),
            Reason(
                "seal_mismatch",
                _UNPROVEN,
                "the bytes that were sealed",
                "find the program that writes to this topic (docs/explanation/trust.md)",
            ),
        ),
        "recipient": (),
        "audience": (
            Reason("wrong_audience", _REFUSED, "a message of this namespace", "correct bus.namespace of the sender"),
            Reason(
                "type_mismatch",
                _REFUSED,
                "a message of the type of its topic",
                "find the program that writes to this topic (docs/explanation/trust.md)",
            ),
            Reason(
                "key_mismatch",
                _REFUSED,
                "a record with the key that is sealed",
                "find the program that writes to this topic (docs/explanation/trust.md)",
            ),
        ),
        "authenticity": (
            Reason(
                "signature_missing",
                _UNPROVEN,
                "a signed message",
                "give the sender a key: sealbus key new AGENT, trust.key_file",
            ),
            Reason(
                "signature_invalid",
                _UNPROVEN,
                "a signature over this statement",
                "find the program that sends under this name",
            ),
            Reason(
                "key_unknown",
                _UNPROVEN,
                "a key that is in trust.keys",
                "add the sender's public key to trust.keys, then " + _REDRIVE,
            ),
            Reason(
                "key_revoked",
                _UNPROVEN,
                "a key that was not revoked",
                "give the sender a new key, and publish a new message",
            ),
            Reason(
                "key_expired",
                _UNPROVEN,
                "a key that was valid when it signed",
                "give the sender a new key, and publish a new message",
            ),
            Reason(
                "sender_mismatch",
                _UNPROVEN,
                "a key of the agent that is named as sender",
                "give the sender a key of its own",
            ),
            Reason(
                "proof_invalid",
                _UNPROVEN,
                "a chain in which every link is valid",
                "sealbus verify {message} names the link that does not",
            ),
        ),
        "schema": (
            Reason(
                "unknown_type",
                _UNKNOWN,
                "a type that the worker handles",
                "deploy a worker that knows it, then " + _REDRIVE,
            ),
            Reason(
                "unsupported_version",
                _VERSION,
                "a version that the worker reads",
                "upgrade the worker first, then " + _REDRIVE,
            ),
            Reason(
                "schema_violation",
                _DATA,
                "data that matches the type",
                "sealbus type show {type}; where the type was wrong: " + _REDRIVE,
            ),
            Reason(
                "semantic_violation",
                _DATA,
                "data that its checks accept",
                "fix the sender or the check, then " + _REDRIVE,
            ),
            Reason(
                "critical_field",
                _VERSION,
                "a critical field that is understood",
                "upgrade the worker, then " + _REDRIVE,
            ),
        ),
        "lifetime": (
            Reason("ttl_too_long", _REFUSED, "a lifetime within publish.max_ttl_s", _SENDER),
            Reason("expired", _LATE, "handling before it expired", "sealbus dlq redrive {place} --extend 1h --why ..."),
            Reason(
                "too_many_hops",
                _REFUSED,
                "fewer causes behind it",
                "look for agents that answer each other: sealbus trace {conversation}",
            ),
            Reason(
                "clock_skew",
                _REFUSED,
                "clocks that agree",
                "sealbus doctor; correct the sender's clock, and publish a new message",
            ),
        ),
        "policy": (
            Reason(
                "unauthorized",
                _FORBIDDEN,
                "a rule that allows it",
                "sealbus policy explain; change policy.file, then " + _REDRIVE,
            ),
            Reason(
                "untrusted_instruction",
                _FORBIDDEN,
                "an instruction that is trusted enough",
                "The agent acted on text it had read. If the action is wanted, require an approval: "
                "docs/how-to/approvals.md",
            ),
        ),
        "approval": (
            Reason(
                "approval_invalid",
                _FORBIDDEN,
                "a decision that fits the action",
                "publish a new message, and have it decided again",
            ),
            Reason("approval_rejected", _FORBIDDEN, "an approval", "ask again with a new message, or " + _REDRIVE),
            Reason("approval_timeout", _UNDECIDED, "a decision in time", _REDRIVE + " asks again"),
        ),
        "inbox": (
            Reason(
                "idempotency_conflict",
                _REFUSED,
                "the same content under the same key",
                "give other content another idempotency key",
            ),
            Reason("crash_loop", _CRASHED, "a run that does not end the worker", "fix the handler, then " + _REDRIVE),
        ),
        "process": (
            Reason(
                "invalid_transition",
                _TRANSITION,
                "an event that its process waits for",
                "sealbus workflow list shows its waits",
            ),
            Reason(
                "conversation_closed",
                _TRANSITION,
                "an event before the process finished",
                "nothing to do: the workflow had already ended",
            ),
        ),
        "handler": (
            Reason("rejected", _REFUSED, "data that the handler accepts", "fix the named problem, then " + _REDRIVE),
            Reason(
                "retries_exhausted",
                _EXHAUSTED,
                "a run without an error",
                "fix the handler or the service it calls, then " + _REDRIVE,
            ),
            Reason(
                "effect_in_doubt",
                _CRASHED,
                "a result of each step that must not run twice",
                "look whether the step had its effect, then " + _REDRIVE + " --step-done RESULT, or --step-again",
            ),
        ),
    }
)
"""Gate -> the reasons it can fail with, in the order in which a record passes the gates."""

GATE_NAMES: Final = MappingProxyType({gate: tuple(each.name for each in found) for gate, found in REASON_TABLE.items()})
"""Gate -> the names of its reasons."""

REASONS: Final = frozenset(reason for reasons in GATE_NAMES.values() for reason in reasons)

DECIDED_BY_BYTES: Final = frozenset({"malformed", "hash_mismatch", "seal_mismatch", "type_mismatch", "key_mismatch"})
"""The reasons that the record alone decides, whatever is deployed or configured: what died of them dies again.

Others depend on code, keys or settings, which may be corrected: a key that is unknown today may be trusted tomorrow.
"""

FORGED: Final = frozenset(
    {
        "hash_mismatch",
        "key_mismatch",
        "proof_invalid",
        "seal_mismatch",
        "sender_mismatch",
        "signature_invalid",
        "signature_missing",
        "type_mismatch",
        "wrong_audience",
    }
)
"""The reasons of messages that are not what they say, as in the alert SealbusForged."""

_GATE_OF: Final = {reason: gate for gate, reasons in GATE_NAMES.items() for reason in reasons}


def gate_of(reason: str) -> str:
    """Return the gate that fails with *reason*; raise KeyError for a reason outside the closed set."""
    return _GATE_OF[reason]
