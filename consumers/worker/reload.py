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
        async for changes in awatch(folder, watch_filter=PythonFilter(), stop_event=stop):
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


def _terminate(child: Process) -> None:
    if child.returncode is None:
        child.terminate()
