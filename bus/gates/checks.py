"""The checks of the gates, one function each. Pure.

A check gets everything as arguments, and refuses by raising ContractError with reason and pointer. Checks run only
through the table of `bus.gates`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from bus import native
from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType, Registry, RiskClass
from bus.protocol import sealing
from bus.protocol.envelope import Statement
from bus.protocol.proof_chain import encode_statement, find_fault
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier, check_signature, parse_signature
from bus.protocol.timestamps import parse_ms
from bus.transports.base import Record
from bus.trust.policy.policy import Policy

__all__ = [
    "Admit",
    "EXPIRY_TOLERANCE_MS",
    "MAX_HOPS",
    "MAX_TTL_MS",
    "MAX_HEADERS",
    "MAX_HEADER_BYTES",
    "HOPS_LIMIT",
    "PROOF",
    "ProofAsked",
    "SKEW_TOLERANCE_MS",
    "admission_gate",
    "audience_gate",
    "authenticity_gate",
    "integrity_gate",
    "is_addressed",
    "known_type",
    "lifetime_gate",
    "parse_gate",
    "policy_gate",
    "schema_gate",
    "size_gate",
    "times_of",
]

Admit: TypeAlias = Callable[[Message, PayloadType | None, object, str], object]
"""Lets a message in, with type, upcast payload and the way it came on; raises ContractError.

It returns what the message needs before it may run; None: nothing.

`bus.trust.admission` makes it.
"""

EXPIRY_TOLERANCE_MS = 5_000
SKEW_TOLERANCE_MS = 120_000
MAX_HEADERS = 64
MAX_HEADER_BYTES = 16_384
MAX_HOPS = 16
"""The limit for a message without `max_hops`."""
HOPS_LIMIT = 64
"""The most hops a message may ask for, unless the namespace sets another limit."""
MAX_TTL_MS = 7 * 86_400_000
"""The longest lifetime of a message, unless the namespace sets another limit."""


def size_gate(record: Record, max_message_bytes: int, uncounted: Collection[str] = ()) -> int:
    """Raise ContractError (`oversized`); return the bytes of the headers.

    Headers named in *uncounted* are the bus's own and do not count.
    """
    headers = tuple(header for header in record.headers if header[0] not in uncounted) if uncounted else record.headers
    if len(headers) > MAX_HEADERS:
        raise ContractError(f"{len(headers)} headers, at most {MAX_HEADERS} are allowed", reason="oversized")
    if (size := native.header_bytes(headers)) > MAX_HEADER_BYTES:
        raise ContractError(
            f"its headers take {size} bytes, at most {MAX_HEADER_BYTES} are allowed", reason="oversized"
        )
    if record.value is not None and len(record.value) > max_message_bytes:
        raise ContractError(f"{len(record.value)} bytes, at most {max_message_bytes} are allowed", reason="oversized")
    return size


def parse_gate(record: Record, registry: Registry | None = None) -> Message:
    """Parse, or raise ContractError (`malformed`, `unsupported_protocol`).

    A *registry* makes it faster and changes no verdict.
    """
    return sealing.parse(record.value, registry.prove if registry is not None else None)


def integrity_gate(message: Message) -> Statement:
    """Return the sealed statement, or raise ContractError (`hash_mismatch`, `seal_mismatch`)."""
    return sealing.check_integrity(message)


def is_addressed(message: Message, agent_id: str, roles: Collection[str]) -> bool:
    """Tell whether *message* is for this agent: for every agent, its id, or one of its roles. Others are skipped."""
    recipient = message.metadata.recipient
    if recipient is None:
        return True
    return recipient.id == agent_id if recipient.id is not None else recipient.role in roles


def audience_gate(message: Message, namespace: str, message_type: str | None, key: bytes | None) -> None:
    """Raise ContractError (`wrong_audience`, `type_mismatch`, `key_mismatch`) for a sealed message moved elsewhere.

    *message_type* is the type of its (original) topic.
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


class ProofAsked(msgspec.Struct, frozen=True, kw_only=True):
    """The proof of authenticity that one risk requires. Proofs that are present are checked at every risk."""

    signature: Literal["never", "with keys", "always"]
    """When a signature is required; without configured keys, no signature can pass a gate that always requires one."""
    chain: bool
    """Whether a message with parents must carry its proof chain."""
    fresh_keys: bool
    """Whether keys that could not be read for too long no longer count."""


PROOF: Final[Mapping[RiskClass, ProofAsked]] = MappingProxyType(
    {
        "low": ProofAsked(signature="never", chain=False, fresh_keys=False),
        "medium": ProofAsked(signature="with keys", chain=True, fresh_keys=False),
        "high": ProofAsked(signature="always", chain=True, fresh_keys=True),
    }
)
"""Graduated verification. The setting `trust.high_risk` may raise a type's risk; nothing lowers it."""


def authenticity_gate(
    message: Message,
    risk: RiskClass,
    verifier: Verifier | None,
    *,
    append_ms: int | None = None,
    statement: Statement | None = None,
) -> None:
    """Check signature and proof chain as the type's *risk* requires.

    No *verifier* means that no keys are configured. *append_ms* is the record's append time, None where it is unknown.
    *statement* is that of *message*, where it is known.
    """
    verification, required = message.verification, PROOF[risk]
    if verification.signature is None:
        if required.signature == "always" or (required.signature == "with keys" and verifier is not None):
            raise ContractError("is required", "/verification/signature", "signature_missing")
        if verifier is not None and verification.proof_chain is not None:
            # Refused without reading: sixteen forged links would cost sixteen verifications.
            raise ContractError("an unsigned message carries a chain", "/verification/proof_chain", "proof_invalid")
    elif verifier is not None or required.signature == "always":
        _check_signature(message, verification.signature, verifier, append_ms)
        if required.fresh_keys and getattr(verifier, "is_stale", False):
            text = "the keys have been unreadable for too long: high risk is refused"
            raise ContractError(text, "/verification/signature", "key_unknown")
    if verification.proof_chain is not None:
        fault = find_fault(statement or message.statement, verification, message.metadata, verifier)
        if fault is not None:
            raise ContractError(fault, "/verification/proof_chain", "proof_invalid")
    elif verification.parents is not None and required.chain:
        raise ContractError("rests on parents and carries no chain", "/verification/proof_chain", "proof_invalid")


def _check_signature(message: Message, text: str, verifier: Verifier | None, append_ms: int | None) -> None:
    signature = parse_signature(text)
    if signature is None:
        raise ContractError("is not a detached JWS of the one form", "/verification/signature", "signature_invalid")
    if verifier is None:
        raise ContractError("no keys are configured here", "/verification/signature", "key_unknown")
    statement = message.statement
    check_signature(verifier, signature, statement, encode_statement(statement), append_ms=append_ms)


def known_type(message: Message, registry: Registry) -> PayloadType:
    """Return the registered type of *message*, or raise ContractError (`unknown_type`)."""
    kind = registry.get(message.message_type)
    if kind is None:
        raise ContractError(f"{message.message_type} is not registered here", "/metadata/message_type", "unknown_type")
    return kind


def schema_gate(message: Message, registry: Registry) -> tuple[PayloadType, object]:
    """Return type and typed payload, or raise ContractError.

    Reasons: `unknown_type`, `unsupported_version`, `schema_violation`, `critical_field`.
    """
    kind = known_type(message, registry)
    return kind, kind.open(message)


def times_of(message: Message) -> tuple[int, int]:
    """Return when *message* was sealed and when its life ends, in Unix milliseconds."""
    return parse_ms(message.metadata.timestamp) or 0, parse_ms(message.routing.expires_at) or 0


def lifetime_gate(
    message: Message,
    *,
    now_ms: int,
    append_ms: int,
    max_hops: int = HOPS_LIMIT,
    max_ttl_ms: int = MAX_TTL_MS,
    extend_until_ms: int = 0,
    times: tuple[int, int] | None = None,
) -> None:
    """Raise ContractError (`ttl_too_long`, `expired`, `too_many_hops`, `clock_skew`).

    *max_ttl_ms* is the namespace's longest lifetime, *max_hops* the group's limit. *extend_until_ms* comes from an
    operator's redrive, *times* are those of *message* (`times_of`), where they are known.
    """
    sealed_ms, sealed_end_ms = times or times_of(message)
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


def policy_gate(message: Message, policy: Policy, group: str) -> None:
    """Raise ContractError (`unauthorized`), also if the policy itself fails."""
    try:
        refusal = policy.refusal(message, group)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ContractError(f"the policy failed: {type(error).__name__}", "/metadata/sender", "unauthorized") from error
    if refusal is not None:
        text = refusal if isinstance(refusal, str) else "the policy returned neither None nor a text"
        raise ContractError(text, "/metadata/sender", "unauthorized")


def admission_gate(
    message: Message, kind: PayloadType | None, payload: object, admit: Admit, how: str = "topic"
) -> object:
    """Raise ContractError (`unauthorized`, `untrusted_instruction`), also if the admission itself fails.

    Returns what *admit* does: what the message needs before it may run, where that is not None.
    """
    try:
        return admit(message, kind, payload, how)
    except (ContractError, KeyboardInterrupt):
        raise
    except BaseException as error:
        text = f"the policy failed: {type(error).__name__}"
        raise ContractError(text, "/metadata/sender", "unauthorized") from error
