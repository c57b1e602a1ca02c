"""`sealbus dev [MODULE:APP]...`: all that belongs to an app while it is written, in one terminal.

Owns the children: a worker that reloads, the audit and the console. Ctrl-C ends all of them; one that ends by itself
ends the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import click

from bus.errors import BusError, UnreachableError
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import FAILED
from consumers.cli.session import CommandSession, verb
from consumers.cli.shell import Command
from consumers.worker.respawn import command_of

if TYPE_CHECKING:
    from consumers.app.app import App

__all__ = ["dev"]

_LOOK_S: Final = 0.3
_START_S: Final = 30.0
_END_S: Final = 40.0
_COLOURS: Final = {"worker": "green", "audit": "yellow", "console": "cyan"}
_MAX_LINE: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1


@click.command(cls=Command)
@click.argument("targets", metavar="[MODULE:APP]...", nargs=-1)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8_765, show_default=True, help="Of the console; 0: a free one."
)
@click.option("--no-reload", is_flag=True, help="Keep the worker as it is when files change.")
@verb()
async def dev(session: CommandSession, *, targets: tuple[str, ...], port: int, no_reload: bool) -> int:
    """Run apps, by default those of project.apps, together with worker, audit and console. Ctrl-C ends all.

    The worker starts again when a file changes (extra `reload`). The console prints its address and its token.

    \b
    Examples:
      sealbus dev
      sealbus dev orders.agent:app billing.agent:app
      sealbus dev --port 9000 --bus kafka://127.0.0.1:9092
    """
    apps = session.needed_apps(targets)
    settings = session.settings(apps)
    if settings.bus.url.startswith("memory:"):
        raise click.UsageError("a log in memory belongs to one process: leave --bus out, or name a file")
    common, named = _common(), [word for target in targets for word in ("--app", target)]
    reload = [] if no_reload or find_spec("watchfiles") is None else ["--reload"]
    extra = ["serve", "console", "--port", str(port)] if find_spec("litestar") and find_spec("uvicorn") else []

    stop = asyncio.Event()
    session.interrupts.soften = stop.set
    children = [await _start("worker", ["run", *targets, *reload, *common])]
    try:
        if not await _is_there(session, children[0], stop):
            return children[0][1].returncode or (FAILED if not stop.is_set() else 0)
        children.append(await _start("audit", ["serve", "audit", *named, *common]))
        if extra:
            children.append(await _start("console", [*extra, *common]))
        else:
            session.note("hint: the console needs its extra: pip install 'sealbus[console]'")
        for kind in _handled(apps):
            session.note(f"try it in a second terminal: {kind}")
        return await _first_end(children, stop)
    finally:
        await _end(children)


def _handled(apps: Sequence[App]) -> list[str]:
    """Return what a user can type to try the first app: a task in words, or a message of its first type."""
    for app in apps:
        types = sorted(app.declaration.subscriptions)
        if "task.request" in types:
            return [f'sealbus ask {app.agent_id} "your task in words"']
        if types:
            return [f"sealbus type show {types[0]} -o example | sealbus publish {types[0]}"]
    return []


_Child = tuple[str, asyncio.subprocess.Process, asyncio.Task[None]]


def _common() -> list[str]:
    """Return the common options of this call, for the children."""
    provided = click.get_current_context().params
    names = {"bus": "--bus", "namespace": "--namespace", "config": "--config", "log_level": "--log-level"}
    return [word for name, option in names.items() if provided.get(name) for word in (option, str(provided[name]))]


async def _start(name: str, arguments: Sequence[str]) -> _Child:
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


async def _is_there(session: CommandSession, worker: _Child, stop: asyncio.Event) -> bool:
    """Wait until the worker has created the log; return False if it has ended or was stopped."""
    settings = session.settings()
    for _ in range(round(_START_S / _LOOK_S)):
        if stop.is_set() or worker[1].returncode is not None:
            return False
        with contextlib.suppress(UnreachableError, BusError):
            async with session.open(settings) as transport:
                if await transport.admin.topics():
                    return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _LOOK_S)
    return False


async def _first_end(children: Sequence[_Child], stop: asyncio.Event) -> int:
    stopping = asyncio.create_task(stop.wait())
    ends = {asyncio.create_task(process.wait()): name for name, process, _ in children}
    done, waiting = await asyncio.wait([stopping, *ends], return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    for task, name in ends.items():
        if task in done:
            click.echo(f"{name} has ended with code {task.result()}; the others end, too", err=True)
            return task.result() or FAILED
    return 0


async def _end(children: Sequence[_Child]) -> None:
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
