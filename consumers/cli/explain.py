"""`sealbus explain MESSAGE_ID` and `sealbus show MESSAGE_ID`: the outcome and the content of one message.

Owns both verbs and their output; `consumers.operations.survey.explanation` writes the explanation.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec

from bus.protocol.identifiers import is_message_id
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, app_option, registry_of, whole_log_option, with_session
from consumers.deadletters.diagnosis import examine
from consumers.deadletters.letters import read_dead_letter
from consumers.operations.audit.queries import described, facts_of
from consumers.operations.survey.explanation import explain_message
from consumers.operations.survey.group_verdicts import group_sentences
from consumers.operations.survey.look_up import LookUp, look_up, looked_in_words

__all__ = ["explain", "show"]


@click.command()
@click.argument("message_id", metavar="MESSAGE_ID")
@whole_log_option
@app_option
@with_session
def explain(session: CommandSession, *, message_id: str, whole_log: bool, targets: tuple[str, ...]) -> int:
    """Explain the outcome of a message: why it was refused, what was expected, and the command that fixes it.

    \b
    Examples:
      sealbus explain 019b7a3c-4c00-7000-8000-000000000004
      sealbus explain 019b7a3c-4c00-7000-8000-000000000004 --app agents:app --output json

    \b
    Exit codes: 0 explained, 2 there is no such message.
    """
    apps = session.apps(targets)
    settings, registry = session.settings(apps), registry_of(apps)

    async def body(_: object) -> int:
        found = await _found(session, settings, message_id, whole=whole_log)
        copies, states = found.search.copies, found.states
        if not any(copy.message_id == message_id for copy in copies):
            _print_audited(session, message_id, found)
            return 0
        dead = [copy for copy in copies if copy.kind == "dlq" and copy.message_id == message_id]
        letters = [read_dead_letter(copy.record) for copy in dead]
        limits = {"namespace": settings.bus.namespace, "max_message_bytes": settings.publish.max_message_bytes}
        judged = [(each, states.get(each.place), examine(each, registry, **limits)) for each in letters]  # type: ignore[arg-type]
        answer = explain_message(message_id, copies, judged, groups=found.known_groups, until=found.until)
        if session.as_json:
            print_json(msgspec.to_builtins(answer))
            return 0
        click.echo(printable(answer.text))
        if answer.passes:
            click.echo(f"would have passed: {printable(answer.passes)}")
        if answer.cure:
            click.echo(f"cure: {printable(answer.cure)}")
        return 0

    return execute(body)


@click.command()
@click.argument("message_id", metavar="MESSAGE_ID")
@whole_log_option
@with_session
def show(session: CommandSession, *, message_id: str, whole_log: bool) -> int:
    """Show a message: its location in the log, its envelope and its payload.

    \b
    Examples:
      sealbus show 019b7a3c-4c00-7000-8000-000000000004
      sealbus show 019b7a3c-4c00-7000-8000-000000000004 --output json

    \b
    Exit codes: 0 shown, 2 there is no such message.
    """
    settings = session.settings()

    async def body(_: object) -> int:
        found = await _found(session, settings, message_id, whole=whole_log, with_caused=False)
        own = [copy for copy in found.search.copies if copy.message_id == message_id]
        if not own:
            _print_audited(session, message_id, found)
            return 0
        message = next((copy.message for copy in own if copy.message is not None), None)
        locations = [copy.place for copy in own]
        if session.as_json:
            envelope = None if message is None else msgspec.json.decode(message.value)
            groups = [msgspec.to_builtins(each) for each in found.groups]
            print_json({"message_id": message_id, "places": locations, "groups": groups, "envelope": envelope})
            return 0
        for copy in own:
            click.echo(printable(f"{copy.place}{'' if copy.fault is None else f'  does not hold: {copy.fault.text}'}"))
        click.echo("groups:" if found.groups else "groups: none")
        for sentence in group_sentences(found.groups, until=found.until):
            click.echo(f"  {printable(sentence)}")
        if message is not None:
            for name in ("metadata", "routing"):
                layer = msgspec.to_builtins(getattr(message, name))
                on_progress = {key: value for key, value in layer.items() if value is not None}
                click.echo(f"{name}:")
                for key, value in on_progress.items():
                    shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                    click.echo(f"  {key + ':':<18}{printable(shown)}")
            click.echo("data:")
            click.echo(printable(msgspec.json.format(message.data, indent=2).decode(), keep="\n"))
        return 0

    return execute(body)


async def _found(
    session: CommandSession, settings: Settings, message_id: str, *, whole: bool, with_caused: bool = True
) -> LookUp:
    if not is_message_id(message_id):
        raise click.BadParameter("is not 1 to 128 visible ASCII characters", param_hint="MESSAGE_ID")
    with Progress(None, unit="records", alone=True) as progress:
        async with session.open(settings) as transport:
            found = await look_up(
                transport,
                settings,
                message_id,
                whole=whole,
                with_caused=with_caused,
                on_progress=lambda read: progress.show(0, read),
            )
    if found.audit_error:
        click.echo(f"hint: {printable(found.audit_error)}; this is what the log has", err=True)
    if found.groups_error:
        click.echo(f"hint: what groups made of it is not known: {printable(found.groups_error)}", err=True)
    if not found.audited and not any(copy.message_id == message_id for copy in found.search.copies):
        raise click.BadParameter(
            f"there is no message {message_id} in namespace {settings.bus.namespace}: "
            + looked_in_words(found.search.looked, message_id),
            param_hint="MESSAGE_ID",
        )
    return found


def _print_audited(session: CommandSession, message_id: str, found: LookUp) -> None:
    """Print the audit's row of a message that is deleted from the log."""
    rows: list[dict[str, Any]] = [{**described(each), "facts": facts_of(each)} for each in found.audited]
    if session.as_json:
        print_json({"message_id": message_id, "places": [], "audit": rows})
        return
    click.echo(f"not in the log any more ({looked_in_words(found.search.looked, message_id)}); the audit has:")
    for row in rows:
        for key, value in (row | row.pop("facts")).items():
            if value not in ("", None, [], {}):
                text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                click.echo(f"  {printable(key) + ':':<18}{printable(text)[:2_000]}")
        click.echo()
