"""`sealbus tail TOPIC_OR_TYPE`: the records of a topic, one line each.

Owns the options, the lines and the summary. `bus.transports.topic_reader` reads, `bus.gates.verdicts` judges.
"""

from __future__ import annotations

import base64
import shutil
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec

from bus.clock import SystemClock
from bus.dialects import DIALECT_ALIASES, DIALECTS, Dialect
from bus.dialects.opening import open_dialect
from bus.dialects.type_names import type_names_of
from bus.errors import ContractError, NameRefusedError, TopicMissingError
from bus.gates.verdicts import DEAD, FileChecks, FileVerdict, judge_line
from bus.nearest import nearest
from bus.protocol import sealing
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.topics.names import message_topic, read_topic
from bus.transports.base import Record, Transport
from bus.transports.topic_reader import follow_topic, history, reading_positions
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.known_names import complete_topics
from consumers.cli.io.parameter_types import PAST, OneOf
from consumers.cli.io.printing import LineWriter, raw_json
from consumers.cli.session import (
    CommandSession,
    app_option,
    gathered,
    proof_of,
    trusted_keys_option,
    verb,
)
from consumers.cli.shell import Command

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


class TailedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record; *value* is its JSON, *value_base64* stands for bytes that are not JSON."""

    topic: str
    partition: int
    offset: int
    timestamp: str
    key: str | None
    headers: dict[str, str]
    verdict: str = ""
    check: str = ""
    reason: str = ""
    pointer: str = ""
    detail: str = ""
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    value_base64: str | msgspec.UnsetType = msgspec.UNSET


_glance = msgspec.json.Decoder(_TailedEnvelope).decode


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
    wanted = _TailFilter(
        options.sender,
        options.conversation,
        None if options.grep is None else options.grep.encode(),
        options.since_ms,
        options.until_ms,
    )
    async with session.open(settings) as transport:
        topic = await resolve_topic(transport, settings, options.name)
        checks, dialect = None, None
        if options.verifying or options.dialect is not None:
            types = await session.types_in(transport, settings, apps)
        if options.verifying:
            verifier, admit = proof_of(settings, SystemClock())
            max_bytes = settings.publish.max_message_bytes
            checks = FileChecks(max_message_bytes=max_bytes, registry=types, verifier=verifier, admit=admit)
        if options.dialect is not None:
            dialect = open_dialect(options.dialect, types=types, names=type_names_of(settings))
        with LineWriter() as writer:
            show = _Show(writer, checks, session.note, as_json=session.as_json, dialect=dialect)
            try:
                await _run(
                    transport, topic, show, wanted, whence=whence, last=options.limit, following=options.following
                )
            finally:
                show.summarize()
    return FAILED if show.bad else 0


def _start(text: str | None) -> str | int:
    if text is None:
        return "last"
    if text == "start":
        return "beginning"
    # Longer than any offset: Python refuses to parse numbers of thousands of digits.
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    raise click.BadParameter(f"{text!r} is neither `start` nor an offset", param_hint="--from")


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
        f"no topic {name} or {message_topic(settings.bus.namespace, name)}{nearest(name, existing)}"
    )


class _TailFilter(NamedTuple):
    """Which records are shown: all that is not None must fit."""

    sender: str | None
    conversation: str | None
    text: bytes | None
    since_ms: int | None = None
    until_ms: int | None = None

    def among(self, records: Iterable[Record]) -> Iterable[Record]:
        """Return those of *records* that are shown."""
        return records if self.is_all else [record for record in records if self._takes(record)]

    @property
    def is_all(self) -> bool:
        """Whether every record is."""
        return all(each is None for each in self)

    def _takes(self, record: Record) -> bool:
        value = record.value or b""
        if self.since_ms is not None and record.timestamp_ms < self.since_ms:
            return False
        if self.until_ms is not None and record.timestamp_ms > self.until_ms:
            return False
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
        self,
        writer: LineWriter,
        checks: FileChecks | None,
        note: Callable[[str], None],
        *,
        as_json: bool,
        dialect: Dialect | None = None,
    ) -> None:
        self.bad = 0
        self._note = note
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
            self._note(f"{count} messages cannot be represented in that format: {printable(text)}")
        text = f"{self._count} records"
        if self._checks is not None:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self._reasons.most_common())
            text += f", {self._count - self.bad} valid, {self.bad} invalid" + (f" ({reasons})" if reasons else "")
        self._writer.flush()
        self._note(text)


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


def _fields(record: Record, verdict: FileVerdict | None) -> TailedRecord:
    value = raw_json(record.value or b"")
    judged = {} if verdict is None else {"verdict": verdict.verdict, "check": verdict.gate, "reason": verdict.reason}
    judged |= {} if verdict is None else {"pointer": verdict.pointer, "detail": verdict.detail}
    return TailedRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=_moment(record),
        key=record.key.decode("utf-8", "backslashreplace") if record.key is not None else None,
        headers={name: value.decode("utf-8", "backslashreplace") for name, value in record.headers},
        value=msgspec.UNSET if value is None else value,
        value_base64=base64.b64encode(record.value or b"").decode() if value is None else msgspec.UNSET,
        **judged,
    )
