"""The demo's three agents: a researcher reads code, a writer drafts a report, a reviewer judges it.

Owns what each does with a message; processes, kills and tables are elsewhere. Each is an ordinary `App`, run by
`sealbus worker consumers.cli.demo.agents:researcher` (or `:writer`, `:reviewer`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

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
from consumers.app.app import App
from consumers.cli.demo.scan import ScanResult, scan
from consumers.delivery.context import Context
from consumers.delivery.resilience.retry import Retry

__all__ = ["ATTEMPTS", "OWN_SOURCES", "THINKING_S", "researcher", "reviewer", "writer"]

OWN_SOURCES = "sealbus"
"""The repository's name that stands for the installed packages of sealbus itself."""
THINKING_S = 1.0
"""How long the researcher ponders what it found: an agent with a model would take longer."""
ATTEMPTS = 3
MAX_FINDINGS = 1_000
NOTES_VARIABLE = "SEALBUS_DEMO_NOTES"

_SEVERITIES: tuple[Severity, ...] = ("critical", "high", "medium", "low")
_NO_FIX_PENALTY = 35
_SEVERE_PENALTY = 2
_MOST_SEVERE_PENALTY = 20

researcher = App("researcher@demo", types=[StatusUpdate])
writer = App("writer@demo")
reviewer = App("reviewer@demo")


@researcher.on(ResearchRequest, timeout_s=60)
async def research(request: ResearchRequest, context: Context) -> ResearchOutput:
    """Read the repository's Python files and report what is there."""
    result = await asyncio.to_thread(_scan, request)
    await context.send_now(_progress(context, result))
    await asyncio.sleep(THINKING_S)
    findings = sorted(result.findings, key=lambda found: _SEVERITIES.index(found.severity))
    gaps = list(result.gaps)
    if len(findings) > MAX_FINDINGS:
        gaps.append(f"{len(findings) - MAX_FINDINGS} further findings of lower severity are left out")
    return ResearchOutput(
        pr_number=request.pr_number,
        repository=request.repository,
        findings=tuple(
            Finding(
                file=found.file,
                line_range=str(found.line),
                issue=found.issue,
                severity=found.severity,
                suggestion=found.suggestion,
            )
            for found in findings[:MAX_FINDINGS]
        ),
        sources_analyzed=(f"{result.files_scanned} Python files, {result.lines} lines",),
        gaps=tuple(gaps[:MAX_FINDINGS]),
        keywords=tuple(dict.fromkeys(found.rule for found in findings)),
    )


@writer.on(ResearchOutput)
async def draft(output: ResearchOutput, context: Context) -> DraftOutput:
    """Draft a report: what was found and where. The first draft does not say how to fix it."""
    _note(context.message.metadata.conversation_id, output)
    return _draft(output, with_fixes=False)


@writer.on(ReviewOutput)
async def revise(review: ReviewOutput, context: Context) -> DraftOutput | None:
    """Revise once if changes are requested; an approved report needs nothing more."""
    if review.verdict == "approved":
        return None
    return _draft(_recall(context.message.metadata.conversation_id), with_fixes=True)


@writer.on(TaskHandoff, retry=Retry(attempts=ATTEMPTS, backoff="constant", base_s=0.3, cap_s=0.3))
async def chore(task: TaskHandoff, context: Context) -> ToolResult:
    """Do a chore with a tool that may be flaky (fails twice) or broken (fails always)."""
    if task.task_spec.action == "use-broken-tool" or (
        task.task_spec.action == "use-flaky-tool" and context.attempt < ATTEMPTS
    ):
        raise RetryLater("the tool did not answer")
    return ToolResult(tool_call_id=task.task_id, tool_name=task.task_spec.action, output={"attempt": context.attempt})


@reviewer.on(DraftOutput)
async def review(report: DraftOutput) -> ReviewOutput:
    """Judge a report: approve it only with a score of at least 70."""
    issues = tuple(
        Issue(severity="high", description="names problems without saying how to mend them", location=section.heading)
        for section in report.sections
        if section.content.count("\n  Fix: ") < len(section.findings_referenced)
    )
    severe = sum(
        len(section.findings_referenced)
        for section in report.sections
        if section.heading.startswith(("Critical", "High"))
    )
    score = 100 - (_NO_FIX_PENALTY if issues else 0) - min(_MOST_SEVERE_PENALTY, _SEVERE_PENALTY * severe)
    return ReviewOutput(
        pr_number=report.pr_number,
        verdict="approved" if score >= APPROVAL_SCORE else "changes_requested",
        score=score,
        issues=issues,
        suggestions=("say for each finding how to mend it",) if issues else (),
    )


def _scan(request: ResearchRequest) -> ScanResult:
    if request.repository != OWN_SOURCES:
        return scan(Path(request.repository), max_files=request.max_files_to_review)
    parts = [(package, scan(Path(package.__file__ or "").parent)) for package in (bus, producers, consumers)]
    return ScanResult(
        findings=tuple(
            msgspec.structs.replace(found, file=f"{package.__name__.replace('.', '/')}/{found.file}")
            for package, part in parts
            for found in part.findings
        ),
        files_scanned=sum(part.files_scanned for _, part in parts),
        lines=sum(part.lines for _, part in parts),
        gaps=tuple(gap for _, part in parts for gap in part.gaps),
    )


def _progress(context: Context, result: ScanResult) -> StatusUpdate:
    return StatusUpdate(
        task_id=context.message.message_id,
        new_status="running",
        timestamp=datetime.now(UTC),
        progress_pct=50,
        message=f"process {os.getpid()} read {result.files_scanned} files and found {len(result.findings)} things",
    )


def _draft(output: ResearchOutput, *, with_fixes: bool) -> DraftOutput:
    sections = tuple(_sections(output, with_fixes=with_fixes))
    return DraftOutput(
        pr_number=output.pr_number,
        title=f"Review of {Path(output.repository).name or output.repository}",
        summary=_summary(output),
        sections=sections,
        word_count=sum(len(section.content.split()) for section in sections),
        requires_human_review=any(found.severity == "critical" for found in output.findings),
    )


def _sections(output: ResearchOutput, *, with_fixes: bool) -> Iterable[Section]:
    for severity in _SEVERITIES:
        chosen = [(index, found) for index, found in enumerate(output.findings) if found.severity == severity]
        if chosen:
            lines = [_line(found, with_fix=with_fixes) for _, found in chosen]
            heading = f"{severity.capitalize()} ({len(chosen)})"
            yield Section(
                heading=heading, content="\n".join(lines), findings_referenced=tuple(index for index, _ in chosen)
            )


def _line(found: Finding, *, with_fix: bool) -> str:
    line = f"- {found.file}:{found.line_range} {found.issue}"
    return f"{line}\n  Fix: {found.suggestion}" if with_fix else line


def _summary(output: ResearchOutput) -> str:
    counts = [
        f"{count} {severity}"
        for severity in _SEVERITIES
        if (count := sum(found.severity == severity for found in output.findings))
    ]
    gaps = f" {len(output.gaps)} gaps: {output.gaps[0]}." if output.gaps else ""
    return f"{output.sources_analyzed[0]}: {', '.join(counts) or 'nothing'} found.{gaps}"


def _notebook(conversation_id: str) -> Path:
    """Return the writer's own memory, which survives its death; writing a note twice changes nothing."""
    return Path(os.environ.get(NOTES_VARIABLE, ".")) / f"notes-{conversation_id}.json"


def _note(conversation_id: str, output: ResearchOutput) -> None:
    note = _notebook(conversation_id)
    draft_of_note = note.with_suffix(".tmp")
    draft_of_note.write_bytes(msgspec.json.encode(output))
    draft_of_note.replace(note)


def _recall(conversation_id: str) -> ResearchOutput:
    return msgspec.json.decode(_notebook(conversation_id).read_bytes(), type=ResearchOutput)
