"""`sealbus doctor`: check a running installation. `consumers.operations.survey.examination` judges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import click

from bus.clock import SystemClock
from bus.errors import BusError, ConfigurationError
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.session import CommandSession, verb
from consumers.cli.shell import Command
from consumers.operations.survey.doctor import check_limits
from consumers.operations.survey.examination import examine_here, log_faults, opened_examiner
from consumers.operations.survey.results import CheckResult, fault, ok, worst_first
from consumers.worker.wanted_topics import wanted_topics

__all__ = ["doctor"]

_MARKS: Final = {
    "ok": ("ok   ", "green"),
    "hint": ("hint ", "yellow"),
    "fault": ("FAULT", "red"),
    "unknown": ("?    ", "yellow"),
}


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
    agents = tuple(app.agent_id for app in apps)
    limits = [each for app in apps for each in check_limits(app.declaration, settings.worker)]
    limits += _doors(session)
    try:
        async with session.open(settings) as transport:
            await transport.admin.topics()
            async with opened_examiner(
                transport,
                settings,
                clock,
                agents=agents,
                wanted=wanted_topics(settings, [app.declaration for app in apps], on_left_out=session.hint),
                groups=sorted({app.group for app in apps}),
                target=" ".join(targets),
            ) as examiner:
                found = [*limits, *(await examiner.look()).results]
    except BusError as error:
        found = [*limits, *dict.fromkeys(await examine_here(settings, agents, clock)), *log_faults(error)]
    faults, unseen = (sum(each.state == state for each in found) for state in ("fault", "unknown"))
    ending = f"{len(found)} checks, {faults or 'no'} fault{'' if faults == 1 else 's'}"
    ending += f", {unseen} not looked at" if unseen else ""
    code = FAILED if faults else 0
    listed = worst_first(found)
    if session.as_json:
        return Listing(listed, {}, notes=[ending], code=code)
    for line in _lines(listed):
        click.echo(line)
    session.note(ending)
    return code


def _doors(session: CommandSession) -> list[CheckResult]:
    """Judge whether the gateway's credentials can be read, where there are any."""
    from consumers.gateway.credentials import DoorsFile
    from consumers.gateway.doors import doors_file

    file = doors_file(None, session.project_folder)
    if not file.exists():
        return []
    try:
        count = len(DoorsFile(file).read().all)
    except ConfigurationError as error:
        cure = "correct it: sealbus check --only doors. A running gateway goes on with the last good one"
        return [fault("doors", str(error), cure)]
    return [ok("doors", f"{count} credentials can be read")]


def _lines(found: Sequence[CheckResult]) -> Iterator[str]:
    for each in found:
        mark, colour = _MARKS[each.state]
        yield f"{click.style(mark, fg=colour)} {each.area:<10} {printable(each.text)}"
        if each.cure and each.state != "ok":
            yield f"{'':<17}-> {printable(each.cure)}"
