"""What `sealbus type` says of the effects of a type, and of fields that its receivers must know."""

from __future__ import annotations

import json
from typing import Any

TYPES = """
import msgspec
from sealbus import App, payload

@payload("cleanup.request", version="1.0.0", risk="high", side_effect="irreversible", resource="/folder")
class Cleanup(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    keep: int = 3

app = App("cleaner@svc", types=[Cleanup])
"""


def test_a_type_shows_its_effect_its_resource_and_its_critical_fields(folder: Any) -> None:
    marked = TYPES.replace('resource="/folder"', 'resource="/folder", critical=("keep",)')
    (folder.path / "effects_marked.py").write_text(marked)
    shown = folder.call("type", "show", "cleanup.request", "--app", "effects_marked:app").stdout
    assert "side effect irreversible" in shown
    assert "the resource it is about is at /data/folder" in shown
    assert "receivers must know, where they are set: keep" in shown
    (listed,) = [
        json.loads(line)
        for line in folder.call("type", "list", "--app", "effects_marked:app", "-o", "json").stdout.splitlines()
        if "cleanup.request" in line
    ]
    assert listed["side_effect"] == "irreversible"


def test_a_new_flag_of_a_type_of_high_risk_is_asked_about(folder: Any) -> None:
    (folder.path / "effects_before.py").write_text(TYPES)
    assert folder.call("type", "export", "schemas", "cleanup.request", "--app", "effects_before:app").exit_code == 0
    later = TYPES.replace("keep: int = 3", "keep: int = 3\n    dry_run: bool = False").replace("1.0.0", "1.1.0")
    (folder.path / "effects_flagged.py").write_text(later)
    checked = folder.call("check", "--only", "types", "effects_flagged:app")
    assert checked.exit_code == 0
    assert 'critical=("dry_run",)' in checked.stdout
    (folder.path / "effects_narrowed.py").write_text(later.replace('"/folder"', '"/folder", critical=("dry_run",)'))
    checked = folder.call("check", "--only", "types", "effects_narrowed:app")
    assert checked.exit_code == 0
    assert "critical=" not in checked.stdout


def test_another_effect_is_reviewed(folder: Any) -> None:
    (folder.path / "effects_wilder.py").write_text(TYPES)
    folder.call("type", "export", "schemas", "cleanup.request", "--app", "effects_wilder:app")
    (folder.path / "effects_milder.py").write_text(TYPES.replace("irreversible", "write").replace("1.0.0", "1.1.0"))
    assert folder.call("check", "--only", "types", "effects_milder:app").exit_code == 1
    reviewed = ("--accept-new-values", "the policy says write, too")
    assert folder.call("check", "--only", "types", "effects_milder:app", *reviewed).exit_code == 0


def test_a_type_shows_the_limits_of_its_fields(folder: Any) -> None:
    limited = """
import msgspec
from typing import Annotated
from msgspec import Meta
from sealbus import App, payload

@payload("tea.request", version="1.0.0")
class Tea(msgspec.Struct, frozen=True, kw_only=True):
    cups: Annotated[int, Meta(ge=1, le=12)]
    heat: Annotated[float, Meta(gt=0.5)] | None = None
    sugar: Annotated[int, Meta(ge=0)] = 0
    name: Annotated[str, Meta(min_length=1)] = "tea"
    guests: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(min_length=1, max_length=8)] = ("I",)
    note: str = ""

app = App("kitchen@svc", types=[Tea])
"""
    (folder.path / "effects_limited.py").write_text(limited)
    shown = folder.call("type", "show", "tea.request", "--app", "effects_limited:app").stdout
    forms = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "int (1 to 12)" in forms["cups"]
    assert "float (more than 0.5)" in forms["heat"]
    assert "int (at least 0)" in forms["sugar"]
    assert "str (at least 1 character)" in forms["name"]
    assert "[str (at most 64 characters)] (1 to 8 items)" in forms["guests"]
    assert "(" not in forms["note"]
    built_in = folder.call("type", "show", "subscription.open").stdout
    assert "int (30 to 86400)" in built_in
