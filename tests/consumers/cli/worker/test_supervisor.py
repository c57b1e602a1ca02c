"""Keeping worker processes alive where the system gives no more of them for a while."""

from __future__ import annotations

import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path

import pytest

from consumers.worker import supervisor

DIES = [sys.executable, "-c", "raise SystemExit(1)"]


def stays(marker: Path) -> list[str]:
    return [sys.executable, "-c", f"import pathlib, sys; pathlib.Path({str(marker)!r}).touch(); sys.stdin.read()"]


@pytest.mark.medium
async def test_a_process_that_fails_to_restart_is_retried_while_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Process] = []
    attempts = 0

    async def start(command: Sequence[str]) -> Process:
        nonlocal attempts
        if command is DIES:
            attempts += 1
            if attempts == 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            if attempts == 3:
                os.kill(os.getpid(), signal.SIGTERM)
        child = await real(command)
        started.append(child)
        return child

    real = supervisor.start
    monkeypatch.setattr(supervisor, "start", start)
    other = tmp_path / "other"
    await supervisor.supervise([DIES, stays(other)])
    assert attempts == 3
    assert [child.returncode is not None for child in started] == [True, True, True]


async def test_a_process_that_cannot_be_started_at_all_ends_the_others_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: list[Process] = []

    async def start(command: Sequence[str]) -> Process:
        if command is DIES:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        other.append(await real(command))
        return other[0]

    real = supervisor.start
    monkeypatch.setattr(supervisor, "start", start)
    assert await supervisor.supervise([stays(tmp_path / "other"), DIES]) == 1
    assert other[0].returncode == -signal.SIGTERM
