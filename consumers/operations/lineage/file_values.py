"""Record values in files, with bounded memory, and the verdict on each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import msgspec

from bus.byte_lines import read_lines
from bus.errors import BusError
from bus.gates.verdicts import DEAD, OK, FileChecks, FileVerdict, judge_line
from bus.telemetry.terminal import printable
from bus.transports.base import Record

__all__ = ["FileValue", "VerifiedRecord", "file_values", "judge_value", "value_row", "value_sentence"]


class VerifiedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The verdict on one message of a file."""

    file: str
    line: int | None = None
    verdict: str
    """ok, dead or skipped."""
    check: str = ""
    reason: str = ""
    pointer: str = ""
    detail: str = ""
    message_id: str | None = None


class FileValue(NamedTuple):
    file: str
    line: int | None
    content: bytes
    overlong: bool


def file_values(stream: BinaryIO, limit: int, *, lines: bool) -> Iterator[FileValue]:
    """Yield record values; of an oversized one only the beginning."""
    name = str(getattr(stream, "name", "-"))
    try:
        if lines:
            for line in read_lines(stream, limit):
                yield FileValue(name, line.number, line.content or b"", line.content is None)
            return
        content = _read_up_to(stream, limit + 2)
    except OSError as error:
        raise BusError(f"{name} cannot be read: {error.strerror or error}") from error
    if len(content) <= limit + 1:
        content = content.removesuffix(b"\n")
    yield FileValue(name, None, content, len(content) > limit)


def judge_value(value: FileValue, checks: FileChecks) -> FileVerdict:
    if value.overlong:
        detail = f"has more than the {checks.max_message_bytes} bytes that are allowed"
        return FileVerdict(verdict=DEAD, gate="size", reason="oversized", detail=detail)
    return judge_line(Record("", 0, 0, checks.append_ms or 0, None, value.content), checks)


def value_sentence(value: FileValue, verdict: FileVerdict, *, many: bool) -> str:
    location = f"{printable(value.file)}:{value.line}: " if value.line is not None else f"{printable(value.file)}: "
    if verdict.message is None:
        return f"{location if many else ''}{verdict.sentence()}"
    metadata = verdict.message.metadata
    about = f"{metadata.message_id}  {metadata.message_type} from {printable(metadata.sender.id or '')}"
    sentence = f"ok  {about}" if verdict.verdict == OK else f"{verdict.sentence()}  ({about})"
    return f"{location if many else ''}{sentence}"


def _read_up_to(stream: BinaryIO, limit: int) -> bytes:
    """Read *limit* bytes, although one read of a pipe may return less."""
    parts = []
    while limit > 0 and (part := stream.read(limit)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def value_row(value: FileValue, verdict: FileVerdict) -> VerifiedRecord:
    message = verdict.message
    return VerifiedRecord(
        file=value.file,
        line=value.line,
        verdict=verdict.verdict,
        check=verdict.gate,
        reason=verdict.reason,
        pointer=verdict.pointer,
        detail=verdict.detail,
        message_id=None if message is None else message.message_id,
    )
