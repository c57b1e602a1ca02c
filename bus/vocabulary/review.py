"""The code review conversation: research, draft, review.

Owns the four types and their rules; the demo's agents use them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bus.payloads.payload_types import payload

__all__ = [
    "APPROVAL_SCORE",
    "DraftOutput",
    "Finding",
    "Issue",
    "ResearchOutput",
    "ResearchRequest",
    "ReviewOutput",
    "Section",
    "Severity",
]

APPROVAL_SCORE = 70
"""An approved review scores at least this."""

Severity = Literal["low", "medium", "high", "critical"]
Number = Annotated[int, Meta(ge=0)]
Text = Annotated[str, Meta(min_length=1)]


class _ReviewValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A payload or a part of one."""


@payload("research.request", version="1.0.0")
class ResearchRequest(_ReviewValue, frozen=True, kw_only=True):
    """Look at a repository; *pr_number* 0 means all of it and no pull request."""

    repository: Text
    pr_number: Number = 0
    source_branch: str | None = None
    target_branch: str | None = None
    changed_files: tuple[str, ...] = ()
    author: str | None = None
    review_depth: Literal["quick", "full"] = "full"
    focus_areas: tuple[str, ...] = ()
    max_files_to_review: Annotated[int, Meta(ge=1)] = 2000


class Finding(_ReviewValue, frozen=True, kw_only=True):
    """One thing found: *line_range* is `42` or `42-67`."""

    file: Text
    issue: Text
    severity: Severity
    line_range: str | None = None
    suggestion: str | None = None


@payload("research.output", version="1.0.0")
class ResearchOutput(_ReviewValue, frozen=True, kw_only=True):
    """What the research found, what it looked at, and what it could not look at (*gaps*)."""

    pr_number: Number
    repository: Text
    findings: tuple[Finding, ...]
    sources_analyzed: tuple[str, ...]
    gaps: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


class Section(_ReviewValue, frozen=True, kw_only=True):
    """Part of a draft; *findings_referenced* are indexes into the research's findings."""

    heading: Text
    content: str
    findings_referenced: tuple[Number, ...] = ()


@payload("draft.output", version="1.0.0")
class DraftOutput(_ReviewValue, frozen=True, kw_only=True):
    """A review written for people."""

    pr_number: Number
    title: Text
    summary: str
    sections: tuple[Section, ...]
    word_count: Number
    requires_human_review: bool = False


class Issue(_ReviewValue, frozen=True, kw_only=True):
    """What is wrong with a draft, and where."""

    severity: Severity
    description: Text
    location: str | None = None


@payload("review.output", version="1.0.0")
class ReviewOutput(_ReviewValue, frozen=True, kw_only=True):
    """The verdict on a draft; approval needs a score of 70."""

    pr_number: Number
    verdict: Literal["approved", "changes_requested", "needs_discussion"]
    score: Annotated[int, Meta(ge=0, le=100)]
    issues: tuple[Issue, ...] = ()
    suggestions: tuple[str, ...] = ()
    reviewer_notes: str | None = None

    def __post_init__(self) -> None:
        if self.verdict == "approved" and self.score < APPROVAL_SCORE:
            raise ValueError(f"approved reviews score at least {APPROVAL_SCORE}, not {self.score}")
