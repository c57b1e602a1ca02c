"""One test that fails, hangs or dies does not end the run of the others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.medium, pytest.mark.timeout(300)]  # a run of pytest inside one

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 2
BAD = {
    "unencodable": "raise ValueError('bad \\ud800 text')",
    "killed": "class Killed(BaseException): ...\n    raise Killed",
    "slow_to_report": "raise SlowToReport",
    "hanging": "time.sleep(60)",
    "dead": "os._exit(3)",
}
SLOW_REPORT = f"""
import time
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call):
    if call.excinfo is not None and call.excinfo.typename == "SlowToReport":
        give_up_s = time.monotonic() + {LIMIT_S + 1}
        while time.monotonic() < give_up_s:
            pass
    return (yield)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run in which each of the bad tests stands between two good ones, in a file of its own."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "conftest.py").write_text(SLOW_REPORT)
    (folder / "pytest.ini").write_text(
        f"[pytest]\ntimeout = {LIMIT_S}\nasyncio_default_fixture_loop_scope = function\n"
    )
    for kind, body in BAD.items():
        (folder / f"test_{kind}.py").write_text(
            "import os, time\nclass SlowToReport(Exception): ...\n"
            f"def test_before(): ...\ndef test_{kind}():\n    {body}\ndef test_after(): ...\n"
        )
        (folder / f"test_good_{kind}.py").write_text("def test_good(): ...\n")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--import-mode=importlib", "-p", "tests.conftest"]
    ran = subprocess.run(
        [*command, str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "kafka")])},
        text=True,
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("kind", BAD)
def test_a_failure_is_attributed_to_its_own_test(said: str, kind: str) -> None:
    assert re.search(rf"^FAILED \S*test_{kind}\.py::test_{kind}\b", said, re.MULTILINE), said


def test_every_other_test_has_run(said: str) -> None:
    assert "INTERNALERROR" not in said
    assert f"{len(BAD)} failed, {3 * len(BAD)} passed" in said, said
