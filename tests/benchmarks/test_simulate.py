"""The simulation of a day runs, and a day has all its messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate import Kind, Plan, due

LOAD = """
minutes = 0.03
types = [{name = "order", per_day = 400, peak_hour = 14, reject_share = 0.1, flaky_share = 0.05}]
"""


@pytest.mark.medium
def test_all_that_is_published_is_handled(tmp_path: Path) -> None:
    (tmp_path / "load.toml").write_text(LOAD)
    program = Path(__file__).parent / "simulate.py"
    command = [sys.executable, program, tmp_path / "load.toml"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "400 published" in ended.stdout
    assert " 0 not published" in ended.stdout


@given(peak=st.none() | st.floats(0, 23.9), per_day=st.integers(1, 10**6))
def test_a_whole_day_has_all_its_messages_and_none_is_taken_back(peak: float | None, per_day: int) -> None:
    kind = Kind(name="x", per_day=per_day, peak_hour=peak)
    counts = [due(kind, Plan(types=(kind,)), number / 48) for number in range(49)]
    assert counts == sorted(counts)
    assert abs(counts[-1] - per_day) < 1e-6 * per_day + 1e-6
