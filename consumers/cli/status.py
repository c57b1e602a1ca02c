"""`sealbus status`: what is happening now, most urgent first. `consumers.operations.survey` looks."""

from __future__ import annotations

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import UnreachableError
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_json
from consumers.cli.session import CommandSession, verb
from consumers.cli.shell import Command
from consumers.operations.survey.examination import Examination, opened_examiner
from consumers.operations.survey.picture import picture
from consumers.operations.survey.survey import Survey

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
    async with session.open(settings) as transport, opened_examiner(transport, settings, clock) as examiner:
        console = Console()

        async def look() -> Examination:
            looked = await examiner.look()
            if looked.survey is None and not watch:
                raise UnreachableError(next(each.text for each in looked.results if each.area == "log"))
            return looked

        if session.as_json or not watch or not console.is_terminal:
            while True:
                looked = await look()
                if session.as_json and looked.survey is not None:
                    print_json(msgspec.structs.replace(looked.survey, checks=looked.results))
                else:
                    console.print(picture(looked, settings.bus.namespace))
                if not watch:
                    return 0
                await clock.sleep(every)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(picture(await look(), settings.bus.namespace), refresh=True)
                await clock.sleep(every)
