"""`sealbus lint MODULE:APP|BUS`: anti-patterns in types, handlers and recorded traffic.

Owns the verb, its output and exit code. The checks are in `consumers.operations.lint`.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from bus.telemetry.terminal import printable
from bus.topics.names import read_topic
from bus.vocabulary import BUILT_IN
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import execute
from consumers.cli.io.parameter_types import OneOf
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.io.recorded import recorded_messages
from consumers.cli.session import CommandSession, with_session
from consumers.delivery.declaration import Declaration
from consumers.operations.lint.app_checks import lint_app
from consumers.operations.lint.checklist import checklist
from consumers.operations.lint.findings import CHECKS, LintFinding
from consumers.operations.lint.sarif import sarif_of
from consumers.operations.lint.traffic_checks import TrafficLint

__all__ = ["lint"]

_LEVELS = ("note", "warning", "error")


@click.command()
@click.argument("target", metavar="[MODULE:APP|BUS]", required=False)
@click.option(
    "--fail-on",
    type=OneOf(["error", "warning", "note", "never"]),
    default="warning",
    show_default=True,
    help="The least grave level that gives exit code 1.",
)
@click.option("--ignore", metavar="CHECK", multiple=True, help="Skip this check; repeatable.")
@click.option("--checklist", "asked", is_flag=True, help="Answer the fifteen questions of a protocol for an app.")
@click.option("--sarif", is_flag=True, help="Write SARIF 2.1.0, for code hosts and editors.")
@with_session
def lint(
    session: CommandSession, *, target: str | None, fail_on: str, ignore: tuple[str, ...], asked: bool, sarif: bool
) -> int:
    """Find anti-patterns between agents whose messages are all valid.

    Given an app (by default those of project.apps), its own types and handlers are checked; given a log
    (sqlite:///bus.db, kafka://host:9092), the recorded messages of the namespace. Each finding has its location, its
    harm and a fix.

    \b
    Looked for: free-form status, errors without code, raw API responses, generic types, approvals without reason,
    hashes nobody checks, verification off, hard-coded recipients, forty flat fields, prose as protocol, context
    dumping, no rejection path, effects without a key, decisions without rules, references without a hash, uses of an
    untrusted text as it is (.raw), handled types that no trust level guards, limits too small for an app that asks
    itself.

    \b
    Examples:
      sealbus lint agents:app
      sealbus lint sqlite:///sealbus.db --fail-on error
      sealbus lint agents:app --checklist
      sealbus lint agents:app --ignore hard-coded-recipient --sarif > lint.sarif

    \b
    Exit codes: 0 nothing of that level, 1 something.
    """
    for name in ignore:
        if name not in CHECKS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(CHECKS)}", param_hint="--ignore")
    if asked:
        return _answer(session, target)
    is_log = target is not None and "://" in target
    found = _traffic(session, target or "") if is_log else _app(session, _declared(session, target))
    found = sorted(
        (one for one in found if one.check not in ignore), key=lambda one: (-_LEVELS.index(one.level), one.place)
    )
    if sarif:
        click.echo(msgspec.json.format(msgspec.json.encode(sarif_of(found)), indent=2).decode())
    elif session.as_json:
        for one in found:
            print_json({name: value for name, value in msgspec.structs.asdict(one).items() if value is not None})
    else:
        for one in found:
            click.echo(f"{one.level}: {printable(one.place)}: {printable(one.what)}  [{one.check}]")
            click.echo(f"    why: {one.why}\n    do:  {one.cure}")
    counts = ", ".join(
        f"{count} {level}{'s' if count != 1 else ''}"
        for level in reversed(_LEVELS)
        if (count := sum(one.level == level for one in found))
    )
    click.echo(counts or "nothing found", err=True)
    if fail_on == "never":
        return 0
    return FAILED if any(_LEVELS.index(one.level) >= _LEVELS.index(fail_on) for one in found) else 0


def _answer(session: CommandSession, target: str | None) -> int:
    if target is not None and "://" in target:
        raise click.UsageError("the checklist is about an app: sealbus lint MODULE:APP --checklist")
    declared = _declared(session, target)
    answers = [answer for each in declared for answer in checklist(each, _app(session, [each]))]
    if session.as_json:
        for answer in answers:
            print_json(msgspec.structs.asdict(answer))
    else:
        print_table(
            ("", "QUESTION", "BECAUSE"),
            [(answer.answer, answer.question, printable(answer.because)) for answer in answers],
        )
    return FAILED if any(answer.answer == "no" for answer in answers) else 0


def _declared(session: CommandSession, target: str | None) -> list[Declaration]:
    apps = session.apps([target] if target else [])
    if not apps:
        raise click.UsageError("name an app, MODULE:APP, or a log, such as sqlite:///sealbus.db")
    return [app.declaration for app in apps]


def _app(session: CommandSession, declared: Sequence[Declaration]) -> list[LintFinding]:
    settings = session.settings()
    return [
        finding
        for each in declared
        for finding in lint_app(
            each,
            own=lambda kind: BUILT_IN.get(kind.name) is not kind,
            high_risk=settings.trust.high_risk,
            worker=settings.worker,
        )
    ]


def _traffic(session: CommandSession, url: str) -> list[LintFinding]:
    settings, seen = session.settings(bus=url), TrafficLint()

    async def body(_: object) -> int:
        async with session.open(settings) as transport:
            topics = [
                topic
                for topic in sorted(await transport.admin.topics())
                if (name := read_topic(topic)) is not None
                and name.kind == "message"
                and name.namespace == settings.bus.namespace
            ]
            async for _topic, message, location in recorded_messages(transport, topics):
                seen.look(message, location)
        return 0

    execute(body)
    click.echo(f"{seen.messages} recorded messages", err=True)
    return list(seen.findings())
