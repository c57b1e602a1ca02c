"""`sealbus doctor`: looks at a whole set-up and says for each fault what to do.

Owns the verb and its output; `consumers.operations.survey.doctor` judges.
"""

from __future__ import annotations

from typing import Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json
from consumers.cli.session import CommandSession, with_session
from consumers.cli.topics.command import wanted_topics
from consumers.operations.survey.doctor import CheckResult, check_limits
from consumers.operations.survey.examination import examine_here, examine_log, log_fault, readable, worst_first
from consumers.operations.survey.survey import opened_surveyor

__all__ = ["doctor"]

_MARKS: Final = {"ok": ("ok   ", "green"), "hint": ("hint ", "yellow"), "fault": ("FAULT", "red")}


@click.command()
@click.argument("targets", metavar="[MODULE:APP]...", nargs=-1)
@with_session
def doctor(session: CommandSession, *, targets: tuple[str, ...]) -> int:
    """Check settings, machine, log, topics, clocks, keys, policy, inbox, groups, dead letters and agents.

    With MODULE:APP (by default those of project.apps) also check the topics and the key that this app needs. Nothing is
    changed.

    \b
    Examples:
      sealbus doctor
      sealbus doctor agents:app --config production.toml
      sealbus doctor --output json

    \b
    Exit codes: 0 no fault, 1 a fault, 78 settings that cannot be read.
    """
    apps, clock = session.apps(targets), SystemClock()
    settings = session.settings(apps)

    async def body(_: object) -> int:
        found = await examine_here(settings, tuple(app.agent_id for app in apps), clock)
        for app in apps:
            found += check_limits(app.declaration, settings.worker)
        try:
            async with session.open(settings) as transport:
                await transport.admin.topics()
                async with opened_surveyor(transport, readable(settings, found), clock) as surveyor:
                    survey = await surveyor.take()
                found += await examine_log(
                    transport, settings, survey, wanted_topics(settings, apps), clock, target=" ".join(targets)
                )
        except BusError as error:
            found.append(log_fault(error))
        _show(session, found)
        faults = sum(each.state == "fault" for each in found)
        click.echo(f"{len(found)} checks, {faults or 'no'} fault{'' if faults == 1 else 's'}", err=True)
        return FAILED if faults else 0

    return execute(body)


def _show(session: CommandSession, found: list[CheckResult]) -> None:
    for each in worst_first(found):
        if session.as_json:
            print_json(msgspec.to_builtins(each))
            continue
        mark, colour = _MARKS[each.state]
        click.echo(f"{click.style(mark, fg=colour)} {each.area:<10} {printable(each.text)}")
        if each.cure and each.state != "ok":
            click.echo(f"{'':<17}-> {printable(each.cure)}")
