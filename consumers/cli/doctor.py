"""`sealbus doctor`: check a running installation. `consumers.operations.survey.examination` judges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import click

from bus.clock import SystemClock
from bus.errors import BusError
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.session import CommandSession, verb
from consumers.cli.shell import Command
from consumers.operations.survey.doctor import CheckResult, check_limits
from consumers.operations.survey.examination import examine_here, examine_log, log_fault, readable, worst_first
from consumers.operations.survey.survey import opened_surveyor
from consumers.worker.wanted_topics import wanted_topics

__all__ = ["doctor"]

_MARKS: Final = {"ok": ("ok   ", "green"), "hint": ("hint ", "yellow"), "fault": ("FAULT", "red")}


@click.command(cls=Command)
@click.argument("targets", metavar="[MODULE:APP]...", nargs=-1)
@verb(CheckResult)
async def doctor(session: CommandSession, *, targets: tuple[str, ...]) -> VerbResult | int:
    """Check settings, machine, log, topics, clocks, keys, policy, inbox, groups, dead letters and agents.

    Each fault comes with its fix. With apps (by default those of project.apps) their topics, keys and limits are
    checked, too. Nothing is changed. `sealbus check` finds mistakes without a running installation.

    \b
    Examples:
      sealbus doctor
      sealbus doctor desk.agent:app --config production.toml
      sealbus doctor -o json

    \b
    Exit codes: 0 no fault, 1 a fault, 78 settings that cannot be read.
    """
    apps, clock = session.apps(targets), SystemClock()
    settings = session.settings(apps)
    found = await examine_here(settings, tuple(app.agent_id for app in apps), clock)
    for app in apps:
        found += check_limits(app.declaration, settings.worker)
    try:
        async with session.open(settings) as transport:
            await transport.admin.topics()
            async with opened_surveyor(transport, readable(settings, found), clock) as surveyor:
                survey = await surveyor.take()
            groups = sorted({app.group for app in apps})
            wanted = wanted_topics(settings, [app.declaration for app in apps], on_left_out=session.hint)
            found += await examine_log(
                transport, settings, survey, wanted, clock, target=" ".join(targets), groups=groups
            )
    except BusError as error:
        found.append(log_fault(error))
    faults = sum(each.state == "fault" for each in found)
    ending = f"{len(found)} checks, {faults or 'no'} fault{'' if faults == 1 else 's'}"
    code = FAILED if faults else 0
    listed = worst_first(found)
    if session.as_json:
        return Listing(listed, {}, notes=[ending], code=code)
    for line in _lines(listed):
        click.echo(line)
    session.note(ending)
    return code


def _lines(found: Sequence[CheckResult]) -> Iterator[str]:
    for each in found:
        mark, colour = _MARKS[each.state]
        yield f"{click.style(mark, fg=colour)} {each.area:<10} {printable(each.text)}"
        if each.cure and each.state != "ok":
            yield f"{'':<17}-> {printable(each.cure)}"
