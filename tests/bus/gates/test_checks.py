"""Each gate, one rule at a time: the reason, the field, and both ends of each tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest

from bus import gates
from bus.errors import ContractError
from bus.payloads.payload_types import Registry, payload
from bus.protocol import sealing
from bus.protocol.envelope import Agent, Metadata, Routing, Statement
from bus.protocol.sealing import Message
from bus.protocol.signatures import Signature
from bus.protocol.timestamps import format_ms
from bus.transports.base import Record
from bus.trust.policy.policy import AllowAll

NOW_MS = 1_767_225_600_000
Risk = Literal["low", "medium", "high"]


@payload("a.b", version="1.0.0")
class Thing(msgspec.Struct):
    name: str = ""


REGISTRY = Registry([Thing])


class Signer:
    kid, alg = "k", "HS256"

    def sign(self, signing_input: bytes) -> bytes:
        return b"signed"


class Verifier:
    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def judge(self, signature: Signature, statement: Statement, payload: bytes) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def message(
    *,
    cause: Message | None = None,
    carries: bool = True,
    signed: bool = False,
    routing: dict[str, Any] | None = None,
    data: bytes = b'{"name":"x"}',
    **changes: Any,
) -> Message:
    fields: dict[str, Any] = {
        "conversation_id": "talk",
        "hops": cause.metadata.hops + 1 if cause else 0,
        "message_id": f"m-{cause.metadata.hops + 1 if cause else 0}",
        "message_type": "a.b",
        "namespace": "agents",
        "protocol": "sealbus/1",
        "schema_version": "1.0.0",
        "sender": Agent(id="a"),
        "timestamp": format_ms(NOW_MS),
        "causation_id": cause.message_id if cause else None,
    }
    return sealing.seal(
        data,
        Metadata(**fields | changes),
        Routing(**{"expires_at": format_ms(NOW_MS + 60_000)} | (routing or {})),
        parents=(cause.seal,) if cause else (),
        proof_chain=cause.chain_for_children() if cause and carries else (),
        signer=Signer() if signed else None,
    )


def verdict(gate: Callable[..., object], *arguments: Any, **options: Any) -> tuple[str, str] | None:
    try:
        gate(*arguments, **options)
    except ContractError as error:
        return error.reason, error.pointer
    return None


def with_signature(given: Message, text: str) -> Message:
    return msgspec.structs.replace(given, verification=msgspec.structs.replace(given.verification, signature=text))


def record(value: bytes | None) -> Record:
    return Record("agents.a.b", 0, 0, NOW_MS, b"talk", value)


@pytest.mark.parametrize(("size", "expected"), [(100, None), (101, ("oversized", ""))])
def test_the_size_gate_lets_the_limit_pass(size: int, expected: object) -> None:
    assert verdict(gates.size_gate, record(b"x" * size), 100) == expected


def test_a_null_value_is_not_oversized_but_malformed() -> None:
    assert verdict(gates.size_gate, record(None), 100) is None
    assert verdict(gates.parse_gate, record(None)) == ("malformed", "")


def test_a_registry_changes_no_verdict_of_the_parse_gate() -> None:
    value = message().value
    assert gates.parse_gate(record(value)).seal == gates.parse_gate(record(value), REGISTRY).seal


@pytest.mark.parametrize(
    ("recipient", "addressed"),
    [
        (None, True),
        (Agent(id="me"), True),
        (Agent(id="you"), False),
        (Agent(role="reviewer"), True),
        (Agent(role="writer"), False),
        (Agent(id="me", role="writer"), True),
        (Agent(id="you", role="reviewer"), False),
        (Agent(id="ME"), False),
    ],
)
def test_a_message_is_for_all_agents_an_id_or_a_role(recipient: Agent | None, addressed: bool) -> None:
    assert gates.is_addressed(message(recipient=recipient), "me", {"reviewer"}) is addressed


@pytest.mark.parametrize(
    ("namespace", "message_type", "key", "expected"),
    [
        ("agents", "a.b", b"talk", None),
        ("other", "a.b", b"talk", ("wrong_audience", "/metadata/namespace")),
        ("agents", "a.c", b"talk", ("type_mismatch", "/metadata/message_type")),
        ("agents", None, b"talk", ("type_mismatch", "/metadata/message_type")),
        ("agents", "a.b", b"chat", ("key_mismatch", "/metadata/conversation_id")),
        ("agents", "a.b", None, ("key_mismatch", "/metadata/conversation_id")),
        ("other", "a.c", None, ("wrong_audience", "/metadata/namespace")),
    ],
)
def test_a_message_that_was_moved_is_found_out(
    namespace: str, message_type: str | None, key: bytes | None, expected: object
) -> None:
    assert verdict(gates.audience_gate, message(), namespace, message_type, key) == expected


def test_a_sealed_key_is_compared_where_there_is_one() -> None:
    keyed = message(routing={"key": "order-1"})
    assert verdict(gates.audience_gate, keyed, "agents", "a.b", b"order-1") is None
    assert verdict(gates.audience_gate, keyed, "agents", "a.b", b"talk") == ("key_mismatch", "/routing/key")


SIGNATURE, CHAIN = "/verification/signature", "/verification/proof_chain"


@pytest.mark.parametrize(
    ("risk", "keys", "unsigned", "signed"),
    [
        ("low", False, None, None),
        ("medium", False, None, None),
        ("high", False, "signature_missing", "key_unknown"),
        ("low", True, None, None),
        ("medium", True, "signature_missing", None),
        ("high", True, "signature_missing", None),
    ],
)
def test_signatures_required_per_risk(risk: Risk, keys: bool, unsigned: str | None, signed: str | None) -> None:
    verifier = Verifier() if keys else None
    assert verdict(gates.authenticity_gate, message(), risk, verifier) == ((unsigned, SIGNATURE) if unsigned else None)
    assert verdict(gates.authenticity_gate, message(signed=True), risk, verifier) == (
        (signed, SIGNATURE) if signed else None
    )


@pytest.mark.parametrize("risk", ["low", "medium", "high"])
@pytest.mark.parametrize(
    "reason", ["key_unknown", "key_revoked", "key_expired", "signature_invalid", "sender_mismatch"]
)
def test_with_keys_a_signature_is_checked_at_every_risk(risk: Risk, reason: str) -> None:
    assert verdict(gates.authenticity_gate, message(signed=True), risk, Verifier(reason)) == (reason, SIGNATURE)


@pytest.mark.parametrize("answer", [KeyError("kid"), SystemExit(1), "no_such_reason", "", True, "expired", []])
def test_a_signature_is_invalid_where_the_verifier_fails_or_returns_another_value(answer: Any) -> None:
    assert verdict(gates.authenticity_gate, message(signed=True), "low", Verifier(answer)) == (
        "signature_invalid",
        SIGNATURE,
    )


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_verifier_that_would_have_to_be_awaited_lets_nothing_pass() -> None:
    class Slow:
        async def judge(self, signature: Signature, statement: Statement, payload: bytes) -> str | None:
            return None

    assert verdict(gates.authenticity_gate, message(signed=True), "low", Slow()) == ("signature_invalid", SIGNATURE)


def test_a_verifier_that_fails_over_a_link_breaks_the_chain() -> None:
    class Chained(Verifier):
        def judge(self, signature: Signature, statement: Statement, payload: bytes) -> str | None:
            return {"m-1": None}[statement.message_id]

    child = message(cause=message(signed=True), signed=True)
    assert verdict(gates.authenticity_gate, child, "low", Chained()) == ("proof_invalid", CHAIN)


@pytest.mark.parametrize(
    ("risk", "keys", "expected"),
    [("low", True, "signature_invalid"), ("high", False, "signature_invalid"), ("medium", False, None)],
)
def test_the_form_of_a_signature_comes_before_its_key(risk: Risk, keys: bool, expected: str | None) -> None:
    broken = with_signature(message(), "x..y")
    assert verdict(gates.authenticity_gate, broken, risk, Verifier() if keys else None) == (
        (expected, SIGNATURE) if expected else None
    )


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize(("risk", "expected"), [("low", None), ("medium", ("proof_invalid", CHAIN))])
def test_parents_need_a_chain_from_medium_risk_on(risk: Risk, keys: bool, expected: object) -> None:
    bare = message(cause=message(signed=True), carries=False, signed=True)
    assert verdict(gates.authenticity_gate, bare, risk, Verifier() if keys else None) == expected


@pytest.mark.parametrize("risk", ["low", "medium"])
def test_a_chain_that_is_present_is_judged_at_every_risk(risk: Risk) -> None:
    child = message(cause=message())
    other = message(cause=message(data=b"{}"))
    forged = msgspec.structs.replace(
        child, verification=msgspec.structs.replace(child.verification, proof_chain=other.verification.proof_chain)
    )
    assert verdict(gates.authenticity_gate, child, risk, None) is None
    assert verdict(gates.authenticity_gate, forged, risk, None) == ("proof_invalid", CHAIN)


@pytest.mark.parametrize("risk", ["low", "medium", "high"])
def test_with_keys_every_link_must_be_signed(risk: Risk) -> None:
    half = message(cause=message(), signed=True)
    whole = message(cause=message(signed=True), signed=True)
    assert verdict(gates.authenticity_gate, half, risk, Verifier()) == ("proof_invalid", CHAIN)
    assert verdict(gates.authenticity_gate, whole, risk, Verifier()) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"message_type": "c.d"}, ("unknown_type", "/metadata/message_type")),
        ({"schema_version": "2.0.0"}, ("unsupported_version", "/metadata/schema_version")),
        ({"schema_version": "0.9.0"}, ("unsupported_version", "/metadata/schema_version")),
        ({"schema_version": "1.7.0"}, None),
        ({"data": b'{"name":5}'}, ("schema_violation", "/data/name")),
        ({"critical_fields": ("/data/name",)}, None),
        ({"critical_fields": ("/data/other",)}, ("critical_field", "/metadata/critical_fields")),
    ],
)
def test_the_schema_gate(changes: dict[str, Any], expected: object) -> None:
    assert verdict(gates.schema_gate, message(**changes), REGISTRY) == expected


def lifetime(given: Message, **changes: int) -> tuple[str, str] | None:
    return verdict(gates.lifetime_gate, given, **{"now_ms": NOW_MS, "append_ms": NOW_MS} | changes)


@pytest.mark.parametrize(
    ("now_ms", "expected"), [(NOW_MS + 65_000, None), (NOW_MS + 65_001, ("expired", "/routing/expires_at"))]
)
def test_expiry_has_a_tolerance_of_five_seconds(now_ms: int, expected: object) -> None:
    assert lifetime(message(), now_ms=now_ms) == expected


def test_an_operator_may_extend_a_life_but_not_shorten_it() -> None:
    assert lifetime(message(), now_ms=NOW_MS + 80_000, extend_until_ms=NOW_MS + 75_000) is None
    assert lifetime(message(), now_ms=NOW_MS + 60_000, extend_until_ms=NOW_MS) is None


@pytest.mark.parametrize(
    ("append_ms", "expected"), [(NOW_MS - 120_000, None), (NOW_MS - 120_001, ("clock_skew", "/metadata/timestamp"))]
)
def test_a_sender_may_be_120_seconds_ahead_of_the_log(append_ms: int, expected: object) -> None:
    assert lifetime(message(), append_ms=append_ms) == expected


@pytest.mark.parametrize(
    ("hops", "own", "limit", "passes"),
    [
        (16, None, 16, True),
        (17, None, 16, False),
        (17, None, 99, False),
        (17, 30, 16, False),
        (17, 30, 99, True),
        (3, 2, 16, False),
        (2, 2, 16, True),
        (3, None, 2, False),
        (0, 0, 0, True),
        (1, 0, 16, False),
    ],
)
def test_hops_are_bounded_by_the_message_and_by_the_group(hops: int, own: int | None, limit: int, passes: bool) -> None:
    last = message(routing={"max_hops": own})
    for _ in range(hops):
        last = message(cause=last, routing={"max_hops": own})
    assert lifetime(last, max_hops=limit) == (None if passes else ("too_many_hops", "/metadata/hops"))


def test_the_reasons_of_the_lifetime_gate_come_in_their_order() -> None:
    old = message(cause=message(), routing={"max_hops": 0})
    assert lifetime(old, now_ms=NOW_MS + 99_000, append_ms=0) == ("expired", "/routing/expires_at")
    assert lifetime(old, append_ms=0) == ("too_many_hops", "/metadata/hops")


class Nobody:
    def refusal(self, message: Message, group: str) -> str | None:
        return f"{group} may not"


def test_a_policy_that_refuses_is_final() -> None:
    assert verdict(gates.policy_gate, message(), Nobody(), "g") == ("unauthorized", "/metadata/sender")
    assert verdict(gates.policy_gate, message(), AllowAll(), "g") is None


@pytest.mark.parametrize("answer", [True, False, 0, b"no"])
def test_an_invalid_answer_of_a_policy_refuses_the_message(answer: Any) -> None:
    class Odd:
        def refusal(self, message: Message, group: str) -> Any:
            return answer

    with pytest.raises(ContractError, match="neither None nor a text") as caught:
        gates.policy_gate(message(), Odd(), "g")
    assert isinstance(caught.value.text, str)
    assert caught.value.reason == "unauthorized"
