"""The findings about the files beside apps: policy, keys and workflow files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from bus.clock import Clock
from bus.payloads.payload_types import Registry
from bus.settings.schema import Settings
from bus.trust.keys.trusted_directory import trusted_directory
from bus.trust.policy.reading import read_policy
from consumers.app.app import App
from consumers.operations.checks.findings import CheckFinding
from consumers.operations.checks.gathering import workflow_findings
from consumers.operations.checks.trust_findings import key_findings, policy_findings

__all__ = ["findings_of_files"]

_KEYS: Final = "keys/jwks.json"
_WORKFLOWS: Final = "workflows"


def findings_of_files(
    settings: Settings, apps: Sequence[App], types: Registry, home: Path, areas: Sequence[str], *, clock: Clock
) -> Iterator[tuple[list[CheckFinding], str]]:
    """Yield the findings of each of *areas* that has a file, and what was looked at; *home* is the project's folder."""
    if "policy" in areas and settings.policy.file and settings.policy.file != "allow-all":
        file = Path(settings.policy.file)
        rules, declared = read_policy(file), [app.declaration for app in apps]
        findings = policy_findings(rules, declared, types.names(), settings.trust.high_risk)
        yield list(findings), f"{len(rules.rules)} rules of {file.name}"
    if "keys" in areas and (settings.trust.keys or (home / _KEYS).is_file()):
        directory, unused = trusted_directory(settings, None if settings.trust.keys else (home / _KEYS).parent), []
        if not settings.trust.keys:
            what = "there are keys, and trust.keys is not set: no signature is checked"
            fix = f"trust.keys = {_KEYS!r}"
            unused = [CheckFinding(area="keys", check="keys-unused", level="note", location=_KEYS, what=what, fix=fix)]
        folder = Path(settings.trust.key_file or settings.trust.keys or home / _KEYS)
        found = key_findings(directory, folder if folder.is_dir() else folder.parent, clock.now_ms())
        yield [*unused, *found], f"{len(directory.keys)} keys"
    if "workflows" in areas:
        files = sorted((home / _WORKFLOWS).glob("*.json"))
        yield [each for file in files for each in workflow_findings(file)], f"{len(files)} workflow files"
