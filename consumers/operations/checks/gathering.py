"""The findings about apps, recorded messages and workflow files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bus.errors import BusError
from bus.payloads.payload_types import PayloadType
from bus.settings.schema import Settings
from bus.vocabulary import BUILT_IN
from consumers.agents.workflows.check import check_workflow
from consumers.agents.workflows.definition import read_workflow
from consumers.app.app import App
from consumers.operations.checks.findings import GRAVITIES, CheckFinding
from consumers.operations.lint.app_checks import lint_app
from consumers.operations.lint.findings import LintFinding

__all__ = [
    "counted",
    "finding_of",
    "is_own",
    "lint_findings",
    "own_types",
    "workflow_findings",
]


def own_types(apps: Sequence[App]) -> list[PayloadType]:
    """Return the types of *apps* that are not built in, each once, sorted."""
    found = {kind.name: kind for app in reversed(apps) for kind in app.registry if is_own(kind)}
    return [found[name] for name in sorted(found)]


def lint_findings(settings: Settings, apps: Sequence[App]) -> Iterator[CheckFinding]:
    for app in apps:
        for each in lint_app(
            app.declaration,
            own=is_own,
            high_risk=settings.trust.high_risk,
            worker=settings.worker,
        ):
            yield finding_of(each)


def finding_of(each: LintFinding) -> CheckFinding:
    return CheckFinding(
        area="lint",
        check=each.check,
        level=each.level,
        location=each.place,
        what=each.what,
        why=each.why,
        fix=each.cure,
        file=each.file,
        line=each.line,
    )


def workflow_findings(file: Path) -> Iterator[CheckFinding]:
    try:
        findings = check_workflow(read_workflow(file))
    except BusError as error:
        yield CheckFinding(
            area="workflows", check="workflow", level="error", location=str(file), what=str(error), file=str(file)
        )
        return
    for each in findings:
        yield CheckFinding(
            area="workflows",
            check="workflow",
            level=each.severity,
            location=f"{file.name}{each.pointer}",
            what=each.text,
            fix=each.cure,
            file=str(file),
        )


def counted(found: Sequence[CheckFinding]) -> str:
    parts = [
        f"{count} {level}{'s' if count != 1 else ''}"
        for level in reversed(GRAVITIES)
        if (count := sum(one.level == level for one in found))
    ]
    return ", ".join(parts) or "nothing found"


def is_own(kind: PayloadType) -> bool:
    return BUILT_IN.get(kind.name) is not kind
