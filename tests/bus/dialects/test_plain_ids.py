"""Dialect 002 against its own examples and its table."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from bus.dialects.plain_ids import decode, encode
from bus.errors import DialectError
from bus.protocol import canonical
from bus.protocol.envelope import Agent
from tests.bus.dialects.foreign_messages import assert_kept_whole, each, examples, fault_of, message_of, refusal, sealed

refused = refusal("plain-ids")


NAMES = [
    "request",
    "success response",
    "error response",
    "handshake",
    "error",
    "discover",
    "announcement",
    "authenticated request",
]


def mended(text: str) -> str:
    """The format's own ids are not hexadecimal and have a wrong version: a UUID that looks like one of them."""
    digits = re.sub(r"[g-z]", lambda found: format(ord(found[0]) % 16, "x"), text)
    return f"{digits[:14]}4{digits[15:19]}8{digits[20:]}"


def mend(message: dict[str, Any]) -> dict[str, Any]:
    """*message* with true UUIDs."""
    ids = {name: mended(message[name]) for name in ("message_id", "correlation_id") if message.get(name)}
    return {**message, **ids}


@pytest.mark.parametrize("name", NAMES)
def test_the_formats_examples_are_refused_for_their_ids(name: str) -> None:
    assert fault_of(lambda: decode(examples("plain-ids")[name])).pointer == "/message_id"


@pytest.mark.parametrize("name", NAMES[:-1])
def test_the_formats_examples_come_back_unchanged_with_true_ids(name: str) -> None:
    assert_kept_whole("plain-ids", mend(examples("plain-ids")[name]))


def test_the_authenticated_example_has_a_nonce_of_33_characters() -> None:
    message = mend(examples("plain-ids")["authenticated request"])
    assert fault_of(lambda: decode(message)).pointer == "/auth/nonce"
    message["auth"]["nonce"] = message["auth"]["nonce"][:32]
    assert_kept_whole("plain-ids", message)


@pytest.fixture
def request_() -> dict[str, Any]:
    return mend(examples("plain-ids")["request"])


@pytest.fixture
def authenticated() -> dict[str, Any]:
    message = mend(examples("plain-ids")["authenticated request"])
    message["auth"]["nonce"] = "0123456789abcdef" * 2
    return message


# --- the message ------------------------------------------------------------------------------------------------------


def test_a_request_says_the_canonical_one(request_: dict[str, Any]) -> None:
    message = sealed(decode(request_))
    metadata, routing = message.metadata, message.routing
    assert (metadata.message_type, metadata.performative) == ("method.request", "request")
    assert (metadata.timestamp, routing.expires_at) == ("2025-12-09T15:30:00.000Z", "2025-12-09T15:35:00.000Z")
    assert json.loads(message.data) == {
        "method": "get_price",
        "parameters": {"currency": "BTC"},
        "x_dialect": {"of": "002"},
    }


def test_a_stored_message_of_any_age_is_read(request_: dict[str, Any]) -> None:
    """Freshness is judged once, at an ingress: what is in the log can always be read."""
    assert decode({**request_, "timestamp": "1999-01-01T00:00:00Z"}).claims.sent_at_ms == 915_148_800_000


@pytest.mark.parametrize(
    ("name", "value"),
    each(
        ("message_id", "A7F8D9E2-3C4B-4D6E-8F8A-9B0C1D2E3F40", "a7f8d9e2-3c4b-1d6e-8f8a-9b0c1d2e3f40"),
        ("message_id", "-" * 36),
        ("message_type", "ping"),
        ("sender_id", "a b c!! d", "planner@svc", "a_b", "ab", "a" * 129),
        ("recipient_id", "-abc"),
        ("timestamp", "2025-12-09T15:30:00.000000", "2025-12-09T15:30:00.12Z", "2025-12-09T22:30:00+07:00"),
        ("timestamp", "2025-13-09T15:30:00Z"),
        ("correlation_id", "a7f8d9e2-3c4b-4d6e-8f8a-9b0c1d2e3f40"),
        ("payload", []),
        ("unexpected", None),
    ),
)
def test_what_a_member_may_not_be_is_refused(request_: dict[str, Any], name: str, value: Any) -> None:
    assert refused({**request_, name: value}).pointer == f"/{name}"


@pytest.mark.parametrize("name", ["message_id", "message_type", "sender_id", "recipient_id", "timestamp", "payload"])
def test_a_required_member_is_missed(request_: dict[str, Any], name: str) -> None:
    del request_[name]
    error = refused(request_)
    assert (error.pointer, error.found) == (f"/{name}", "nothing")


@pytest.mark.parametrize("name", ["success response", "error", "announcement"])
@pytest.mark.parametrize("value", [None, "absent"])
def test_an_answer_names_what_it_answers(name: str, value: Any) -> None:
    message = {**mend(examples("plain-ids")[name]), "correlation_id": value}
    if value == "absent":
        del message["correlation_id"]
    assert refused(message).pointer == "/correlation_id"


def test_an_absent_correlation_is_told_from_null(request_: dict[str, Any]) -> None:
    del request_["correlation_id"]
    assert_kept_whole("plain-ids", request_)


def test_an_answer_claims_its_cause() -> None:
    message = mend(examples("plain-ids")["success response"])
    foreign = decode(message)
    assert foreign.claims.cause_id == message["correlation_id"]
    metadata = sealed(foreign).metadata
    assert (metadata.hops, metadata.causation_id, metadata.correlation_id) == (0, None, message["correlation_id"])


# --- authentication ---------------------------------------------------------------------------------------------------


def test_the_tag_goes_to_the_ingress_with_the_bytes_it_signs(authenticated: dict[str, Any]) -> None:
    foreign = decode(authenticated)
    proofs = foreign.claims.proofs
    assert (proofs["nonce"], proofs["agent_id"]) == ("0123456789abcdef" * 2, "client-agent-001")
    signed = json.loads(proofs["signed"])
    assert "signature" not in signed["auth"]
    signed["auth"]["signature"] = proofs["signature"]
    assert signed == authenticated
    assert proofs["signed"] == canonical.encode(json.loads(proofs["signed"]))
    signature = authenticated["auth"]["signature"]
    assert signature not in repr(foreign)
    assert signature.encode() not in sealed(foreign).value
    assert "auth" not in encode(sealed(foreign))


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("agent_id", "server-agent-001", "sender_mismatch"),
        ("timestamp", "now", "malformed"),
        ("nonce", "a1b2c3d4e5f6g7h8i9j0k1l2m3n4o5p6", "malformed"),
        ("signature", "not base64!", "malformed"),
        ("signature", "SGVsbG8", "malformed"),
        ("public_key_fingerprint", "sha256:12", "malformed"),
        ("more", "secret-token-1", "malformed"),
    ],
)
def test_a_wrong_tag_is_refused_and_never_shown(
    authenticated: dict[str, Any], name: str, value: str, reason: str
) -> None:
    authenticated["auth"][name] = value
    error = refused(authenticated)
    assert (error.pointer, error.reason) == (f"/auth/{name}", reason)
    if name in ("nonce", "signature", "more"):
        assert value not in str(error)


# --- payloads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "payload", "pointer"),
    [
        ("request", {"parameters": {}}, "/payload/method"),
        ("request", {"method": ""}, "/payload/method"),
        ("request", {"method": "m" * 129}, "/payload/method"),
        ("request", {"method": "m", "parameters": None}, "/payload/parameters"),
        ("request", {"method": "m", "more": 1}, "/payload/more"),
        ("success response", {"status": "success"}, "/payload/data"),
        ("success response", {"status": "done", "data": {}}, "/payload/status"),
        ("success response", {"status": "error", "data": {}}, "/payload/data"),
        ("error response", {"status": "error", "error": {"code": 5, "message": "m"}}, "/payload/error/code"),
        ("error response", {"status": "error", "error": {"code": "NO", "message": "m", "x": 1}}, "/payload/error/x"),
        ("handshake", {}, "/payload/agent_card"),
        ("error", {"error": {"code": "no", "message": "m"}}, "/payload/error/code"),
        ("error", {"error": {"code": "NO", "message": "m" * 501}}, "/payload/error/message"),
        ("error", {"error": {"code": "NO", "message": "m", "retry_after": -1}}, "/payload/error/retry_after"),
        ("error", {"error": {"code": "NO", "message": "m", "retry_after": 1.5}}, "/payload/error/retry_after"),
        (
            "error",
            {"error": {"code": "NO", "message": "m", "documentation_url": "no url"}},
            "/payload/error/documentation_url",
        ),
        ("discover", {"filters": {"max_results": 101}}, "/payload/filters/max_results"),
        ("discover", {"filters": {"status": "ill"}}, "/payload/filters/status"),
        ("discover", {"filters": {"more": 1}}, "/payload/filters/more"),
        ("announcement", {"agents": [], "total_count": -1}, "/payload/total_count"),
        ("announcement", {"agents": [{}], "total_count": 1}, "/payload/agents/0/agent_id"),
    ],
)
def test_a_wrong_payload_is_refused_with_its_pointer(name: str, payload: dict[str, Any], pointer: str) -> None:
    assert refused({**mend(examples("plain-ids")[name]), "payload": payload}).pointer == pointer


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("agent_id", "server-agent-001"),
        ("name", "n" * 101),
        ("version", "1.0"),
        ("description", "d" * 501),
        ("capabilities", []),
        ("capabilities", ["c"] * 51),
        ("supported_protocols", []),
        ("endpoint", "https://a.example"),
    ],
)
def test_a_wrong_card_is_refused(member: str, value: Any) -> None:
    message = mend(examples("plain-ids")["handshake"])
    message["payload"]["agent_card"][member] = value
    assert refused(message).pointer == f"/payload/agent_card/{member}"


def test_a_card_may_name_schema_versions() -> None:
    message = mend(examples("plain-ids")["handshake"])
    message["payload"]["agent_card"]["schema_versions"] = ["1.0.0", "1.1.0"]
    assert_kept_whole("plain-ids", message)


def test_a_response_keeps_the_time_to_wait() -> None:
    message = mend(examples("plain-ids")["error response"])
    message["payload"]["error"]["retry_after"] = 60
    assert decode(message).data["error"]["retry_after_s"] == 60
    assert_kept_whole("plain-ids", message)


@pytest.mark.parametrize(
    ("code", "known_as"),
    [
        ("NOT_FOUND", "NOT_FOUND"),
        ("not_found", "NOT_FOUND"),
        ("NotFound", "NOTFOUND"),
        ("no such: thing", "NO_SUCH_THING"),
        ("X", "ERROR_X"),
        ("404", "ERROR_404"),
        ("", "ERROR"),
        ("\u00e9\u00e8", "ERROR"),
        ("n" * 80, "N" * 64),
    ],
)
def test_the_code_of_a_failed_response_is_any_text(code: str, known_as: str) -> None:
    message = mend(examples("plain-ids")["error response"])
    message["payload"]["error"] |= {"code": code, "message": ""}
    data = decode(message).data
    assert (data["error"]["code"], data["error"]["message"]) == (known_as, "no message")
    assert_kept_whole("plain-ids", message)


def test_an_error_is_a_report_of_its_sender() -> None:
    data = decode(mend(examples("plain-ids")["error"])).data
    assert (data["error_code"], data["retry_after_s"]) == ("RATE_LIMIT_EXCEEDED", 60)
    assert (data["source_agent"], data["timestamp"]) == ("crypto-agent-001", "2025-12-09T15:38:00.000Z")
    assert data["details"].keys() == {"limit", "window", "reset_at"}


@pytest.mark.parametrize(
    ("kind", "payload"),
    each(
        ("goodbye", {}, {"reason": "SHUTDOWN"}, {"reason": "MOVED", "message": "to another host"}),
        ("handshake_ack", {"accepted": False, "error": {"code": "NOT_ALLOWED", "message": "no"}}),
        ("handshake_ack", {"accepted": False, "error": {"code": "NOT_ALLOWED"}}),
        ("discover_agents", {}, {"filters": {}}),
    ),
)
def test_kinds_without_a_schema_of_their_own_come_back(
    request_: dict[str, Any], kind: str, payload: dict[str, Any]
) -> None:
    message = {**request_, "message_type": kind, "payload": payload}
    if kind == "handshake_ack":
        message["correlation_id"] = request_["message_id"]
    if kind == "discover_agents":
        message["recipient_id"] = "registry"
    assert_kept_whole("plain-ids", message)


def test_a_goodbye_without_a_reason_is_a_shutdown(request_: dict[str, Any]) -> None:
    data = decode({**request_, "message_type": "goodbye", "payload": {}}).data
    assert data["reason_code"] == "SHUTDOWN"
    assert data["x_dialect"]["derived"] == ["/reason_code"]


def test_only_the_registry_is_asked_and_announces() -> None:
    asked = mend(examples("plain-ids")["discover"])
    assert refused({**asked, "recipient_id": "server-1"}).pointer == "/recipient_id"
    told = mend(examples("plain-ids")["announcement"])
    assert refused({**told, "sender_id": "server-1"}).pointer == "/sender_id"


def test_an_agent_without_an_endpoint_has_that_of_the_bus() -> None:
    message = mend(examples("plain-ids")["announcement"])
    message["payload"]["agents"][0]["endpoint"] = "sealbus://lab/crypto-agent-001"
    foreign = decode(message)
    assert "endpoint" not in foreign.data["agents"][0]
    foreign.data["x_dialect"].pop("kept")
    assert encode(sealed(foreign))["payload"] == message["payload"]


# --- saying what was made here ----------------------------------------------------------------------------------------


def test_ids_of_another_form_need_an_alias() -> None:
    message = message_of("method.request", 1, to=Agent(id="planner@svc"))
    assert fault_of(lambda: encode(message)).pointer == "/metadata/recipient/id"
    assert encode(message, aliases={"planner@svc": "planner-9"})["recipient_id"] == "planner-9"
    nobody = message_of("method.request", 1, to=None)
    with pytest.raises(DialectError, match=r"an alias for \*"):
        encode(nobody)
    assert encode(nobody, aliases={"*": "everybody"})["recipient_id"] == "everybody"


def test_an_id_other_than_a_uuid_version_4_cannot_be_encoded() -> None:
    message = message_of("method.request", 1, message_id="019b7a3c-4c00-7000-8000-000000000001")
    assert fault_of(lambda: encode(message)).pointer == "/metadata/message_id"
    with pytest.raises(DialectError, match="a place for the sealed message"):
        encode(message, carry=True)


def test_other_types_are_requests_and_responses() -> None:
    said = encode(message_of("task.request", 1))
    assert said["message_type"] == "request"
    assert said["payload"]["method"] == "task.request@1.0.0"
    said = encode(message_of("task.result", 1))
    assert (said["message_type"], said["payload"]["status"]) == ("response", "success")
    assert said["payload"]["data"]["type"] == "task.result@1.0.0"


def test_typed_content_stands_in_the_kind_it_belongs_to(request_: dict[str, Any]) -> None:
    result = {"method": "task.accepted@1.0.0", "parameters": {"understood_goal": "g"}}
    assert refused({**request_, "payload": result}).pointer == "/payload/method"
    unknown = {"method": "no.such@1.0.0", "parameters": {}}
    assert decode({**request_, "payload": unknown}).type == "method.request"
    wrong = {"method": "task.request@1.0.0", "parameters": {"goal": 5}}
    assert refused({**request_, "payload": wrong}).pointer == "/payload/parameters/goal"
