"""`sealbus status`: what is happening now, most urgent first. `consumers.operations.survey` looks."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from bus.clock import SystemClock
from bus.telemetry.terminal import printable
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_json
from consumers.cli.session import CommandSession, verb
from consumers.cli.shell import Command
from consumers.operations.survey.survey import Survey, opened_surveyor

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["picture", "status"]

_MAX_ROWS: Final = 12


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


def picture(survey: Survey, namespace: str) -> Group:
    """Return *survey* as tables; untrusted text is escaped, so it contains no markup or control characters."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(title: str, *columns: str) -> Table:
        found = Table(title=title, title_justify="left", expand=True, box=None, header_style="bold")
        for column in columns:
            found.add_column(column, overflow="ellipsis", no_wrap=True)
        return found

    def cells(*values: object, style: str = "") -> list[Text]:
        return [Text(printable(str(value)), style=style) for value in values]

    letters, work = survey.letters, survey.work
    groups = table("Groups", "GROUP", "WORKERS", "LAG", "MOST BEHIND")
    for group in survey.groups[:_MAX_ROWS]:
        bad = group.stands or (group.lag and not group.members)
        shown = f"{group.worst} (cannot continue in {group.stands} partitions)" if group.stands else group.worst
        groups.add_row(*cells(group.name, group.members, f"{group.lag:,}", shown, style="red" if bad else ""))
    causes = table(
        f"Dead letters: {letters.count:,} open", "CAUSE", "COUNT", "REASON", "TYPE", "FROM", "FIELD", "ERROR"
    )
    for cause, count, _ in letters.causes[:_MAX_ROWS]:
        row = (cause.name, f"{count:,}", cause.reason, cause.message_type, cause.sender, cause.pointer, cause.error)
        causes.add_row(*cells(*row, style="red"))
    agents = table("Agents", "AGENT", "HEALTH", "WORKERS", "HEARTBEAT", "RUNNING")
    for agent in sorted(survey.agents, key=lambda each: (each.is_healthy, each.agent_id))[:_MAX_ROWS]:
        heard = "-" if agent.heard_s_ago is None else f"{agent.heard_s_ago:.0f} s ago"
        shown_agent = (agent.agent_id, agent.health, agent.instances, heard, agent.active_tasks or 0)
        agents.add_row(*cells(*shown_agent, style="" if agent.is_healthy else "red"))
    line = Text(f"workflows: {sum(work.open.values()):,} open, {work.overdue:,} overdue   ")
    line.append(f"approvals: {work.approvals:,} open")
    if work.oldest_approval_ms is not None:
        line.append(f", the oldest for {timedelta(seconds=(survey.taken_ms - work.oldest_approval_ms) // 1000)}")
    line.append(f"   {work.error}")
    if work.overdue or work.error:
        line.stylize("red")
    at = time.strftime("%H:%M:%S", time.localtime(survey.taken_ms / 1000))
    return Group(Text(f"{namespace}  {at}", style="bold"), line, groups, causes, agents)
