"""`sealbus convert --from 003 --to 001 [FILE]`: messages of one dialect as messages of another, line by line.

Owns the options, the lines and the exit code. `bus.dialects` has the formats.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, NamedTuple

import click
import msgspec

from bus.dialects import DIALECT_ALIASES, DIALECTS, Defaults
from bus.dialects.opening import open_dialect
from bus.dialects.sealing import seal_foreign
from bus.dialects.type_names import TypeNames, type_names_of
from bus.errors import ContractError, DialectError
from bus.payloads.payload_types import Registry
from bus.protocol import sealing
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.telemetry.terminal import printable
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.lines import read_lines
from consumers.cli.io.parameter_types import DURATION_TYPE, INPUT, MOMENT, TEXT_ID, OneOf
from consumers.cli.io.printing import encode_json
from consumers.cli.session import CommandSession, app_option, gathered, verb
from consumers.cli.shell import Command

__all__ = ["convert"]

_MAX_BYTES: Final = 4_194_304
_CANONICAL: Final = "canonical"
_FORM: Final = OneOf((*DIALECTS, _CANONICAL), DIALECT_ALIASES)
_PROOFS: Final = ("auth", "signature")


class _Text(NamedTuple):
    line: int
    content: bytes | None


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
    for text in _texts(options.file):
        try:
            if text.content is None:
                raise ContractError("the line is longer than any message may be", reason="oversized")
            for message, proofs in _read(
                options.source, text.content, defaults, settings.bus.namespace, types=types, names=names
            ):
                if options.target == _CANONICAL:
                    written = message.value
                else:
                    written = encode_json(
                        open_dialect(options.target, types=types, names=names).encode(
                            message, aliases=aliases, carry=options.carry
                        )
                    )
                out.write(written + b"\n")
                done += 1
                if lost := _left_out(proofs, written):
                    out.flush()
                    _tell_left_out(text.line, lost, as_json=session.as_json)
        except ContractError as error:
            refused += 1
            out.flush()
            _tell(text.line, error, as_json=session.as_json)
    out.flush()
    session.note(f"{done} converted, {refused} refused")
    return FAILED if refused else 0


def _read(
    source: str, content: bytes, defaults: Defaults, namespace: str, *, types: Registry, names: TypeNames
) -> Iterator[tuple[Message, Mapping[str, Any]]]:
    """Yield the messages in *content* (one, or a batch of events) with the proofs that each claims."""
    if source == _CANONICAL:
        message = sealing.parse(content.strip())
        sealing.check_integrity(message)
        yield message, {}
        return
    values: list[Any] = [content]
    if source == "cloudevents" and content.lstrip()[:1] == b"[":
        values = _batch(content)
    for value in values:
        foreign = open_dialect(source, types=types, names=names).decode(value, defaults=defaults)
        message = seal_foreign(foreign, namespace=foreign.claims.namespace or namespace, types=types)
        yield message, foreign.claims.proofs


def _left_out(proofs: Mapping[str, Any], written: bytes) -> list[str]:
    """Return the names of the signatures and tokens among *proofs* that are missing in *written*."""
    return [name for name in _PROOFS if name in proofs and encode_json(proofs[name]).strip(b'"') not in written]


def _batch(content: bytes) -> list[Any]:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DialectError("", "no JSON", "a list of events") from error
    return [encode_json(item) for item in found]


def _texts(file: BinaryIO) -> Iterator[_Text]:
    """Yield each line; or the whole file where its first line begins a message and does not end it."""
    lines = read_lines(file, _MAX_BYTES)
    first = next(lines, None)
    if first is None:
        return
    if first.content is None or _is_whole(first.content):
        for line in itertools.chain([first], lines):
            yield _Text(line.number, line.content)
        return
    rest, size = [first.content], len(first.content)
    for line in lines:
        size += len(line.content or b"") + 1
        if line.content is None or size > _MAX_BYTES:
            yield _Text(first.number, None)
            return
        rest.append(line.content)
    yield _Text(first.number, b"\n".join(rest))


def _is_whole(content: bytes) -> bool:
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        # Cut off: the rest may be on the next lines. Anything else is a line that is wrong.
        return "truncated" not in str(error)
    except RecursionError:
        return True
    return True


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
