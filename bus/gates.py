"""The gates: every check that a record passes before its handler, in one table that one function walks. Pure.

Each gate is one function that gets everything as arguments; it refuses by raising ContractError with reason and
pointer. An entry of the table says at which stage it stands, and what its verdict depends on. `judge` walks the table
and returns `Passed`, `Failed` or `NotAddressed`. Workers, reply readers, `verify` and dead-letter diagnosis all use it
and differ only in their `Checks`; nobody calls a gate past the table. Records that the compiled code has cast walk it,
too (`passes_cast`), and only what holds for all of their layout is not asked again. What a verdict leads to is decided
in `consumers`, where the gates `inbox` and `handler` are stages of the worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType, Registry, RiskClass
from bus.protocol import sealing
from bus.protocol.fast_parse import FastParsed
from bus.protocol.proof_chain import encode_statement, find_fault
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier, check_signature, parse_signature
from bus.protocol.timestamps import parse_ms
from bus.transports.base import Record, header_bytes
from bus.trust.policy.policy import Policy

__all__ = [
    "Admit",
    "Case",
    "Checks",
    "EXPIRY_TOLERANCE_MS",
    "Failed",
    "GATES",
    "Gate",
    "MAX_HOPS",
    "MAX_TTL_MS",
    "MAX_HEADERS",
    "MAX_HEADER_BYTES",
    "HOPS_LIMIT",
    "NOWHERE",
    "NotAddressed",
    "PROOF",
    "Passed",
    "ProofAsked",
    "SKEW_TOLERANCE_MS",
    "GateVerdict",
    "admission_gate",
    "audience_gate",
    "authenticity_gate",
    "integrity_gate",
    "is_addressed",
    "is_in_time",
    "judge",
    "known_type",
    "lifetime_gate",
    "parse_gate",
    "passes_cast",
    "policy_gate",
    "prove",
    "schema_gate",
    "size_gate",
]

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
    if (size := header_bytes(headers)) > MAX_HEADER_BYTES:
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


def integrity_gate(message: Message) -> None:
    """Raise ContractError (`hash_mismatch`, `seal_mismatch`)."""
    sealing.check_integrity(message)


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
    """What one risk asks of authenticity. Whatever is there is checked at every risk."""

    signature: Literal["never", "with keys", "always"]
    """When a signature must be there; where no keys are configured, none that is always asked for can be good."""
    chain: bool
    """Whether what rests on something carries its proof chain."""
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
    message: Message, risk: RiskClass, verifier: Verifier | None, *, append_ms: int | None = None
) -> None:
    """Check signature and proof chain as the type's *risk* requires.

    No *verifier* means that no keys are configured. *append_ms* is the record's append time, None where it is unknown.
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
        fault = find_fault(message.statement, verification, message.metadata, verifier)
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


def lifetime_gate(
    message: Message,
    *,
    now_ms: int,
    append_ms: int,
    max_hops: int = HOPS_LIMIT,
    max_ttl_ms: int = MAX_TTL_MS,
    extend_until_ms: int = 0,
) -> None:
    """Raise ContractError (`ttl_too_long`, `expired`, `too_many_hops`, `clock_skew`).

    *max_ttl_ms* is the namespace's longest lifetime, *max_hops* the group's limit. *extend_until_ms* comes from an
    operator's redrive.
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
    """Tell whether the times alone pass the lifetime gate."""
    in_time = now_ms <= expires_ms + EXPIRY_TOLERANCE_MS and sealed_ms <= append_ms + SKEW_TOLERANCE_MS
    return in_time and expires_ms - sealed_ms <= max_ttl_ms


def policy_gate(message: Message, policy: Policy, group: str) -> None:
    """Raise ContractError (`unauthorized`), also if the policy itself fails."""
    try:
        refusal = policy.refusal(message, group)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ContractError(f"the policy failed: {type(error).__name__}", "/metadata/sender", "unauthorized") from error
    if refusal is not None:
        text = refusal if isinstance(refusal, str) else "the policy gave no answer that there is"
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


# The table.


Admit: TypeAlias = Callable[[Message, PayloadType | None, object, str], object]
"""Lets a message in, with type, upcast payload and the way it came on; raises ContractError.

It returns what the message needs before it may run; None: nothing.

`bus.trust.admission` makes it.
"""


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """What one reader checks records against. A gate without anything to check against passes every record."""

    max_message_bytes: int
    own_headers: Collection[str] = ()
    """Headers that do not count on the bus's own topics."""
    prove: Callable[[str, bytes], object | None] | None = None
    """Makes parsing faster and changes no verdict. None if keys are configured: building a typed payload runs code of
    its type, which must not happen before authenticity is proven.
    """
    is_addressed: Callable[[Message], bool] | None = None
    namespace: str | None = None
    risk_of: Callable[[Message], RiskClass] | None = None
    """None: authenticity is not checked."""
    verifier: Verifier | None = None
    kind_of: Callable[[Message], PayloadType | None] | None = None
    """Returns the type of a message, or None to skip its schema. Raises ContractError."""
    max_hops: int = HOPS_LIMIT
    max_ttl_ms: int = MAX_TTL_MS
    admit: Admit | None = None
    """None: rights and levels are not checked."""
    policy: Policy | None = None
    group: str = ""


class Case(msgspec.Struct, kw_only=True):
    """One record before the gates, and what the gates find out about it."""

    record: Record
    is_own: bool = False
    """Whether it comes from one of the bus's own topics."""
    expected_type: str | msgspec.UnsetType | None = msgspec.UNSET
    """The message type of its topic; UNSET: any type."""
    key: bytes | msgspec.UnsetType | None = msgspec.UNSET
    """The record's key; UNSET: unknown."""
    now_ms: int | None = None
    """None: the lifetime is not checked."""
    append_ms: int = 0
    extend_until_ms: int = 0
    how: str = "topic"
    """On which way it came: topic, reply, mailbox, retry, redrive, hold or replay."""
    message: Message = cast("Message", None)
    """None until the gate `parse` has passed."""
    cast: FastParsed[Any] | None = None
    """What compiled code has read of it, in place of the gates `parse` and `integrity`; None: nothing."""
    is_free: bool = False
    """Rights and levels let in whatever has the layout of *cast*."""
    header_size: int = 0
    """Bytes of its headers, once the gate `size` has passed."""
    kind: PayloadType | None = None
    payload: object | None = None
    needs: object = None
    """What the gate `policy` found to be needed before it may run; None: nothing."""


class Passed(msgspec.Struct, frozen=True):
    """The record passed every gate. *kind* and *payload* are None if the schema was not checked."""

    message: Message
    kind: PayloadType | None
    payload: object | None


class Failed(msgspec.Struct, frozen=True):
    """The first gate that refused the record. *message* is the parsed message, even if it is not what was sealed."""

    error: ContractError
    message: Message | None


class NotAddressed(msgspec.Struct, frozen=True):
    """The message is for another agent and is skipped, which says nothing about authenticity."""

    message: Message


GateVerdict: TypeAlias = Passed | Failed | NotAddressed


def judge(
    case: Case, checks: Checks, *, stage: Stage | None = None, first: str | None = None, until: str | None = None
) -> GateVerdict:
    """Walk the gates of one *stage*, of all by default, from *first* on and *until* another, which is not asked.

    What stands between two walks of one record is in neither only where their ends say so: the second begins where the
    first ends. A walk that starts later uses what *case* already holds.
    """
    try:
        for passes in _between(stage, first, until):
            if not passes(case, checks):
                return NotAddressed(case.message)
    except ContractError as error:
        # Drop the traceback: its frames hold the record, and both would wait in memory for the garbage collector.
        error.__cause__ = error.__context__ = None
        return Failed(error.with_traceback(None), case.message or None)
    return Passed(case.message, case.kind, case.payload)


def prove(message: Message, risk: RiskClass, verifier: Verifier | None, *, append_ms: int | None = None) -> None:
    """Raise ContractError unless *message*, which was parsed, is what its sender sealed, as *risk* asks for.

    *append_ms* is the append time of its record, None where it is unknown.
    """
    checks = Checks(max_message_bytes=len(message.value), risk_of=lambda _: risk, verifier=verifier)
    case = Case(record=msgspec.structs.replace(NOWHERE, timestamp_ms=append_ms or 0), message=message)
    verdict = judge(case, checks, first="integrity", until="schema")
    if isinstance(verdict, Failed):
        raise verdict.error


def passes_cast(case: Case, checks: Checks) -> bool:
    """Tell whether a record that was cast in a known layout passes every gate that its layout does not answer for.

    It may raise any error of a policy or of a type's own code. The full walk then says which gate it was.
    """
    for passes in _between(None, None, None, True):  # noqa: SIM110 - a generator costs as much as two gates
        if not passes(case, checks):
            return False
    return True


def _size(case: Case, checks: Checks) -> bool:
    uncounted = checks.own_headers if case.is_own else ()
    case.header_size = size_gate(case.record, checks.max_message_bytes, uncounted)
    return True


def _parse(case: Case, checks: Checks) -> bool:
    case.message = sealing.parse(case.record.value, checks.prove if checks.verifier is None else None)
    return True


def _integrity(case: Case, checks: Checks) -> bool:  # noqa: ARG001 - the table's form
    integrity_gate(case.message)
    return True


def _recipient(case: Case, checks: Checks) -> bool:
    return checks.is_addressed is None or checks.is_addressed(case.message)


def _audience(case: Case, checks: Checks) -> bool:
    message, cast = case.message, case.cast
    if cast is not None and case.kind is not None:
        # Its namespace is its layout's.
        return case.key == cast.key and case.expected_type == case.kind.name
    audience_gate(
        message,
        message.metadata.namespace if checks.namespace is None else checks.namespace,
        message.message_type if case.expected_type is msgspec.UNSET else case.expected_type,
        message.key if case.key is msgspec.UNSET else case.key,
    )
    return True


def _authenticity(case: Case, checks: Checks) -> bool:
    if case.cast is not None and case.message.verification.signature is None:
        # It was let in without one before, and the cast has judged the form of its chain.
        return True
    if checks.risk_of is not None:
        append_ms = case.record.timestamp_ms or None
        authenticity_gate(case.message, checks.risk_of(case.message), checks.verifier, append_ms=append_ms)
    return True


def _schema(case: Case, checks: Checks) -> bool:
    kind = case.kind
    if case.cast is not None and kind is not None:
        payload = case.message.payload
        case.payload = kind.open(case.message) if payload is None or kind.is_judged_each else payload
    elif checks.kind_of is not None:
        case.kind = kind = checks.kind_of(case.message)
        if kind is not None:
            case.payload = kind.open(case.message)
    return True


def _lifetime(case: Case, checks: Checks) -> bool:
    if case.cast is not None and case.now_ms is not None:
        return is_in_time(
            case.cast.sealed_ms,
            case.cast.expires_ms,
            now_ms=case.now_ms,
            append_ms=case.append_ms,
            max_ttl_ms=checks.max_ttl_ms,
        )
    if case.now_ms is not None:
        lifetime_gate(
            case.message,
            now_ms=case.now_ms,
            append_ms=case.append_ms,
            max_hops=checks.max_hops,
            max_ttl_ms=checks.max_ttl_ms,
            extend_until_ms=case.extend_until_ms,
        )
    return True


def _policy(case: Case, checks: Checks) -> bool:
    if checks.admit is not None and not case.is_free:
        case.needs = admission_gate(case.message, case.kind, case.payload, checks.admit, case.how)
    if checks.policy is not None:
        policy_gate(case.message, checks.policy, checks.group)
    return True


GateCheck: TypeAlias = Callable[[Case, Checks], bool]
Stage: TypeAlias = Literal["before_inbox", "after_inbox"]
"""What the inbox knows as done is not judged again by the gates after it."""
Varies: TypeAlias = Literal["layout", "cast", "record"]
"""On what a verdict depends: on what all records of a layout have in common; on the bytes, as the cast of the compiled
code judges them, too; on anything of the one record. A gate that says nothing depends on the record.
"""


class Gate(tuple[str, GateCheck]):
    """An entry of the table: the name of a gate and its check, with its stage and what its verdict depends on."""

    stage: Stage
    varies: Varies

    def __new__(cls, name: str, check: GateCheck, stage: Stage, varies: Varies = "record") -> Gate:
        gate = super().__new__(cls, (name, check))
        gate.stage, gate.varies = stage, varies
        return gate


GATES: Final[tuple[tuple[str, GateCheck], ...]] = (
    Gate("size", _size, "before_inbox"),
    Gate("parse", _parse, "before_inbox", "cast"),
    Gate("integrity", _integrity, "before_inbox", "cast"),
    Gate("recipient", _recipient, "before_inbox", "layout"),
    Gate("audience", _audience, "before_inbox"),
    Gate("authenticity", _authenticity, "before_inbox"),
    Gate("schema", _schema, "before_inbox"),
    Gate("lifetime", _lifetime, "after_inbox"),
    Gate("policy", _policy, "after_inbox"),
)
"""The gates in the order in which a record passes them. A gate returns False if the record is for another agent."""
NOWHERE: Final = Record(topic="", partition=0, offset=0, timestamp_ms=0, key=None, value=None)


@functools.cache
def _between(
    stage: Stage | None, first: str | None, until: str | None, only_record: bool = False
) -> tuple[GateCheck, ...]:
    names = [name for name, _ in GATES]
    begin = 0 if first is None else names.index(first)
    end = len(GATES) if until is None else names.index(until)
    return tuple(
        entry[1]
        for entry in GATES[begin:end]
        if (stage is None or _stage_of(entry) == stage)
        and not (only_record and getattr(entry, "varies", "record") != "record")
    )


def _stage_of(entry: tuple[str, GateCheck]) -> Stage:
    """Return the stage of *entry*: its own, else that of the gate before it."""
    before: Stage = "before_inbox"
    for each in GATES:
        before = getattr(each, "stage", before)
        if each is entry:
            break
    return before
