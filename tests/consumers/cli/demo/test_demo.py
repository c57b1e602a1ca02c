"""The demo cleans up after itself, also when it is ended from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_ended_demo_leaves_no_folder_behind(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen(
        [sys.executable, "-m", "consumers.cli", "demo"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not list((tmp_path / "tmp").glob("sealbus-demo-*/worker-3-*.log")):
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    assert list((tmp_path / "tmp").glob("sealbus-demo-*")) == []
