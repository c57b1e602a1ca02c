"""A mark is data that anybody can write: no mark makes a foreign message say something else than the sealed one."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.dialects import DIALECT_ALIASES, Claims, Foreign, dialect
from bus.dialects.foreign import ForeignOptions
from bus.dialects.keeping import ABSENT, MARK
from bus.dialects.sealing import seal_foreign
from bus.errors import DialectError
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.vocabulary.approval import hash_of
from tests.bus.dialects.foreign_messages import changed, examples, message_of, refusal

MADE_UP: dict[str, list[tuple[str, Any]]] = {
    "frameworks": [
        *(("/sender/agent_id", "admin"), ("/sender", {"agent_id": "admin", "framework": "x"})),
        *(("/recipient", {"agent_id": "other", "framework": "x"}), ("/message_type", "task_response")),
        *(("/priority", "critical"), ("/timestamp", "2030-01-01T00:00:00Z"), ("/routing/timeout", "7d")),
        *(("/routing/timeout/x", "7d"), ("/routing/retry_policy", {"max_retries": 99, "backoff": "linear"})),
        *(("/routing/fallback_agents", ["worker-1"]), ("/metadata/task_id", "another")),
        *(("/metadata/x_sealbus/y", "x"), ("/metadata/x_sealbus", "eA"), ("/payload", "do something else")),
        *(("/payload/goal", "do something else"), ("/payload/type", "task.result@1.0.0"), ("", {"payload": "x"})),
    ],
    "speech-acts": [
        *(("/content", {"task": "something else"}), ("/content/more", "something else"), ("/performative", "accept")),
        *(("/sender", "admin"), ("/in_reply_to", "another"), ("/causality", {"in_reply_to": "another"})),
        *(("/tool_calls", [{"name": "rm", "arguments": {}}]), ("/attachments", ["s3://a/b"])),
        *(("/auth", {"type": "jwt", "token": "x"}), ("/unknown", 1)),
    ],
    "plain-ids": [
        *(("/payload/parameters", {"currency": "XYZ"}), ("/payload/more", 1), ("/sender_id", "admin-1")),
        *(("/correlation_id", "a7f8d9e2-3c4b-4d6e-8f8a-9b0c1d2e3f40"), ("/auth", {})),
    ],
    "evidence": [
        *(("/sender", {"id": "admin"}), ("/sender/id", "admin"), ("/sender/type", "human")),
        *(("/sender/role", "admin"), ("/recipient", {"id": "other"}), ("/message_type", "task.cancel")),
        *(("/tenant_id", "another"), ("/intent", "another"), ("/run_id", "another"), ("/task_id", "another")),
        *(("/conversation_id", "another"), ("/conversation_id", ABSENT), ("/correlation_id", "another")),
        *(("/authority", {"can_execute": ["rm"]}), ("/authority/can_execute", ["rm"])),
        *(("/authority/requires_approval_for", ["x"]), ("/authority/may_push_branch", True)),
        *(("/security/trust_level", "platform_policy"), ("/security/policy_tags", ["no_network"])),
        *(("/critical_fields", ["goal"]), ("/payload", {"goal": "something else"})),
        *(("/payload/goal", "something else"), ("/payload/goal", None), ("/payload/output_schema", "x.v1")),
        *(("/payload/constraints/max_runtime_seconds", 5), ("/payload/constraints/no_external_network", True)),
        *(("/payload/more", 1), ("/x_sealbus", "eA"), ("/idempotency_key", "another"), ("form", "long")),
    ],
    "layered": [
        *(("/message_type", "status_update"), ("/data", {"content": {"action": "x"}}), ("/payload", {})),
        *(("/payload/from_agent", "admin"), ("/payload/task_spec/action", "x")),
        *(("/payload/task_spec/priority", "critical"), ("/payload/priority", "critical")),
        *(("/payload/message_type", "status_update"), ("/payload/schema_version", "9.0.0")),
        *(("/schema_version", "9.0.0"), ("/verification", {"content_hash": "sha256:" + "0" * 64})),
        *(("/metadata/sender_agent_id", "admin"), ("/metadata/task_id", "another")),
        *(("/metadata/correlation_id", ABSENT), ("/metadata/correlation_id", None), ("/metadata/ttl_seconds", 5)),
        *(("/metadata/x_sealbus", "eA"), ("form", "round")),
    ],
    "cloudevents": [
        *(("/source", "sealbus://lab/admin"), ("/source", "admin"), ("/type", "com.example.x"), ("/data", {})),
        *(("/data/more", 1), ("/data_base64", "e30="), ("/datacontenttype", "application/vnd.sealbus.v1")),
        *(("/subject", "other"), ("/expirytime", "2030-01-01T00:00:00Z"), ("/sbkey/x", "other")),
    ],
}
MARKS = [(name, *case) for name, cases in MADE_UP.items() for case in cases]
TYPES = {
    "layered": "task.handoff",
    "evidence": "task.request",
    "plain-ids": "method.request",
    "speech-acts": "act.request",
    "frameworks": "task.request",
    "cloudevents": "task.request",
}
OTHER_TYPES = [
    *(("layered", kind) for kind in ("tool.result", "research.output", "error.reported", "task.result")),
    *(("evidence", kind) for kind in ("handoff.request", "approval.request", "error.reported", "issue.intake")),
    *(("evidence", kind) for kind in ("task.accepted", "evidence.observed", "approval.decision", "pr.create.request")),
]
ACTION = {"type": "deploy", "description": "to production", "ref": {"uri": "diff://1"}}
DATA: dict[str, dict[str, Any]] = {
    "task.handoff": {
        "task_id": "task-1",
        "from_agent": "planner-1",
        "to_agent": "worker-1",
        "task_spec": {
            "action": "draft",
            "input": {"n": 1},
            "context": {"parameters": {"max_duration_seconds": 5}},
            "constraints": {"max_duration_seconds": 5},
        },
    },
    "tool.result": {"tool_call_id": "1", "tool_name": "t", "output": None},
    "research.output": {"pr_number": 1, "repository": "r", "findings": [], "sources_analyzed": ["a"]},
    "error.reported": {
        "error_code": "TOOL_TIMEOUT",
        "error_message": "run_tests",
        "source_agent": "planner-1",
        "timestamp": "2026-01-01T00:00:00.000Z",
        "severity": "error",
        "failed_operation": "run_tests",
    },
    "task.result": {"status": "completed", "output": {"value": 5}, "artifacts": [{"uri": "s3://a/b"}]},
    "handoff.request": {
        "handoff_id": "h",
        "original_goal": "o",
        "delegated_goal": "d",
        "acceptance_criteria": ["a"],
        "return_contract": {"expected_message_type": "patch.proposal", "schema": "patch.proposal@1"},
        "scope": {"include": ["src/**"]},
    },
    "approval.request": {
        "approval_id": "7e1a6b3e-3a74-4c7a-8c6f-2e21b8f59f44",
        "action": ACTION,
        "action_hash": hash_of(ACTION),
        "reason": "to production",
        "risk_assessment": {"risk_level": "low"},
    },
    "approval.decision": {
        "approval_id": "workflow-7",
        "decision": "approve",
        "approved_action_hash": hash_of(ACTION),
        "reviewer": {"type": "human", "id": "planner-1"},
    },
    "issue.intake": {
        "issue_ref": {"uri": "github://1"},
        "title": "t",
        "user_report": {
            "content_type": "user_report",
            "source": "github://1",
            "trust_level": "untrusted_content",
            "content": "it fails",
        },
        "definition_of_done": ["d"],
    },
    "task.accepted": {"understood_goal": "g"},
    "evidence.observed": {"claim": "c", "evidence": [{"type": "log", "ref": {"uri": "a://b"}, "confidence": 0.9}]},
    "pr.create.request": {
        "repository": "r",
        "base_branch": "main",
        "head_branch": "fix",
        "title": "t",
        "body_ref": {"uri": "a://b"},
        "diff_ref": {"uri": "a://c"},
    },
    "task.request": {"goal": "g", "inputs": {"n": 1}},
    "act.request": {"content": {"task": "t", "n": 1}},
    "method.request": {"method": "get_price", "parameters": {"n": 1}},
}


def mark_of(name: str) -> str:
    """What a mark calls the dialect: its digits, if it has any."""
    return next((digits for digits, alias in DIALECT_ALIASES.items() if alias == name), name)


def said_with(name: str, mark: Any, other: str = "") -> dict[str, Any]:
    """What a dialect says of a plain message with this mark."""
    kind = other or TYPES[name]
    data = DATA[kind] if mark is None else {**DATA[kind], MARK: mark}
    options = ForeignOptions(
        message_id="7e1a6b3e-3a74-4c7a-8c6f-2e21b8f59f44",
        to=Agent(id="worker-1"),
        correlation_id="workflow-7",
        task_id="task-1",
        idempotency_key="key-1" if kind == "pr.create.request" else None,
        expires_at_ms=1_767_225_690_000,
    )
    claims = Claims(sender=Agent(id="planner-1"), sent_at_ms=1_767_225_600_000)
    version = "2.0.0" if kind == "approval.request" else "1.0.0"
    foreign = Foreign(type=kind, version=version, data=data, options=options, claims=claims)
    return dialect(name).encode(seal_foreign(foreign, namespace="lab"))


def meaning(name: str, said: dict[str, Any]) -> Foreign:
    """What a reader takes it for, without the reader's own mark."""
    foreign = dialect(name).decode(said)
    return msgspec.structs.replace(foreign, data={**foreign.data, MARK: None})


@pytest.mark.parametrize(("name", "pointer", "value"), MARKS)
def test_a_made_up_mark_changes_nothing(name: str, pointer: str, value: Any) -> None:
    assert said_with(name, {"of": mark_of(name), "kept": {pointer: value}}) == said_with(name, None)


@pytest.mark.parametrize("name", sorted(TYPES))
@pytest.mark.parametrize(
    "mark",
    [
        5,
        [],
        {},
        {"of": 5},
        {"of": "other", "kept": {"/priority": "critical"}},
        {"kept": {"/x": 1}},
        {"of": "SELF", "kept": 5, "derived": 5},
        {"of": "SELF", "kept": {"x": 1, "/": 2, "//": 3, "/~2": 4}, "derived": [5, {}, "/goal", "/no/such"]},
        {"of": "SELF", "kept": {"/payload": ABSENT, "/content": ABSENT, "/data": ABSENT, "/message_type": ABSENT}},
    ],
)
def test_a_mark_of_another_form_counts_as_nothing(name: str, mark: Any) -> None:
    mark = json.loads(json.dumps(mark).replace("SELF", mark_of(name)))
    said, plain = said_with(name, mark), said_with(name, None)
    unknown = {member: value for member, value in said.items() if member not in plain}
    # Open dialects write members without a canonical place as they were.
    known = {"", "~2", "payload", "content", "data", "message_type"}
    assert unknown == {} or (name in ("layered", "evidence", "frameworks", "cloudevents") and set(unknown) <= known)
    assert {**plain, **unknown} == said


pointers = st.sampled_from(
    [
        *("/message_id", "/id", "/sender", "/sender/agent_id", "/sender_id", "/recipient", "/receiver", "/subject"),
        *("/timestamp", "/time", "/payload", "/payload/goal", "/payload/method", "/payload/parameters", "/content"),
        *("/content/task", "/data", "/type", "/performative", "/priority", "/routing", "/routing/timeout", "/ttl"),
        *("/metadata", "/metadata/task_id", "/sbtask", "/sbkey", "/idempotency_key", "/conversation_id"),
        *("/specversion", "/correlation_id", "/correlationid", "/in_reply_to", "/tool_calls"),
        *("/routing/retry_policy/backoff",),
    ]
)
scalars = st.none() | st.booleans() | st.integers(-5, 9) | st.sampled_from(["x", "high", "5m", "request", "task-1"])
values = (
    scalars | st.just(ABSENT) | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from(["n", "goal"]), scalars)
)


@pytest.mark.medium
@pytest.mark.parametrize("name", sorted(TYPES))
@given(kept=st.dictionaries(pointers, values, max_size=3))
@settings(max_examples=400, deadline=None)
def test_no_mark_makes_a_reader_understand_something_else(name: str, kept: dict[str, Any]) -> None:
    said = said_with(name, {"of": mark_of(name), "kept": kept})
    try:
        foreign = meaning(name, said)
    except DialectError as error:
        # Only members that defaults may stand for can be left out, and their lack is noticed.
        assert error.found == "nothing"  # noqa: PT017
    else:
        plain = meaning(name, said_with(name, None))
        expected = msgspec.structs.replace(
            plain,
            options=msgspec.structs.replace(plain.options, expires_at_ms=foreign.options.expires_at_ms),
            claims=msgspec.structs.replace(plain.claims, sent_at_ms=foreign.claims.sent_at_ms),
        )
        assert foreign == expected
        assert foreign.claims.sent_at_ms in (plain.claims.sent_at_ms, None)
        assert foreign.options.expires_at_ms in (plain.options.expires_at_ms, None)


pointers_of_two = st.sampled_from(
    [
        *("form", "floats", "/form", "/message_id", "/timestamp", "/sender", "/sender/type", "/recipient"),
        *("/recipient/id", "/schema_version", "/run_id", "/task_id", "/conversation_id", "/correlation_id", "/intent"),
        *("/tenant_id", "/authority", "/authority/can_write", "/authority/can_execute", "/authority/cannot_execute"),
        *("/security", "/authority/requires_approval_for", "/authority/requires_human_approval"),
        *("/security/trust_level", "/security/policy_tags", "/critical_fields", "/trace_id", "/span_id"),
        *("/idempotency_key", "/sequence_number", "/payload/authority", "/payload/authority/may_modify_files"),
        *("/payload/authority/may_push_branch", "/payload/authority/can_write", "/payload/goal"),
        *("/payload/output_schema", "/payload/return_contract", "/payload/budget", "/payload/constraints"),
        *("/payload/constraints/max_runtime_seconds", "/payload/accepted", "/payload/constraints/no_external_network"),
        *("/payload/action/diff_ref", "/payload/action/ref", "/payload/scope", "/payload/context_packet"),
        *("/payload/severity", "/payload/retryable", "/payload/error_message", "/payload/source_agent"),
        *("/payload/timestamp", "/payload/user_report", "/payload/idempotency_key", "/payload/repo"),
        *("/payload/evidence/0/confidence", "/payload/evidence/0/ref", "/payload/approval_id", "/payload/x_dialect"),
        *("/payload/task_spec", "/payload/task_spec/priority", "/payload/priority", "/payload/message_type"),
        *("/payload/schema_version", "/payload/output", "/payload/error", "/from", "/to", "/metadata"),
        *("/metadata/message_id", "/metadata/timestamp", "/metadata/task_id", "/metadata/correlation_id"),
        *("/metadata/trace_id", "/metadata/sender_agent_id", "/metadata/receiver_agent_id", "/metadata/ttl_seconds"),
        *("/metadata/x_sealbus", "/verification", "/verification/content_hash", "/verification/proof_chain"),
        *("/verification/schema_version", "/routing", "/routing/priority", "/routing/ttl", "/routing/max_retries"),
        *("/data", "/data/content", "/data/parameters", "/data/results", "/data/artifacts", "/message_type"),
        *("/payload", "/content_hash", "/proof_chain", "/sender_agent_id", "/findings", "/keywords", "/x_sealbus"),
        *("/goal",),
    ]
)
values_of_two = values | st.sampled_from(
    [
        *("short", "layered", "bare", "union", "human", "platform_policy", "recoverable", "critical", "x.v1"),
        *("planner-1", "workflow-7", "task-1", "a://b", "run_tests", "9.9.9", "1.0.0", "1" * 32, "2" * 16),
        *("status_update", "sha256:" + "0" * 64, ["src/**"], ["**"], ["run_tests"], ["no_network"], [], {}, True),
        *(False, None, {"uri": "a://b"}, {"may_push_branch": True}, {"x_sealbus": "eA"}, {"": "1.0"}, 60, 90, 0.85),
        *("high", [{"agent_id": "a", "content_hash": "sha256:0", "timestamp": "2026-01-01T00:00:00Z"}]),
    ]
)


@pytest.mark.medium
@pytest.mark.parametrize(
    "case", [("layered", "task.handoff"), ("evidence", "task.request"), *OTHER_TYPES], ids=" ".join
)
@given(kept=st.dictionaries(pointers_of_two, values_of_two, max_size=4))
@settings(max_examples=300, deadline=None)
def test_no_mark_makes_a_reader_of_000_and_001_understand_something_else(
    case: tuple[str, str], kept: dict[str, Any]
) -> None:
    name, kind = case
    said = said_with(name, {"of": mark_of(name), "kept": kept}, kind)
    try:
        foreign = meaning(name, said)
    except DialectError as error:
        # Only members that defaults may stand for can be left out, and their lack is noticed.
        assert error.found == "nothing"  # noqa: PT017
        return
    plain = meaning(name, said_with(name, None, kind))
    # What the format does not require can be left out, and says nothing then. What it shows of itself are claims.
    assert without_what_may_lack(name, foreign, plain) == without_what_may_lack(name, plain, plain)


def without_what_may_lack(name: str, foreign: Foreign, plain: Foreign) -> Foreign:
    options, claims = foreign.options, foreign.claims
    for member, whole in (("message_id", plain.options), ("expires_at_ms", plain.options), ("to", plain.options)):
        given = getattr(options, member)
        assert given in (getattr(whole, member), None) or member == "expires_at_ms"
        options = msgspec.structs.replace(options, **{member: None})
    assert claims.sent_at_ms in (plain.claims.sent_at_ms, None)
    assert claims.namespace in (plain.claims.namespace, None)
    if name == "layered":
        # Without metadata, a message belongs to its task or to itself.
        own = (plain.options.conversation_id, plain.options.task_id, plain.options.message_id, None)
        assert options.conversation_id in own
        assert options.task_id in (plain.options.task_id, plain.options.message_id, None)
        options = msgspec.structs.replace(options, conversation_id=None, task_id=None)
        claims = msgspec.structs.replace(claims, sender=Agent(id=claims.sender.id if claims.sender else None))
    claims = msgspec.structs.replace(claims, sent_at_ms=None, namespace=None, cause_id=None, proofs={})
    return msgspec.structs.replace(foreign, options=options, claims=claims)


def test_a_mark_shows_where_a_message_came_from() -> None:
    assert dialect("speech-acts").decode(examples("speech-acts")["inform"]).data[MARK]["of"] == "003"


def test_another_dialects_mark_is_not_passed_on() -> None:
    message: Message = seal_foreign(
        dialect("frameworks").decode(examples("frameworks")["task request"]), namespace="lab"
    )
    for name in ("evidence", "speech-acts", "frameworks", "cloudevents"):
        said = dialect(name).encode(
            seal_foreign(
                dialect("frameworks").decode(examples("frameworks")["task request"]), namespace="lab", message_id="x"
            )
            if name != "speech-acts"
            else with_uuid(message)
        )
        assert MARK not in json.dumps(said)


def with_uuid(message: Message) -> Message:
    foreign = dialect("cloudevents").decode(dialect("cloudevents").encode(message))
    options = msgspec.structs.replace(foreign.options, message_id="7e1a6b3e-3a74-4c7a-8c6f-2e21b8f59f44")
    return seal_foreign(msgspec.structs.replace(foreign, options=options), namespace="lab")


@pytest.mark.parametrize(
    ("name", "example", "pointer"),
    [
        ("layered", "2 combined", "/metadata/diagnostics"),
        ("evidence", "4 envelope", "/diagnostics"),
        ("frameworks", "task request", "/metadata/diagnostics"),
    ],
)
def test_kept_foreign_values_are_limited_in_size(name: str, example: str, pointer: str) -> None:
    message = changed(changed(examples(name)[example], pointer, "x" * 33_000), "/verification", ABSENT)
    error = refusal(name)(message if name != "evidence" else {**message, "payload": {"goal": "g"}})
    assert (error.pointer, "at most 32768" in error.expected) == (pointer, True)


@pytest.mark.parametrize(
    ("name", "kind", "changes"),
    [
        ("layered", "tool.result", {"/schema_version": "1.0.1", "/more": 1}),
        ("layered", "research.output", {"/schema_version": "1.0.1", "/more": 1}),
        ("evidence", "handoff.request", {"/intent": "another", "/payload/original_goal": "another one", "/more": 1}),
        ("frameworks", "task.request", {"/priority": "high", "/payload/more": 1}),
    ],
)
def test_a_carried_message_and_the_one_around_it_are_one(name: str, kind: str, changes: dict[str, Any]) -> None:
    codec, refused = dialect(name), refusal(name)
    said, other = (codec.encode(message_of(kind, 1, message_id=text), carry=True) for text in ("m-1", "other"))
    assert codec.decode(said).carried is not None
    place = "/x_sealbus" if name == "evidence" else "/metadata/x_sealbus"
    whole = other["x_sealbus"] if name == "evidence" else other["metadata"]["x_sealbus"]
    for pointer, value in {**changes, place: whole}.items():
        error = refused(changed(said, pointer, value))
        assert (error.pointer, error.reason) == (place, "x_sealbus_mismatch")
    for value in (5, said.get("message_id", "no base64!")):
        assert refused(changed(said, place, value)).pointer == place
