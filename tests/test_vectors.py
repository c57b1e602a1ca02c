"""The golden vectors hold: recomputed from their parts with hashing and RFC 8785 alone, and by this implementation."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785

from bus import gates
from bus.errors import ContractError
from bus.protocol import proof_chain as proof
from bus.protocol import sealing
from bus.protocol.envelope import Agent, Metadata, Routing, Statement, Verification
from bus.protocol.reasons import GATE_NAMES, gate_of
from bus.protocol.signatures import Signature, parse_signature, sign, signing_input
from bus.protocol.timestamps import parse_ms
from bus.transports.base import Record
from bus.trust.authority import exceeding_member
from bus.trust.effective_labels import LabelRules, effective_labels
from bus.trust.keys.key_directory import parse_keys
from bus.vocabulary import BUILT_IN
from tests.vectors import make_vectors

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "envelopes.json").read_text())
MESSAGES: dict[str, dict[str, Any]] = {vector["name"]: vector for vector in VECTORS["messages"]}
TAMPERED: dict[str, dict[str, Any]] = {vector["name"]: vector for vector in VECTORS["tampered"]}
KEY = VECTORS["key"]
SECRET = bytes.fromhex(KEY["secret"])


class Domain:
    """The vectors' key, as signer and as verifier."""

    kid: str = KEY["kid"]
    alg: str = KEY["alg"]

    def sign(self, signing_input: bytes) -> bytes:
        return hmac.new(SECRET, signing_input, hashlib.sha256).digest()

    def judge(self, signature: Signature, statement: Statement, payload: bytes) -> str | None:
        if signature.kid != self.kid:
            return "key_unknown"
        if signature.alg != self.alg or not hmac.compare_digest(
            self.sign(signing_input(signature.header, payload)), signature.raw
        ):
            return "signature_invalid"
        return None if statement.sender in KEY["principals"] else "sender_mismatch"


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def as_double(literal: str) -> float | int:
    return int(literal) if abs(int(literal)) < 2**53 else float(literal)


def value_of(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["value_hex"]) if "value_hex" in vector else vector["value"].encode()


# --- with nothing of the project --------------------------------------------------------------------------------------


def test_the_vectors_equal_the_output_of_their_script() -> None:
    assert make_vectors.vectors() == VECTORS


@pytest.mark.parametrize("name", MESSAGES)
def test_a_value_is_the_canonical_form_of_its_layers(name: str) -> None:
    vector = MESSAGES[name]
    tree = {layer: json.loads(text, parse_int=as_double) for layer, text in vector["layers"].items()}
    assert rfc8785.dumps(tree) == vector["value"].encode()
    assert "{" + ",".join(f'"{layer}":{text}' for layer, text in vector["layers"].items()) + "}" == vector["value"]


@pytest.mark.parametrize("name", MESSAGES)
def test_hashes_are_those_of_the_parts(name: str) -> None:
    vector = MESSAGES[name]
    layers, statement = vector["layers"], json.loads(vector["statement"])
    verification = json.loads(layers["verification"])
    envelope = '{"metadata":' + layers["metadata"] + ',"routing":' + layers["routing"] + "}"
    assert (
        digest(layers["data"].encode())
        == vector["content_hash"]
        == statement["content_hash"]
        == verification["content_hash"]
    )
    assert digest(envelope.encode()) == vector["envelope_hash"] == statement["envelope_hash"]
    assert digest(vector["statement"].encode()) == vector["seal"] == verification["seal"]
    assert rfc8785.dumps(statement) == vector["statement"].encode()


@pytest.mark.parametrize("name", MESSAGES)
def test_a_statement_has_exactly_its_members(name: str) -> None:
    vector = MESSAGES[name]
    metadata, verification = (json.loads(vector["layers"][layer]) for layer in ("metadata", "verification"))
    expected = {
        "content_hash": vector["content_hash"],
        "envelope_hash": vector["envelope_hash"],
        "sender": metadata["sender"]["id"],
        **{
            member: metadata[member]
            for member in ("hops", "message_id", "message_type", "namespace", "protocol", "timestamp")
        },
        **({"links": len(verification["proof_chain"])} if "proof_chain" in verification else {}),
        **({"parents": verification["parents"]} if "parents" in verification else {}),
        **({"authority": metadata["authority"]} if "authority" in metadata else {}),
        **{
            member: metadata["security"][member]
            for member in ("data_classification", "trust_level")
            if member in metadata.get("security", {})
        },
    }
    if "recipient" in metadata:
        member = "id" if "id" in metadata["recipient"] else "role"
        expected["recipient"] = {member: metadata["recipient"][member]}
    assert json.loads(vector["statement"]) == expected


@pytest.mark.parametrize("name", [name for name, vector in MESSAGES.items() if vector["signature"]])
def test_a_signature_is_a_detached_jws_over_the_statement(name: str) -> None:
    header, _, tail = MESSAGES[name]["signature"].partition("..")
    mac = hmac.new(SECRET, f"{header}.{MESSAGES[name]['statement']}".encode(), hashlib.sha256).digest()
    assert base64.urlsafe_b64encode(mac).rstrip(b"=").decode() == tail
    assert base64.urlsafe_b64decode(header + "==") == b'{"alg":"HS256","b64":false,"crit":["b64"],"kid":"domain-2026"}'


def test_three_links_hash_into_one_another() -> None:
    vector = MESSAGES["three links"]
    verification = json.loads(vector["layers"]["verification"])
    statements = [link["statement"] for link in verification["proof_chain"]] + [json.loads(vector["statement"])]
    assert len(statements) == 4
    for older, newer in pairwise(statements):
        assert digest(rfc8785.dumps(older)) == newer["parents"][0]
        assert older["hops"] + 1 == newer["hops"]
        assert newer["links"] == older.get("links", 0) + 1


# --- by this implementation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MESSAGES)
def test_the_parts_seal_to_the_value(name: str) -> None:
    vector = MESSAGES[name]
    layers = vector["layers"]
    if name == "extended":
        pytest.skip("a publisher writes no unknown fields")
    verification = msgspec.json.decode(layers["verification"], type=Verification)
    message = sealing.seal(
        layers["data"].encode(),
        msgspec.json.decode(layers["metadata"], type=Metadata),
        msgspec.json.decode(layers["routing"], type=Routing),
        parents=verification.parents or (),
        proof_chain=verification.proof_chain or (),
        signer=Domain() if vector["signature"] else None,
    )
    assert message.value.decode() == vector["value"]
    assert proof.encode_statement(message.statement).decode() == vector["statement"]


@pytest.mark.parametrize("name", MESSAGES)
def test_the_value_is_read_back(name: str) -> None:
    vector = MESSAGES[name]
    message = sealing.parse(vector["value"].encode())
    sealing.check_integrity(message)
    assert message.data.decode() == vector["layers"]["data"]
    assert message.seal == vector["seal"]
    assert message.key.decode() == vector["key"]
    assert proof.encode_statement(message.statement).decode() == vector["statement"]


@pytest.mark.parametrize("name", [name for name, vector in MESSAGES.items() if vector["signature"]])
def test_the_statement_is_signed_to_the_same_text(name: str) -> None:
    text = sign(MESSAGES[name]["statement"].encode(), Domain())
    assert text == MESSAGES[name]["signature"]
    assert parse_signature(text) is not None


def judge(value: bytes, *, risk: Any, now_ms: int, keys: bool) -> tuple[str, str] | None:
    """The reason and pointer of the first gate that refuses, as `sealbus verify` asks them."""
    record = Record("t", 0, 0, now_ms, None, value)
    try:
        gates.size_gate(record, sealing.MAX_MESSAGE_BYTES)
        message = gates.parse_gate(record)
        gates.integrity_gate(message)
        gates.authenticity_gate(message, risk, Domain() if keys else None)
        gates.lifetime_gate(message, now_ms=now_ms, append_ms=now_ms)
    except ContractError as error:
        return error.reason, error.pointer
    return None


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_passes_the_gates(name: str) -> None:
    now_ms = parse_ms(VECTORS["now"])
    assert now_ms
    signed = MESSAGES[name]["signature"] is not None
    risk = "low" if name == "without chain" else "medium"
    assert judge(MESSAGES[name]["value"].encode(), risk=risk, now_ms=now_ms, keys=False) is None
    assert signed == (judge(MESSAGES[name]["value"].encode(), risk="high", now_ms=now_ms, keys=True) is None)


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_envelope_gets_its_verdict(name: str) -> None:
    vector = TAMPERED[name]
    now_ms = parse_ms(vector["now"])
    assert now_ms
    expected = (vector["reason"], vector["pointer"]) if vector["reason"] else None
    assert judge(value_of(vector), risk=vector["risk"], now_ms=now_ms, keys=vector["keys"]) == expected


def test_gates_of_the_vectors_are_those_of_the_reasons() -> None:
    assert all(gate_of(vector["reason"]) == vector["gate"] for vector in TAMPERED.values() if vector["reason"])
    told = {vector["reason"] for vector in TAMPERED.values()}
    for gate in ("parse", "integrity", "lifetime"):
        assert set(GATE_NAMES[gate]) <= told


# --- quoted in PROTOCOL.md --------------------------------------------------------------------------------------------

PROTOCOL = (Path(__file__).parents[1] / "bus" / "protocol" / "PROTOCOL.md").read_text()
QUOTED = {
    "first": ("value", "statement", "content_hash", "envelope_hash", "seal"),
    "caused": ("statement", "seal"),
    "three links": ("value", "statement", "seal"),
    "signed": ("statement", "signature"),
}


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, parts in QUOTED.items() for part in parts])
def test_the_document_quotes_the_vectors(name: str, part: str) -> None:
    block = PROTOCOL.partition(f"<!-- {name}: {part} -->\n```\n")[2].partition("\n```")[0]
    assert block == MESSAGES[name][part]


def test_the_document_names_the_key_of_its_signature() -> None:
    assert KEY["secret"] in PROTOCOL
    assert KEY["kid"] in PROTOCOL


def test_the_gates_and_reasons_of_the_document_are_those_of_the_code_in_the_same_order() -> None:
    """The contract's gates cannot go or move. A gate of this product alone is no part of the contract."""
    section = PROTOCOL.partition("## 7. Gates")[2].partition("A skip says")[0]
    table = {line.split("`")[1]: line for line in section.splitlines() if line.startswith("| `")}
    assert list(table) == [gate for gate in GATE_NAMES if gate in table]
    known = {reason for reasons in GATE_NAMES.values() for reason in reasons}
    for gate, row in table.items():
        words = [word for word in row.split("`")[3::2] if word in known]
        assert list(dict.fromkeys(words)) == list(GATE_NAMES[gate])


def test_the_page_of_dead_letters_lists_the_reasons_of_the_contract() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "errors-and-reasons.md").read_text("utf-8")
    section = PROTOCOL.partition("## 7. Gates")[2].partition("A skip says")[0]
    known = {reason for reasons in GATE_NAMES.values() for reason in reasons if f"`{reason}`" in section}
    assert known
    assert {reason for reason in known if f"`{reason}`" not in page} == set()


@pytest.mark.parametrize("vector", VECTORS["narrowing"], ids=lambda vector: f"{vector['asked']}"[:60])
def test_globs_of_an_authority_are_within_others(vector: dict[str, Any]) -> None:
    found = exceeding_member({"can_read": vector["asked"]}, {"can_read": vector["granted"]})
    assert (found is None) == vector["within"]


@pytest.mark.parametrize("vector", VECTORS["levels"], ids=lambda vector: vector["name"])
def test_a_message_has_its_effective_level(vector: dict[str, Any]) -> None:
    message = sealing.parse(vector["value"].encode())
    sealing.check_integrity(message)
    assert effective_labels(message, LabelRules(has_keys=True)).level == vector["level"]


@pytest.mark.parametrize("vector", VECTORS["keys"], ids=lambda vector: f"{vector['limits']} {vector['appended']}"[:80])
def test_a_key_is_good_at_its_times_and_for_its_agents(vector: dict[str, Any]) -> None:
    jwk = {"kty": "oct", "alg": KEY["alg"], "kid": KEY["kid"], "principals": KEY["principals"], **vector["limits"]}
    jwk["k"] = base64.urlsafe_b64encode(SECRET).rstrip(b"=").decode()
    directory = parse_keys({"keys": json.dumps({"keys": [jwk]}).encode()}, domain="closed")
    message = sealing.parse(MESSAGES[vector["of"]]["value"].encode())
    signature = parse_signature(message.verification.signature or "")
    assert signature is not None
    now_ms, append_ms = parse_ms(vector["now"]), parse_ms(vector["appended"] or "")
    text = proof.encode_statement(message.statement)
    assert (
        directory.judge(signature, message.statement, text, now_ms=now_ms or 0, append_ms=append_ms) == vector["reason"]
    )


@pytest.mark.parametrize("vector", VECTORS["older"], ids=lambda vector: f"{vector['type']} {vector['data']}"[:80])
def test_data_of_an_older_version_are_judged_by_its_schema_and_upcast(vector: dict[str, Any]) -> None:
    kind = BUILT_IN.get(vector["type"])
    assert kind is not None
    metadata = Metadata(
        protocol="sealbus/1",
        namespace="agents",
        message_id="m",
        message_type=vector["type"],
        schema_version=vector["version"],
        timestamp="2026-01-01T00:00:00.000Z",
        sender=Agent(id="a@svc"),
        conversation_id="c",
        hops=0,
    )
    routing = Routing(expires_at="2026-01-01T01:00:00.000Z")
    message = sealing.seal(rfc8785.dumps(vector["data"]), metadata, routing)
    if vector["reason"] is None:
        assert kind.open(message) == kind.decode(rfc8785.dumps(vector["upcast"]))
        return
    with pytest.raises(ContractError) as caught:
        kind.open(message)
    assert (caught.value.reason, caught.value.pointer) == (vector["reason"], vector["pointer"])
