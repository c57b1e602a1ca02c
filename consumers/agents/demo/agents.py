"""The demo's three agents: a researcher reads code, a writer drafts a report, a reviewer judges it.

Owns what each does with a message. Each is an ordinary `App`, run by `sealbus run MODULE:researcher` (or `:writer`,
`:reviewer`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, get_args

import bus
import consumers
import producers
from bus.errors import RetryLater
from bus.vocabulary.forms import Severity
from bus.vocabulary.review import (
    APPROVAL_SCORE,
    DraftOutput,
    Finding,
    Issue,
    ResearchOutput,
    ResearchRequest,
    ReviewOutput,
    Section,
)
from bus.vocabulary.task import StatusUpdate, TaskHandoff
from bus.vocabulary.tool import ToolResult
from consumers.agents.demo.scan import Scanned, scan
from consumers.app.app import App
from consumers.delivery.context import Context
from consumers.delivery.resilience.retry import Retry

__all__ = ["OWN_SOURCES", "researcher", "reviewer", "writer"]

OWN_SOURCES: Final = "sealbus"
"""The repository's name that stands for the installed packages of sealbus itself."""
_THINKING_S: Final = 1.0
"""The researcher's pause per question, as a model would need."""
_ATTEMPTS: Final = 3
_MAX_FINDINGS: Final = 1_000
_SEVERITIES: Final = tuple(reversed(get_args(Severity)))
_NO_FIX_PENALTY: Final = 35
_SEVERE_PENALTY: Final = 2
_MAX_SEVERE_PENALTY: Final = 20

researcher = App("researcher@demo", types=[StatusUpdate])
writer = App("writer@demo")
reviewer = App("reviewer@demo")
_notes: dict[str, ResearchOutput] = {}
"""The writer's notes by conversation. An agent that must not lose them would use a database."""


@researcher.on(ResearchRequest, timeout_s=60)
async def research(request: ResearchRequest, context: Context) -> ResearchOutput:
    """Read the repository's Python files and report what is there."""
    result = await asyncio.to_thread(_scan, request)
    update = StatusUpdate(
        task_id=context.message.message_id,
        new_status="running",
        timestamp=datetime.now(UTC),
        progress_pct=50,
        message=f"process {os.getpid()} read {result.files} files and found {len(result.findings)} things",
    )
    await context.send_now(update)
    await asyncio.sleep(_THINKING_S)
    findings = sorted(result.findings, key=lambda found: _SEVERITIES.index(found.severity))
    if len(findings) > _MAX_FINDINGS:
        result.gaps.append(f"{len(findings) - _MAX_FINDINGS} further findings of lower severity are left out")
    return ResearchOutput(
        pr_number=request.pr_number,
        repository=request.repository,
        findings=tuple(findings[:_MAX_FINDINGS]),
        sources_analyzed=(f"{result.files} Python files, {result.lines} lines",),
        gaps=tuple(result.gaps[-_MAX_FINDINGS:]),
    )


@writer.on(ResearchOutput)
async def draft(output: ResearchOutput, context: Context) -> DraftOutput:
    """Draft a report of the findings and their locations. The first draft does not name a fix."""
    _notes[context.message.metadata.conversation_id] = output
    return _report(output, with_fixes=False)


@writer.on(ReviewOutput)
async def revise(review: ReviewOutput, context: Context) -> DraftOutput | None:
    """Revise once if changes are requested; an approved report needs nothing more."""
    if review.verdict == "approved":
        return None
    return _report(_notes[context.message.metadata.conversation_id], with_fixes=True)


@writer.on(TaskHandoff, retry=Retry(attempts=_ATTEMPTS, backoff="constant", base_s=0.3, cap_s=0.3))
async def chore(task: TaskHandoff, context: Context) -> ToolResult:
    """Do a chore with a tool that may be flaky (fails twice) or broken (fails always)."""
    action = task.task_spec.action
    if action == "use-broken-tool" or (action == "use-flaky-tool" and context.attempt < _ATTEMPTS):
        raise RetryLater("the tool did not answer")
    return ToolResult(tool_call_id=task.task_id, tool_name=action, output={"attempt": context.attempt})


@reviewer.on(DraftOutput)
async def review(report: DraftOutput) -> ReviewOutput:
    """Judge a report: approve it only with a score of at least 70."""
    issues = tuple(
        Issue(severity="high", description="names problems without saying how to fix them", location=section.heading)
        for section in report.sections
        if section.content.count("\n  Fix: ") < len(section.findings_referenced)
    )
    severe = sum(
        len(section.findings_referenced)
        for section in report.sections
        if section.heading.startswith(("Critical", "High"))
    )
    score = 100 - (_NO_FIX_PENALTY if issues else 0) - min(_MAX_SEVERE_PENALTY, _SEVERE_PENALTY * severe)
    return ReviewOutput(
        pr_number=report.pr_number,
        verdict="approved" if score >= APPROVAL_SCORE else "changes_requested",
        score=score,
        issues=issues,
        suggestions=("say for each finding how to fix it",) if issues else (),
    )


def _scan(request: ResearchRequest) -> Scanned:
    if request.repository != OWN_SOURCES:
        root = Path(request.repository)
        return scan(root, root if root.is_dir() else root.parent, max_files=request.max_files_to_review)
    roots = {package.__name__: Path(package.__file__ or "").parent for package in (bus, producers, consumers)}
    found = [scan(root, root.parents[name.count(".")]) for name, root in roots.items()]
    return Scanned(
        findings=[finding for part in found for finding in part.findings],
        files=sum(part.files for part in found),
        lines=sum(part.lines for part in found),
        gaps=[gap for part in found for gap in part.gaps],
    )


def _report(output: ResearchOutput, *, with_fixes: bool) -> DraftOutput:
    sections = tuple(_sections(output.findings, with_fixes=with_fixes))
    counts = ", ".join(
        f"{len(section.findings_referenced)} {section.heading.split()[0].lower()}" for section in sections
    )
    gaps = f" {len(output.gaps)} gaps: {output.gaps[0]}." if output.gaps else ""
    return DraftOutput(
        pr_number=output.pr_number,
        title=f"Review of {Path(output.repository).name or output.repository}",
        summary=f"{output.sources_analyzed[0]}: {counts or 'nothing'} found.{gaps}",
        sections=sections,
        word_count=sum(len(section.content.split()) for section in sections),
        requires_human_review=any(found.severity == "critical" for found in output.findings),
    )


def _sections(findings: tuple[Finding, ...], *, with_fixes: bool) -> Iterator[Section]:
    for severity in _SEVERITIES:
        chosen = tuple(index for index, found in enumerate(findings) if found.severity == severity)
        lines = [
            f"- {found.file}:{found.line_range} {found.issue}" + (f"\n  Fix: {found.suggestion}" if with_fixes else "")
            for found in map(findings.__getitem__, chosen)
        ]
        if chosen:
            heading = f"{severity.capitalize()} ({len(chosen)})"
            yield Section(heading=heading, content="\n".join(lines), findings_referenced=chosen)
