"""`sealbus new`: projects whose tests pass at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from consumers.cli import main
from consumers.cli.scaffold.command import new, project_files

ROOT = Path(__file__).parents[4]
VARIANTS = ["plain", "fastapi", "postgres", "kafka"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.medium
def test_the_tests_of_a_new_project_pass(variant: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(new, [str(tmp_path / "orders"), "--with", variant])
    assert done.exit_code == 0, done.output
    tested = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:asyncio",
            "-p",
            "consumers.app.pytest_plugin",
        ],
        cwd=tmp_path / "orders",
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.medium
def test_the_tests_of_a_new_project_pass_inside_another_one(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = "--no-such"\n')
    test_the_tests_of_a_new_project_pass("plain", tmp_path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_name_is_filled_in(variant: str) -> None:
    files = project_files("orders", variant)
    assert {"agent.py", "test_agent.py", "pytest.ini", "sealbus.toml", "README.md", "Makefile"} <= set(files)
    assert ".gitignore" in files
    assert not [path for path, text in files.items() if "{{" in text.replace("provide={{", "")]
    for path, text in files.items():
        if path.endswith(".py"):
            compile(text, path, "exec")


@pytest.mark.parametrize(("folder", "agent"), [("My Orders!", "my-orders"), ("7days", "agent-7days"), ("___", "agent")])
def test_an_agent_is_named_after_its_directory(folder: str, agent: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(new, [str(tmp_path / folder)]).exit_code == 0
    assert f'App("{agent}@svc")' in (tmp_path / folder / "agent.py").read_text("utf-8")


def test_nothing_that_exists_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    done = CliRunner().invoke(new, [str(tmp_path)])
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [tmp_path / "notes.txt"])
    assert "is not empty: name a directory that is new or empty" in done.output
    done = CliRunner().invoke(new, [str(tmp_path / "notes.txt")])
    assert (done.exit_code, "is not empty" in done.output) == (2, True)


def test_commands_in_a_new_project_know_its_log_and_its_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody types the app or the log: both are in `sealbus.toml`."""
    greeter = tmp_path / "greeter"
    assert CliRunner().invoke(new, [str(greeter)]).exit_code == 0
    monkeypatch.chdir(greeter)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "agent", raising=False)
    try:
        sent = CliRunner().invoke(main, ["publish", "greeting.request"], input='{"name": "Ada"}\n')
        assert sent.exit_code == 0, sent.output
    finally:
        sys.modules.pop("agent", None)
    assert [path.name for path in greeter.glob("*.db")] == ["greeter.db"]
