"""`sealbus tail TYPE|TOPIC`: the records of a topic, one line each.

`bus.topics.topic_reader` reads, `consumers.operations.lineage.record_lines` makes the lines.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import click
import msgspec

from bus.clock import SystemClock
from bus.dialects import DIALECT_ALIASES, DIALECTS, open_dialect
from bus.dialects.type_names import type_names_of
from bus.gates.verdicts import FileChecks
from bus.topics.topic_reader import follow_topic, history, reading_positions, resolve_topic
from bus.transports.base import Record, Transport
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.known_names import complete_topics
from consumers.cli.io.parameter_types import PAST, OneOf
from consumers.cli.io.printing import LineWriter
from consumers.cli.session import CommandSession, app_option, gathered, proof_of, trusted_keys_option, verb
from consumers.cli.shell import Command
from consumers.operations.lineage.record_lines import RecordFilter, RecordLines, TailedRecord

__all__ = ["tail"]

_MAX_DIGITS = 100


class _TailOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    name: str
    following: bool
    limit: int
    start: str | None
    since_ms: int | None
    until_ms: int | None
    sender: str | None
    conversation: str | None
    grep: str | None
    dialect: str | None
    verifying: bool
    jwks: Path | None
    targets: tuple[str, ...]


@click.command(cls=Command)
@click.argument("name", metavar="TYPE|TOPIC", shell_complete=complete_topics)
@click.option("-f", "--follow", "following", is_flag=True, help="Continue with new messages, until Ctrl-C.")
@click.option("-n", "--limit", type=click.IntRange(0), default=10, show_default=True, help="Show the last N.")
@click.option("--from", "start", metavar="start|OFFSET", help="All from there, in every partition.")
@click.option("--since", "since_ms", type=PAST, help="All since then: 2h, 3d, 2026-01-31 or 2026-01-31T12:00:00Z.")
@click.option("--until", "until_ms", type=PAST, help="Only until then.")
@click.option("--sender", metavar="ID", help="Only messages of this sender.")
@click.option("--conversation", metavar="ID", help="Only messages of this conversation.")
@click.option("--grep", metavar="TEXT", help="Only records with this text in their value.")
@click.option(
    "--dialect",
    type=OneOf(DIALECTS, DIALECT_ALIASES),
    help="Show each message in this format (or 000 to 004), a line of JSON each.",
)
@click.option("--verify", "verifying", is_flag=True, help="Check form, hashes and proof of each record.")
@trusted_keys_option
@app_option
@verb(TailedRecord)
@gathered(_TailOptions)
async def tail(session: CommandSession, options: _TailOptions) -> int:
    """Print the messages of a type or topic, oldest first: time, partition/offset, type, sender, id, and the payload.

    The payload is cut to the width of the terminal; with -o json nothing is cut. Filters apply before --limit: the last
    N matching records are shown, however far back.

    \b
    Examples:
      sealbus tail desk.question
      sealbus tail desk.question --follow
      sealbus tail desk.question --sender planner@svc --grep "moon landing"
      sealbus tail desk.question --from start --verify --trusted-keys keys/jwks.json
      sealbus tail desk.question --since 2h -o json | jq .value.data
      sealbus tail task.request --dialect evidence

    \b
    Exit codes: 0, or 1 when --verify found an invalid record; 130 after Ctrl-C.
    """
    apps = session.apps(options.targets)
    settings = session.settings(apps, jwks=options.jwks)
    if options.start is not None and options.since_ms is not None:
        raise click.UsageError("one at a time: --from or --since")
    whence = "beginning" if options.since_ms is not None else _start(options.start)
    wanted = RecordFilter(
        options.sender,
        options.conversation,
        None if options.grep is None else options.grep.encode(),
        options.since_ms,
        options.until_ms,
    )
    async with session.open(settings) as transport:
        topic = await resolve_topic(transport, settings.bus.namespace, options.name)
        checks, dialect = None, None
        if options.verifying or options.dialect is not None:
            types = await session.types_in(transport, settings, apps)
        if options.verifying:
            verifier, admit = proof_of(settings, SystemClock())
            max_bytes = settings.publish.max_message_bytes
            checks = FileChecks(max_message_bytes=max_bytes, registry=types, verifier=verifier, admit=admit)
        if options.dialect is not None:
            dialect = open_dialect(options.dialect, types=types, names=type_names_of(settings))
        lines = RecordLines(checks, as_json=session.as_json, dialect=dialect)
        pages = _pages(transport, topic, wanted, whence=whence, last=options.limit, following=options.following)
        with LineWriter() as writer:
            try:
                async for page in pages:
                    for line in lines.lines(page):
                        writer.write(line)
            finally:
                writer.flush()
                for text in lines.summary():
                    session.note(text)
    return FAILED if lines.invalid else 0


def _start(text: str | None) -> str | int:
    if text is None:
        return "last"
    if text == "start":
        return "beginning"
    # Longer than any offset: Python refuses to parse numbers of thousands of digits.
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    raise click.BadParameter(f"{text!r} is neither `start` nor an offset", param_hint="--from")


async def _pages(
    transport: Transport, topic: str, wanted: RecordFilter, *, whence: str | int, last: int, following: bool
) -> AsyncIterator[Iterable[Record]]:
    begin = whence if whence != "last" or wanted.is_all else "beginning"
    spans = await reading_positions(transport, topic, begin, last)
    newest: deque[Record] = deque(maxlen=min(last, sys.maxsize))
    async for page in history(transport, topic, spans):
        if whence == "last":
            newest.extend(wanted.among(page))
        else:
            yield wanted.among(page)
    yield newest
    if following:
        async for page in follow_topic(transport, topic, {partition: end for partition, (_, end) in spans.items()}):
            yield wanted.among(page)
