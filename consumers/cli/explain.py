"""`sealbus explain MESSAGE_ID` and `sealbus show MESSAGE_ID`: what became of one message, and what it says.

Owns both verbs and their output; `consumers.operations.explanation` finds the words.
"""

from __future__ import annotations

import click
import msgspec

from bus.protocol.identifiers import is_message_id
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json
from consumers.cli.io.progress import Progress
from consumers.cli.session import CommandSession, app_of, app_option, registry_of, with_session
from consumers.deadletters.diagnosis import examine
from consumers.deadletters.letter_state import LetterState, load_states
from consumers.deadletters.letters import read_dead_letter
from consumers.lineage.log_search import StoredCopy, find_message
from consumers.operations.explanation import explain as explained

__all__ = ["explain", "show"]


@click.command()
@click.argument("message_id", metavar="MESSAGE_ID")
@app_option
@with_session
def explain(session: CommandSession, *, message_id: str, target: str | None) -> int:
    """Say what became of a message: why it was refused, what would have passed, and the command that cures it.

    \b
    Examples:
      sealbus explain 019b7a3c-4c00-7000-8000-000000000004
      sealbus explain 019b7a3c-4c00-7000-8000-000000000004 --app agents:app --output json

    \b
    Exit codes: 0 explained, 2 there is no such message.
    """
    app = app_of(target)
    settings, registry = session.settings(app), registry_of(app)

    async def body(_: object) -> int:
        copies, states = await _found(session, settings, message_id)
        dead = [copy for copy in copies if copy.kind == "dlq" and copy.message_id == message_id]
        letters = [read_dead_letter(copy.record) for copy in dead]
        limits = {"namespace": settings.bus.namespace, "max_message_bytes": settings.publish.max_message_bytes}
        judged = [(each, states.get(each.place), examine(each, registry, **limits)) for each in letters]  # type: ignore[arg-type]
        answer = explained(message_id, copies, judged)
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
@with_session
def show(session: CommandSession, *, message_id: str) -> int:
    """Show a message: where it lies in the log, its envelope, and its payload.

    \b
    Examples:
      sealbus show 019b7a3c-4c00-7000-8000-000000000004
      sealbus show 019b7a3c-4c00-7000-8000-000000000004 --output json

    \b
    Exit codes: 0 shown, 2 there is no such message.
    """
    settings = session.settings()

    async def body(_: object) -> int:
        copies, _states = await _found(session, settings, message_id)
        own = [copy for copy in copies if copy.message_id == message_id]
        message = next((copy.message for copy in own if copy.message is not None), None)
        places = [copy.place for copy in own]
        if session.as_json:
            envelope = None if message is None else msgspec.json.decode(message.value)
            print_json({"message_id": message_id, "places": places, "envelope": envelope})
            return 0
        for copy in own:
            click.echo(printable(f"{copy.place}{'' if copy.fault is None else f'  does not hold: {copy.fault.text}'}"))
        if message is not None:
            for name in ("metadata", "routing"):
                layer = msgspec.to_builtins(getattr(message, name))
                told = {key: value for key, value in layer.items() if value is not None}
                click.echo(f"{name}:")
                for key, value in told.items():
                    shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                    click.echo(f"  {key + ':':<18}{printable(shown)}")
            click.echo("data:")
            click.echo(printable(msgspec.json.format(message.data, indent=2).decode(), keep="\n"))
        return 0

    return execute(body)


async def _found(
    session: CommandSession, settings: Settings, message_id: str
) -> tuple[list[StoredCopy], dict[str, LetterState]]:
    if not is_message_id(message_id):
        raise click.BadParameter("is not 1 to 128 visible ASCII characters", param_hint="MESSAGE_ID")
    with Progress(None, unit="records", alone=True) as progress:
        async with session.open(settings) as transport:
            namespace = settings.bus.namespace
            copies = await find_message(transport, namespace, message_id, told=lambda read: progress.show(0, read))
            states = await load_states(transport, namespace)
    if not any(copy.message_id == message_id for copy in copies):
        raise click.BadParameter(
            f"there is no message {message_id} in namespace {settings.bus.namespace}, or retention has taken it",
            param_hint="MESSAGE_ID",
        )
    return copies, states
