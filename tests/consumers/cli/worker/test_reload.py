"""Starting a worker again when its source changes: signals that come at a bad moment."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path

import pytest

from consumers.worker import reload as reloading
from consumers.worker import supervisor
from consumers.worker.signals import RepeatedSignal

_IDLE = (sys.executable, "-c", "import time; time.sleep(60)")
_ORDERLY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(3)))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
for number in (signal.SIGTERM, signal.SIGINT):
    os.kill({}, number)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
time.sleep(60)
"""


@pytest.mark.medium
@pytest.mark.timeout(30)
async def test_ctrl_c_while_the_next_worker_is_being_started_ends_that_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, starts = supervisor.start, 0

    async def start(command: Sequence[str]) -> Process:
        nonlocal starts
        starts += 1
        child = await begin(command)
        if starts == 2:
            os.kill(os.getpid(), signal.SIGINT)
            # Let the loop see it.
            await asyncio.sleep(0.1)
        return child

    async def change() -> None:
        while starts < 2:
            (tmp_path / "agents.py").write_text(f"# {asyncio.get_running_loop().time()}\n")
            await asyncio.sleep(0.3)

    monkeypatch.setattr(reloading, "start", start)
    changing = asyncio.create_task(change())
    assert await asyncio.wait_for(reloading.work_and_reload(_IDLE, tmp_path), 20) == 0
    await changing


@pytest.mark.medium
@pytest.mark.timeout(30)
async def test_a_signal_that_reaches_the_whole_service_lets_the_worker_end_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As `timeout` sends it: to the process, and at once to its group, which the process is in.
    monkeypatch.setattr(reloading, "RepeatedSignal", lambda: RepeatedSignal(echo_s=60))
    command = (sys.executable, "-c", _ORDERLY.format(os.getpid()))
    assert await asyncio.wait_for(reloading.work_and_reload(command, tmp_path), 20) == 3


@pytest.mark.medium
@pytest.mark.timeout(60)
async def test_a_worker_that_is_killed_starts_again(tmp_path: Path) -> None:
    starts = tmp_path / "starts.txt"
    script = (
        "import os, signal, time\n"
        f"with open({str(starts)!r}, 'a') as file: file.write('x')\n"
        f"first = os.path.getsize({str(starts)!r}) == 1\n"
        f"os.kill(os.getpid() if first else {os.getpid()}, signal.SIGKILL if first else signal.SIGINT)\n"
        "time.sleep(60)\n"
    )
    watched = tmp_path / "watched"
    watched.mkdir()
    await asyncio.wait_for(reloading.work_and_reload((sys.executable, "-c", script), watched), 50)
    assert starts.read_text() == "xx"
