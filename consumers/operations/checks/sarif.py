"""Findings as SARIF 2.1.0 (OASIS), which code hosts and editors show. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from consumers.operations.checks.findings import CheckFinding

__all__ = ["sarif_of"]

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_of(findings: Iterable[CheckFinding]) -> dict[str, Any]:
    """Return the log of one run."""
    found = list(findings)
    rules = {each.check: each for each in found}
    places = {name: at for at, name in enumerate(rules)}
    described = [
        {
            "id": name,
            "shortDescription": {"text": name.replace("-", " ")},
            "fullDescription": {"text": each.why or each.what},
            "help": {"text": each.fix or each.what},
            "defaultConfiguration": {"level": each.level},
        }
        for name, each in rules.items()
    ]
    results = [
        {
            "ruleId": each.check,
            "ruleIndex": places[each.check],
            "level": each.level,
            "message": {
                "text": ". ".join(text for text in (f"{each.location}: {each.what}", each.why, each.fix) if text)
            },
            "locations": [_location(each)],
        }
        for each in found
    ]
    driver = {"name": "sealbus check", "rules": described}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _location(found: CheckFinding) -> dict[str, Any]:
    if found.file is None:
        return {"logicalLocations": [{"fullyQualifiedName": found.location}]}
    where: dict[str, Any] = {"artifactLocation": {"uri": found.file}}
    if found.line is not None:
        where["region"] = {"startLine": found.line}
    return {"physicalLocation": where}
