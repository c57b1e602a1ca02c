"""Dialect 003 against its own examples and its table."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from bus.dialects.speech_acts import decode, encode
from bus.protocol import canonical
from bus.protocol.envelope import Agent
from tests.bus.dialects.foreign_messages import assert_kept_whole, each, examples, fault_of, message_of, refusal, sealed

refused = refusal("speech-acts")


@pytest.mark.parametrize("name", ["request", "inform", "error"])
def test_the_formats_examples_come_back_unchanged(name: str) -> None:
    assert_kept_whole("speech-acts", examples("speech-acts")[name])


@pytest.fixture
def request_() -> dict[str, Any]:
    return examples("speech-acts")["request"]


@pytest.fixture
def error() -> dict[str, Any]:
    return examples("speech-acts")["error"]


def test_a_request_says_the_canonical_one(request_: dict[str, Any]) -> None:
    message = sealed(decode(request_))
    metadata, routing = message.metadata, message.routing
    assert (metadata.message_type, metadata.performative) == ("act.request", "request")
    assert (metadata.sender.id, metadata.conversation_id) == ("planner@svc", "conv-2024-09-15-abc123")
    assert metadata.recipient == Agent(id="researcher@svc")
    assert (metadata.timestamp, routing.expires_at) == ("2024-09-15T12:02:03.000Z", "2024-09-15T12:04:03.000Z")
    assert routing.idempotency_key == "task-4821-v1"
    assert json.loads(message.data)["content"] == request_["content"]


@pytest.mark.parametrize(
    "performative",
    [
        "request",
        "inform",
        "propose",
        "accept",
        "reject",
        "query",
        "confirm",
        "call_for_proposal",
        "subscribe",
        "cancel",
    ],
)
def test_every_performative_has_its_type(request_: dict[str, Any], performative: str) -> None:
    message = {**request_, "performative": performative}
    assert decode(message).type == f"act.{performative.replace('_', '-')}"
    assert_kept_whole("speech-acts", message)


@pytest.mark.parametrize(
    ("name", "value"),
    each(
        ("message_id", "-" * 36, "7E1A6B3E-3A74-4C7A-8C6F-2E21B8F59F44"),
        ("conversation_id", ""),
        ("sender", 5),
        ("receiver", None),
        ("timestamp", "2024-09-15"),
        ("performative", "sing"),
        ("schema_version", ""),
        ("content", "text", None),
        ("ttl", 0, 1.5, True, 10**14),
        ("priority", 10),
        ("idempotency_key", ""),
        ("in_reply_to", "two words"),
        ("causality", {"in_reply_to": "a", "more": 1}),
        ("attachments", ["no uri"], [{"uri": "https://a.example"}]),
        ("tool_calls", {}),
        ("max_hops", 5),
        ("nonce", "x"),
        ("sequence", 5),
    ),
)
def test_what_a_member_may_not_be_is_refused(request_: dict[str, Any], name: str, value: Any) -> None:
    found = refused({**request_, name: value})
    assert found.pointer.startswith(f"/{name}")


@pytest.mark.parametrize(
    "name",
    ["message_id", "conversation_id", "sender", "receiver", "timestamp", "performative", "content", "schema_version"],
)
def test_a_required_member_is_missed(request_: dict[str, Any], name: str) -> None:
    del request_[name]
    assert refused(request_).pointer == f"/{name}"


def test_the_formats_own_reply_of_a_handler_is_refused(request_: dict[str, Any]) -> None:
    reply = {
        "performative": "inform",
        "conversation_id": request_["conversation_id"],
        "in_reply_to": request_["message_id"],
        "summary": "Report ready",
    }
    assert refused({"status": "ok", "reply": reply}).pointer == "/message_id"
    assert refused(reply).pointer == "/message_id"


@pytest.mark.parametrize(
    ("name", "value"),
    each(
        ("timestamp", "2024-09-15T19:02:03.1+07:00"),
        ("schema_version", "2.1"),
        ("reply_to", "https://a.example/inbox"),
        ("in_reply_to", "any-id"),
        ("causality", {"in_reply_to": "any-id"}),
        ("priority", 5, 0),
        ("ttl", 3600),
        ("attachments", [], ["s3://reports/a.md", "https://a.example/b"]),
        ("tool_calls", [], [{"name": "search", "arguments": {"q": [1.5, None]}, "more": True}]),
        ("content", {}, {"conclude": False}, {"type": "no.such@1.0.0", "data": {}}),
    ),
)
def test_every_spelling_comes_back(request_: dict[str, Any], name: str, value: Any) -> None:
    assert_kept_whole("speech-acts", {**request_, name: value})


def test_two_causes_are_one_or_refused(request_: dict[str, Any]) -> None:
    message = {**request_, "in_reply_to": "a", "causality": {"in_reply_to": "a"}}
    assert decode(message).claims.cause_id == "a"
    assert_kept_whole("speech-acts", message)
    assert refused({**message, "in_reply_to": "b"}).pointer == "/causality/in_reply_to"


def test_without_a_ttl_a_message_lives_as_its_type_does(request_: dict[str, Any]) -> None:
    del request_["ttl"]
    foreign = decode(request_)
    sent_ms, expires_ms = foreign.claims.sent_at_ms, foreign.options.expires_at_ms
    assert sent_ms is not None
    assert expires_ms is not None
    assert expires_ms - sent_ms == 3_600_000


@pytest.mark.parametrize("performative", ["query", "inform", "error", "cancel"])
def test_tools_are_called_by_acts_that_may_have_effects(request_: dict[str, Any], performative: str) -> None:
    message = {**request_, "performative": performative, "tool_calls": []}
    assert refused(message).pointer == "/tool_calls"


def test_a_conclusion_is_a_field(request_: dict[str, Any]) -> None:
    message = {**request_, "performative": "inform", "content": {"conclude": True, "summary": "s"}}
    data = decode(message).data
    assert (data["concludes"], data["content"]) == (True, {"summary": "s"})
    assert_kept_whole("speech-acts", message)
    assert refused({**message, "performative": "query"}).pointer == "/content/conclude"


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_is_a_report(error: dict[str, Any]) -> None:
    foreign = decode(error)
    assert foreign.type == "error.reported"
    assert foreign.data["error_class"] == "error.transient.rate_limit"
    assert foreign.data["error_code"] == "RATE_LIMIT"
    assert foreign.data["retry_after_s"] == 20
    assert foreign.data["source_agent"] == "researcher@svc"
    assert foreign.data["timestamp"] == "2024-09-15T12:05:11.000Z"
    assert sorted(foreign.data["x_dialect"]["derived"]) == ["/error_code", "/source_agent", "/timestamp"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"code": "error.semantic", "message": "m", "limit": 5, "window": "1 minute"}, "error.reported"),
        ({"code": "error.authz.out_of_authority", "message": "m"}, "error.reported"),
        ({"code": "E42", "message": "m", "retry_after_seconds": "soon"}, "act.error"),
    ],
)
def test_errors_come_back(error: dict[str, Any], content: dict[str, Any], kind: str) -> None:
    message = {**error, "content": content}
    assert decode(message).type == kind
    assert_kept_whole("speech-acts", message)


def test_an_error_says_its_code_and_its_text(error: dict[str, Any]) -> None:
    assert refused({**error, "content": {"code": "E42"}}).pointer == "/content"
    negative = {"code": "error.timeout", "message": "m", "retry_after_seconds": -1}
    assert refused({**error, "content": negative}).pointer == "/content/retry_after_seconds"
    empty = {"code": "error.timeout", "message": ""}
    assert refused({**error, "content": empty}).pointer == "/content/message"


def test_a_report_without_a_class_is_said_by_the_table(error: dict[str, Any]) -> None:
    foreign = decode(error)
    for code, said in (
        ("TIMEOUT", "error.timeout"),
        ("NOT_FOUND", "error.semantic.not_found"),
        ("expired", "error.timeout.expired"),
        ("Nobody knows", "error.internal"),
    ):
        data = {name: value for name, value in foreign.data.items() if name != "error_class"}
        content = encode(sealed(msgspec.structs.replace(foreign, data={**data, "error_code": code})))["content"]
        assert content["code"] == said


# --- secrets ----------------------------------------------------------------------------------------------------------


def test_tokens_and_signatures_are_for_the_ingress_alone(request_: dict[str, Any]) -> None:
    auth = {"type": "jwt", "token": "secret-token-1"}
    foreign = decode({**request_, "auth": auth, "signature": "secret-signature"})
    assert foreign.claims.proofs["auth"] == auth
    assert foreign.claims.proofs["signature"] == "secret-signature"
    assert foreign.claims.proofs["signed"] == canonical.encode(request_["content"])
    message = sealed(foreign)
    for text in (
        repr(foreign),
        str(foreign.claims),
        f"{foreign.claims!r}",
        message.value.decode(),
        repr(encode(message)),
    ):
        assert "secret" not in text


@pytest.mark.parametrize(
    "changed",
    [
        {"auth": "secret-token-1"},
        {"auth": ["secret-token-1"]},
        {"auth": {"type": "basic", "token": "secret-token-1"}},
        {"auth": {"type": "jwt", "token": "secret-token-1", "secret-more": "secret-more"}},
        {"auth": {"type": "jwt"}},
        {"signature": {"secret-token-1": 1}},
        {"token": "secret-token-1"},
        {"message_id": 5, "auth": {"type": "jwt", "token": "secret-token-1"}},
    ],
)
def test_no_error_shows_a_token(request_: dict[str, Any], changed: dict[str, Any]) -> None:
    found = refused({**request_, **changed})
    assert "secret" not in f"{found} {found.found} {found.expected} {found!r}"


# --- typed content ----------------------------------------------------------------------------------------------------


def test_typed_content_has_the_performative_of_its_type(request_: dict[str, Any]) -> None:
    content = {"type": "task.request@1.0.0", "data": {"goal": "g"}}
    foreign = decode({**request_, "content": content})
    assert (foreign.type, foreign.options.task_id) == ("task.request", request_["message_id"])
    assert_kept_whole("speech-acts", {**request_, "content": content})
    found = refused({**request_, "content": content, "performative": "inform"})
    assert (found.pointer, found.expected) == ("/performative", "request, as task.request is said")


def test_references_of_more_than_a_uri_cannot_be_said(request_: dict[str, Any]) -> None:
    foreign = decode({**request_, "attachments": ["s3://a/b"]})
    foreign.data["attachments"][0]["size"] = 5
    assert fault_of(lambda: encode(sealed(foreign))).pointer == "/data/attachments/0"


def test_a_workflow_is_no_correlation_that_is_answered() -> None:
    assert "in_reply_to" not in encode(message_of("act.inform", 1, correlation_id="workflow-7"))
