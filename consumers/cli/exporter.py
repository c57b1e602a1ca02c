"""`sealbus exporter` and `sealbus top`: what goes on in a namespace, for Prometheus and for a terminal.

Owns both verbs and the picture; `consumers.operations.survey` looks.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click
from prometheus_client import CollectorRegistry

from bus.clock import SystemClock
from bus.errors import BusError
from bus.telemetry.logs import get_logger
from bus.telemetry.terminal import printable
from consumers.cli.interrupts import execute
from consumers.cli.io.parameter_types import DURATION_TYPE
from consumers.cli.io.printing import print_json
from consumers.cli.session import CommandSession, with_session
from consumers.operations.survey.doctor import free_bytes
from consumers.operations.survey.exporter import SurveyCollector
from consumers.operations.survey.survey import Survey, opened_surveyor
from consumers.worker.metrics_server import MetricsServer

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["exporter", "top"]

_LAST_PORT: Final = 65_535
_MAX_ROWS: Final = 12
_log = get_logger("exporter")


@click.command()
@click.option(
    "--port", type=click.IntRange(0, _LAST_PORT), default=9_109, show_default=True, help="0 picks a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve on.")
@click.option("--every", type=DURATION_TYPE, default=5.0, show_default="5s", help="How often to look.")
@with_session
def exporter(session: CommandSession, *, port: int, host: str, every: float) -> int:
    """Serve the metrics of a whole namespace: lag and members of groups, open dead letters, processes, approvals,
    agents.

    Run one per namespace; a second is harmless. Workers serve their own metrics: `sealbus worker --metrics-port`.

    \b
    Examples:
      sealbus exporter
      sealbus exporter --host 0.0.0.0 --port 9109 --every 30s
    """
    settings, clock = session.settings(), SystemClock()

    async def body(_: object) -> int:
        collector, registry = SurveyCollector(), CollectorRegistry()
        registry.register(collector)
        with MetricsServer(registry, host, port) as server:
            click.echo(f"metrics of {settings.bus.namespace} on http://{host}:{server.port}/metrics", err=True)
            async with session.open(settings) as transport, opened_surveyor(transport, settings, clock) as surveyor:
                while True:
                    collector.free_bytes = free_bytes(settings)
                    try:
                        collector.survey = await surveyor.take()
                    except BusError as error:
                        if collector.is_current or collector.survey is None:
                            _log.warning("exporter.blind", error=str(error))
                        collector.is_current = False
                    else:
                        if not collector.is_current:
                            _log.info("exporter.sees", namespace=settings.bus.namespace)
                        collector.is_current = True
                    await clock.sleep(every)

    return execute(body)


@click.command()
@click.option("--every", type=DURATION_TYPE, default=2.0, show_default="2s", help="How often to look.")
@click.option("--once", is_flag=True, help="Look once, and end.")
@with_session
def top(session: CommandSession, *, every: float, once: bool) -> int:
    """Show what goes on now, worst first: groups, dead letters by cause, agents, processes, approvals. Ctrl-C ends it.

    \b
    Examples:
      sealbus top
      sealbus top --once --output json
    """
    settings, clock = session.settings(), SystemClock()

    async def body(_: object) -> int:
        from rich.console import Console
        from rich.live import Live

        async with session.open(settings) as transport, opened_surveyor(transport, settings, clock) as surveyor:
            if session.as_json:
                while True:
                    print_json(await surveyor.take())
                    if once:
                        return 0
                    await clock.sleep(every)
            console = Console()
            if once or not console.is_terminal:
                console.print(picture(await surveyor.take(), settings.bus.namespace))
                return 0
            with Live(console=console, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(picture(await surveyor.take(), settings.bus.namespace), refresh=True)
                    await clock.sleep(every)

    return execute(body)


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
    groups = table("Groups", "GROUP", "WORKERS", "LAG", "WORST TOPIC")
    for group in survey.groups[:_MAX_ROWS]:
        bad = group.stands or (group.lag and not group.members)
        shown = f"{group.worst} (stands in {group.stands})" if group.stands else group.worst
        groups.add_row(*cells(group.name, group.members, f"{group.lag:,}", shown, style="red" if bad else ""))
    causes = table(
        f"Dead letters: {letters.count:,} open", "CAUSE", "LETTERS", "REASON", "TYPE", "FROM", "FIELD", "ERROR"
    )
    for cause, count, _ in letters.causes[:_MAX_ROWS]:
        row = (cause.name, f"{count:,}", cause.reason, cause.message_type, cause.sender, cause.pointer, cause.error)
        causes.add_row(*cells(*row, style="red"))
    agents = table("Agents", "AGENT", "HEALTH", "INSTANCES", "HEARD", "AT WORK")
    for agent in sorted(survey.agents, key=lambda each: (each.is_healthy, each.agent_id))[:_MAX_ROWS]:
        heard = "-" if agent.heard_s_ago is None else f"{agent.heard_s_ago:.0f} s ago"
        shown_agent = (agent.agent_id, agent.health, agent.instances, heard, agent.active_tasks or 0)
        agents.add_row(*cells(*shown_agent, style="" if agent.is_healthy else "red"))
    oldest = survey.taken_ms if work.oldest_approval_ms is None else work.oldest_approval_ms
    waited = timedelta(seconds=(survey.taken_ms - oldest) // 1000)
    line = Text(f"processes {sum(work.open.values()):,} open, {work.overdue:,} waits overdue   ")
    line.append(f"approvals {work.approvals:,} open, the oldest for {waited}   {work.error}")
    if work.overdue or work.error:
        line.stylize("red")
    at = time.strftime("%H:%M:%S", time.localtime(survey.taken_ms / 1000))
    return Group(Text(f"{namespace}  {at}", style="bold"), line, groups, causes, agents)
