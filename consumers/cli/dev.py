"""`sealbus dev [MODULE:APP]...`: all that belongs to an app while it is written, in one terminal.

Owns the children: a worker that reloads, the audit, the console and the gateway. Ctrl-C ends all of them; one that
ends by itself ends the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from bus.errors import BusError, UnreachableError
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.trust.opening import ALLOW_ALL, key_file_of
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.parameter_types import TEXT_ID
from consumers.cli.session import CommandSession, verb
from consumers.cli.shell import Command
from consumers.gateway.dev_door import DevDoor, prepare_dev_door
from consumers.processes.approvals.people import people_with_keys
from consumers.scaffold.first_steps import Surroundings, first_lines, unset_variables
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
@click.option(
    "--gateway-port",
    type=click.IntRange(1, 65_535),
    default=8_766,
    show_default=True,
    help="Of the gateway.",
)
@click.option(
    "--as",
    "person",
    type=TEXT_ID,
    metavar="PERSON",
    help="Who decides in the console.  [default: the person of the policy whose key is here]",
)
@click.option("--no-open", is_flag=True, help="Do not open the console in a browser, where there is a desktop.")
@click.option("--no-reload", is_flag=True, help="Keep the worker as it is when files change.")
@verb()
async def dev(
    session: CommandSession,
    *,
    targets: tuple[str, ...],
    port: int,
    gateway_port: int,
    person: str | None,
    no_open: bool,
    no_reload: bool,
) -> int:
    """Run apps, by default those of project.apps, together with worker, audit, console and gateway. Ctrl-C ends all.

    It shows what to open, what to type in a second terminal, who decides, and what is missing. The worker starts again
    when a file changes (extra `reload`). The console prints its address and its token. The gateway's token is in
    .sealbus/dev.token.

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
    has_console = find_spec("litestar") is not None and find_spec("uvicorn") is not None
    people = people_with_keys(settings)
    decider = _decider(people, person, settings.trust.key_file)

    stop = asyncio.Event()
    session.interrupts.soften = stop.set
    children = [await start_child("worker", ["run", *targets, *reload, *common])]
    try:
        if not await _is_there(session, children[0], stop):
            return children[0][1].returncode or (FAILED if not stop.is_set() else 0)
        children.append(await start_child("audit", ["serve", "audit", *named, *common]))
        if has_console:
            deciding = ["--as", decider, "--key-file", settings.trust.key_file] if decider else []
            children.append(
                await start_child("console", ["serve", "console", "--port", str(port), *deciding, *named, *common])
            )
        door = _dev_door(session, settings, apps) if has_console and find_spec("wsproto") is not None else None
        if door is not None and not door.lacks:
            where = ["--doors", str(door.doors), "--port", str(gateway_port)]
            children.append(await start_child("gateway", ["serve", "gateway", *where, *named, *common]))
        around = Surroundings(
            console=(f"http://127.0.0.1:{port}/" if port else "") if has_console else None,
            person=decider,
            people=people,
            verifies=bool(settings.trust.keys and settings.policy.file not in ("", ALLOW_ALL)),
            unset=unset_variables(session.project_folder, os.environ),
            gateway=None if door is None or door.lacks else f"http://127.0.0.1:{gateway_port}",
            token_file="" if door is None else _near(door.token),
            gateway_lacks="pip install 'sealbus[gateway]'" if door is None else door.lacks,
        )
        for line in first_lines([app.declaration for app in apps], around):
            session.note(printable(line))
        opening = asyncio.create_task(_open_console(port if has_console and not no_open and _has_desktop() else 0))
        try:
            return await first_end(children, stop)
        finally:
            opening.cancel()
    finally:
        await end_children(children)


def _has_desktop() -> bool:
    """Return whether a person sits before a terminal of a desktop: elsewhere a browser would open for nobody."""
    is_shown = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return is_shown and sys.stdout.isatty() and not os.environ.get("CI")


async def _open_console(port: int) -> None:
    """Open the console at *port* in a browser, once it answers; nothing where *port* is 0."""
    while port:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            await asyncio.to_thread(webbrowser.open, f"http://127.0.0.1:{port}/")
            return
        await asyncio.sleep(_LOOK_S)


def _dev_door(session: CommandSession, settings: Settings, apps: Sequence[App]) -> DevDoor:
    handled = [name for app in apps for name in app.declaration.subscriptions if name != "task.cancel"]
    return prepare_dev_door(session.project_folder, settings, handled)


def _near(path: Path) -> str:
    """Return *path* as it is typed here."""
    return os.path.relpath(path)


def _decider(people: Sequence[str], named: str | None, keys: str) -> str:
    """Return who decides in the console: *named*, else the only one of *people*. Raises click.UsageError."""
    if named is not None and not key_file_of(Path(keys), named).is_file():
        raise click.UsageError(f"--as {named}: no private key of that person in trust.key_file, {keys or '-'}")
    return named or (people[0] if len(people) == 1 else "")


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
