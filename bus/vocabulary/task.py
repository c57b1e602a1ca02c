"""Tasks: asking for work, accepting or refusing it, progress, results, cancelling."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from bus.payloads.payload_types import payload
from bus.payloads.rules import All, Either, Has, Is, Not, Rule, exactly_one, when
from bus.vocabulary.forms import (
    Code,
    Count,
    Flag,
    Instant,
    Long,
    Name,
    Object,
    Percent,
    Positive,
    Share,
    Text,
    Value,
    Word,
)
from bus.vocabulary.parts import Budget, Effect, ErrorInfo, Found, NextTask, Ref, ReturnContract, Scope

TaskStatus: TypeAlias = Literal[
    "pending", "running", "waiting_for_approval", "waiting_for_tool", "completed", "failed", "cancelled", "timed_out"
]


class Constraints(Value, frozen=True, kw_only=True):
    """Bounds of a handed-over task: at most *max_duration_seconds*.

    A result below *required_confidence* does not count.
    """

    max_duration_seconds: Positive | None = None
    required_confidence: Share | None = None


class TaskSpec(Value, frozen=True, kw_only=True):
    """What to do (`draft_review`), with which input."""

    action: Text
    input: Object
    context: Object | None = None
    constraints: Constraints | None = None


@payload("task.request", version="1.0.0", performative="request", required_options=("task_id",), ttl_s=3600)
class TaskRequest(Value, frozen=True, kw_only=True):
    """Requester to a worker agent: do this, and answer in the promised form."""

    goal: Text
    """What shall be true afterwards."""
    task_type: Word | None = None
    """A name for dispatch."""
    inputs: Object = {}
    """What the work starts from."""
    context: Object = {}
    """References and facts inherited."""
    scope: Scope | None = None
    """Absent: what the authority allows."""
    constraints: Object = {}
    """Bounds known to the task itself."""
    acceptance_criteria: tuple[Text, ...] = ()
    """Each can be checked."""
    return_contract: ReturnContract | None = None
    """The answer must be of this type."""
    required_confidence: Share | None = None
    """A result below it counts as failed."""
    budget: Budget | None = None
    """Carved from the requester's rest."""
    accept_within_s: Positive | None = None
    """Absent: until the message expires."""


@payload(
    "task.accepted",
    version="1.0.0",
    performative="accept",
    required_options=("task_id",),
    ttl_s=3600,
    side_effect="none",
)
class TaskAccepted(Value, frozen=True, kw_only=True):
    """Worker to requester, before costly work.

    Seed 001's `accepted: true` is the type itself.
    """

    understood_goal: Text
    """In the worker's own words: shows a mismatch early."""
    assumptions: tuple[Text, ...] = ()
    """What it takes for given."""
    planned_steps: tuple[Text, ...] = ()
    expected_by: Instant | None = None
    """When it expects to be done."""


@payload(
    "task.rejected",
    version="1.0.0",
    performative="reject",
    required_options=("task_id",),
    ttl_s=3600,
    side_effect="none",
)
class TaskRejected(Value, frozen=True, kw_only=True):
    """Worker to requester: not me, not this.

    Safety, not failure.
    """

    reason_code: Code
    """Known: OUT_OF_AUTHORITY, OUT_OF_SCOPE, UNCLEAR, OVERLOADED, UNSUPPORTED, UNSAFE, BUDGET_TOO_SMALL."""
    explanation: Text
    suggested_route: Name | None = None
    """Agent id or role."""


@payload(
    "task.clarification",
    version="1.0.0",
    performative="query",
    required_options=("task_id",),
    ttl_s=3600,
    side_effect="none",
)
class TaskClarification(Value, frozen=True, kw_only=True):
    """Worker to requester."""

    questions: Annotated[tuple[Text, ...], Meta(min_length=1)]
    understood_goal: Text | None = None
    options: tuple[Text, ...] = ()
    """Answers the worker could work with."""


@payload(
    "task.clarified",
    version="1.0.0",
    performative="inform",
    required_options=("task_id",),
    ttl_s=3600,
    side_effect="none",
)
class TaskClarified(Value, frozen=True, kw_only=True):
    """Requester to worker."""

    answers: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """In the order of the questions."""
    inputs: Object = {}
    """Merged over the task's inputs."""


@payload(
    "task.artifact",
    version="1.0.0",
    performative="inform",
    required_options=("task_id",),
    ttl_s=86400,
    side_effect="none",
    rules=(Rule("has exactly one of content, data, ref", "/content", exactly_one("content", "data", "ref")),),
)
class TaskArtifact(Value, frozen=True, kw_only=True):
    """Worker to requester: a part of what the task makes, before its end.

    Progress: it ends nothing.
    """

    artifact_id: Name
    """One for all parts of an artifact."""
    index: Count
    """Counts the parts of an artifact, from 0."""
    name: Text | None = None
    """For people."""
    media_type: Text | None = None
    content: Long | None = None
    """A part that is text."""
    data: Object | None = None
    """A part that is an object."""
    ref: Ref | None = None
    """Content that lies elsewhere."""
    append: Flag = False
    """Whether it goes on after the part before, instead of taking its place."""
    last: Flag = False
    """Whether no part follows."""


@payload("task.cancel", version="1.0.0", performative="cancel", required_options=("task_id",), ttl_s=3600)
class TaskCancel(Value, frozen=True, kw_only=True):
    """Requester (or a supervisor the policy names) to the worker."""

    reason_code: Code
    """Known: NOT_NEEDED, SUPERSEDED, TOO_LATE, BUDGET_SPENT, UNSAFE."""
    explanation: Text | None = None
    cascade: Flag = True
    """Also tasks whose parent_task_id leads here."""
    grace_s: Count = 30
    """Time to end in order."""


@payload(
    "task.result",
    version="1.0.0",
    performative="inform",
    required_options=("task_id",),
    ttl_s=86400,
    side_effect="none",
    rules=(
        Rule(
            "an error is given exactly when status is failed",
            "/error",
            Either(
                (
                    All((Is("status", ("failed",)), Has("error"))),
                    All((Not(Is("status", ("failed",))), Not(Has("error")))),
                )
            ),
        ),
    ),
)
class TaskResult(Value, frozen=True, kw_only=True):
    """Worker to requester."""

    status: Literal["completed", "failed", "cancelled"]
    """Failed needs `error`."""
    summary: Long | None = None
    output: Object | None = None
    """In the form of the return contract."""
    findings: tuple[Found, ...] = ()
    artifacts: tuple[Ref, ...] = ()
    """Large results, never inline."""
    evidence_refs: tuple[Ref, ...] = ()
    confidence: Share | None = None
    limitations: tuple[Text, ...] = ()
    effects: tuple[Effect, ...] = ()
    """What was changed outside."""
    recommended_next_task: NextTask | None = None
    """A recommendation, no authorization."""
    error: ErrorInfo | None = None
    """Given exactly when status is failed."""


@payload(
    "task.handoff",
    version="1.0.0",
    performative="request",
    ttl_s=3600,
    must_match={
        "/task_id": "/metadata/task_id",
        "/from_agent": "/metadata/sender/id",
        "/to_agent": "/metadata/recipient/id",
    },
    options_from={"priority": "priority"},
)
class TaskHandoff(Value, frozen=True, kw_only=True):
    """Agent to agent; the short form of a delegation.

    `handoff.request` is the whole contract.
    """

    task_id: Text
    """Equals metadata.task_id where that is given."""
    from_agent: Text
    """Equals sender.id."""
    to_agent: Text
    """Equals recipient.id where that is given."""
    task_spec: TaskSpec
    priority: Literal["low", "normal", "high", "critical"] = "normal"
    """The publisher sets routing.priority from it unless the sender sets another."""


@payload(
    "status.update",
    version="1.1.0",
    risk="low",
    performative="inform",
    ttl_s=600,
    must_match={"/task_id": "/metadata/task_id"},
    side_effect="none",
    rules=(
        Rule(
            "an approval_id goes with waiting_for_approval",
            "/approval_id",
            when(Has("approval_id"), Is("new_status", ("waiting_for_approval",))),
        ),
    ),
)
class StatusUpdate(Value, frozen=True, kw_only=True):
    """Worker to requester or orchestrator while it works.

    Also what the bus sends when a message is held for an approval. It goes to a requester that takes progress, else to
    the type's topic.
    """

    task_id: Text
    """Equals metadata.task_id where that is given."""
    new_status: TaskStatus
    timestamp: Instant
    previous_status: TaskStatus | None = None
    """Checked against the machine."""
    progress_pct: Percent | None = None
    message: Long | None = None
    """For people."""
    next_expected_status: TaskStatus | None = None
    phase: Word | None = None
    notes: Long | None = None
    approval_id: Name | None = None
    """With waiting_for_approval."""


@payload(
    "checkpoint.created",
    version="1.0.0",
    performative="inform",
    required_options=("task_id",),
    ttl_s=604800,
    side_effect="none",
)
class CheckpointCreated(Value, frozen=True, kw_only=True):
    """A worker that can be paused and resumed, to whoever supervises it."""

    state_ref: Ref
    """With sha256 a resumed run refuses a state that is not this one; without it lint warns."""
    completed_tasks: tuple[Text, ...] = ()
    pending_tasks: tuple[Text, ...] = ()
    resume_instruction: Text | None = None
    """Instructs only at the level this message has."""
    number: Count | None = None
    """Counts the checkpoints of a task."""
