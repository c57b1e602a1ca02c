"""Commands in a project: every folder of it has the settings of its `sealbus.toml`, one log and its apps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def project(folder: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with settings; the current folder is one of its folders."""
    path: Path = folder.path
    (path / "pyproject.toml").write_text("")
    (path / "sealbus.toml").write_text('[bus]\nurl = "sqlite:///data/desk.db"\n')
    for name in ("data", "src"):
        (path / name).mkdir()
    monkeypatch.chdir(path / "src")
    return path


def test_a_project_has_one_log_in_all_its_folders(folder: Any, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = folder.call("publish", "research.request", stdin='{"repository": "acme/app"}\n')
    assert sent.exit_code == 0, sent.output
    monkeypatch.chdir(project)
    shown = folder.call("tail", "research.request", "--all", "--output", "json")
    assert [json.loads(line)["value"]["data"] for line in shown.stdout.splitlines()] == [{"repository": "acme/app"}]
    assert sorted(path.name for path in project.rglob("*.db")) == ["desk.db"]


def test_a_command_completes_names_of_the_projects_log(folder: Any, project: Path) -> None:
    folder.call("publish", "research.request", stdin='{"repository": "acme/app"}\n')
    words = {"_SEALBUS_COMPLETE": "fish_complete", "COMP_WORDS": "sealbus tail agents.", "COMP_CWORD": "agents."}
    assert "agents.research.request" in folder.call(env=words).stdout
