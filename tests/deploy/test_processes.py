"""Processes end with the one that started them, without Java for speed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PARENT = """
import sys, threading, time
from deploy.kafka.processes import Processes
processes = Processes()
def begin():
    with open(sys.argv[1], "wb") as output:
        for _ in range(2):
            started.append(processes.start(["sleep", "600"], output=output).pid)
started = []
thread = threading.Thread(target=begin)
thread.start(); thread.join(); time.sleep(0.3)
print(*started, flush=True)
time.sleep(600)
"""


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    # Nobody may be there to collect it: a zombie has ended.
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(exists(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.medium
def test_children_outlive_the_starting_thread_and_die_with_the_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, tmp_path / "out"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(exists(pid) for pid in pids)
        parent.send_signal(signal.SIGKILL)
    assert gone_within(pids, 10)
