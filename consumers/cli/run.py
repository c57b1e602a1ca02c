"""`sealbus run [MODULE:APP]...`: run the handlers of apps, in this process or in several.

Owns the options, and the choice between working and supervising. `consumers.worker.process` works,
`consumers.worker.supervisor` manages processes.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from bus.settings import loading as bus_settings
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import FAILED, MISCONFIGURED, UNREACHABLE, USAGE
from consumers.cli.session import CommandSession, gathered, verb
from consumers.cli.shell import Command
from consumers.worker.respawn import command_of
from consumers.worker.signals import ECHO_S
from consumers.worker.supervisor import drain_when_orphaned

if TYPE_CHECKING:
    from bus.settings.loading import Loaded
    from consumers.app.app import App

__all__ = ["run"]

_LAST_PORT = 65_535
_HOPELESS = frozenset({USAGE, UNREACHABLE, MISCONFIGURED})


class _RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    targets: tuple[str, ...]
    processes: int
    concurrency: str | None
    reload: bool
    metrics_port: int | None
    metrics_host: str
    drain_timeout: str | None
    supervised: bool


@click.command(cls=Command)
@click.argument("targets", metavar="[MODULE:APP]...", nargs=-1)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Worker processes; one that dies is started again.",
)
@click.option("--concurrency", metavar="N", help="Handlers running at the same time, per process.")
@click.option("--reload", is_flag=True, help="Start again when a .py file below the current directory changes.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, _LAST_PORT),
    help="Serve Prometheus metrics on this port, the next process on the next.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="The address to serve them on; 0.0.0.0 is every network of this host.",
)
@click.option(
    "--drain-timeout", metavar="DURATION", help="How long running handlers may take after a signal, such as 30s."
)
@click.option("--supervised", is_flag=True, hidden=True, help="Started by a supervisor: drain when it is gone.")
@verb()
@gathered(_RunOptions)
def run(session: CommandSession, options: _RunOptions) -> int:
    """Run apps in production: a worker that handles their messages.

    MODULE:APP names an App object: desk.agent:app is `app = App(...)` in desk/agent.py; by default it is those of
    project.apps. Several apps share the process, and keep their own groups, concurrency and limits. The
    first SIGTERM or Ctrl-C lets running handlers finish (exit code 0 if all did), a second one ends at once; unfinished
    messages are delivered again.

    \b
    Examples:
      sealbus run
      sealbus run --processes 4 --concurrency 16 --metrics-port 9100
      sealbus run orders.agent:app billing.agent:app
      sealbus run --reload --log-level debug
    """
    if options.reload and options.processes > 1:
        raise click.UsageError("--reload works with one process: leave --processes out")
    if options.metrics_port and options.metrics_port + options.processes - 1 > _LAST_PORT:
        raise click.UsageError(
            f"--metrics-port {options.metrics_port} leaves no port for {options.processes} processes"
        )
    loaded = session.load(concurrency=options.concurrency, drain_timeout=options.drain_timeout)
    if not options.supervised:
        session.announce()
    if options.processes > 1 and loaded.settings.bus.url.startswith("memory:"):
        raise click.UsageError(
            "a log in memory belongs to one process: use --bus sqlite:///sealbus.db or leave --processes out"
        )
    if options.reload:
        return _reload()
    from consumers.worker.host import check_groups

    if os.getpid() == 1:
        # The kernel ignores signals without a handler for a container's first process, and importing an app can take
        # long.
        signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
    apps = session.needed_apps(options.targets)
    check_groups([app.declaration for app in apps])
    for app in apps:
        session.settings([app], concurrency=options.concurrency, drain_timeout=options.drain_timeout)
        _announce(session, app, loaded, options.processes)
    if options.processes > 1:
        return _supervise(apps, loaded, options.processes, options.metrics_port)
    if options.supervised:
        drain_when_orphaned()
    return _work(session, apps, loaded, options.metrics_port, options.metrics_host, supervised=options.supervised)


def _work(
    session: CommandSession,
    apps: Sequence[App],
    loaded: Loaded,
    metrics_port: int | None,
    metrics_host: str,
    *,
    supervised: bool,
) -> int:
    from consumers.worker.process import run_process

    def ready() -> None:
        session.note("working; Ctrl-C lets running handlers finish, a second one ends at once")

    # A second signal makes the supervisor kill its children. An extra signal here is only the one to the whole service,
    # passed on.
    echo_s = math.inf if supervised else ECHO_S
    try:
        return asyncio.run(
            run_process(
                [app.declaration for app in apps],
                loaded.settings,
                metrics_port=metrics_port,
                metrics_host=metrics_host,
                on_ready=ready,
                echo_s=echo_s,
            )
        )
    except SystemExit as error:
        # A task raised SystemExit through the event loop. A process manager must not take it, least of all with code 0,
        # for a requested end.
        click.echo(
            f"error: a task that a handler began has ended the worker: SystemExit({printable(str(error.code))})",
            err=True,
        )
        return FAILED


def _announce(session: CommandSession, app: App, loaded: Loaded, processes: int) -> None:
    url = next(value for name, value, _ in bus_settings.describe(loaded) if name == "bus.url")
    types = ", ".join(sorted(app.declaration.subscriptions)) or "nothing: the app has no @app.on(...)"
    count = f" in {processes} processes" if processes > 1 else ""
    session.note(f"{printable(app.agent_id)} (group {app.group}) on {printable(url)}{count}; handles {types}")


def _supervise(apps: Sequence[App], loaded: Loaded, processes: int, metrics_port: int | None) -> int:
    from consumers.delivery.crashes.open import open_process_files
    from consumers.worker.host import in_namespace
    from consumers.worker.supervisor import supervise

    commands = []
    for number in range(processes):
        port = ["--metrics-port", str(metrics_port + number if metrics_port else 0)] if metrics_port is not None else []
        commands.append(_child_command(["--processes", "1", *port, "--supervised"]))
    rolls = [open_process_files(in_namespace(loaded.settings, app.namespace), app.group) for app in apps]
    return asyncio.run(supervise(commands, [roll for roll in rolls if roll is not None], hopeless=_HOPELESS))


def _reload() -> int:
    if find_spec("watchfiles") is None:
        raise click.UsageError('--reload needs watchfiles: pip install "sealbus[reload]"')
    from consumers.worker.reload import work_and_reload

    arguments = [argument for argument in _own_arguments() if argument != "--reload"]
    return asyncio.run(work_and_reload(command_of([*arguments, "--supervised"]), Path.cwd()))


def _child_command(extra: Sequence[str]) -> list[str]:
    # Of two equal options the last one wins.
    return command_of([*_own_arguments(), *extra])


def _own_arguments() -> list[str]:
    """Return the arguments of this process, however it was started."""
    context = click.get_current_context()
    arguments: list[str] = context.find_root().meta.get("sealbus.arguments", sys.argv[1:])
    return list(arguments)
