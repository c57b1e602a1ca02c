"""`sealbus dev [MODULE:APP]...`: all that belongs to an app while it is written, in one terminal.

Owns the children: a worker that reloads, the audit and the console. Ctrl-C ends all of them; one that ends by itself
ends the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import click

from bus.errors import BusError, UnreachableError
from consumers.cli.exit_codes import FAILED
from consumers.cli.session import CommandSession, verb
from consumers.cli.shell import Command
from consumers.worker.children import Child, end_children, first_end, start_child

if TYPE_CHECKING:
    from consumers.app.app import App

__all__ = ["dev"]

_LOOK_S: Final = 0.3
_START_S: Final = 30.0


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
    children = [await start_child("worker", ["run", *targets, *reload, *common])]
    try:
        if not await _is_there(session, children[0], stop):
            return children[0][1].returncode or (FAILED if not stop.is_set() else 0)
        children.append(await start_child("audit", ["serve", "audit", *named, *common]))
        if extra:
            children.append(await start_child("console", [*extra, *common]))
        else:
            session.note("hint: the console needs its extra: pip install 'sealbus[console]'")
        for kind in _handled(apps):
            session.note(f"try it in a second terminal: {kind}")
        return await first_end(children, stop)
    finally:
        await end_children(children)


def _handled(apps: Sequence[App]) -> list[str]:
    """Return what a user can type to try the first app: a task in words, or a message of its first type."""
    for app in apps:
        types = sorted(app.declaration.subscriptions)
        if "task.request" in types:
            return [f'sealbus ask {app.agent_id} "your task in words"']
        if types:
            return [f"sealbus type show {types[0]} -o example | sealbus publish {types[0]}"]
    return []


def _common() -> list[str]:
    """Return the common options of this call, for the children."""
    provided = click.get_current_context().params
    names = {"bus": "--bus", "namespace": "--namespace", "config": "--config", "log_level": "--log-level"}
    return [word for name, option in names.items() if provided.get(name) for word in (option, str(provided[name]))]


async def _is_there(session: CommandSession, worker: Child, stop: asyncio.Event) -> bool:
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
