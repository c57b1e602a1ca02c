"""A worker ends within its deadline whatever its handlers do, and at once when asked twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from conftest import HERE, ROOT, wait_until
from stubborn_app import Block, Ignore

from sealbus import connect


def started(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start a worker of the stubborn app on a log in *folder*; it writes into worker.log there."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
    command = [
        sys.executable,
        "-m",
        "consumers.cli",
        "run",
        "stubborn_app:app",
        "--bus",
        f"sqlite:///{folder}/log.db",
    ]
    with (folder / "worker.log").open("wb") as log:
        return subprocess.Popen([*command, *options], cwd=folder, env=environment, stderr=log)


@pytest.fixture
def stubborn(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = started(tmp_path, "--drain-timeout", "0.5")
    yield process
    process.kill()
    process.wait()


async def order(folder: Path, payload: msgspec.Struct) -> None:
    async with connect(f"sqlite:///{folder}/log.db", agent="tests@tests", env={}) as bus:
        await bus.publish(payload)


@pytest.mark.slow
@pytest.mark.parametrize("payload", [Block(60), Ignore(60)], ids=["blocks the loop", "ignores cancellation"])
def test_a_stubborn_handler_does_not_outlive_the_deadline(
    stubborn: subprocess.Popen[bytes], tmp_path: Path, payload: msgspec.Struct
) -> None:
    asyncio.run(order(tmp_path, payload))
    wait_until((tmp_path / "started").exists, 45, "the handler runs")
    started_s = time.monotonic()
    stubborn.terminate()
    assert stubborn.wait(20) == 1
    assert time.monotonic() - started_s < 10


@pytest.mark.slow
def test_a_stubborn_handler_does_not_outlive_the_error_that_ended_its_worker(
    stubborn: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    asyncio.run(order(tmp_path, Ignore(60)))
    wait_until((tmp_path / "started").exists, 45, "the handler runs")
    for file in tmp_path.glob("log.db*"):
        file.unlink()
    assert stubborn.wait(20) != 0
    log = (tmp_path / "worker.log").read_text()
    assert "was deleted or replaced" in log, log


@pytest.mark.slow
def test_the_second_signal_ends_a_blocked_worker_at_once(stubborn: subprocess.Popen[bytes], tmp_path: Path) -> None:
    asyncio.run(order(tmp_path, Block(60)))
    wait_until((tmp_path / "started").exists, 45, "the handler runs")
    stubborn.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    started_s = time.monotonic()
    stubborn.send_signal(signal.SIGTERM)
    assert stubborn.wait(5) == 143
    assert time.monotonic() - started_s < 2


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [False, True], ids=["closed terminal", "nohup"])
def test_a_closed_terminal_ends_a_worker_in_order_unless_nohup_says_otherwise(ignored: bool, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        process = started(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        wait_until(lambda: "working; " in (tmp_path / "worker.log").read_text(), 45, "the worker works")
        process.send_signal(signal.SIGHUP)
        if ignored:
            time.sleep(0.3)
            assert process.poll() is None
            process.terminate()
        assert process.wait(20) == 0
        assert "worker.stopped" in (tmp_path / "worker.log").read_text()
    finally:
        process.kill()
        process.wait()
