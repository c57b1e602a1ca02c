"""`sealbus convert --from 003 --to 001 [FILE]`: messages of one dialect as messages of another, line by line.

Owns the options, the lines and the exit code. `bus.dialects` has the formats.
"""

from __future__ import annotations

import sys
from typing import BinaryIO, Final

import click
import msgspec

from bus.dialects import DIALECT_ALIASES, DIALECTS, Defaults, open_dialect
from bus.dialects.conversion import CANONICAL, left_out, message_texts, read_messages
from bus.dialects.type_names import type_names_of
from bus.errors import ContractError, DialectError
from bus.protocol.envelope import Agent
from bus.telemetry.terminal import printable
from bus.telemetry.terminal_json import encode_json
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.parameter_types import DURATION_TYPE, INPUT, MOMENT, TEXT_ID, OneOf
from consumers.cli.session import CommandSession, app_option, gathered, verb
from consumers.cli.shell import Command

__all__ = ["convert"]

_FORM: Final = OneOf((*DIALECTS, CANONICAL), DIALECT_ALIASES)


class _ConvertOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    file: BinaryIO
    source: str
    target: str
    sender: str | None
    recipient: str | None
    conversation: str | None
    task: str | None
    message_id: str | None
    moment: int | None
    lifetime: float | None
    alias: tuple[str, ...]
    carry: bool
    targets: tuple[str, ...]


@click.command(cls=Command)
@click.argument("file", type=INPUT, default="-")
@click.option("--from", "source", type=_FORM, required=True, help="The format of the lines.")
@click.option("--to", "target", type=_FORM, required=True, help="What they become.")
@click.option("--sender", type=TEXT_ID, help="The sender of fragments that name none.")
@click.option("--recipient", type=TEXT_ID, help="The recipient of fragments that name none.")
@click.option("--conversation", type=TEXT_ID, help="The conversation of fragments that name none.")
@click.option("--task", type=TEXT_ID, help="The task of fragments that name none.")
@click.option("--message-id", help="The id of a fragment that has none; for one message only.")
@click.option("--time", "moment", type=MOMENT, help="The time of fragments that have none.")
@click.option("--lifetime", type=DURATION_TYPE, help="The lifetime of fragments that have none, such as 1h.")
@click.option(
    "--alias", metavar="OURS=THEIRS", multiple=True, help="What an agent is called there; may be given several times."
)
@click.option("--carry", is_flag=True, help="Embed the original sealed message if the format allows it.")
@app_option
@verb()
@gathered(_ConvertOptions)
def convert(session: CommandSession, options: _ConvertOptions) -> int:
    """Read messages of one dialect, a line of JSON each, and write them in another.

    Dialects are layered (000), evidence (001), plain-ids (002), speech-acts (003), frameworks (004), cloudevents, and
    canonical: sealed messages as stored in the log. Converting a message to its own dialect gives it unchanged. For a
    refused line, standard error shows the location, the value found and the value expected; the other lines continue. A
    file with one message over several lines is one message.

    Nothing is verified: signatures and tokens are copied as claims, and times are not checked. If the other format
    cannot hold one, it is left out, and standard error names its line.

    \b
    Examples:
      sealbus convert --from speech-acts --to evidence messages.ndjson
      sealbus convert --from frameworks --to canonical task.json --sender planner@svc
      sealbus tail task.request --from start -o json | jq -c .value | sealbus convert --from canonical --to cloudevents

    \b
    Exit codes: 0 all converted, 1 some refused.
    """
    settings = session.settings()
    types, names = session.types(session.apps(options.targets)), type_names_of(settings)
    defaults = Defaults(
        message_id=options.message_id,
        sent_at_ms=options.moment,
        sender=None if options.sender is None else Agent(id=options.sender),
        recipient=None if options.recipient is None else Agent(id=options.recipient),
        conversation_id=options.conversation,
        task_id=options.task,
        lifetime_ms=None if options.lifetime is None else round(options.lifetime * 1000),
    )
    aliases = _aliases(options.alias)
    refused = done = 0
    out = sys.stdout.buffer
    for text in message_texts(options.file):
        try:
            if text.content is None:
                raise ContractError("the line is longer than any message may be", reason="oversized")
            for message, proofs in read_messages(
                options.source, text.content, defaults, settings.bus.namespace, types=types, names=names
            ):
                if options.target == CANONICAL:
                    written = message.value
                else:
                    written = encode_json(
                        open_dialect(options.target, types=types, names=names).encode(
                            message, aliases=aliases, carry=options.carry
                        )
                    )
                out.write(written + b"\n")
                done += 1
                if lost := left_out(proofs, written):
                    out.flush()
                    _tell_left_out(text.line, lost, as_json=session.as_json)
        except ContractError as error:
            refused += 1
            out.flush()
            _tell(text.line, error, as_json=session.as_json)
    out.flush()
    session.note(f"{done} converted, {refused} refused")
    return FAILED if refused else 0


def _aliases(provided: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in provided:
        ours, sign, theirs = text.partition("=")
        if not (ours and sign and theirs):
            raise click.BadParameter(
                f"{text!r} is not of the form OURS=THEIRS, such as planner@svc=planner", param_hint="--alias"
            )
        found[ours] = theirs
    return found


def _tell_left_out(line: int, lost: list[str], *, as_json: bool) -> None:
    if as_json:
        click.echo(encode_json({"line": line, "left_out": lost}).decode(), err=True)
    else:
        click.echo(f"line {line}: left out: {', '.join(lost)} (proves the bytes of this line alone)", err=True)


def _tell(line: int, error: ContractError, *, as_json: bool) -> None:
    if as_json:
        fields: dict[str, object] = {"line": line, "reason": error.reason, "pointer": error.pointer, "text": error.text}
        if isinstance(error, DialectError):
            fields |= {"found": error.found, "expected": error.expected}
        click.echo(encode_json(fields).decode(), err=True)
    else:
        click.echo(f"line {line}: {printable(str(error))}", err=True)
