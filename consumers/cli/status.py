"""`sealbus status`: what is happening now, most urgent first. `consumers.operations.survey` looks."""

from __future__ import annotations

import click

from bus.clock import SystemClock
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_json
from consumers.cli.session import CommandSession, verb
from consumers.cli.shell import Command
from consumers.operations.survey.picture import picture
from consumers.operations.survey.survey import Survey, opened_surveyor

__all__ = ["picture", "status"]


@click.command(cls=Command)
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option("--every", type=DURATION_TYPE, default=2.0, show_default="2s", help="With --watch, how often to look.")
@verb(Survey)
async def status(session: CommandSession, *, watch: bool, every: float) -> int:
    """Show what is happening now, most urgent first: groups, dead letters by cause, agents, workflows, approvals.

    \b
    Examples:
      sealbus status
      sealbus status --watch
      sealbus status -o json
    """
    from rich.console import Console
    from rich.live import Live

    settings, clock = session.settings(), SystemClock()
    async with session.open(settings) as transport, opened_surveyor(transport, settings, clock) as surveyor:
        console = Console()
        if session.as_json or not watch or not console.is_terminal:
            while True:
                survey = await surveyor.take()
                if session.as_json:
                    print_json(survey)
                else:
                    console.print(picture(survey, settings.bus.namespace))
                if not watch:
                    return 0
                await clock.sleep(every)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(picture(await surveyor.take(), settings.bus.namespace), refresh=True)
                await clock.sleep(every)
