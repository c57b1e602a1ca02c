"""What is sealed here is accepted by a second implementation of the protocol and the other way round; their verdicts
agree."""

from __future__ import annotations

import ast
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from bus import gates
from bus.errors import ContractError
from bus.protocol import canonical, sealing
from bus.protocol.envelope import Agent, Authority, Metadata, RetryPolicy, Routing, Security
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms, parse_ms
from bus.transports.base import Record
from bus.transports.partitioner import partition_of
from tests import second_implementation as second

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "envelopes.json").read_text())
START_MS = 1_767_225_600_000
RISKS = ("low", "medium", "high")


def verify(value: bytes | None, risk: Any, now_ms: int) -> str | None:
    """The reason of this implementation."""
    record = Record("t", 0, 0, now_ms, None, value)
    try:
        gates.size_gate(record, sealing.MAX_MESSAGE_BYTES)
        message = gates.parse_gate(record)
        gates.integrity_gate(message)
        gates.authenticity_gate(message, risk, None)
        gates.lifetime_gate(message, now_ms=now_ms, append_ms=now_ms)
    except ContractError as error:
        return error.reason
    return None


def random_data(rng: random.Random, room: int = 2) -> Any:
    kind = rng.randrange(7 if room else 5)
    if kind == 5:
        return [random_data(rng, room - 1) for _ in range(rng.randrange(3))]
    if kind == 6:
        return {
            rng.choice(("a", "\u00e9", "\ufb33", "\U0001f600", '"', "\x7f")): random_data(rng, room - 1)
            for _ in range(rng.randrange(3))
        }
    return rng.choice(
        (
            None,
            True,
            rng.randrange(-(10**6), 10**6),
            rng.uniform(-10, 10) * 10.0 ** rng.randint(-9, 22),
            "text \\\n\u2028",
            float(2**60),
            5,
        )
    )


def random_message(rng: random.Random, number: int, cause: Message | None) -> Message:
    now_ms = START_MS + number
    optional: dict[str, Any] = {
        "recipient": Agent(id=f"agent-{(number + 1) % 3}", host="n-1")
        if rng.random() < 0.5
        else Agent(role="r", type="human"),
        "correlation_id": "c-\u00e9",
        "task_id": "t",
        "sequence": number,
        "intent": "look",
        "performative": "inform",
        "security": Security(trust_level="user_request", policy_tags=("p",), data_classification="internal"),
        "authority": Authority(can_read=("*",)),
        "critical_fields": ("/data/a",),
        "traceparent": "x",
        "tracestate": "\x00",
    }
    delivery: dict[str, Any] = {
        "priority": rng.randrange(10),
        "idempotency_key": "i",
        "key": f"k-{number}",
        "max_hops": rng.randrange(20),
        "reply_to": "agents._reply.a-01234567",
        "accepts_progress": True,
        "progress": True,
        "retry": RetryPolicy(backoff="linear", base_ms=1, cap_ms=2, max_attempts=3),
    }
    addressed = cause.metadata.recipient if cause is not None else None
    addressee = addressed.id if addressed is not None else None
    metadata = Metadata(
        conversation_id="talk",
        hops=cause.metadata.hops + 1 if cause else 0,
        message_id=f"m-{number}",
        message_type="a.b",
        namespace="agents",
        protocol="sealbus/1",
        schema_version="1.0.0",
        sender=Agent(id=addressee if addressee is not None else f"agent-{number % 3}"),
        timestamp=format_ms(now_ms),
        causation_id=cause.message_id if cause else None,
        **{name: value for name, value in optional.items() if rng.random() < 0.3},
    )
    data = canonical.encode({"a": random_data(rng), "z": random_data(rng)}, depth=2)
    routing = Routing(
        expires_at=format_ms(now_ms + 60_000), **{name: value for name, value in delivery.items() if rng.random() < 0.3}
    )
    carries = cause is not None and rng.random() < 0.9
    return sealing.seal(
        data,
        metadata,
        routing,
        parents=(cause.seal,) if cause else (),
        proof_chain=cause.chain_for_children() if cause and carries else (),
    )


def random_messages(count: int) -> list[Message]:
    rng = random.Random(2)
    made: list[Message] = []
    for number in range(count):
        made.append(random_message(rng, number, rng.choice((None, *made[-5:])) if made else None))
    return made


MADE = random_messages(150)

FIELDS = (
    "message_id",
    "namespace",
    "timestamp",
    "hops",
    "causation_id",
    "sender",
    "recipient",
    "authority",
    "data_classification",
    "protocol",
    "schema_version",
    "priority",
    "expires_at",
    "max_hops",
    "retry",
    "content_hash",
    "seal",
    "parents",
    "proof_chain",
    "signature",
    "links",
    "trust_level",
    "recipient",
    "extra",
    "key",
    "reply_to",
    "statement",
)
ODD: tuple[Any, ...] = (
    None,
    0,
    -1,
    1,
    1.5,
    17,
    2**53,
    True,
    "",
    "x",
    "m-1",
    "sealbus/2",
    "sealbus/1.5",
    "2026-01-01T00:00:00.000Z",
    "2026-02-30T00:00:00.000Z",
    [],
    {},
    ["x"],
    {"id": "y"},
    "sha256:" + "0" * 64,
    "agents._reply.a-01234567",
    "\u200b",
    "other",
    "talk",
)


def tampered(rng: random.Random, value: bytes) -> bytes:
    """*value* with one fault in its tree, hashed anew half of the time, or with one fault in its bytes."""
    if rng.random() < 0.25:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice((b"", b" ", b"0", b"\xff", b'"', b"\\u0061")) + value[at + rng.randrange(2) :]
    tree = json.loads(value, parse_int=second.integer)
    places = [layer for layer in tree.values() if isinstance(layer, dict)]
    for link in tree["verification"].get("proof_chain", []):
        places += [link, link["statement"]]
    place = rng.choice(places)
    name = rng.choice((*place, *FIELDS)) if rng.random() < 0.7 else rng.choice(FIELDS)
    if rng.random() < 0.2:
        place.pop(name, None)
    else:
        place[name] = rng.choice(ODD)
    if rng.random() < 0.1:
        tree["verification"]["signature"] = "x..y"
    if rng.random() < 0.5:
        resealed(tree)
    try:
        return rfc8785.dumps(tree)
    except rfc8785.CanonicalizationError:
        return json.dumps(tree, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def resealed(tree: dict[str, Any]) -> None:
    """Hash everything anew where it still can be: links among one another, then the message."""
    try:
        chain = tree["verification"].get("proof_chain", [])
        statements = [link["statement"] for link in chain]
        for older, newer in pairwise(statements):
            newer["parents"] = [second.digest(older)]
        if statements:
            tree["verification"]["parents"] = [second.digest(statements[-1])]
        tree["verification"]["content_hash"] = second.digest(tree["data"])
        tree["verification"]["seal"] = second.digest(second.statement_of(tree))
    except (KeyError, TypeError, AttributeError, rfc8785.CanonicalizationError):
        return


def test_it_imports_nothing_of_the_project() -> None:
    tree = ast.parse(Path(second.__file__ or "").read_text())
    names = {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    names |= {(node.module or "").partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not names & {"bus", "producers", "consumers", "sealbus", "msgspec", "orjson"}


def test_the_second_implementation_accepts_messages_sealed_here() -> None:
    for message in MADE:
        risk = "low" if message.verification.parents and not message.verification.proof_chain else "medium"
        accepted = message.metadata.hops <= (16 if message.routing.max_hops is None else message.routing.max_hops)
        told = second.verify(message.value, risk=risk, now_ms=START_MS)
        assert told == (None if accepted else "too_many_hops")


def test_messages_of_the_second_implementation_are_accepted_here() -> None:
    values: list[bytes] = []
    for message in MADE:
        tree = json.loads(message.value, parse_int=second.integer)
        cause_id = tree["metadata"].get("causation_id")
        cause = next((value for value in values if json.loads(value)["metadata"]["message_id"] == cause_id), None)
        values.append(second.seal(tree["data"], tree["metadata"], tree["routing"], cause))
        parsed = sealing.parse(values[-1])
        sealing.check_integrity(parsed)
        assert verify(values[-1], "medium", START_MS) in (None, "too_many_hops")


def test_both_seal_to_the_same_bytes() -> None:
    for message in MADE:
        if message.verification.parents is None:
            tree = json.loads(message.value, parse_int=second.integer)
            assert second.seal(tree["data"], tree["metadata"], tree["routing"]) == message.value


@pytest.mark.medium
def test_both_give_the_same_reason_for_two_thousand_tampered_envelopes() -> None:
    rng = random.Random(3)
    reasons: set[str | None] = set()
    for number in range(2_000):
        value = tampered(rng, MADE[number % len(MADE)].value)
        risk, now_ms = (
            rng.choice(RISKS),
            rng.choice((START_MS, START_MS + 60_000, START_MS + 65_200, START_MS - 120_001)),
        )
        told = verify(value, risk, now_ms)
        assert second.verify(value, risk=risk, now_ms=now_ms) == told
        reasons.add(told)
    assert {
        None,
        "malformed",
        "unsupported_protocol",
        "hash_mismatch",
        "seal_mismatch",
        "proof_invalid",
        "signature_missing",
        "signature_invalid",
        "expired",
        "too_many_hops",
        "clock_skew",
    } <= reasons


@pytest.mark.parametrize(
    "vector", [vector for vector in VECTORS["tampered"] if not vector["keys"]], ids=lambda vector: vector["name"]
)
def test_both_judge_the_golden_vectors_alike(vector: dict[str, Any]) -> None:
    value = bytes.fromhex(vector["value_hex"]) if "value_hex" in vector else vector["value"].encode()
    now_ms = parse_ms(vector["now"])
    assert now_ms
    assert second.verify(value, risk=vector["risk"], now_ms=now_ms) == vector["reason"]


@pytest.mark.parametrize("value", [None, b"", b" " * (sealing.MAX_MESSAGE_BYTES + 1), b"x" * sealing.MAX_MESSAGE_BYTES])
def test_both_implementations_judge_invalid_messages_alike(value: bytes | None) -> None:
    assert second.verify(value, risk="medium", now_ms=START_MS) == verify(value, "medium", START_MS)


@given(st.binary(max_size=40), st.integers(1, 99))
def test_both_choose_the_same_partition(key: bytes, partitions: int) -> None:
    assert second.partition_of(key, partitions) == partition_of(key, partitions)


def test_the_messages_of_this_suite_are_varied() -> None:
    chains = {len(message.verification.proof_chain or ()) for message in MADE}
    assert len(chains) > 5
