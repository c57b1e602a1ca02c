"""`sealbus run --reload`: restart a worker process when its source changes.

Owns the cycle of start, change, drain, start. Needs watchfiles (the extra `reload`); imported only for `--reload`.
"""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path

import click
from watchfiles import PythonFilter, awatch

from consumers.worker.signals import RepeatedSignal
from consumers.worker.supervisor import start

__all__ = ["work_and_reload"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_MS = 1_000


async def work_and_reload(command: Sequence[str], folder: Path) -> int:
    """Run *command* until a signal, restarting it after every change of a .py file below *folder*.

    Returns the last child's exit code.
    """
    stop = asyncio.Event()
    insistence = RepeatedSignal()
    child = await start(command)

    def received(_: int) -> None:
        insists = insistence.grows()
        if insists:
            child.kill()
        if insists is None:
            stop.set()
            _terminate(child)

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, received, number)
    try:
        told: set[Process] = set()
        watching = awatch(
            folder, watch_filter=PythonFilter(), stop_event=stop, rust_timeout=_LOOK_MS, yield_on_timeout=True
        )
        async for changes in watching:
            if not changes:
                child = await _looked_after(child, command, told, stop)
                continue
            changed = sorted({Path(path).name for _, path in changes})
            click.echo(f"changed: {', '.join(changed[:5])}; starting again", err=True)
            _terminate(child)
            await child.wait()
            if stop.is_set():
                break
            child = await start(command)
            if stop.is_set():
                # The signal came during the start, and reached only the previous child.
                _terminate(child)
        code = await child.wait()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return 0 if code == -signal.SIGTERM else code if code >= 0 else 128 - code


async def _looked_after(child: Process, command: Sequence[str], told: set[Process], stop: asyncio.Event) -> Process:
    """Return *child*, or the next one where it was killed. One that ended with an error waits for a changed file."""
    if not child.returncode or stop.is_set():
        return child
    if child.returncode < 0:
        click.echo(f"killed by signal {-child.returncode}; starting again", err=True)
        return await start(command)
    if child not in told:
        told.add(child)
        click.echo(f"ended with code {child.returncode}; a changed file starts it again", err=True)
    return child


def _terminate(child: Process) -> None:
    if child.returncode is None:
        child.terminate()
