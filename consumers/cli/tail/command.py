"""`sealbus tail TOPIC_OR_TYPE`: the records of a topic, one line each.

Owns the options, the lines and the summary. `consumers.cli.tail.topic_reader` reads, `consumers.cli.verify.verdicts`
judges.
"""

from __future__ import annotations

import base64
import shutil
import sys
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec

from bus.clock import SystemClock
from bus.dialects import DIALECT_ALIASES, DIALECTS, Dialect, open_dialect
from bus.dialects.type_names import type_names_of
from bus.errors import ContractError, NameRefusedError, TopicMissingError
from bus.nearest import nearest
from bus.protocol import sealing
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.topics.names import message_topic, read_topic
from bus.transports.base import Record, Transport
from consumers.cli.exit_codes import FAILED
from consumers.cli.interrupts import Interrupts, execute
from consumers.cli.io.known_names import complete_topics
from consumers.cli.io.parameter_types import OneOf
from consumers.cli.io.printing import LineWriter, raw_json
from consumers.cli.session import (
    CommandSession,
    app_option,
    gathered,
    jwks_option,
    proof_of,
    registry_of,
    with_session,
)
from consumers.cli.tail.topic_reader import follow_topic, history, reading_positions
from consumers.cli.verify.verdicts import DEAD, FileChecks, FileVerdict, judge_line

__all__ = ["resolve_topic", "tail"]

_MAX_DIGITS = 100
_WIDE, _MIN_DATA_BYTES = 200, 40
_OWN: Final = {
    "_audit": "entry of the operators' journal",
    "_deadletters": "state of dead letters",
    "_registry": "entry of the registry",
}
"""The content of the bus's own topics, which have no messages."""


class _Sender(msgspec.Struct):
    id: str = ""


class _Glance(msgspec.Struct):
    """The parts of a message that a line shows, read without judging it."""

    message_id: str = ""
    message_type: str = ""
    sender: _Sender = msgspec.field(default_factory=_Sender)
    conversation_id: str = ""


class _TailedEnvelope(msgspec.Struct):
    metadata: _Glance
    data: msgspec.Raw = msgspec.Raw(b"")


_glance = msgspec.json.Decoder(_TailedEnvelope).decode


class _TailOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    name: str
    following: bool
    last: int
    everything: bool
    start: str | None
    sender: str | None
    conversation: str | None
    grep: str | None
    dialect: str | None
    verifying: bool
    jwks: Path | None
    targets: tuple[str, ...]


@click.command()
@click.argument("name", metavar="TOPIC_OR_TYPE", shell_complete=complete_topics)
@click.option("-f", "--follow", "following", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "-n", "--last", type=click.IntRange(0), default=10, show_default=True, help="Begin with the last N records."
)
@click.option("--all", "everything", is_flag=True, help="Begin with the oldest record.")
@click.option("--from", "start", metavar="beginning|end|OFFSET", help="Begin there, in every partition.")
@click.option("--sender", metavar="ID", help="Only messages of this sender.")
@click.option("--conversation", metavar="ID", help="Only messages of this conversation.")
@click.option("--grep", metavar="TEXT", help="Only records with this text, as it is, in their value.")
@click.option(
    "--dialect",
    type=OneOf(DIALECTS, DIALECT_ALIASES),
    help="Show each message as one of this dialect (or 000 to 004), a line of JSON each.",
)
@click.option("--verify", "verifying", is_flag=True, help="Check form, hashes, seal and proof of each record.")
@jwks_option
@app_option
@with_session
@gathered(_TailOptions)
def tail(session: CommandSession, options: _TailOptions) -> int:
    """Show the records of a topic, oldest first: time, partition/offset, type, sender, id, and the payload, cut to the
    width of the terminal.

    TOPIC_OR_TYPE is a message type (research.request) or a whole topic name (agents.research.request.dlq). Nothing is
    cut with --output json. With --sender, --conversation or --grep the last N matching records are shown, however far
    back.

    \b
    Examples:
      sealbus tail research.request
      sealbus tail research.request --follow
      sealbus tail research.request --sender planner@svc --grep "moon landing"
      sealbus tail research.request --all --verify --jwks keys/jwks.json
      sealbus tail research.request --from 100 --output json | jq .value.data
      sealbus tail task.request --dialect evidence

    \b
    Exit codes: 0, or 1 when --verify found a bad record; 130 after Ctrl-C.
    """
    apps = session.apps(options.targets)
    settings = session.settings(apps, jwks=options.jwks)
    checks = None
    if options.verifying:
        verifier, admit = proof_of(settings, SystemClock())
        checks = FileChecks(
            max_message_bytes=settings.publish.max_message_bytes,
            registry=registry_of(apps),
            verifier=verifier,
            admit=admit,
        )
    dialect = None
    if options.dialect is not None:
        dialect = open_dialect(options.dialect, types=registry_of(apps), names=type_names_of(settings))
    whence = "beginning" if options.everything else _start(options.start)
    wanted = _TailFilter(options.sender, options.conversation, None if options.grep is None else options.grep.encode())

    async def body(_: Interrupts) -> int:
        async with session.open(settings) as transport:
            topic = await resolve_topic(transport, settings, options.name)
            with LineWriter() as writer:
                show = _Show(writer, checks, as_json=session.as_json, dialect=dialect)
                try:
                    await _run(
                        transport, topic, show, wanted, whence=whence, last=options.last, following=options.following
                    )
                finally:
                    show.summarize()
            return FAILED if show.bad else 0

    return execute(body)


def _start(text: str | None) -> str | int:
    if text is None:
        return "last"
    if text in ("beginning", "end"):
        return text
    # Longer than any offset: Python refuses to parse numbers of thousands of digits.
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    raise click.BadParameter(f"{text!r} is none of beginning, end and an offset", param_hint="--from")


async def resolve_topic(transport: Transport, settings: Settings, name: str) -> str:
    """Return the topic named *name*, or that of the message type *name*.

    Raises TopicMissingError, which names the nearest one.
    """
    existing = await transport.admin.topics()
    for topic in (name, message_topic(settings.bus.namespace, name)):
        if topic in existing:
            return topic
    # Topics this user may not see are not listed; the log reports them when asked by name.
    with suppress(TopicMissingError, NameRefusedError):
        await transport.admin.ranges(message_topic(settings.bus.namespace, name))
    raise TopicMissingError(
        f"there is no topic {name} or {message_topic(settings.bus.namespace, name)}{nearest(name, existing)}"
    )


class _TailFilter(NamedTuple):
    """Which records are shown: all that is not None must fit."""

    sender: str | None
    conversation: str | None
    text: bytes | None

    def among(self, records: Iterable[Record]) -> Iterable[Record]:
        """Return those of *records* that are shown."""
        return records if self.is_all else [record for record in records if self._takes(record)]

    @property
    def is_all(self) -> bool:
        """Whether every record is."""
        return self.sender is None and self.conversation is None and self.text is None

    def _takes(self, record: Record) -> bool:
        value = record.value or b""
        if self.text is not None and self.text not in value:
            return False
        if self.sender is None and self.conversation is None:
            return True
        try:
            seen = _glance(value).metadata
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        return self.sender in (None, seen.sender.id) and self.conversation in (None, seen.conversation_id)


async def _run(
    transport: Transport, topic: str, show: _Show, wanted: _TailFilter, *, whence: str | int, last: int, following: bool
) -> None:
    begin = whence if whence != "last" or wanted.is_all else "beginning"
    spans = await reading_positions(transport, topic, begin, last)
    if whence == "last":
        newest: deque[Record] = deque(maxlen=min(last, sys.maxsize))
        async for page in history(transport, topic, spans):
            newest.extend(wanted.among(page))
        show.records(newest)
    else:
        async for page in history(transport, topic, spans):
            show.records(wanted.among(page))
    if following:
        async for page in follow_topic(transport, topic, {partition: end for partition, (_, end) in spans.items()}):
            show.records(wanted.among(page))


class _Show:
    """Writes lines and counts verdicts."""

    def __init__(
        self, writer: LineWriter, checks: FileChecks | None, *, as_json: bool, dialect: Dialect | None = None
    ) -> None:
        self.bad = 0
        self._count = 0
        self._reasons: Counter[str] = Counter()
        self._writer = writer
        self._checks = checks
        self._as_json = as_json
        self._dialect = dialect
        self._unsaid: Counter[str] = Counter()
        # Wide where the output is no terminal.
        self._columns = shutil.get_terminal_size((_WIDE, 0)).columns

    def records(self, records: Iterable[Record]) -> None:
        for record in records:
            self._count += 1
            verdict = judge_line(record, self._checks) if self._checks is not None and not _own(record) else None
            if verdict is not None and verdict.verdict == DEAD:
                self.bad += 1
                self._reasons[verdict.reason] += 1
            if self._dialect is not None:
                self._say(self._dialect, record)
            elif self._as_json:
                self._writer.write_json(_fields(record, verdict))
            else:
                self._writer.write(_line(record, verdict, self._columns).encode())

    def _say(self, dialect: Dialect, record: Record) -> None:
        try:
            self._writer.write_json(dialect.encode(sealing.parse(record.value)))
        except ContractError as error:
            self._unsaid[str(error)] += 1

    def summarize(self) -> None:
        """Print on standard error the number of records and their faults."""
        for text, count in self._unsaid.most_common(5):
            click.echo(f"{count} not sayable in that dialect: {printable(text)}", err=True)
        text = f"{self._count} records"
        if self._checks is not None:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self._reasons.most_common())
            text += f", {self._count - self.bad} good, {self.bad} bad" + (f" ({reasons})" if reasons else "")
        self._writer.flush()
        click.echo(text, err=True)


class _Look(NamedTuple):
    """The parts of a message that a line shows."""

    message_type: str = ""
    sender: str = ""
    message_id: str = ""
    data: bytes = b""


def _look(record: Record, verdict: FileVerdict | None) -> _Look:
    """Look at the parsed message if there is one, otherwise at a glance."""
    if verdict is not None and (message := verdict.message) is not None:
        metadata = message.metadata
        return _Look(metadata.message_type, metadata.sender.id or "", metadata.message_id, message.data)
    try:
        envelope = _glance(record.value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Look()
    seen = envelope.metadata
    return _Look(seen.message_type, seen.sender.id, seen.message_id, bytes(envelope.data))


def _own(record: Record) -> str:
    """Describe *record* if its topic is one of the bus's own; return an empty string otherwise."""
    name = read_topic(record.topic)
    return _OWN.get(record.topic.partition(".")[2], "") if name is not None and name.kind == "own" else ""


def _moment(record: Record) -> str:
    try:
        return format_ms(record.timestamp_ms)
    except OverflowError:
        # Beyond the four-digit years: other programs may write any number.
        return str(record.timestamp_ms)


def _line(record: Record, verdict: FileVerdict | None, columns: int) -> str:
    if own := _own(record):
        about, data = own if record.value is not None else f"{own}, deleted", record.value or b""
    else:
        look = _look(record, verdict)
        about, data = f"{look.message_type}  {look.sender}  {look.message_id}", look.data
        if not look.message_id:
            about = f"{len(record.value or b'')} bytes that are not a message"
    judged = f"  {verdict.sentence()}" if verdict is not None else ""
    line = f"{_moment(record)}  {record.partition}/{record.offset}  {printable(about)}{judged}"
    return f"{line}  {_cut(data, max(_MIN_DATA_BYTES, columns - len(line) - 2))}".rstrip()


def _cut(data: bytes, columns: int) -> str:
    """Return the beginning of *data* as text of at most *columns* characters."""
    # No character has more than four bytes, and each becomes at least one.
    text = printable(data[: columns * 4].decode("utf-8", "backslashreplace"))
    return text if len(text) <= columns and len(data) <= columns * 4 else f"{text[: columns - 3]}..."


def _fields(record: Record, verdict: FileVerdict | None) -> dict[str, object]:
    fields: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": _moment(record),
        "key": record.key.decode("utf-8", "backslashreplace") if record.key is not None else None,
        "headers": {name: value.decode("utf-8", "backslashreplace") for name, value in record.headers},
    }
    if verdict is not None:
        fields |= {"verdict": verdict.verdict}
        fields |= {
            name: getattr(verdict, name) for name in ("gate", "reason", "pointer", "detail") if getattr(verdict, name)
        }
    value = raw_json(record.value or b"")
    if value is not None:
        return {**fields, "value": value}
    return {**fields, "value_base64": base64.b64encode(record.value or b"").decode()}
