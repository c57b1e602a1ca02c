"""The demo's workers must not outlive the demo, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
_START = """
import sys, time
from pathlib import Path
from bus.settings.loading import load
from consumers.agents.demo.crew import Crew
flags = {"bus.url": f"sqlite:///{sys.argv[1]}/log.db"}
crew = Crew(Path(sys.argv[1]), load(flags=flags, env={}, file=None).settings, "consumers.agents.demo.agents")
print(crew.start("writer"), flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_workers_end_with_the_demo_that_was_killed(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-c", _START, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    worker = int(demo.stdout.readline())
    with demo.stdout:
        time.sleep(1.0)
        assert _runs(worker)
        demo.kill()
        demo.wait()
    deadline_s = time.monotonic() + 15
    while _runs(worker) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if _runs(worker):
        os.kill(worker, signal.SIGKILL)
        pytest.fail("the worker outlived the demo")


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
