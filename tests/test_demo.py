"""The demo is the main job: it passes, on other code too, and fails when an expectation does not hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from consumers.agents.demo.watch import Check

ROOT = Path(__file__).parent.parent


def run_demo(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "consumers.cli", "demo", *arguments],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_demo_reports_the_findings_of_another_repository_with_their_lines(tmp_path: Path) -> None:
    source = tmp_path / "project"
    source.mkdir()
    (source / "one.py").write_text(
        "x = 1\n\n\ndef f(a=[]):\n    try:\n        return a\n    except:\n        raise\n", "utf-8"
    )
    done = run_demo(tmp_path, str(source), "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "kept" / "report.md").read_text("utf-8")
    assert "one.py:4 " in report
    assert "one.py:7 " in report
    assert "agents that drained and left in order" in done.stdout
    assert "a workflow whose engine was killed" in done.stdout.strip().splitlines()[-2]
    assert " NO " not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_demo_runs_on_a_log_that_is_named(tmp_path: Path) -> None:
    source = tmp_path / "clean.py"
    source.write_text("x = 1\n", "utf-8")
    done = run_demo(tmp_path, str(source), "--bus", "sqlite:///named.db")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "named.db").exists()


def test_an_expectation_that_does_not_hold_is_seen() -> None:
    assert Check("a record altered in the log", "hash_mismatch", "hash_mismatch").holds
    assert not Check("a record altered in the log", "hash_mismatch", "done").holds
