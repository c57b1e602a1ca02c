"""The gates: every check that a record passes before its handler, in one table that one function walks. Pure.

Each gate is one function that gets everything as arguments; it refuses by raising ContractError with reason and
pointer. Each entry of the table has a stage, and names the input its verdict depends on. `judge` walks the table and
returns `Passed`, `Failed` or `NotAddressed`. Workers, reply readers, `verify` and dead-letter diagnosis all use it and
differ only in their `Checks`; gates are never called directly. Records that compiled code has cast walk the table, too
(`left_of`, `passes_cast`); only verdicts that are the same for their whole layout are reused. `consumers` decides the
consequences of a verdict; there the gates `inbox` and `handler` are stages of the worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

import msgspec

from bus.errors import ContractError
from bus.gates.checks import (
    EXPIRY_TOLERANCE_MS,
    HOPS_LIMIT,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_HOPS,
    MAX_TTL_MS,
    PROOF,
    SKEW_TOLERANCE_MS,
    Admit,
    ProofAsked,
    admission_gate,
    audience_gate,
    authenticity_gate,
    integrity_gate,
    is_addressed,
    known_type,
    lifetime_gate,
    parse_gate,
    policy_gate,
    schema_gate,
    size_gate,
    times_of,
)
from bus.payloads.payload_types import PayloadType, RiskClass
from bus.protocol import sealing
from bus.protocol.envelope import Statement
from bus.protocol.fast_parse import CastLimits
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.transports.base import Record
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
    "Layout",
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
    "cast_limits",
    "integrity_gate",
    "is_addressed",
    "judge",
    "known_type",
    "left_of",
    "lifetime_gate",
    "parse_gate",
    "passes_cast",
    "policy_gate",
    "prove",
    "schema_gate",
    "size_gate",
    "times_of",
]


class Checks(msgspec.Struct, frozen=True, kw_only=True):
    """The values that one reader checks records against. A gate whose value is missing passes every record."""

    max_message_bytes: int
    own_headers: Collection[str] = ()
    """Headers that do not count on the bus's own topics."""
    prove: Callable[[str, bytes], object | None] | None = None
    """Makes parsing faster and changes no verdict. None if keys are configured: building a typed payload runs code of
    its type, which must not happen before the signature is verified."""
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


_NOT_PARSED: Final = cast("Message", None)


@dataclass(slots=True, kw_only=True)
class Case:
    """One record on its way through the gates, and the results they produce.

    No Struct: the gates set more of its fields than a Struct saves by being made.
    """

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
    message: Message = _NOT_PARSED
    """None until the gate `parse` has passed."""
    header_size: int = 0
    """Bytes of its headers, once the gate `size` has passed."""
    statement: Statement | None = None
    """The sealed statement, once the gate `integrity` has passed."""
    times: tuple[int, int] | None = None
    """When the message was sealed and when its life ends, in Unix milliseconds, where the caller knows it."""
    kind: PayloadType | None = None
    payload: object | None = None
    needs: object = None
    """The approval that gate `policy` requires before the message may run; None if it requires none."""


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
    """The message is for another agent and is skipped; its authenticity was not checked."""

    message: Message


GateVerdict: TypeAlias = Passed | Failed | NotAddressed


def judge(
    case: Case, checks: Checks, *, stage: Stage | None = None, first: str | None = None, until: str | None = None
) -> GateVerdict:
    """Walk the gates of one *stage* (by default of all), from *first* on and up to *until*, which is not run.

    Two walks of one record must be adjacent: the second begins at the gate where the first ended, or gates are skipped.
    A later walk uses the results already in *case*.
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


class Layout(msgspec.Struct, frozen=True):
    """The facts that all records of one layout share, besides those in their cast."""

    kind: PayloadType
    is_signed: bool
    is_free: bool
    """Rights and levels let in whatever has this layout."""
    is_read: bool
    """Whether the cast has read the payload."""


def left_of(layout: Layout, checks: Checks) -> tuple[GateCheck, ...]:
    """Return the checks that each record of *layout* must still pass (`passes_cast`): a record of it has passed all."""
    return tuple(
        getattr(entry, "cast", entry[1])
        for entry in GATES
        if getattr(entry, "varies", "record") == "record" and getattr(entry, "asks", _always)(layout, checks)
    )


def cast_limits(checks: Checks) -> CastLimits:
    """Return what the cast of compiled code allows a record, in place of the gates `size` and `lifetime`."""
    return CastLimits(MAX_HEADERS, MAX_HEADER_BYTES, EXPIRY_TOLERANCE_MS, SKEW_TOLERANCE_MS, checks.max_ttl_ms)


def passes_cast(case: Case, checks: Checks, left: tuple[GateCheck, ...]) -> bool:
    """Tell whether a record that was cast in a known layout passes the checks that are *left* of it (`left_of`).

    It may raise any error of a policy or of a type's own code. The full walk then says which gate it was.
    """
    for passes in left:  # noqa: SIM110 - a generator costs as much as two gates
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
    case.statement = integrity_gate(case.message)
    return True


def _recipient(case: Case, checks: Checks) -> bool:
    return checks.is_addressed is None or checks.is_addressed(case.message)


def _audience(case: Case, checks: Checks) -> bool:
    message = case.message
    audience_gate(
        message,
        message.metadata.namespace if checks.namespace is None else checks.namespace,
        message.message_type if case.expected_type is msgspec.UNSET else case.expected_type,
        message.key if case.key is msgspec.UNSET else case.key,
    )
    return True


def _authenticity(case: Case, checks: Checks) -> bool:
    if checks.risk_of is not None:
        append_ms = case.record.timestamp_ms or None
        risk = checks.risk_of(case.message)
        authenticity_gate(case.message, risk, checks.verifier, append_ms=append_ms, statement=case.statement)
    return True


def _asks_signed(layout: Layout, checks: Checks) -> bool:  # noqa: ARG001 - the table's form
    # An unsigned record was let in without a signature before, and the cast has judged the form of its chain.
    return layout.is_signed


def _schema(case: Case, checks: Checks) -> bool:
    if checks.kind_of is not None:
        case.kind = kind = checks.kind_of(case.message)
        if kind is not None:
            case.payload = kind.open(case.message)
    return True


def _schema_of_cast(case: Case, checks: Checks) -> bool:  # noqa: ARG001 - the table's form
    if case.kind is not None:
        case.payload = case.kind.open(case.message)
    return True


def _asks_unread(layout: Layout, checks: Checks) -> bool:  # noqa: ARG001 - the table's form
    return not layout.is_read or layout.kind.is_judged_each


def _lifetime(case: Case, checks: Checks) -> bool:
    if case.now_ms is not None:
        lifetime_gate(
            case.message,
            now_ms=case.now_ms,
            append_ms=case.append_ms,
            max_hops=checks.max_hops,
            max_ttl_ms=checks.max_ttl_ms,
            extend_until_ms=case.extend_until_ms,
            times=case.times,
        )
    return True


def _policy(case: Case, checks: Checks) -> bool:
    if checks.admit is not None:
        case.needs = admission_gate(case.message, case.kind, case.payload, checks.admit, case.how)
    if checks.policy is not None:
        policy_gate(case.message, checks.policy, checks.group)
    return True


def _policy_of_cast(case: Case, checks: Checks) -> bool:
    return _policy(case, checks) and case.needs is None


def _asks_policy(layout: Layout, checks: Checks) -> bool:
    return not layout.is_free or checks.policy is not None


def _always(layout: Layout, checks: Checks) -> bool:  # noqa: ARG001 - the table's form
    return True


GateCheck: TypeAlias = Callable[[Case, Checks], bool]
Stage: TypeAlias = Literal["before_inbox", "after_inbox"]
"""The stage of a gate. Gates after the inbox do not run for messages that the inbox knows as done."""
Varies: TypeAlias = Literal["layout", "cast", "record"]
"""The input that a verdict depends on: the layout that records share; the record, as judged by the cast of the compiled
code (`cast_limits`); or anything of the single record. A gate that declares none depends on the record."""


class Gate(tuple[str, GateCheck]):
    """An entry of the table: the name of a gate and its check, with its stage and what its verdict depends on.

    Of a record that was cast in a known layout, *cast* is the check, and *asks* tells whether it has anything to ask of
    a layout; without these, *check* is run for each record.
    """

    stage: Stage
    varies: Varies
    cast: GateCheck
    asks: Callable[[Layout, Checks], bool]

    def __new__(
        cls,
        name: str,
        check: GateCheck,
        stage: Stage,
        varies: Varies = "record",
        *,
        cast: GateCheck | None = None,
        asks: Callable[[Layout, Checks], bool] = _always,
    ) -> Gate:
        gate = super().__new__(cls, (name, check))
        gate.stage, gate.varies = stage, varies
        gate.cast, gate.asks = cast or check, asks
        return gate


GATES: Final[tuple[tuple[str, GateCheck], ...]] = (
    Gate("size", _size, "before_inbox", "cast"),
    Gate("parse", _parse, "before_inbox", "cast"),
    Gate("integrity", _integrity, "before_inbox", "cast"),
    Gate("recipient", _recipient, "before_inbox", "layout"),
    Gate("audience", _audience, "before_inbox", "cast"),
    Gate("authenticity", _authenticity, "before_inbox", asks=_asks_signed),
    Gate("schema", _schema, "before_inbox", cast=_schema_of_cast, asks=_asks_unread),
    Gate("lifetime", _lifetime, "after_inbox", "cast"),
    Gate("policy", _policy, "after_inbox", cast=_policy_of_cast, asks=_asks_policy),
)
"""The gates in the order in which a record passes them. A gate returns False if the record is for another agent."""
NOWHERE: Final = Record(topic="", partition=0, offset=0, timestamp_ms=0, key=None, value=None)


@functools.cache
def _between(stage: Stage | None, first: str | None, until: str | None) -> tuple[GateCheck, ...]:
    names = [name for name, _ in GATES]
    begin = 0 if first is None else names.index(first)
    end = len(GATES) if until is None else names.index(until)
    return tuple(entry[1] for entry in GATES[begin:end] if stage is None or _stage_of(entry) == stage)


def _stage_of(entry: tuple[str, GateCheck]) -> Stage:
    """Return the stage of *entry*: its own, else that of the gate before it."""
    before: Stage = "before_inbox"
    for each in GATES:
        before = getattr(each, "stage", before)
        if each is entry:
            break
    return before
