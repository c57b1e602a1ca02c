"""Findings as SARIF 2.1.0 (OASIS), which code hosts and editors show. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from consumers.operations.lint.findings import CHECKS, LintFinding

__all__ = ["sarif_of"]

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_of(findings: Iterable[LintFinding]) -> dict[str, Any]:
    """Return the log of one run."""
    rules = [
        {
            "id": check.name,
            "shortDescription": {"text": check.name.replace("-", " ")},
            "fullDescription": {"text": check.why},
            "help": {"text": check.cure},
            "defaultConfiguration": {"level": check.level},
        }
        for check in CHECKS.values()
    ]
    locations = {name: index for index, name in enumerate(CHECKS)}
    results = [
        {
            "ruleId": found.check,
            "ruleIndex": locations[found.check],
            "level": found.level,
            "message": {"text": f"{found.place}: {found.what}. {found.why}. {found.cure}"},
            "locations": [_location(found)],
        }
        for found in findings
    ]
    driver = {"name": "sealbus lint", "rules": rules}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _location(found: LintFinding) -> dict[str, Any]:
    if found.file is None:
        return {"logicalLocations": [{"fullyQualifiedName": found.place}]}
    where: dict[str, Any] = {"artifactLocation": {"uri": found.file}}
    if found.line is not None:
        where["region"] = {"startLine": found.line}
    return {"physicalLocation": where}
