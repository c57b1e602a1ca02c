"""`sealbus verify [FILE...]`: check sealed messages in files, without a log.

Owns the options, reading records from files with bounded memory, and the exit code; `consumers.cli.verify.verdicts`
judges.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import click
import msgspec

from bus.clock import Clock, ManualClock, SystemClock
from bus.payloads.payload_types import Registry, RiskClass
from bus.telemetry.terminal import printable
from bus.transports.base import Record
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.lines import read_lines
from consumers.cli.io.parameter_types import MESSAGE_TYPE, MOMENT, TEXT_ID, OneOf
from consumers.cli.io.printing import print_json
from consumers.cli.session import (
    CommandSession,
    app_option,
    gathered,
    jwks_option,
    proof_of,
    registry_of,
    with_session,
)
from consumers.cli.verify.verdicts import DEAD, OK, FileChecks, FileVerdict, judge_line

__all__ = ["verify"]


class _TextOrBytes(NamedTuple):
    file: str
    line: int | None
    content: bytes
    overlong: bool


class _VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    files: tuple[BinaryIO, ...]
    lines: bool
    targets: tuple[str, ...]
    risk: RiskClass | None
    jwks: Path | None
    now: int | None
    recipient: str | None
    message_type: str | None
    key: str | None


@click.command()
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.File("rb", lazy=True))
@click.option("--lines", is_flag=True, help="Each line of a file is one message; blank lines are skipped.")
@app_option
@click.option(
    "--risk",
    type=OneOf(["low", "medium", "high"]),
    help="How much proof is asked for.  [default: the type's, else medium]",
)
@jwks_option
@click.option("--now", type=MOMENT, help="Judge lifetimes and keys at this time, as if each were appended then.")
@click.option("--recipient", type=TEXT_ID, help="Skip messages that are addressed to another agent.")
@click.option("--type", "message_type", type=MESSAGE_TYPE, help="Refuse messages of other types.")
@click.option("--key", help="Refuse messages whose record key is another.")
@with_session
@gathered(_VerifyOptions)
def verify(session: CommandSession, options: _VerifyOptions) -> int:
    """Check sealed messages in files or standard input, without a bus.

    A file has one record value, byte for byte; one line break at its end is ignored. Size, form, hashes and seal, proof
    chain, and lifetime are checked. --jwks adds every signature, of the message and of its chain, offline, with the
    keys valid at --now. --app adds the schema; --namespace, --type and --key add the intended destination.

    \b
    Examples:
      sealbus verify message.json
      sealbus verify message.json --jwks keys/jwks.json
      sealbus verify --lines messages.ndjson --now 2026-01-31T12:00:00Z
      sealbus dlq show research.request/0/3 --raw | sealbus verify --risk high

    \b
    Exit codes: 0 every message is valid, 1 at least one is not.
    """
    settings = session.settings(jwks=options.jwks)
    apps = session.apps(options.targets)
    # One clock for lifetimes and for keys: an archive is judged as it would have been then.
    clock: Clock = SystemClock() if options.now is None else ManualClock(options.now)
    verifier, admit = proof_of(settings, clock)
    checks = FileChecks(
        max_message_bytes=settings.publish.max_message_bytes,
        max_ttl_ms=round(settings.publish.max_ttl_s * 1000),
        risk=options.risk,
        registry=registry_of(apps) if apps else Registry(),
        schemas=registry_of(apps) if apps else None,
        recipient=options.recipient,
        namespace=session.namespace,
        message_type=options.message_type,
        key=options.key.encode() if options.key is not None else None,
        now_ms=clock.now_ms,
        append_ms=options.now,
        verifier=verifier,
        admit=admit,
    )
    failed = False
    for stream in options.files or (sys.stdin.buffer,):
        for value in _values(stream, checks.max_message_bytes, lines=options.lines):
            verdict = _judge(value, checks)
            failed = failed or verdict.verdict == DEAD
            if session.as_json:
                print_json(_as_json(value, verdict))
            else:
                click.echo(_sentence(value, verdict, many=options.lines or len(options.files) > 1))
    return FAILED if failed else 0


def _values(stream: BinaryIO, limit: int, *, lines: bool) -> Iterator[_TextOrBytes]:
    """Yield record values; of an oversized one only the beginning."""
    name = str(getattr(stream, "name", "-"))
    try:
        if lines:
            for line in read_lines(stream, limit):
                yield _TextOrBytes(name, line.number, line.content or b"", line.content is None)
            return
        content = _read_up_to(stream, limit + 2)
    except OSError as error:
        raise click.FileError(printable(name), error.strerror or str(error)) from error
    if len(content) <= limit + 1:
        content = content.removesuffix(b"\n")
    yield _TextOrBytes(name, None, content, len(content) > limit)


def _read_up_to(stream: BinaryIO, limit: int) -> bytes:
    """Read *limit* bytes, although one read of a pipe may return less."""
    parts = []
    while limit > 0 and (part := stream.read(limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def _judge(value: _TextOrBytes, checks: FileChecks) -> FileVerdict:
    if value.overlong:
        detail = f"more than the {checks.max_message_bytes} bytes that are allowed"
        return FileVerdict(verdict=DEAD, gate="size", reason="oversized", detail=detail)
    return judge_line(Record("", 0, 0, checks.append_ms or 0, None, value.content), checks)


def _as_json(value: _TextOrBytes, verdict: FileVerdict) -> dict[str, object]:
    fields: dict[str, object] = msgspec.structs.asdict(verdict)
    message = fields.pop("message")
    identity = {"message_id": verdict.message.message_id} if message is not None and verdict.message is not None else {}
    line = {"line": value.line} if value.line is not None else {}
    return {**{name: field for name, field in fields.items() if field}, **identity, "file": value.file, **line}


def _sentence(value: _TextOrBytes, verdict: FileVerdict, *, many: bool) -> str:
    location = f"{printable(value.file)}:{value.line}: " if value.line is not None else f"{printable(value.file)}: "
    if verdict.message is None:
        return f"{location if many else ''}{verdict.sentence()}"
    metadata = verdict.message.metadata
    about = f"{metadata.message_id}  {metadata.message_type} from {printable(metadata.sender.id or '')}"
    sentence = f"ok  {about}" if verdict.verdict == OK else f"{verdict.sentence()}  ({about})"
    return f"{location if many else ''}{sentence}"
