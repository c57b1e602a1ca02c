"""Every field that the five foreign formats name has its place: in the data of a type, in the envelope, or in a codec.

The list is ours, read from the formats' own texts. A place is where a reader finds the field after it was decoded;
`row` is the row of the dialects' contract that says what becomes of a member that has no place of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from bus import dialects
from bus.payloads.known_fields import knows_field
from bus.payloads.payload_types import payload_type
from bus.vocabulary import BUILT_IN, ApprovalRequest1, ReviewResult1
from bus.vocabulary.error_codes import ERROR_CODES, lookup

DIALECTS = (Path(dialects.__file__).parent / "DIALECTS.md").read_text("utf-8")
OLDER = {"approval.request@1": ApprovalRequest1, "review.result@1": ReviewResult1}
NUMBERS = ("000", "001", "002", "003", "004")


def fields(kind: str, names: str) -> dict[str, str]:
    """Fields that have the same names here, as pointers into the data of *kind*."""
    return {name: f"{kind} /{name}" for name in names.split()}


# Format -> what it names -> places: "<type> /pointer", "metadata/...", "routing/...", "row <member>".
FIELDS: dict[str, dict[str, dict[str, str]]] = {
    "000": {
        "data": {
            "content": "task.handoff /task_spec/input",
            "parameters": "task.handoff /task_spec/context/parameters",
            "results": "task.result /output",
            "artifacts": "task.result /artifacts",
        },
        "metadata": {
            "message_id": "metadata/message_id",
            "task_id": "metadata/task_id",
            "correlation_id": "metadata/conversation_id",
            "trace_id": "metadata/conversation_id",
            "sender_agent_id": "metadata/sender/id",
            "sender_agent_version": "metadata/sender/version",
            "receiver_agent_id": "metadata/recipient/id",
            "timestamp": "metadata/timestamp",
            "ttl_seconds": "routing/expires_at",
            "sender_host": "row sender_host",
        },
        "verification": {
            "schema_version": "row /verification/schema_version",
            "content_hash": "row /verification/content_hash",
            "content_hash_algorithm": "row content_hash_algorithm",
            "agent_signature": "row /verification/agent_signature",
            "signature": "row signature",
            "proof_chain": "row /verification/proof_chain",
            "proof_chain.agent_id": "row /verification/proof_chain",
            "proof_chain.content_hash": "row /verification/proof_chain",
            "proof_chain.timestamp": "row /verification/proof_chain",
        },
        "routing": {
            "priority": "routing/priority",
            "ttl": "routing/expires_at",
            "max_retries": "routing/retry/max_attempts",
            "retry_backoff": "routing/retry/backoff",
            "idempotency_key": "routing/idempotency_key",
            "reply_to": "row /routing/reply_to",
            "dead_letter_queue": "row dead_letter_queue",
        },
        "envelope": {
            "message_type": "metadata/message_type",
            "payload": "row /payload/*",
            "metadata": "row /metadata/*",
        },
        "task_handoff": fields(
            "task.handoff",
            "task_id from_agent to_agent task_spec task_spec/action task_spec/input task_spec/context "
            "task_spec/constraints task_spec/constraints/max_duration_seconds "
            "task_spec/constraints/required_confidence priority",
        ),
        "tool_result": fields(
            "tool.result",
            "tool_call_id tool_name output error error/code error/message error/details duration_ms is_truncated",
        ),
        "approval_request": {
            **fields(
                "approval.request@1",
                "request_id action resource resource/type resource/id resource/summary reason context timeout_seconds "
                "risk_level",
            ),
            "request_id of 2.0.0": "approval.request /approval_id",
        },
        "status_update": fields(
            "status.update",
            "task_id new_status previous_status progress_pct message timestamp next_expected_status",
        ),
        "error_report": fields(
            "error.reported",
            "error_code error_message severity source_agent source_task_id stack_trace recovery_hint timestamp",
        ),
        "research_output": fields(
            "research.output",
            "pr_number repository findings findings/0/file findings/0/line_range findings/0/issue findings/0/severity "
            "findings/0/suggestion sources_analyzed gaps keywords",
        ),
        "draft_output": fields(
            "draft.output",
            "pr_number title summary sections sections/0/heading sections/0/content sections/0/findings_referenced "
            "word_count requires_human_review",
        ),
        "review_output": fields(
            "review.output",
            "pr_number verdict score issues issues/0/severity issues/0/description issues/0/location suggestions "
            "reviewer_notes",
        ),
        "the example of a request for research": fields(
            "research.request",
            "repository pr_number source_branch target_branch changed_files author review_depth focus_areas "
            "max_files_to_review",
        ),
    },
    "001": {
        "envelope": {
            **{
                name: f"metadata/{name}"
                for name in (
                    *("message_id", "run_id", "conversation_id", "task_id", "parent_task_id", "correlation_id"),
                    *("causation_id", "timestamp", "sender", "recipient", "message_type", "intent", "authority"),
                    *("security", "critical_fields"),
                )
            },
            "schema_version": "row /schema_version",
            "sender.type": "metadata/sender/type",
            "sender.id": "metadata/sender/id",
            "sender.role": "metadata/sender/role",
            "sender.version": "metadata/sender/version",
            "tenant_id": "metadata/namespace",
            "trace_id": "metadata/traceparent",
            "span_id": "metadata/traceparent",
            "sequence_number": "metadata/sequence",
            "idempotency_key": "routing/idempotency_key",
            "payload": "row /payload",
            "short form: type": "row form",
            "short form: from": "row form",
            "short form: to": "row form",
        },
        "authority": {
            **{
                name: f"metadata/authority/{name}"
                for name in (
                    *("decision_right", "max_side_effect", "can_read", "can_write", "can_execute", "cannot_execute"),
                    "requires_human_approval",
                )
            },
            "requires_approval_for": "metadata/authority/requires_human_approval",
            "may_modify_files": "metadata/authority/can_write",
            "may_run_tests": "metadata/authority/can_execute",
            "may_push_branch": "metadata/authority/cannot_execute",
            "may_open_pr": "metadata/authority/cannot_execute",
        },
        "security": {
            name: f"metadata/security/{name}"
            for name in ("trust_level", "contains_untrusted_content", "data_classification", "policy_tags")
        },
        "task.request": {
            **fields(
                "task.request",
                "goal scope scope/include scope/exclude inputs acceptance_criteria budget budget/max_tool_calls "
                "budget/max_wall_clock_seconds budget/max_tokens constraints",
            ),
            "output_schema": "task.request /return_contract",
            "constraints.max_runtime_seconds": "task.request /budget/max_wall_clock_seconds",
            "constraints.no_external_network": "metadata/security/policy_tags",
            "inputs.failing_test": "analysis.request /failing_test",
            "inputs.error_output_ref": "analysis.request /error_output_ref",
        },
        "task.accepted": {
            **fields("task.accepted", "understood_goal assumptions planned_steps"),
            "accepted": "row accepted",
        },
        "task.rejected": fields("task.rejected", "reason_code explanation suggested_route"),
        "evidence.observed": fields(
            "evidence.observed",
            "claim evidence evidence/0/type evidence/0/ref evidence/0/excerpt evidence/0/confidence limitations",
        ),
        "task.result": fields(
            "task.result",
            "status summary findings findings/0/type findings/0/file findings/0/line findings/0/claim "
            "findings/0/evidence_refs recommended_next_task recommended_next_task/agent_role "
            "recommended_next_task/goal",
        ),
        "review.result": {
            **fields(
                "review.result",
                "verdict risk_level items items/0/severity items/0/category items/0/file items/0/line items/0/finding "
                "items/0/evidence_refs items/0/required_action items/0/blocking items/0/confidence required_actions "
                "required_actions/0/type required_actions/0/reason required_actions/0/blocking",
            ),
            "comments": "review.result@1 /comments",
        },
        "approval.request": {
            **fields(
                "approval.request",
                "action action/type action/description action_hash risk_assessment risk_assessment/risk_level "
                "risk_assessment/blast_radius risk_assessment/reversibility evidence_refs approval_options",
            ),
            "action.diff_ref": "approval.request /action/ref",
        },
        "approval.decision": fields(
            "approval.decision", "decision approved_action_hash reviewer reviewer/type reviewer/id conditions"
        ),
        "error.reported": {
            **fields(
                "error.reported", "error_code severity failed_operation tool_call_id retryable observed_output_ref"
            ),
            "suggested_recovery": "error.reported /recovery_hint",
        },
        "checkpoint.created": fields(
            "checkpoint.created", "state_ref completed_tasks pending_tasks resume_instruction"
        ),
        "handoff.request": {
            **fields(
                "handoff.request",
                "handoff_id delegated_role original_goal delegated_goal scope acceptance_criteria return_contract "
                "return_contract/expected_message_type return_contract/schema "
                "changed_files diff_ref risk_assumptions allowed_tools forbidden_actions",
            ),
            "scope.allowed_files": "handoff.request /scope/include",
            "scope.forbidden_files": "handoff.request /scope/exclude",
            "context_packet": "handoff.request /context",
        },
        "handoff.accepted": {
            **fields("handoff.accepted", "handoff_id clarified_scope expected_artifacts"),
            "accepted": "row accepted",
        },
        "handoff.completed": fields(
            "handoff.completed", "handoff_id result_ref status summary evidence_refs remaining_risks"
        ),
        "capability.advertisement": fields(
            "capability.advertisement",
            "agent_id supported_message_versions supported_payload_schemas critical_fields",
        ),
        "content": {
            **fields(
                "evidence.observed",
                "evidence/0/content/content_type evidence/0/content/source evidence/0/content/trust_level "
                "evidence/0/content/instructional_authority evidence/0/content/content",
            ),
            "type": "row evidence",
        },
        "claim": fields("claim.made", "claim confidence evidence_refs reasoning_summary limitations"),
        "level of evidence": fields("claim.made", "level"),
        "decision": fields("decision.made", "kind decision"),
        "issue.intake": fields(
            "issue.intake", "issue_ref title user_report expected_behavior constraints definition_of_done"
        ),
        "repo.map.result": fields(
            "repo.map.result",
            "entry_points relevant_modules candidate_files candidate_files/0/path candidate_files/0/reason "
            "candidate_files/0/confidence test_targets build_commands",
        ),
        "patch.proposal": fields(
            "patch.proposal",
            "summary diff_ref changed_files changed_files/0/path changed_files/0/change_type changed_files/0/reason "
            "tests tests/0/command tests/0/status tests/0/artifact_ref risks risks/0/risk risks/0/severity "
            "risks/0/mitigation",
        ),
        "pr.create.request": {
            **fields("pr.create.request", "base_branch head_branch title body_ref diff_ref evidence_refs"),
            "repo": "pr.create.request /repository",
            "idempotency_key": "routing/idempotency_key",
        },
        "what is asked for and not shown": {
            "nonce": "metadata/message_id",
            "event version": "event.observed /event_version",
            "optimistic concurrency": "blackboard.write /expected_version",
            "garbage collection": "blackboard.write /keep_s",
            "provenance": "blackboard.write /evidence_refs",
            "side effects": "task.result /effects",
        },
    },
    "002": {
        "envelope": {
            "message_id": "metadata/message_id",
            "message_type": "metadata/message_type",
            "sender_id": "metadata/sender/id",
            "recipient_id": "metadata/recipient/id",
            "timestamp": "metadata/timestamp",
            "payload": "row /payload",
            "correlation_id": "metadata/correlation_id",
            "auth": "row /auth",
        },
        "auth": dict.fromkeys(("agent_id", "timestamp", "nonce", "signature", "public_key_fingerprint"), "row /auth"),
        "request": fields("method.request", "method parameters"),
        "response": fields("method.response", "status data error error/code error/message error/details"),
        "handshake": {
            **fields(
                "agent.handshake",
                "agent_card agent_card/agent_id agent_card/name agent_card/version agent_card/description "
                "agent_card/capabilities agent_card/supported_protocols agent_card/metadata agent_card/schema_versions",
            ),
        },
        "error": {
            "error": "error.reported /error_code",
            "code": "error.reported /error_code",
            "message": "error.reported /error_message",
            "details": "error.reported /details",
            "retry_after": "error.reported /retry_after_s",
            "documentation_url": "error.reported /documentation_url",
            "limit": "error.reported /details/limit",
            "window": "error.reported /details/window",
            "reset_at": "error.reported /details/reset_at",
        },
        "discover_agents": fields("agent.discover", "capabilities filters filters/status filters/max_results"),
        "agent_announcement": fields(
            "agent.announcement",
            "agents agents/0/agent_id agents/0/name agents/0/capabilities agents/0/status agents/0/endpoint "
            "agents/0/last_heartbeat total_count query_time_ms",
        ),
    },
    "003": {
        "envelope": {
            "message_id": "metadata/message_id",
            "conversation_id": "metadata/conversation_id",
            "sender": "metadata/sender/id",
            "receiver": "metadata/recipient/id",
            "timestamp": "metadata/timestamp",
            "performative": "metadata/performative",
            "content": "act.request /content",
            "reply_to": "row /reply_to",
            "causality": "row /causality",
            "in_reply_to": "row /in_reply_to",
            "ttl": "routing/expires_at",
            "priority": "routing/priority",
            "schema_version": "row /schema_version",
            "auth": "row /auth",
            "auth.type": "row /auth",
            "auth.token": "row /auth",
            "signature": "row /signature",
            "idempotency_key": "routing/idempotency_key",
            "tool_calls": "act.request /tool_calls",
            "name": "act.request /tool_calls/0/name",
            "arguments": "act.request /tool_calls/0/arguments",
            "attachments": "act.request /attachments",
        },
        "error": {
            "code": "error.reported /error_class",
            "message": "error.reported /error_message",
            "retry_after_seconds": "error.reported /retry_after_s",
        },
        "what is asked for and forbidden": {
            "max_hops": "routing/max_hops",
            "conclude": "act.inform /concludes",
            "sequence": "metadata/sequence",
            "nonce": "metadata/message_id",
        },
        "workflow and cost": {
            "workflow": "workflow.start /definition",
            "variables": "workflow.start /variables",
            "t_in": "usage.reported /input_tokens",
            "t_out": "usage.reported /output_tokens",
            "cost": "usage.reported /cost",
            "timebox_min": "task.request /budget/max_wall_clock_seconds",
            "task": "task.request /task_type",
            "constraints": "task.request /constraints",
            "artifacts": "task.result /artifacts",
        },
    },
    "004": {
        "envelope": {
            "message_id": "metadata/message_id",
            "timestamp": "metadata/timestamp",
            "sender": "metadata/sender",
            "recipient": "metadata/recipient",
            "agent_id": "metadata/sender/id",
            "framework": "metadata/sender/framework",
            "session_id": "metadata/conversation_id",
            "message_type": "metadata/message_type",
            "priority": "routing/priority",
            "payload": "row task_request",
            "routing": "row /routing/timeout",
            "metadata": "row /metadata/session_trace",
            "timeout": "routing/expires_at",
            "retry_policy": "routing/retry",
            "max_retries": "routing/retry/max_attempts",
            "backoff": "routing/retry/backoff",
            "fallback_agents": "row /routing/fallback_agents",
            "delivery_mode": "row /routing/delivery_mode",
            "task_id": "metadata/task_id",
            "session_trace": "row /metadata/session_trace",
            "diagnostics": "row diagnostics",
            "retryable": "error.reported /retryable",
        },
        "task_request": {
            **fields("task.request", "task_type acceptance_criteria"),
            "files": "task.request /inputs/files",
        },
        "task_response": {
            **fields("task.result", "status summary findings"),
            "findings.message": "task.result /findings/0/claim",
        },
        "status_update": {
            **fields("status.update", "phase notes task_id"),
            "percent_complete": "status.update /progress_pct",
        },
        "error": {
            "code": "error.reported /error_code",
            "message": "error.reported /error_message",
            "details": "error.reported /details",
        },
        "heartbeat": {**fields("agent.heartbeat", "status active_tasks cpu"), "memory": "agent.heartbeat /memory_mb"},
    },
}
ENVELOPE_OF_ALL = BUILT_IN.get("agent.heartbeat")
SECTIONS = {number: str(index) for index, number in enumerate(NUMBERS, 2)}
CASES = [
    pytest.param(number, place, id=f"{number} {group} {name}")
    for number, groups in FIELDS.items()
    for group, names in groups.items()
    for name, place in names.items()
]


@pytest.mark.parametrize(("number", "place"), CASES)
def test_a_field_has_its_place(number: str, place: str) -> None:
    kind, _, pointer = place.partition(" ")
    if kind == "row":
        section = re.search(rf"^## {SECTIONS[number]}\. .*?(?=^## )", DIALECTS, re.MULTILINE | re.DOTALL)
        assert section is not None
        assert re.search(rf"{re.escape(pointer)}(?![a-z_])", section[0])
    elif not pointer:
        assert ENVELOPE_OF_ALL is not None
        assert knows_field(ENVELOPE_OF_ALL.cls, f"/{place}")
    else:
        known = payload_type(OLDER[kind]) if kind in OLDER else BUILT_IN.get(kind)
        assert known is not None
        assert knows_field(known.described, f"/data{pointer}")


# --- the list is complete ---------------------------------------------------------------------------------------------


def test_the_list_is_long_enough_to_be_all() -> None:
    counts = {number: sum(map(len, groups.values())) for number, groups in FIELDS.items()}
    assert counts["000"] > 110
    assert counts["001"] > 210
    assert counts["002"] > 50
    assert counts["003"] > 35
    assert counts["004"] > 38


# --- closed sets ------------------------------------------------------------------------------------------------------

VALUES = [
    ("task.handoff", "/priority", "low normal high critical"),
    (
        "status.update",
        "/new_status",
        "pending running waiting_for_approval waiting_for_tool completed failed cancelled timed_out",
    ),
    ("error.reported", "/severity", "warning error critical"),
    ("approval.request", "/risk_assessment/risk_level", "low medium high"),
    ("review.output", "/verdict", "approved changes_requested needs_discussion"),
    ("review.result", "/verdict", "approved changes_requested needs_discussion"),
    ("research.output", "/findings/0/severity", "low medium high critical"),
    ("approval.request", "/approval_options/0", "approve reject request_changes"),
    ("patch.proposal", "/changed_files/0/change_type", "added modified deleted"),
    ("patch.proposal", "/tests/0/status", "passed failed skipped not_run"),
    ("patch.proposal", "/risks/0/severity", "low medium high critical"),
    ("decision.made", "/kind", "recommendation selected_option authorization execution_result"),
    ("claim.made", "/level", "strong medium weak invalid"),
    ("method.response", "/status", "success error"),
    ("agent.discover", "/filters/status", "healthy unhealthy all"),
    ("agent.heartbeat", "/status", "healthy"),
    ("task.result", "/status", "completed failed cancelled"),
]


@pytest.mark.parametrize(("kind", "pointer", "words"), VALUES, ids=[f"{kind} {pointer}" for kind, pointer, _ in VALUES])
def test_a_closed_set_of_a_format_is_one_here(kind: str, pointer: str, words: str) -> None:
    known = BUILT_IN.get(kind)
    assert known is not None
    values = literals(msgspec.inspect.type_info(known.described), pointer.split("/")[1:])
    assert set(words.split()) <= values


def literals(kind: msgspec.inspect.Type, steps: list[str]) -> set[str]:
    """The words that are allowed at the place that *steps* lead to."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return literals(kind.type, steps)
    if isinstance(kind, msgspec.inspect.UnionType):
        return {word for part in kind.types for word in literals(part, steps)}
    if isinstance(kind, msgspec.inspect.LiteralType):
        return set(map(str, kind.values))
    if isinstance(kind, msgspec.inspect.StructType) and steps:
        below = next(field.type for field in kind.fields if field.encode_name == steps[0])
        return literals(below, steps[1:])
    if isinstance(kind, msgspec.inspect.VarTupleType):
        return literals(kind.item_type, steps[1:])
    return set()


CODES = (
    *("TOOL_TIMEOUT", "UPSTREAM_UNREACHABLE", "SCHEMA_VALIDATION_FAILED", "LLM_RATE_LIMITED", "INVALID_TASK_SPEC"),
    *("OUT_OF_AUTHORITY", "INVALID_MESSAGE", "VALIDATION_FAILED", "AUTHENTICATION_FAILED", "FORBIDDEN", "NOT_FOUND"),
    *("METHOD_NOT_ALLOWED", "RATE_LIMIT_EXCEEDED", "PAYLOAD_TOO_LARGE", "INTERNAL_ERROR", "SERVICE_UNAVAILABLE"),
    *("TIMEOUT", "INVALID_CURRENCY", "RATE_LIMIT", "UNKNOWN_TASK", "INVALID_TRANSITION", "TRANSIENT", "PROCESS_EXIT"),
)


@pytest.mark.parametrize("code", CODES)
def test_an_error_code_of_a_format_has_a_class(code: str) -> None:
    assert code in ERROR_CODES
    assert lookup(code).error_class.startswith("error.")


def test_every_kind_of_message_of_a_format_is_a_type() -> None:
    lifecycle = (
        *("issue.intake", "repo.map.request", "repo.map.result", "analysis.request", "analysis.result"),
        *("patch.proposal", "test.execution.request", "test.execution.result", "review.request", "review.result"),
        *("security.review.result", "approval.request", "branch.create.request", "pr.create.request", "pr.summary"),
        "review.comment.addressed",
    )
    kinds = (
        *("task.request", "command.request", "event.observed", "task.result", "error.reported", "review.result"),
        *("approval.request", "approval.decision", "escalation.raised", "notification.sent", "checkpoint.created"),
    )
    assert len(lifecycle) == 16
    assert set(lifecycle) | set(kinds) <= BUILT_IN.names()
