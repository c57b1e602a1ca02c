"""The gates: every check a record passes before its handler, each one function, in the order of design section 5.

Owns the verdict on one record, given everything by argument; a gate that refuses raises ContractError with its reason
and pointer. Pure. What follows from a refusal (dead letter, skip) is `consumers`'; `inbox` and `handler` are stages of
the worker, not functions here.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType, Registry, Risk
from bus.protocol import sealing
from bus.protocol.proof_chain import encode_statement, find_fault
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier, check_signature, parse_signature
from bus.protocol.timestamps import parse_ms
from bus.transports.base import Record, header_bytes
from bus.trust.policy import Policy

__all__ = [
    "EXPIRY_TOLERANCE_MS",
    "MAX_HOPS",
    "MAX_TTL_MS",
    "MOST_HEADERS",
    "MOST_HEADER_BYTES",
    "MOST_HOPS",
    "SKEW_TOLERANCE_MS",
    "audience_gate",
    "authenticity_gate",
    "integrity_gate",
    "is_addressed",
    "is_in_time",
    "lifetime_gate",
    "parse_gate",
    "policy_gate",
    "schema_gate",
    "size_gate",
]

EXPIRY_TOLERANCE_MS = 5_000
SKEW_TOLERANCE_MS = 120_000
MOST_HEADERS = 64
MOST_HEADER_BYTES = 16_384
MAX_HOPS = 16
"""Of a message that asks for no other limit."""
MOST_HOPS = 64
"""That a message may ask for, where the namespace says nothing else."""
MAX_TTL_MS = 7 * 86_400_000
"""The largest lifetime of a message, where the namespace says nothing else."""


def size_gate(record: Record, max_message_bytes: int, uncounted: Collection[str] = ()) -> None:
    """`oversized`. Headers whose names are *uncounted* are the bus's own."""
    headers = tuple(header for header in record.headers if header[0] not in uncounted) if uncounted else record.headers
    if len(headers) > MOST_HEADERS:
        raise ContractError(f"{len(headers)} headers, at most {MOST_HEADERS} are allowed", reason="oversized")
    if (size := header_bytes(headers)) > MOST_HEADER_BYTES:
        raise ContractError(
            f"its headers take {size} bytes, at most {MOST_HEADER_BYTES} are allowed", reason="oversized"
        )
    if record.value is not None and len(record.value) > max_message_bytes:
        raise ContractError(f"{len(record.value)} bytes, at most {max_message_bytes} are allowed", reason="oversized")


def parse_gate(record: Record, registry: Registry | None = None) -> Message:
    """`malformed`, `unsupported_protocol`; a *registry* makes it quicker and changes no verdict."""
    return sealing.parse(record.value, registry.prove if registry is not None else None)


def integrity_gate(message: Message) -> None:
    """`hash_mismatch`, `seal_mismatch`."""
    sealing.check_integrity(message)


def is_addressed(message: Message, agent_id: str, roles: Collection[str]) -> bool:
    """Whether *message* is for this agent: to everybody, to its id, or to one of its roles. Otherwise it is skipped."""
    recipient = message.metadata.recipient
    if recipient is None:
        return True
    return recipient.id == agent_id if recipient.id is not None else recipient.role in roles


def audience_gate(message: Message, namespace: str, message_type: str | None, key: bytes | None) -> None:
    """`wrong_audience`, `type_mismatch`, `key_mismatch`: a sealed message moved elsewhere.

    *message_type* is its (origin) topic's.
    """
    metadata = message.metadata
    if metadata.namespace != namespace:
        raise ContractError(
            f"sealed for namespace {metadata.namespace}, read in {namespace}", "/metadata/namespace", "wrong_audience"
        )
    if metadata.message_type != message_type:
        raise ContractError(
            f"sealed as {metadata.message_type}, read as {message_type}", "/metadata/message_type", "type_mismatch"
        )
    if key != message.key:
        pointer = "/metadata/conversation_id" if message.routing.key is None else "/routing/key"
        raise ContractError("the record's key is not the sealed one", pointer, "key_mismatch")


def authenticity_gate(message: Message, risk: Risk, verifier: Verifier | None) -> None:
    """Signature and proof chain, as far as the *risk* of the type asks; without a *verifier* no keys are configured."""
    verification = message.verification
    if verification.signature is None:
        if risk == "high" or (risk == "medium" and verifier is not None):
            raise ContractError("is required", "/verification/signature", "signature_missing")
        if verifier is not None and verification.proof_chain is not None:
            # Unread: sixteen links of nobody's would cost as many verifications.
            raise ContractError("an unsigned message carries a chain", "/verification/proof_chain", "proof_invalid")
    elif verifier is not None or risk == "high":
        _check_signature(message, verification.signature, verifier)
    if verification.proof_chain is not None:
        fault = find_fault(message.statement, verification, message.metadata, verifier)
        if fault is not None:
            raise ContractError(fault, "/verification/proof_chain", "proof_invalid")
    elif verification.parents is not None and risk != "low":
        raise ContractError("rests on parents and carries no chain", "/verification/proof_chain", "proof_invalid")


def _check_signature(message: Message, text: str, verifier: Verifier | None) -> None:
    signature = parse_signature(text)
    if signature is None:
        raise ContractError("is not a detached JWS of the one form", "/verification/signature", "signature_invalid")
    if verifier is None:
        raise ContractError("no keys are configured here", "/verification/signature", "key_unknown")
    check_signature(verifier, signature, message.statement, encode_statement(message.statement))


def schema_gate(message: Message, registry: Registry) -> tuple[PayloadType, msgspec.Struct]:
    """`unknown_type`, `unsupported_version`, `schema_violation`, `critical_field`; the type and the typed payload."""
    kind = registry.get(message.metadata.message_type)
    if kind is None:
        raise ContractError(
            f"{message.metadata.message_type} is not registered here", "/metadata/message_type", "unknown_type"
        )
    return kind, kind.open(message)


def lifetime_gate(
    message: Message,
    *,
    now_ms: int,
    append_ms: int,
    max_hops: int = MOST_HOPS,
    max_ttl_ms: int = MAX_TTL_MS,
    extend_until_ms: int = 0,
) -> None:
    """`ttl_too_long`, `expired`, `too_many_hops`, `clock_skew`. *extend_until_ms* comes from an operator's redrive.

    *max_ttl_ms* is the namespace's largest lifetime, *max_hops* what the group takes at most.
    """
    sealed_ms, sealed_end_ms = parse_ms(message.metadata.timestamp) or 0, parse_ms(message.routing.expires_at) or 0
    if sealed_end_ms - sealed_ms > max_ttl_ms:
        text = f"lives {(sealed_end_ms - sealed_ms) / 1000:.0f} s, at most {max_ttl_ms / 1000:.0f} s are allowed"
        raise ContractError(text, "/routing/expires_at", "ttl_too_long")
    expires_ms = max(sealed_end_ms, extend_until_ms)
    if now_ms > expires_ms + EXPIRY_TOLERANCE_MS:
        raise ContractError(f"expired {(now_ms - expires_ms) / 1000:.1f} s ago", "/routing/expires_at", "expired")
    own_limit = MAX_HOPS if message.routing.max_hops is None else message.routing.max_hops
    if message.metadata.hops > min(own_limit, max_hops):
        raise ContractError(
            f"{message.metadata.hops} hops, at most {min(own_limit, max_hops)}", "/metadata/hops", "too_many_hops"
        )
    if sealed_ms > append_ms + SKEW_TOLERANCE_MS:
        raise ContractError("sealed later than it was appended: a clock is wrong", "/metadata/timestamp", "clock_skew")


def is_in_time(sealed_ms: int, expires_ms: int, *, now_ms: int, append_ms: int, max_ttl_ms: int) -> bool:
    """Whether the times alone would pass the lifetime gate."""
    in_time = now_ms <= expires_ms + EXPIRY_TOLERANCE_MS and sealed_ms <= append_ms + SKEW_TOLERANCE_MS
    return in_time and expires_ms - sealed_ms <= max_ttl_ms


def policy_gate(message: Message, policy: Policy, group: str) -> None:
    """`unauthorized`, also where the policy itself fails: what it would have said nobody knows."""
    try:
        refusal = policy.refusal(message, group)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ContractError(f"the policy failed: {type(error).__name__}", "/metadata/sender", "unauthorized") from error
    if refusal is not None:
        text = refusal if isinstance(refusal, str) else "the policy gave no answer that there is"
        raise ContractError(text, "/metadata/sender", "unauthorized")
