"""One test that fails, hangs or dies does not end the run of the others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.medium  # a run of pytest inside one

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


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.timeout(300)
def test_every_other_test_has_run(tmp_path: Path, kind: str) -> None:
    (tmp_path / "conftest.py").write_text(SLOW_REPORT)
    (tmp_path / "test_bad.py").write_text(
        "import os, time\nclass SlowToReport(Exception): ...\n"
        "def test_before(): ...\n"
        f"def test_bad():\n    {BAD[kind]}\n"
        "def test_after(): ...\n"
    )
    for number in range(4):
        (tmp_path / f"test_good_{number}.py").write_text("def test_good(): ...\n")
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\ntimeout = {LIMIT_S}\nasyncio_default_fixture_loop_scope = function\n"
    )
    command = [sys.executable, "-m", "pytest", "-n", "2", "--import-mode=importlib", "-p", "tests.conftest"]
    ran = subprocess.run(
        [*command, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "kafka")])},
        text=True,
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "INTERNALERROR" not in ran.stdout + ran.stderr
    assert re.search(r"1 failed, 6 passed", ran.stdout), ran.stdout
