"""Research, drafts and reviews."""

from __future__ import annotations

from typing import Any, Literal

from bus.payloads.payload_types import payload
from bus.payloads.rules import Every, Is, Least, Rule, when
from bus.payloads.upcasters import Upcaster
from bus.vocabulary.forms import Count, Flag, Long, Percent, Positive, Severity, Text, Value, Word
from bus.vocabulary.parts import ChangedFile, Ref, RequiredAction, ReviewItem

APPROVAL_SCORE = 70
"""An approved review scores at least this."""


class Finding(Value, frozen=True, kw_only=True):
    """One thing found: *line_range* is `42` or `42-67`."""

    file: Text
    issue: Text
    severity: Severity
    line_range: Long | None = None
    suggestion: Long | None = None


class Section(Value, frozen=True, kw_only=True):
    """Part of a draft; *findings_referenced* are indexes into the research's findings."""

    heading: Text
    content: Long
    findings_referenced: tuple[Count, ...] = ()


class Issue(Value, frozen=True, kw_only=True):
    """What is wrong with a draft, and where."""

    severity: Severity
    description: Text
    location: Long | None = None


@payload(
    "research.request", version="1.0.0", performative="request", ttl_s=3600, side_effect="read", resource="/repository"
)
class ResearchRequest(Value, frozen=True, kw_only=True):
    """Orchestrator to researcher."""

    repository: Text
    pr_number: Count = 0
    """0: all of it, no pull request."""
    source_branch: Long | None = None
    target_branch: Long | None = None
    changed_files: tuple[Long, ...] = ()
    """Paths."""
    author: Long | None = None
    review_depth: Literal["quick", "full"] = "full"
    focus_areas: tuple[Long, ...] = ()
    max_files_to_review: Positive = 2000


@payload("research.output", version="1.0.0", performative="inform", ttl_s=3600, side_effect="none")
class ResearchOutput(Value, frozen=True, kw_only=True):
    """Researcher to writer."""

    pr_number: Count
    repository: Text
    findings: tuple[Finding, ...]
    sources_analyzed: tuple[Long, ...]
    gaps: tuple[Long, ...] = ()
    """What it could not look at."""
    keywords: tuple[Long, ...] = ()


@payload("draft.output", version="1.0.0", performative="inform", ttl_s=3600, side_effect="none")
class DraftOutput(Value, frozen=True, kw_only=True):
    """Writer to reviewer."""

    pr_number: Count
    title: Text
    summary: Long
    sections: tuple[Section, ...]
    word_count: Count
    requires_human_review: Flag = False


@payload(
    "review.output",
    version="1.0.0",
    performative="inform",
    ttl_s=3600,
    side_effect="none",
    rules=(
        Rule(
            "an approved review scores at least 70",
            "/score",
            when(Is("verdict", ("approved",)), Least("score", APPROVAL_SCORE)),
        ),
    ),
)
class ReviewOutput(Value, frozen=True, kw_only=True):
    """Reviewer to orchestrator."""

    pr_number: Count
    verdict: Literal["approved", "changes_requested", "needs_discussion"]
    score: Percent
    """Approved needs at least 70."""
    issues: tuple[Issue, ...] = ()
    suggestions: tuple[Long, ...] = ()
    reviewer_notes: Long | None = None


@payload(
    "review.request",
    version="1.0.0",
    performative="request",
    required_options=("task_id",),
    ttl_s=3600,
    side_effect="read",
    resource="/subject_ref/uri",
)
class ReviewRequest(Value, frozen=True, kw_only=True):
    """Author or supervisor to reviewer."""

    subject_ref: Ref
    """What is to be reviewed; with sha256 where it can be had."""
    subject_type: Word
    """Known: patch, document, design, plan, action."""
    goal: Text
    focus_areas: tuple[Word, ...] = ()
    changed_files: tuple[ChangedFile, ...] = ()
    acceptance_criteria: tuple[Text, ...] = ()
    evidence_refs: tuple[Ref, ...] = ()
    round: Positive = 1


@payload("review.result", version="1.0.0", performative="inform", ttl_s=86400, side_effect="none")
class ReviewResult1(Value, frozen=True, kw_only=True):
    """Version 1 of review.result; written only for readers that do not know version 2."""

    verdict: Literal["approved", "changes_requested", "needs_discussion"]
    comments: tuple[Long, ...] = ()


def _with_items(data: dict[str, Any]) -> dict[str, Any]:
    """Upcast 1.0.0: each comment that says something becomes an item, blocking where the verdict asks for changes."""
    blocking = data["verdict"] == "changes_requested"
    items = [
        {"severity": "low", "category": "comment", "finding": comment, "blocking": blocking}
        for comment in data.get("comments", ())
        if comment
    ]
    return {"verdict": data["verdict"], **({"items": items} if items else {})}


@payload(
    "review.result",
    version="2.0.0",
    performative="inform",
    ttl_s=86400,
    upcasters={1: Upcaster(ReviewResult1, _with_items)},
    side_effect="none",
    rules=(
        Rule(
            "an approved review has no blocking item",
            "/items",
            when(Is("verdict", ("approved",)), Every("items", Is("blocking", (False,)))),
        ),
        Rule(
            "an approved review has no blocking required action",
            "/required_actions",
            when(Is("verdict", ("approved",)), Every("required_actions", Is("blocking", (False,)))),
        ),
    ),
)
class ReviewResult(Value, frozen=True, kw_only=True):
    """Reviewer to author.

    Upcast from 1.0.0: each comment but an empty one becomes an item `{severity: "low", category: "comment", finding:
    comment, blocking: verdict is changes_requested}`.
    """

    verdict: Literal["approved", "changes_requested", "needs_discussion"]
    """Approved: no item and no required action is blocking."""
    risk_level: Severity | None = None
    items: tuple[ReviewItem, ...] = ()
    required_actions: tuple[RequiredAction, ...] = ()
    summary: Long | None = None
    evidence_refs: tuple[Ref, ...] = ()
    limitations: tuple[Text, ...] = ()
