"""Dialect 000 against its own examples and its table, and against the faults of the code that it shows."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any

import msgspec
import pytest

from bus.dialects.keeping import ABSENT, MARK
from bus.dialects.layered import decode, encode
from bus.dialects.layered.payloads import PIPELINE, TYPES
from bus.dialects.sealing import seal_foreign
from bus.errors import DialectError
from bus.payloads.payload_types import payload_type
from bus.protocol import canonical
from bus.protocol.envelope import Agent, RetryPolicy
from bus.protocol.sealing import seal
from bus.vocabulary import ApprovalRequest
from tests.bus.dialects.foreign_messages import (
    assert_kept_whole,
    changed,
    each,
    examples,
    fault_of,
    fragment_defaults,
    message_of,
    refusal,
    sealed,
)

refused = refusal("layered")
shown = examples("layered")

SENT_MS = 1_767_225_600_000
EMPTY = "sha256:" + hashlib.sha256(b"").hexdigest()


def jcs_hash(value: Any) -> str:
    return canonical.digest(canonical.encode(value))


def python_hash(value: Any) -> str:
    """As `compute_content_hash` of the format does it."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode('utf-8')).hexdigest()}"


@pytest.fixture
def layered() -> dict[str, Any]:
    """The message in all four layers, with the hash of its data."""
    message = copy.deepcopy(shown["2 combined"])
    message["verification"]["content_hash"] = jcs_hash(message["data"])
    return message


@pytest.fixture
def union() -> dict[str, Any]:
    return shown["4.2 schema version"]


# --- the format's own examples ----------------------------------------------------------------------------------------


def test_data_alone_is_a_handoff() -> None:
    message = shown["2 layer 1"]
    assert decode(message, defaults=fragment_defaults).type == "task.handoff"
    assert_kept_whole("layered", message, fragment_defaults)
    assert refused(message).found == "nothing"


def test_the_hash_of_the_combined_example_is_none(layered: dict[str, Any]) -> None:
    error = refused(shown["2 combined"])
    assert (error.pointer, error.reason) == ("/verification/content_hash", "hash_mismatch")
    assert_kept_whole("layered", layered)
    assert_kept_whole("layered", changed(layered, "/verification/content_hash", ABSENT))


def test_the_hash_of_layer_three_is_that_of_no_bytes(layered: dict[str, Any]) -> None:
    verification = shown["2 layer 3"]["verification"]
    assert verification["content_hash"] == EMPTY
    assert refused({**layered, "verification": verification}).reason == "hash_mismatch"
    empty = changed({**layered, "verification": verification}, "/data/content", {"action": "x"})
    assert refused(empty).reason == "hash_mismatch"


def test_the_example_of_versions_is_a_handoff(union: dict[str, Any]) -> None:
    foreign = decode(union)
    assert foreign.type == "task.handoff"
    assert foreign.options.priority == 7
    assert "priority" not in foreign.data["task_spec"]
    assert_kept_whole("layered", union)


@pytest.mark.parametrize("name", ["6.3 research output", "6.3 draft output", "6.3 review output"])
def test_the_outputs_of_the_pipeline_come_back(name: str) -> None:
    foreign = decode(shown[name], defaults=fragment_defaults)
    assert foreign.type == PIPELINE[shown[name]["message_type"]]
    assert foreign.options.conversation_id == shown[name]["trace_id"]
    assert foreign.claims.sender == Agent(
        id=shown[name]["sender_agent_id"], version=shown[name]["sender_agent_version"]
    )
    assert_kept_whole("layered", shown[name], fragment_defaults)


def test_some_hashes_of_the_pipeline_hold_in_pythons_form_only() -> None:
    fields = {
        "6.3 research output": ("pr_number", "repository", "findings", "sources_analyzed", "gaps", "keywords"),
        "6.3 draft output": ("pr_number", "title", "summary", "sections", "word_count", "requires_human_review"),
        "6.3 review output": ("pr_number", "verdict", "score", "issues", "suggestions", "reviewer_notes"),
    }
    for name, names in fields.items():
        model = {field: shown[name][field] for field in names}
        assert python_hash(model) == shown[name]["content_hash"]
        assert (jcs_hash(model) == shown[name]["content_hash"]) == (name == "6.3 research output")


def test_a_message_without_a_recognisable_type_is_refused() -> None:
    error = refused(shown["1 incident"])
    assert (error.pointer, error.found) == ("/message_type", "nothing")
    assert "message_type" in error.expected


# --- layers -----------------------------------------------------------------------------------------------------------


def test_a_message_in_layers_says_the_canonical_one(layered: dict[str, Any]) -> None:
    foreign = decode(layered)
    assert (foreign.type, foreign.version) == ("task.handoff", "1.0.0")
    parameters = {"target_length": "concise", "format": "markdown"}
    assert {name: value for name, value in foreign.data.items() if name != MARK} == {
        "task_id": "task-review-pr-1842",
        "from_agent": "research-agent",
        "to_agent": "writer-agent",
        "task_spec": {
            "action": "draft_code_review",
            "input": {"findings": layered["data"]["content"]["findings"]},
            "context": {"parameters": parameters},
        },
    }
    message = sealed(foreign)
    metadata, routing = message.metadata, message.routing
    assert (metadata.message_id, metadata.task_id) == ("msg-8f3a1b2c", "task-review-pr-1842")
    assert (metadata.conversation_id, metadata.correlation_id) == ("corr-ci-pipeline-2024-1205", None)
    assert metadata.sender == Agent(id="research-agent", version="2.1.0")
    assert metadata.recipient == Agent(id="writer-agent")
    assert (metadata.timestamp, routing.expires_at) == ("2024-12-05T14:23:11.482Z", "2024-12-05T14:33:11.482Z")
    assert (routing.priority, routing.idempotency_key, routing.reply_to) == (7, "idem-msg-8f3a1b2c", None)
    assert routing.retry == RetryPolicy(backoff="exponential", base_ms=200, cap_ms=300_000, max_attempts=3)


@pytest.mark.parametrize(
    ("pointer", "value"),
    each(
        ("/data", []),
        ("/data/content", ABSENT),
        ("/data/content/action", ABSENT, ""),
        ("/data/parameters", []),
        ("/data/parameters/max_duration_seconds", 0),
        ("/data/parameters/required_confidence", "high"),
        ("/data/artifacts", [{"name": "a", "bytes": "aGk="}], "s3://a"),
        ("/metadata/message_id", "two words"),
        ("/metadata/timestamp", "2024-12-05", ABSENT),
        ("/metadata/sender_agent_id", ABSENT, ""),
        ("/metadata/receiver_agent_id", ABSENT),
        ("/metadata/sender_agent_version", 2),
        ("/metadata/ttl_seconds", 0, 1.5),
        ("/metadata/correlation_id", 5),
        ("/routing", []),
        ("/routing/ttl", 601),
        ("/routing/priority", "medium"),
        ("/routing/max_retries", 1.5, 100),
        ("/routing/retry_backoff", "later"),
        ("/routing/idempotency_key", ""),
        ("/routing/reply_to", 5),
        ("/verification/schema_version", "1.0"),
        ("/verification/content_hash", EMPTY, 5),
        ("/verification/content_hash_algorithm", "md5"),
        ("/verification/agent_signature", ""),
        ("/verification/proof_chain", [{"agent_id": "a", "content_hash": "b"}]),
        ("/message_type", "task_handoff"),
    ),
)
def test_what_a_member_may_not_be_is_refused_with_its_pointer(
    layered: dict[str, Any], pointer: str, value: Any
) -> None:
    message = changed(layered, pointer, value)
    if pointer.startswith("/data/"):
        message["verification"]["content_hash"] = jcs_hash(message["data"])
    error = refused(message)
    assert error.pointer == pointer
    assert error.found
    assert error.expected


def test_a_version_that_the_format_never_had_is_refused_as_such(layered: dict[str, Any], union: dict[str, Any]) -> None:
    for message, pointer in (
        (layered, "/verification/schema_version"),
        (union, "/schema_version"),
        (union, "/payload/schema_version"),
    ):
        error = refused(changed(message, pointer, "3.0.0"))
        assert (error.pointer, error.reason) == (pointer, "unsupported_version")
        # Not by a parser of versions: a candidate for a release is none, nor is another format's version.
        for version in ("1.0.0-rc", "agent-msg.v1", "01.0.0"):
            assert refused(changed(message, pointer, version)).pointer == pointer


@pytest.mark.parametrize(
    ("pointer", "value"),
    each(
        ("/data/parameters", {}, None, ABSENT, {"max_duration_seconds": 5, "required_confidence": 0.5}),
        ("/data/results", ABSENT),
        ("/data/artifacts", ABSENT, None, ["s3://a/b", {"uri": "s3://a/c", "size": 5}]),
        ("/data/more", {"a": [None]}),
        ("/metadata/task_id", ABSENT, None, "msg-8f3a1b2c"),
        ("/metadata/correlation_id", ABSENT, "task-review-pr-1842", None),
        ("/metadata/trace_id", "trace-1", "corr-ci-pipeline-2024-1205", None),
        ("/metadata/sender_host", "node-7.internal"),
        ("/metadata/timestamp", "2024-12-05T21:23:11.482+07:00"),
        ("/metadata/ttl_seconds", ABSENT, None),
        ("/metadata/more", 5),
        ("/routing", ABSENT, {}, None),
        ("/routing/ttl", 600),
        ("/routing/retry_backoff", ABSENT),
        ("/routing/max_retries", ABSENT, 2.0),
        ("/routing/more", 5),
        ("/verification", ABSENT, None),
        ("/verification/schema_version", ABSENT),
        ("/verification/content_hash", None, ABSENT),
        ("/verification/agent_signature", ABSENT, "hmac-sha256:00"),
        ("/verification/signature", None),
        ("/verification/proof_chain", []),
        ("/verification/more", 5),
        ("/more", {"absent": True}),
    ),
)
def test_every_spelling_comes_back(layered: dict[str, Any], pointer: str, value: Any) -> None:
    message = changed(layered, pointer, value)
    if pointer.startswith("/data/"):
        message["verification"]["content_hash"] = jcs_hash(message["data"])
    assert_kept_whole("layered", message)


def test_bounds_among_the_parameters_are_constraints_too(layered: dict[str, Any]) -> None:
    message = changed(layered, "/data/parameters", {"max_duration_seconds": 5, "depth": "full"})
    message = changed(message, "/verification", ABSENT)
    spec = decode(message).data["task_spec"]
    assert spec["constraints"] == {"max_duration_seconds": 5}
    assert spec["context"] == {"parameters": {"max_duration_seconds": 5, "depth": "full"}}


def test_a_handoff_without_a_task_is_its_own(layered: dict[str, Any]) -> None:
    foreign = decode(changed(layered, "/metadata/task_id", ABSENT))
    assert foreign.data["task_id"] == foreign.options.task_id == "msg-8f3a1b2c"
    assert foreign.data[MARK]["derived"] == ["/task_id"]
    error = refused(changed(changed(layered, "/metadata/task_id", ABSENT), "/metadata/message_id", ABSENT))
    assert error.pointer == "/metadata/message_id"


def test_a_conversation_is_a_correlation_or_a_trace(layered: dict[str, Any]) -> None:
    message = changed(layered, "/metadata/trace_id", "trace-1")
    assert decode(message).options.conversation_id == "corr-ci-pipeline-2024-1205"
    assert decode(message).data[MARK]["kept"]["/metadata/trace_id"] == "trace-1"
    message = changed(message, "/metadata/correlation_id", ABSENT)
    assert decode(message).options.conversation_id == "trace-1"
    assert_kept_whole("layered", message)
    message = changed(message, "/metadata/trace_id", ABSENT)
    assert decode(message).options.conversation_id == "task-review-pr-1842"


def test_a_lifetime_is_said_once(layered: dict[str, Any]) -> None:
    message = changed(changed(layered, "/metadata/ttl_seconds", ABSENT), "/routing/ttl", 60)
    foreign = decode(message)
    assert foreign.options.expires_at_ms == (foreign.claims.sent_at_ms or 0) + 60_000
    assert_kept_whole("layered", message)
    assert refused(changed(layered, "/routing/ttl", 60)).pointer == "/routing/ttl"


def test_an_id_and_a_time_can_be_made(layered: dict[str, Any]) -> None:
    message = changed(changed(layered, "/metadata/message_id", ABSENT), "/metadata/timestamp", ABSENT)
    message = changed(message, "/metadata/ttl_seconds", ABSENT)
    foreign = decode(message)
    assert (foreign.options.message_id, foreign.claims.sent_at_ms) == (None, None)
    made = seal_foreign(foreign, namespace="lab", message_id="made", now_ms=SENT_MS)
    assert canonical.encode(encode(made)) == canonical.encode(message)


def test_what_goes_elsewhere_has_no_effect(layered: dict[str, Any]) -> None:
    message = sealed(decode(layered))
    assert message.routing.reply_to is None
    kept = json.loads(message.data)[MARK]["kept"]
    assert kept["/routing/reply_to"] == "queue:writer-agent-responses"
    assert kept["/routing/dead_letter_queue"] == "queue:dlq-reviews"


def test_the_time_of_an_ingress_is_sealed_and_the_foreign_one_kept(layered: dict[str, Any]) -> None:
    foreign = decode(layered)
    message = seal_foreign(foreign, namespace="lab", now_ms=(foreign.claims.sent_at_ms or 0) + 518)
    assert json.loads(message.data)[MARK]["kept"]["/metadata/timestamp"] == "2024-12-05T14:23:11.482Z"
    said = encode(message)
    assert said["metadata"]["timestamp"] == "2024-12-05T14:23:12Z"
    assert "timestamp" not in said


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("results", [{"score": 5}, {"value": 5}, 5, "done", [1], False, 0, {}])
def test_results_are_those_of_a_task(layered: dict[str, Any], results: Any) -> None:
    message = changed(layered, "/data/results", results)
    message["verification"]["content_hash"] = jcs_hash(message["data"])
    foreign = decode(message)
    assert (foreign.type, foreign.data["status"]) == ("task.result", "completed")
    assert foreign.data["output"] == (results if isinstance(results, dict) else {"value": results})
    assert foreign.data[MARK]["kept"]["/data/content"] == layered["data"]["content"]
    assert foreign.options.task_id == "task-review-pr-1842"
    assert_kept_whole("layered", message)


def test_artifacts_of_a_result_are_references(layered: dict[str, Any]) -> None:
    message = changed(changed(layered, "/data/results", {}), "/verification", ABSENT)
    message = changed(message, "/data/artifacts", ["s3://a/b", {"uri": "s3://a/c"}, {"uri": "s3://a/d", "size": 5}])
    assert decode(message).data["artifacts"] == [
        {"uri": "s3://a/b"},
        {"uri": "s3://a/c"},
        {"uri": "s3://a/d", "size": 5},
    ]
    assert_kept_whole("layered", message)
    for blob in ({"name": "a"}, {"uri": 5}, 5):
        assert refused(changed(message, "/data/artifacts", [blob])).pointer == "/data/artifacts"


def test_only_a_completed_result_can_be_said() -> None:
    message = message_of("task.result", 1)
    for data in (
        b'{"output":{},"status":"cancelled"}',
        b'{"status":"completed"}',
        b'{"output":null,"status":"completed"}',
    ):
        with pytest.raises(DialectError) as caught:
            encode(seal(data, message.metadata, message.routing))
        assert caught.value.pointer == "/data"
    whole = seal(b'{"output":{"a":1},"status":"completed"}', message.metadata, message.routing)
    said = encode(whole)
    assert said["data"] == {"content": {}, "parameters": {}, "results": {"a": 1}, "artifacts": []}
    assert said["verification"]["content_hash"] == jcs_hash(said["data"])
    assert decode(said).data["output"] == {"a": 1}


# --- hashes, signatures, proofs ---------------------------------------------------------------------------------------

NUMBERS = '{"a":1.0,"b":1e16,"c":-0.0,"d":[1e22,0.1,5],"é":"ü","\\uffff":1,"\\ud83d\\ude00":2}'


@pytest.mark.parametrize("numbers", [NUMBERS, '{"a":1}', '{"x":{"b~/c":[2.0]}}'])
def test_the_hash_of_python_is_accepted_and_comes_back(layered: dict[str, Any], numbers: str) -> None:
    """`json.dumps` escapes, spells floats and orders keys otherwise than RFC 8785; the hash is of what it wrote."""
    text = json.dumps(changed(layered, "/data/more", 0)).replace('"more": 0', f'"more": {numbers}')
    parsed = json.loads(text)
    assert python_hash(parsed["data"]) != jcs_hash(parsed["data"]) or numbers == '{"a":1}'
    for found in (python_hash(parsed["data"]), jcs_hash(parsed["data"])):
        given = text.replace(layered["verification"]["content_hash"], found)
        message = seal_foreign(decode(given.encode()), namespace="lab")
        said = encode(message)
        assert said["verification"]["content_hash"] == found
        assert canonical.encode(said) == canonical.encode(json.loads(given))


def test_a_hash_that_drops_what_is_nested_is_never_accepted(layered: dict[str, Any]) -> None:
    """`JSON.stringify(data, Object.keys(data).sort())` writes nested objects without their members."""
    names = set(layered["data"])

    def dropped(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: dropped(value[name]) for name in sorted(value) if name in names}
        return [dropped(item) for item in value] if isinstance(value, list) else value

    text = json.dumps(dropped(layered["data"]), separators=(",", ":"), ensure_ascii=False)
    found = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    error = refused(changed(layered, "/verification/content_hash", found))
    assert (error.pointer, error.reason) == ("/verification/content_hash", "hash_mismatch")


def test_an_absent_member_and_null_are_hashed_as_they_are() -> None:
    """Pydantic writes null for what is not given, Zod leaves it out."""
    research = shown["6.3 research output"]
    zod = copy.deepcopy(research)
    del zod["findings"][1]["line_range"]
    assert refused(zod, defaults=fragment_defaults).pointer == "/content_hash"
    names = ("pr_number", "repository", "findings", "sources_analyzed", "gaps", "keywords")
    zod["content_hash"] = jcs_hash({name: zod[name] for name in names})
    both = [decode(message, defaults=fragment_defaults).data for message in (research, zod)]
    assert both[0]["findings"] == both[1]["findings"]


def test_what_is_changed_after_it_was_hashed_is_refused(layered: dict[str, Any]) -> None:
    assert refused(changed(layered, "/data/content/findings", [])).reason == "hash_mismatch"


def test_the_content_hash_is_recomputed_for_changed_data(layered: dict[str, Any]) -> None:
    message = changed(layered, "/verification/content_hash", python_hash(layered["data"]))
    foreign = decode(message)
    foreign.data["task_spec"]["input"] = {"another": 1}
    said = encode(seal_foreign(foreign, namespace="lab"))
    assert said["verification"]["content_hash"] == jcs_hash(said["data"])


def test_signatures_are_claims(layered: dict[str, Any]) -> None:
    """The format's own check reads one of the two names, and is content where neither is there."""
    for name in ("signature", "agent_signature"):
        message = changed(layered, f"/verification/{name}", "hmac-sha256:00")
        foreign = decode(message)
        assert foreign.claims.proofs["signature"] == "hmac-sha256:00"
        signed = json.dumps(message["data"], sort_keys=True, separators=(",", ":")).encode()
        assert foreign.claims.proofs["signed"] == signed
        assert "hmac" not in repr(foreign.claims)
        assert_kept_whole("layered", message)
    both = changed(changed(layered, "/verification/signature", "a"), "/verification/agent_signature", "a")
    assert_kept_whole("layered", both)
    error = refused(changed(both, "/verification/signature", "b"))
    assert (error.pointer, "b" in error.found.split()) == ("/verification/signature", False)


def test_a_forged_proof_chain_is_kept_but_never_trusted(layered: dict[str, Any]) -> None:
    forged = [{"agent_id": "admin", "content_hash": EMPTY, "timestamp": "2024-12-05T14:23:11.482Z"}]
    message = changed(layered, "/verification/proof_chain", forged)
    foreign = decode(message)
    assert foreign.claims.proofs["proof_chain"] == forged
    verification = sealed(foreign).verification
    assert (verification.proof_chain, verification.parents) == (None, None)
    assert_kept_whole("layered", message)


def test_a_sealed_chain_is_said_after_the_foreign_one(layered: dict[str, Any]) -> None:
    cause = message_of("task.request", 1)
    entry = {"agent_id": "planner-1", "content_hash": cause.verification.content_hash}
    for before, expected in (([], 1), ([{**entry, "timestamp": "2024-12-05T14:23:11Z"}], 2)):
        message = changed(layered, "/verification/proof_chain", before)
        said = encode(seal_foreign(decode(message), namespace="lab", cause=cause))
        chain = said["verification"]["proof_chain"]
        assert (chain[: len(before)], len(chain)) == (before, expected)
        assert chain[-1] == {**entry, "timestamp": "2026-01-01T00:00:00.000Z"}
    said = encode(seal_foreign(decode(changed(layered, "/verification", ABSENT)), namespace="lab", cause=cause))
    assert list(said["verification"]) == ["proof_chain"]


# --- the union --------------------------------------------------------------------------------------------------------

PAYLOADS: dict[str, dict[str, Any]] = {
    "task_handoff": {
        "task_id": "task-1",
        "from_agent": "research-agent",
        "to_agent": "writer-agent",
        "task_spec": {"action": "draft_review", "input": {"n": 1}, "constraints": {"required_confidence": 0.5}},
        "priority": "high",
        "schema_version": "1.0.0",
    },
    "tool_result": {
        "tool_call_id": "call-1",
        "tool_name": "git_diff",
        "output": None,
        "error": {"code": "TIMEOUT", "message": "too long", "details": None},
        "duration_ms": 5,
        "is_truncated": False,
        "schema_version": "1.0.0",
    },
    "approval_request": {
        "request_id": "request-1",
        "action": "drop_index",
        "resource": {"type": "database_index", "id": "idx_orders_created_at", "summary": None},
        "reason": "it is not used",
        "timeout_seconds": 60,
        "risk_level": "high",
        "message_type": "approval_request",
        "schema_version": "1.0.0",
    },
    "status_update": {
        "task_id": "task-1",
        "new_status": "running",
        "previous_status": None,
        "progress_pct": 85,
        "timestamp": "2024-12-05T14:23:11.482+07:00",
        "schema_version": "1.0.0",
    },
    "error_report": {
        "error_code": "LLM_RATE_LIMITED",
        "error_message": "three times",
        "source_agent": "research-agent",
        "recovery_hint": "retry_with_exponential_backoff_and_jitter",
        "timestamp": "2024-12-05T14:23:11.482Z",
        "schema_version": "1.0.0",
    },
}
METADATA = {
    "task_id": "task-1",
    "correlation_id": "corr-1",
    "sender_agent_id": "research-agent",
    "sender_agent_version": "2.1.0",
    "timestamp": "2024-12-05T14:23:11.482Z",
    "ttl_seconds": 300,
    "sender_host": "node-7",
    "more": 1,
}


def of_kind(kind: str) -> dict[str, Any]:
    head = {"message_id": "msg-1", "message_type": kind, "schema_version": "2.1.3"}
    return {**head, "payload": copy.deepcopy(PAYLOADS[kind]), "metadata": {**METADATA}}


@pytest.mark.parametrize("kind", sorted(PAYLOADS))
def test_a_message_of_each_of_the_five_types_comes_back(kind: str) -> None:
    message = of_kind(kind)
    foreign = decode(message)
    assert foreign.type == TYPES[kind]
    assert foreign.options.conversation_id == "corr-1"
    assert sealed(foreign).metadata.sender == Agent(id="research-agent", version="2.1.0")
    assert_kept_whole("layered", message)


@pytest.mark.parametrize("kind", sorted(PAYLOADS))
def test_a_bare_message_of_each_of_the_five_types_comes_back(kind: str) -> None:
    bare = {**of_kind(kind), **PAYLOADS[kind], "schema_version": "1.0.0"}
    del bare["payload"]
    assert decode(bare).type == TYPES[kind]
    assert_kept_whole("layered", bare)
    for name in ("message_id", "metadata"):
        assert_kept_whole("layered", changed(bare, f"/{name}", ABSENT), fragment_defaults)


@pytest.mark.parametrize("kind", sorted(PAYLOADS))
@pytest.mark.parametrize("other", sorted(PAYLOADS))
def test_a_payload_fits_its_type_and_no_other(kind: str, other: str) -> None:
    """The format's schema of the union let a handoff pass as a status, and two payloads match."""
    message = of_kind(kind)
    message["payload"] = {**PAYLOADS[other]}
    message["payload"].pop("message_type", None)
    if kind == other:
        decode(message)
    else:
        assert refused(message).pointer.startswith("/payload/")


def test_a_member_where_it_does_not_belong_means_nothing(layered: dict[str, Any]) -> None:
    assert_kept_whole("layered", {**layered, "payload": {"task_id": "x"}})
    bare = {**of_kind("tool_result"), **PAYLOADS["tool_result"], "task_id": "another", "schema_version": "1.0.0"}
    del bare["payload"]
    assert decode(bare).options.task_id == "task-1"
    assert_kept_whole("layered", bare)
    nameless = changed(shown["6.3 review output"], "/trace_id", ABSENT)
    made = seal_foreign(decode(nameless), namespace="lab", message_id="made")
    assert canonical.encode(encode(made)) == canonical.encode(nameless)


def test_the_payload_of_the_formats_example_needs_no_version(union: dict[str, Any]) -> None:
    """The format's own schema refuses it."""
    assert "schema_version" not in union["payload"]
    assert decode(union).type == "task.handoff"
    for version in (None, "2.0.0"):
        assert_kept_whole("layered", changed(union, "/payload/schema_version", version))


@pytest.mark.parametrize(
    ("kind", "pointer", "value"),
    each(
        ("task_handoff", "/message_id", ABSENT),
        ("task_handoff", "/schema_version", ABSENT, None),
        ("task_handoff", "/message_type", "message", "research_output"),
        ("task_handoff", "/payload", []),
        ("task_handoff", "/payload/from_agent", "another", 5),
        ("task_handoff", "/payload/task_id", "another"),
        ("task_handoff", "/payload/message_type", "tool_result"),
        ("task_handoff", "/payload/priority", "medium"),
        ("task_handoff", "/payload/task_spec/priority", "medium", "low"),
        ("task_handoff", "/payload/task_spec/action", ABSENT),
        ("task_handoff", "/payload/task_spec/constraints/required_confidence", 2),
        ("task_handoff", "/verification", {}),
        ("task_handoff", "/metadata/sender_agent_id", 5),
        ("tool_result", "/payload/output", ABSENT),
        ("tool_result", "/payload/duration_ms", 1.5),
        ("tool_result", "/metadata/sender_agent_id", ABSENT),
        ("approval_request", "/payload/reason", ABSENT),
        ("approval_request", "/payload/risk_level", "critical"),
        ("approval_request", "/payload/timeout_seconds", 0),
        ("status_update", "/payload/new_status", "almost there"),
        ("status_update", "/payload/progress_pct", 101),
        ("status_update", "/payload/task_id", "another"),
        ("error_report", "/payload/error_code", ABSENT),
        ("error_report", "/payload/severity", "high"),
        ("error_report", "/payload/source_agent", "another"),
        heads=2,
    ),
)
def test_what_a_message_of_the_union_may_not_be_is_refused_with_its_pointer(
    kind: str, pointer: str, value: Any
) -> None:
    assert refused(changed(of_kind(kind), pointer, value)).pointer == pointer


def test_a_receiver_agrees_with_whom_a_task_is_for() -> None:
    message = changed(of_kind("task_handoff"), "/metadata/receiver_agent_id", "writer-agent")
    assert_kept_whole("layered", message)
    error = refused(changed(message, "/metadata/receiver_agent_id", "another"))
    assert (error.pointer, error.found) == ("/payload/to_agent", "'writer-agent'")
    without = changed(message, "/metadata/sender_agent_id", ABSENT)
    assert decode(without).claims.sender == Agent(id="research-agent", version="2.1.0")
    assert_kept_whole("layered", without)


def test_the_priority_of_a_task_is_that_of_its_message() -> None:
    message = of_kind("task_handoff")
    assert (decode(message).options.priority, decode(message).data["priority"]) == (7, "high")
    inner = changed(message, "/payload/task_spec/priority", "high")
    assert_kept_whole("layered", inner)
    alone = changed(changed(message, "/payload/priority", ABSENT), "/payload/task_spec/priority", "low")
    assert decode(alone).options.priority == 2
    assert "priority" not in decode(alone).data
    assert_kept_whole("layered", alone)
    assert_kept_whole("layered", changed(alone, "/payload/task_spec/priority", None))
    assert decode(changed(message, "/payload/priority", ABSENT)).options.priority is None


def test_an_approval_of_the_format_is_the_older_version() -> None:
    foreign = decode(changed(of_kind("approval_request"), "/metadata/ttl_seconds", ABSENT))
    assert (foreign.type, foreign.version) == ("approval.request", "1.0.0")
    assert foreign.options.expires_at_ms == (foreign.claims.sent_at_ms or 0) + 60_000
    request = payload_type(ApprovalRequest).open(sealed(foreign))
    assert (request.approval_id, request.action.type) == ("request-1", "drop_index")


def test_a_newer_approval_cannot_be_said() -> None:
    assert fault_of(lambda: encode(message_of("approval.request", 1))).pointer == "/metadata/schema_version"


@pytest.mark.parametrize("kind", ["task.request", "act.inform", "agent.heartbeat", "review.result"])
def test_a_type_that_the_format_does_not_have_cannot_be_said(kind: str) -> None:
    assert fault_of(lambda: encode(message_of(kind, 1))).pointer == "/metadata/message_type"


def test_what_has_a_message_type_has_no_layer(layered: dict[str, Any], union: dict[str, Any]) -> None:
    assert refused({**union, "data": layered["data"]}).pointer == "/message_type"


def test_nothing_about_an_agent_is_written_into_code() -> None:
    """Agents have the names that aliases give them, wherever a message names them."""
    message = message_of("task.handoff", 1, task_id="task-1")
    data = {
        "task_id": "task-1",
        "from_agent": "planner-1",
        "to_agent": "worker-1",
        "task_spec": {"action": "a", "input": {}},
    }
    aliases = {"planner-1": "planner@svc", "worker-1": "worker@svc"}
    said = encode(seal(canonical.encode(data, depth=2), message.metadata, message.routing), aliases=aliases)
    assert (said["payload"]["from_agent"], said["payload"]["to_agent"]) == ("planner@svc", "worker@svc")
    assert (said["metadata"]["sender_agent_id"], said["metadata"]["receiver_agent_id"]) == ("planner@svc", "worker@svc")
    decode(said)
    other = {**data, "from_agent": "another"}
    assert (
        fault_of(lambda: encode(seal(canonical.encode(other, depth=2), message.metadata, message.routing))).pointer
        == "/data/from_agent"
    )


@pytest.mark.parametrize(
    ("kind", "more", "pointer"),
    [
        ("tool.result", {"schema_version": "9"}, "/data/schema_version"),
        ("tool.result", {"message_type": "x"}, "/data/message_type"),
        ("research.output", {"trace_id": "x"}, "/data/trace_id"),
        ("research.output", {"payload": {}}, "/data/payload"),
        ("research.output", {"content_hash": "x"}, "/data/content_hash"),
    ],
)
def test_data_that_would_mean_something_else_there_cannot_be_said(
    kind: str, more: dict[str, Any], pointer: str
) -> None:
    message = message_of(kind, 1)
    data = canonical.encode({**json.loads(message.data), **more}, depth=2)
    assert fault_of(lambda: encode(seal(data, message.metadata, message.routing))).pointer == pointer


def test_a_task_beyond_the_layers_is_encoded_as_a_union(layered: dict[str, Any]) -> None:
    foreign = decode(layered)
    for more in ({"context": None}, {"context": {"parameters": 5}}, {"constraints": {"required_confidence": 0.5}}):
        foreign.data["task_spec"] = {"action": "a", "input": {}, **more}
        said = encode(seal_foreign(foreign, namespace="lab"))
        assert said["message_type"] == "task_handoff"
        assert decode(said).data["task_spec"]["action"] == "a"
    foreign.data["task_spec"] = {"action": "a", "input": {"action": "b"}}
    assert encode(seal_foreign(foreign, namespace="lab"))["payload"]["task_spec"]["input"] == {"action": "b"}


def test_errors_of_the_pipeline_name_its_members() -> None:
    """A score that is assigned later is judged as well: every reader judges it."""
    review = changed(changed(shown["6.3 review output"], "/verdict", "approved"), "/content_hash", None)
    error = refused(review, defaults=fragment_defaults)
    assert (error.pointer, error.reason) == ("/score", "semantic_violation")
    assert refused(shown["6.3 review output"] | {"trace_id": ""}, defaults=fragment_defaults).pointer == "/trace_id"
    nobody = changed(shown["6.3 review output"], "/sender_agent_id", ABSENT)
    assert refused(nobody).pointer == "/sender_agent_id"


def test_defaults_override_nothing(layered: dict[str, Any]) -> None:
    assert decode(layered, defaults=fragment_defaults) == decode(layered)


# --- carrying ---------------------------------------------------------------------------------------------------------


def test_a_message_that_an_ingress_completes_keeps_its_form(layered: dict[str, Any]) -> None:
    foreign = decode(layered)
    options = msgspec.structs.replace(foreign.options, priority=2)
    said = encode(seal_foreign(msgspec.structs.replace(foreign, options=options), namespace="lab"))
    assert said["routing"]["priority"] == "low"
    assert said["data"] == layered["data"]
