"""`sealbus doctor`: looks at a whole set-up and says for each fault what to do.

Owns the verb and its output; `consumers.operations.doctor` judges.
"""

from __future__ import annotations

import os
from typing import Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.topics.specs import creates_topics
from bus.transports.base import Transport
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json
from consumers.cli.session import CommandSession, app_of, with_session
from consumers.cli.topics import drift
from consumers.cli.topics.command import wanted_topics
from consumers.operations.doctor import CheckResult, check_clock, check_here, check_inbox, check_trust, of_survey
from consumers.operations.survey import opened_surveyor

__all__ = ["doctor"]

_MARKS: Final = {"ok": ("ok   ", "green"), "hint": ("hint ", "yellow"), "fault": ("FAULT", "red")}


@click.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@with_session
def doctor(session: CommandSession, *, target: str | None) -> int:
    """Look at settings, machine, log, topics, clocks, keys, policy, inbox, groups, dead letters and agents.

    With MODULE:APP also at the topics and the key that this app needs. Nothing is changed.

    \b
    Examples:
      sealbus doctor
      sealbus doctor agents:app --config production.toml
      sealbus doctor --output json

    \b
    Exit codes: 0 no fault, 1 a fault, 78 settings that cannot be read.
    """
    app, clock = app_of(target), SystemClock()
    settings = session.settings(app)

    async def body(_: object) -> int:
        found = [
            CheckResult(area="settings", state="ok", text="can be read, and fit together"),
            *check_here(settings, os.environ),
        ]
        found += check_trust(settings, () if app is None else (app.agent_id,), clock)
        found.append(await check_inbox(settings, clock))
        try:
            async with session.open(settings) as transport:
                await transport.admin.topics()
                found.append(CheckResult(area="log", state="ok", text=f"{settings.bus.url} answers"))
                found += await _of_log(transport, _readable(settings, found))
        except BusError as error:
            cure = "; ".join(getattr(error, "__notes__", ())) or "start the brokers, or correct bus.url"
            found.append(CheckResult(area="log", state="fault", text=str(error), cure=cure))
        _show(session, found)
        faults = sum(each.state == "fault" for each in found)
        click.echo(f"{len(found)} checks, {faults or 'no'} fault{'' if faults == 1 else 's'}", err=True)
        return FAILED if faults else 0

    async def _of_log(transport: Transport, readable: Settings) -> list[CheckResult]:
        makes = creates_topics(settings, transport.features)
        plan = await transport.admin.plan(wanted_topics(settings, app))
        findings = [*drift.of_changes(plan, target or "MODULE:APP"), *drift.of_settings(settings)]
        found = [
            CheckResult(
                area="topics",
                # Its worker makes what is missing.
                state="hint" if each.severity == "hint" or (makes and each.setting == "topic") else "fault",
                text=f"{each.topic or each.setting}: {each.detail}",
                cure=each.advice,
            )
            for each in findings
        ] or [
            CheckResult(
                area="topics", state="ok", text="are as the settings say" if app else "records are kept long enough"
            )
        ]
        async with opened_surveyor(transport, readable, clock) as surveyor:
            survey = await surveyor.take()
        return [*found, await check_clock(transport, survey, settings, clock), *of_survey(survey)]

    return execute(body)


def _readable(settings: Settings, found: list[CheckResult]) -> Settings:
    """Return *settings*, without keys and policy where these are at fault: the log is looked at nevertheless."""
    if not any(each.area == "keys" and each.state == "fault" for each in found):
        return settings
    return msgspec.structs.replace(
        settings,
        trust=msgspec.structs.replace(settings.trust, keys="", key_file=""),
        policy=msgspec.structs.replace(settings.policy, file=""),
    )


def _show(session: CommandSession, found: list[CheckResult]) -> None:
    for each in sorted(found, key=lambda result: ("fault", "hint", "ok").index(result.state)):
        if session.as_json:
            print_json(msgspec.to_builtins(each))
            continue
        mark, colour = _MARKS[each.state]
        click.echo(f"{click.style(mark, fg=colour)} {each.area:<10} {printable(each.text)}")
        if each.cure and each.state != "ok":
            click.echo(f"{'':<17}-> {printable(each.cure)}")
