"""The records of a topic as lines: for people, as JSON, or as messages of a dialect.

Owns the line, the filter and the verdict counts. `bus.gates.verdicts` judges.
"""

from __future__ import annotations

import base64
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from bus.dialects import Dialect
from bus.errors import ContractError
from bus.gates.verdicts import DEAD, FileChecks, FileVerdict, judge_line
from bus.protocol import sealing
from bus.protocol.timestamps import format_ms
from bus.telemetry.terminal import printable
from bus.telemetry.terminal_json import encode_json, raw_json, terminal_json
from bus.topics.names import read_topic
from bus.transports.base import Record

__all__ = ["RecordFilter", "RecordLines", "TailedRecord"]

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


class RecordFilter(NamedTuple):
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


class RecordLines:
    """Makes lines of records, and counts verdicts. *checks* None judges nothing; *dialect* writes messages of it."""

    def __init__(self, checks: FileChecks | None, *, as_json: bool, dialect: Dialect | None = None) -> None:
        self.invalid = 0
        self._count = 0
        self._reasons: Counter[str] = Counter()
        self._checks = checks
        self._as_json = as_json
        self._dialect = dialect
        self._unsayable: Counter[str] = Counter()
        # Wide where the output is no terminal.
        self._columns = shutil.get_terminal_size((_WIDE, 0)).columns

    def lines(self, records: Iterable[Record]) -> Iterator[bytes]:
        """Yield the line of each record."""
        for record in records:
            self._count += 1
            verdict = judge_line(record, self._checks) if self._checks is not None and not _own(record) else None
            if verdict is not None and verdict.verdict == DEAD:
                self.invalid += 1
                self._reasons[verdict.reason] += 1
            if self._dialect is not None:
                try:
                    yield terminal_json(encode_json(self._dialect.encode(sealing.parse(record.value))))
                except ContractError as error:
                    self._unsayable[str(error)] += 1
            elif self._as_json:
                yield terminal_json(encode_json(_fields(record, verdict)))
            else:
                yield _line(record, verdict, self._columns).encode()

    def summary(self) -> Iterator[str]:
        """Yield the number of records and their faults."""
        for text, count in self._unsayable.most_common(5):
            yield f"{count} messages cannot be represented in that format: {printable(text)}"
        text = f"{self._count} records"
        if self._checks is not None:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self._reasons.most_common())
            valid = self._count - self.invalid
            text += f", {valid} valid, {self.invalid} invalid" + (f" ({reasons})" if reasons else "")
        yield text


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
