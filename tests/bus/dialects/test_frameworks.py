"""Dialect 004 against its own examples and its table."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from bus.dialects import Defaults
from bus.dialects.frameworks import decode, encode
from bus.dialects.keeping import ABSENT
from bus.errors import DialectError
from bus.protocol.envelope import Agent, RetryPolicy
from tests.bus.dialects.foreign_messages import (
    assert_kept_whole,
    changed,
    each,
    examples,
    fragment_defaults,
    message_of,
    refusal,
    sealed,
)

refused = refusal("frameworks")


@pytest.mark.parametrize("name", ["task request", "task response"])
def test_the_formats_whole_examples_come_back_unchanged(name: str) -> None:
    assert_kept_whole("frameworks", examples("frameworks")[name])


@pytest.mark.parametrize("name", ["status update", "error", "heartbeat"])
def test_the_formats_fragments_come_back_unchanged(name: str) -> None:
    assert_kept_whole("frameworks", examples("frameworks")[name], fragment_defaults)


@pytest.fixture
def request_() -> dict[str, Any]:
    return examples("frameworks")["task request"]


@pytest.fixture
def response() -> dict[str, Any]:
    return examples("frameworks")["task response"]


# --- the envelope -----------------------------------------------------------------------------------------------------


def test_a_task_request_says_the_canonical_one(request_: dict[str, Any]) -> None:
    foreign = decode(request_)
    assert (foreign.type, foreign.version) == ("task.request", "1.0.0")
    assert foreign.data["goal"] == foreign.data["task_type"] == "code_review"
    assert foreign.data["inputs"] == {"files": ["src/api/user-service.ts"]}
    assert foreign.data["x_dialect"]["derived"] == ["/goal"]
    assert foreign.options.fallback == ("codex://fullstack-reviewer",)
    message = sealed(foreign)
    metadata, routing = message.metadata, message.routing
    assert metadata.sender == Agent(id="claude-code://orchestrator", framework="claude-code")
    assert metadata.recipient == Agent(id="opencode://code-reviewer", framework="opencode")
    assert (metadata.conversation_id, metadata.task_id) == ("sess_feature_x", "task_12345")
    assert (metadata.timestamp, routing.expires_at) == ("2025-02-01T10:00:00.000Z", "2025-02-01T10:05:00.000Z")
    assert metadata.performative == "request"
    assert routing.priority == 7
    assert routing.retry == RetryPolicy(backoff="exponential", base_ms=200, cap_ms=300_000, max_attempts=3)


def test_a_task_response_has_claims_and_waits_for_its_answer(response: dict[str, Any]) -> None:
    foreign = decode(response)
    assert foreign.data["findings"][0]["claim"] == "Potential SQL injection"
    assert foreign.options.is_awaited


def test_without_a_delivery_mode_a_message_is_asynchronous(request_: dict[str, Any]) -> None:
    message = changed(request_, "/routing/delivery_mode", ABSENT)
    assert not decode(message).options.is_awaited
    assert_kept_whole("frameworks", message)


@pytest.mark.parametrize(
    ("pointer", "value"),
    each(
        ("/message_id", ABSENT, "two words"),
        ("/timestamp", "2025-02-01", "2025-02-30T10:00:00Z", "2025-02-01T10:00:00"),
        ("/sender", ABSENT),
        ("/sender/agent_id", ""),
        ("/sender/framework", ABSENT),
        ("/recipient/agent_id", 5),
        ("/message_type", "task"),
        ("/priority", "normal", ABSENT),
        ("/routing", ABSENT),
        ("/routing/timeout", "300", "0s", "999999999999d"),
        ("/routing/retry_policy", ABSENT),
        ("/routing/retry_policy/max_retries", 1.5, 100, True),
        ("/routing/retry_policy/backoff", "constant"),
        ("/routing/fallback_agents", ["a", "a"], ["opencode://code-reviewer"]),
        ("/routing/fallback_agents", [f"agent-{number}" for number in range(9)]),
        ("/routing/delivery_mode", "later"),
        ("/metadata/task_id", ""),
        ("/payload", 5, [], ""),
        ("/payload/task_type", "Code Review"),
        ("/payload/acceptance_criteria", "none"),
    ),
)
def test_what_a_member_may_not_be_is_refused_with_its_pointer(
    request_: dict[str, Any], pointer: str, value: Any
) -> None:
    error = refused(changed(request_, pointer, value))
    assert error.pointer == pointer
    assert error.found
    assert error.expected


@pytest.mark.parametrize(
    ("pointer", "value"),
    each(
        ("/timestamp", "2025-02-01T17:00:00.000+07:00", "2025-02-01T10:00:00.123456Z"),
        ("/sender/session_id", ABSENT, "task_12345"),
        ("/sender/region", {"a": [None]}),
        ("/recipient/session_id", "their session"),
        ("/routing/timeout", "5m", "1500ms"),
        ("/routing/fallback_agents", []),
        ("/routing/retry_policy/max_retries", 0),
        ("/routing/retry_policy/jitter", True),
        ("/metadata", {}),
        ("/metadata/task_id", "msg_1719000000000_abcd123"),
        ("/metadata/session_trace", ["a", "b"]),
        ("/metadata/retryable", "perhaps"),
        ("/x~1y", {"absent": True}),
        ("/payload", "look at this"),
        ("/payload/goal", "code_review"),
        ("/payload/inputs", {"files": []}),
        ("/payload/x_dialect", {"of": "004"}),
    ),
)
def test_every_spelling_comes_back(request_: dict[str, Any], pointer: str, value: Any) -> None:
    assert_kept_whole("frameworks", changed(request_, pointer, value))


def test_a_message_without_a_session_belongs_to_its_task_or_to_itself(request_: dict[str, Any]) -> None:
    message = changed(request_, "/sender/session_id", ABSENT)
    assert decode(message).options.conversation_id == "task_12345"
    message = changed(message, "/metadata", ABSENT)
    foreign = decode(message)
    assert foreign.options.conversation_id == foreign.options.task_id == request_["message_id"]


def test_defaults_override_nothing(request_: dict[str, Any]) -> None:
    assert decode(request_, defaults=fragment_defaults) == decode(request_)


def test_the_first_missing_member_of_a_fragment_is_named() -> None:
    fragment = examples("frameworks")["status update"]
    assert refused(fragment).pointer == "/message_id"
    assert refused(fragment, defaults=Defaults(message_id="m")).pointer == "/timestamp"
    less = msgspec.structs.replace(fragment_defaults, task_id=None)
    assert refused(fragment, defaults=less).pointer == "/metadata/task_id"


def test_a_heartbeat_needs_neither_recipient_nor_routing(request_: dict[str, Any]) -> None:
    beat = examples("frameworks")["heartbeat"]
    whole = {**request_, **beat}
    bare = {name: value for name, value in whole.items() if name not in ("recipient", "routing")}
    assert decode(whole).options.to is None
    assert refused({**whole, "recipient": {"absent": True}}).pointer == "/recipient"  # what is kept of none
    assert decode(whole).data["memory_mb"] == 512
    assert_kept_whole("frameworks", whole)
    assert_kept_whole("frameworks", bare)


# --- payloads ---------------------------------------------------------------------------------------------------------


def test_a_failure_without_an_error_is_given_one(response: dict[str, Any]) -> None:
    message = changed(response, "/payload/status", "failed")
    foreign = decode(message)
    assert foreign.data["error"] == {"code": "FAILED", "message": "failed"}
    assert foreign.data["x_dialect"]["derived"] == ["/error"]
    assert_kept_whole("frameworks", message)
    assert_kept_whole("frameworks", changed(message, "/payload/error", {"code": "FAILED", "message": "failed"}))
    message["payload"]["error"] = None
    assert_kept_whole("frameworks", message)


def test_an_explicit_null_is_ignored_and_round_trips(request_: dict[str, Any]) -> None:
    message = copy.deepcopy(request_)
    message["payload"]["goal"] = message["metadata"]["task_id"] = message["sender"]["session_id"] = None
    assert decode(message).data["goal"] == "code_review"
    assert_kept_whole("frameworks", message)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/payload/findings/0/severity", "warning"),
        ("/payload/findings/0/message", ""),
        ("/payload/findings/0/message", ABSENT),
        ("/payload/findings/0/line", 0),
        ("/payload/status", "done"),
        ("/payload/error", {"code": "FAILED", "message": "failed"}),
    ],
)
def test_errors_in_data_name_the_foreign_member(response: dict[str, Any], pointer: str, value: Any) -> None:
    assert refused(changed(response, pointer, value)).pointer == pointer


def test_progress_is_a_whole_number_and_comes_back_as_it_was() -> None:
    fragment = changed(examples("frameworks")["status update"], "/payload/percent_complete", 65.5)
    foreign = decode(fragment, defaults=fragment_defaults)
    assert (foreign.data["progress_pct"], foreign.data["new_status"]) == (65, "running")
    assert_kept_whole("frameworks", fragment, fragment_defaults)


def test_the_text_of_an_errors_details_is_an_object() -> None:
    foreign = decode(examples("frameworks")["error"], defaults=fragment_defaults)
    assert foreign.data["details"] == {"text": "stderr logs ..."}
    assert foreign.data["retryable"] is False
    assert foreign.data["source_agent"] == "worker@svc"
    assert foreign.data["source_task_id"] == foreign.options.task_id == "task_98765"
    assert sorted(foreign.data["x_dialect"]["derived"]) == ["/source_agent", "/timestamp"]


# --- what no table says, and what is carried --------------------------------------------------------------------------


def test_data_beyond_the_table_become_typed_content(request_: dict[str, Any]) -> None:
    content = {"type": "task.request@1.0.0", "data": {"goal": "g", "scope": {"include": ["src/**"]}}}
    foreign = decode({**request_, "payload": content})
    assert foreign.data["scope"] == {"include": ["src/**"]}
    assert encode(sealed(foreign))["payload"] == content


def test_typed_content_names_its_message_type(request_: dict[str, Any]) -> None:
    answer = {"type": "task.accepted@1.0.0", "data": {"understood_goal": "g"}}
    error = refused({**request_, "payload": answer})
    assert (error.pointer, error.expected) == ("/message_type", "task_response, as task.accepted is said")
    newer = {"type": "task.request@2.0.0", "data": {"goal": "g"}}
    assert refused({**request_, "payload": newer}).reason == "unsupported_version"
    marked = {"type": "task.request@1.0.0", "data": {"goal": "g", "x_dialect": {}}}
    assert refused({**request_, "payload": marked}).pointer == "/payload/data/x_dialect"


def test_a_message_to_nobody_needs_an_alias() -> None:
    message = message_of("task.request", 1, to=Agent(role="reviewer"))
    with pytest.raises(DialectError, match="an agent, or an alias for role:reviewer"):
        encode(message)
    assert encode(message, aliases={"role:reviewer": "team"})["recipient"]["agent_id"] == "team"
