"""Software engineering: issues, repository maps, analyses, patches, tests, pull requests."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from bus.payloads.payload_types import payload
from bus.payloads.rules import All, Either, Every, Has, Is, Not, Rule, Size, Some, when
from bus.vocabulary.forms import Count, Flag, Long, Positive, Severity, Share, Text, Value
from bus.vocabulary.parts import (
    Budget,
    CandidateFile,
    ChangedFile,
    Content,
    Found,
    NextTask,
    Ref,
    ReviewItem,
    Risk,
    Scope,
    TestRun,
)

_SEVERITIES = ("low", "medium", "high", "critical")
_IN_BRANCH = r"[^\x00-\x20\x7f~^:?*\[\\.]"
Branch: TypeAlias = Annotated[
    str,
    Meta(
        pattern=rf"^(?:[^\x00-\x20\x7f~^:?*\[\\./-]|\.{_IN_BRANCH})(?:{_IN_BRANCH}|\.{_IN_BRANCH})*\.?\Z",
        max_length=256,
    ),
]
"""The name of a git branch: no space, `..`, `~`, `^`, `:`, `?`, `*`, `[` or backslash, no leading `-` or `/`."""


@payload("issue.intake", version="1.0.0", performative="inform", ttl_s=86400, side_effect="none")
class IssueIntake(Value, frozen=True, kw_only=True):
    """Intake agent to the planner."""

    issue_ref: Ref
    title: Text
    user_report: Content
    """Outside text: marked untrusted_content unless the reporter is known; a bare string of the seed becomes its
    content, its source is issue_ref.
    """
    expected_behavior: Long | None = None
    constraints: tuple[Text, ...] = ()
    definition_of_done: Annotated[tuple[Text, ...], Meta(min_length=1)]


@payload(
    "repo.map.request",
    version="1.0.0",
    performative="request",
    required_options=("task_id",),
    ttl_s=3600,
    side_effect="read",
    resource="/repository",
)
class RepoMapRequest(Value, frozen=True, kw_only=True):
    """Planner to the one who knows the repository."""

    repository: Text
    revision: Text | None = None
    """Commit, tag or branch; absent: the default branch."""
    goal: Text
    """What the map is for."""
    scope: Scope | None = None
    budget: Budget | None = None


@payload("repo.map.result", version="1.0.0", performative="inform", ttl_s=86400, side_effect="none")
class RepoMapResult(Value, frozen=True, kw_only=True):
    """Back to the planner."""

    entry_points: tuple[Text, ...] = ()
    relevant_modules: tuple[Text, ...] = ()
    candidate_files: tuple[CandidateFile, ...]
    test_targets: tuple[Text, ...] = ()
    build_commands: tuple[Text, ...] = ()
    """Proposals: run only what authority.can_execute allows."""
    revision: Text | None = None
    limitations: tuple[Text, ...] = ()


@payload(
    "analysis.request",
    version="1.0.0",
    performative="request",
    required_options=("task_id",),
    ttl_s=3600,
    side_effect="read",
    resource="/repository",
)
class AnalysisRequest(Value, frozen=True, kw_only=True):
    """Planner to the analyst.

    The read-only cousin of task.request.
    """

    goal: Text
    repository: Text | None = None
    revision: Text | None = None
    scope: Scope | None = None
    failing_test: Text | None = None
    error_output_ref: Ref | None = None
    hypotheses: tuple[Text, ...] = ()
    acceptance_criteria: tuple[Text, ...] = ()
    budget: Budget | None = None


@payload("analysis.result", version="1.0.0", performative="inform", ttl_s=86400, side_effect="none")
class AnalysisResult(Value, frozen=True, kw_only=True):
    """Analyst to planner."""

    summary: Text
    findings: tuple[Found, ...]
    """The root cause has type `root_cause`."""
    reproduction_command: Text | None = None
    confidence: Share
    alternatives: tuple[Text, ...] = ()
    """Explanations not excluded."""
    evidence_refs: tuple[Ref, ...] = ()
    limitations: tuple[Text, ...] = ()
    recommended_next_task: NextTask | None = None


@payload(
    "patch.proposal",
    version="1.0.0",
    performative="propose",
    ttl_s=86400,
    side_effect="none",
    rules=(
        Rule(
            "a passed or failed test needs an artifact_ref",
            "/tests",
            Every("tests", when(Is("status", ("passed", "failed")), Has("artifact_ref"))),
        ),
    ),
)
class PatchProposal(Value, frozen=True, kw_only=True):
    """Coder to reviewer or planner."""

    summary: Text
    diff_ref: Ref
    """Under an approval with sha256."""
    changed_files: tuple[ChangedFile, ...]
    tests: tuple[TestRun, ...]
    """Passed and failed need artifact_ref."""
    risks: tuple[Risk, ...]
    base_revision: Text | None = None
    confidence: Share | None = None
    evidence_refs: tuple[Ref, ...] = ()


@payload(
    "test.execution.request",
    version="1.0.0",
    performative="request",
    required_options=("task_id",),
    ttl_s=3600,
    side_effect="external",
    resource="/repository",
)
class TestExecutionRequest(Value, frozen=True, kw_only=True):
    """Coder or planner to the tester."""

    commands: Annotated[tuple[Text, ...], Meta(min_length=1)]
    """Each within authority.can_execute."""
    repository: Text | None = None
    revision: Text | None = None
    diff_ref: Ref | None = None
    """Applied before the run."""
    test_targets: tuple[Text, ...] = ()
    expectation: Literal["pass", "fail", "any"] = "any"
    """Fail: a regression test before its patch."""
    repeat: Positive = 1
    """To find flaky ones."""
    budget: Budget | None = None


@payload(
    "test.execution.result",
    version="1.0.0",
    performative="inform",
    ttl_s=86400,
    side_effect="none",
    rules=(
        Rule(
            "passed: no test failed and at least one passed",
            "/status",
            when(
                Is("status", ("passed",)),
                All((Some("tests", Is("status", ("passed",))), Not(Some("tests", Is("status", ("failed",)))))),
            ),
        ),
    ),
)
class TestExecutionResult(Value, frozen=True, kw_only=True):
    """Tester back."""

    status: Literal["passed", "failed", "not_run"]
    """Passed: no test failed and at least one passed."""
    tests: tuple[TestRun, ...]
    expectation_met: Flag | None = None
    """Where one was given."""
    flaky: tuple[Text, ...] = ()
    revision: Text | None = None
    output_ref: Ref | None = None
    duration_ms: Count | None = None
    limitations: tuple[Text, ...] = ()


@payload(
    "security.review.result",
    version="1.0.0",
    performative="inform",
    ttl_s=86400,
    side_effect="none",
    rules=(
        Rule(
            "a high, critical or blocking item excludes approved",
            "/verdict",
            when(
                Is("verdict", ("approved",)),
                Not(Some("items", Either((Is("severity", ("high", "critical")), Is("blocking", (True,)))))),
            ),
        ),
        Rule(
            "risk_level is at least the highest severity of the items",
            "/risk_level",
            All(
                tuple(
                    when(Is("risk_level", (level,)), Every("items", Is("severity", _SEVERITIES[: location + 1])))
                    for location, level in enumerate(_SEVERITIES)
                )
            ),
        ),
    ),
)
class SecurityReviewResult(Value, frozen=True, kw_only=True):
    """Security reviewer to planner.

    An item of severity high or critical, or a blocking one, excludes the verdict approved.
    """

    verdict: Literal["approved", "changes_requested", "needs_discussion"]
    risk_level: Severity
    """At least the highest severity of the items."""
    items: tuple[ReviewItem, ...] = ()
    threats_considered: Annotated[tuple[Text, ...], Meta(min_length=1)]
    subject_ref: Ref
    """What was reviewed; without sha256 that cannot be verified, and lint warns."""
    evidence_refs: tuple[Ref, ...] = ()
    limitations: tuple[Text, ...] = ()


@payload(
    "branch.create.request",
    version="1.0.0",
    performative="request",
    required_options=("idempotency_key",),
    ttl_s=3600,
    side_effect="external",
    resource="/repository",
)
class BranchCreateRequest(Value, frozen=True, kw_only=True):
    """Planner to the one who may write to the repository."""

    repository: Text
    base_branch: Text
    base_revision: Text | None = None
    """Refused when the branch has moved on."""
    head_branch: Branch
    diff_ref: Ref | None = None
    """To be committed; under an approval with sha256."""
    reason: Text | None = None


@payload(
    "pr.create.request",
    version="1.0.0",
    performative="request",
    required_options=("idempotency_key",),
    ttl_s=3600,
    side_effect="external",
    resource="/repository",
)
class PrCreateRequest(Value, frozen=True, kw_only=True):
    """The seed's payload idempotency_key is routing.idempotency_key."""

    repository: Text
    base_branch: Text
    head_branch: Branch
    title: Annotated[str, Meta(min_length=1, max_length=256)]
    body_ref: Ref
    """Under an approval with sha256."""
    diff_ref: Ref
    """Likewise."""
    evidence_refs: tuple[Ref, ...] = ()
    is_draft: Flag = False


@payload(
    "pr.summary",
    version="1.0.0",
    performative="inform",
    ttl_s=604800,
    side_effect="none",
    rules=(
        Rule(
            "without evidence_refs it needs limitations",
            "/evidence_refs",
            Either((Size("evidence_refs"), Size("limitations"))),
        ),
    ),
)
class PrSummary(Value, frozen=True, kw_only=True):
    """Planner or release assistant to people."""

    pr_ref: Ref
    title: Text
    summary: Text
    changed_files: tuple[ChangedFile, ...] = ()
    tests: tuple[TestRun, ...] = ()
    risks: tuple[Risk, ...] = ()
    evidence_refs: tuple[Ref, ...] = ()
    """Empty needs limitations."""
    limitations: tuple[Text, ...] = ()
    conditions: tuple[Text, ...] = ()
    """Of approvals, and whether they were met."""


@payload(
    "review.comment.addressed",
    version="1.0.0",
    performative="inform",
    ttl_s=86400,
    side_effect="none",
    rules=(Rule("addressed needs a change_ref", "/change_ref", when(Is("status", ("addressed",)), Has("change_ref"))),),
)
class ReviewCommentAddressed(Value, frozen=True, kw_only=True):
    """Coder to reviewer."""

    comment_ref: Ref
    """Of the comment or review item; `message:<seal>#/data/items/0` on the bus."""
    status: Literal["addressed", "declined", "deferred"]
    explanation: Text
    change_ref: Ref | None = None
    """Required with addressed."""
    changed_files: tuple[ChangedFile, ...] = ()
    evidence_refs: tuple[Ref, ...] = ()
