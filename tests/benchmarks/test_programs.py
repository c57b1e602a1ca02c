"""Each program that measures by itself runs, with little work; `test_rows` and `test_simulate` have the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_PROGRAMS = [
    "approvals --approvals 100",
    "approvals --approvals 100 --kit",
    "audit --records 50",
    "dialects --seconds 0.005",
    "inbox --seconds 0.2",
    "dead_letters --letters 50 --only dlq",
    "payload_forms",
    "policy --rules 20",
    "sagas --processes 20 --rounds 1",
]
_LONGER = [
    "embedded --messages 100 --long 100 --plot memory.svg",
    "lateness --seconds 1",
    "dead_letters --letters 50",
    "requests --rounds 1 --seconds 0.2",
    "signing",
    "startup --seconds 0.1 --rounds 1 --asked 1",
    "timers --waits 20 --opening 1 --spread 3",
]


@pytest.mark.medium
@pytest.mark.parametrize("line", _PROGRAMS)
def test_a_program_measures(tmp_path: Path, line: str) -> None:
    assert measured(tmp_path, line)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("line", _LONGER)
def test_a_longer_program_measures(tmp_path: Path, line: str) -> None:
    assert measured(tmp_path, line)


def measured(folder: Path, line: str) -> str:
    """What a program prints."""
    name, *arguments = line.split()
    command = [sys.executable, _HERE / f"{name}.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
