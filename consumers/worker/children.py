"""Child processes of one terminal: their lines are marked with a name, and they end together."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

import click

from bus.telemetry.terminal import printable
from consumers.worker.respawn import command_of

__all__ = ["Child", "end_children", "first_end", "start_child"]


_END_S: Final = 40.0


_COLOURS: Final = {"worker": "green", "audit": "yellow", "console": "cyan"}


_MAX_LINE: Final = 1 << 20


_PR_SET_PDEATHSIG: Final = 1


Child = tuple[str, asyncio.subprocess.Process, asyncio.Task[None]]


async def start_child(name: str, arguments: Sequence[str]) -> Child:
    process = await asyncio.create_subprocess_exec(
        *command_of(list(arguments)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # Ctrl-C reaches this process alone, which ends the others in order.
        start_new_session=True,
        preexec_fn=_follow_parent,
        limit=_MAX_LINE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    return name, process, asyncio.create_task(_tell(name, process))


def _follow_parent() -> None:
    """Make Linux send SIGTERM to this new process when its parent is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def _tell(name: str, process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    mark = click.style(f"{name:<8}", fg=_COLOURS[name])
    while line := await process.stdout.readline():
        click.echo(f"{mark} {printable(line.decode('utf-8', 'replace').rstrip())}", err=True)


async def first_end(children: Sequence[Child], stop: asyncio.Event) -> int:
    stopping = asyncio.create_task(stop.wait())
    ends = {asyncio.create_task(process.wait()): name for name, process, _ in children}
    done, waiting = await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    for task, name in ends.items():
        if task in done:
            click.echo(f"{name} has ended with code {task.result()}; the others end, too", err=True)
            return task.result() or 1
    return 0


async def end_children(children: Sequence[Child]) -> None:
    """End every child in order, the worker last; kill children that do not end."""
    for _, process, telling in reversed(children):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), _END_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        await asyncio.gather(telling, return_exceptions=True)
