"""Messages in files of any layout: a message a line, one message over several lines, a batch of events."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from bus.byte_lines import read_lines
from bus.dialects import Defaults, open_dialect
from bus.dialects.sealing import seal_foreign
from bus.dialects.type_names import TypeNames
from bus.errors import DialectError
from bus.payloads.payload_types import Registry
from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.telemetry.terminal_json import encode_json

__all__ = ["CANONICAL", "MessageText", "is_whole_json", "left_out", "message_texts", "read_messages"]


CANONICAL: Final = "canonical"
_MAX_BYTES: Final = 4_194_304


_PROOFS: Final = ("auth", "signature")


def read_messages(
    source: str, content: bytes, defaults: Defaults, namespace: str, *, types: Registry, names: TypeNames
) -> Iterator[tuple[Message, Mapping[str, Any]]]:
    """Yield the messages in *content* (one, or a batch of events) with the proofs that each claims."""
    if source == CANONICAL:
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


def left_out(proofs: Mapping[str, Any], written: bytes) -> list[str]:
    """Return the names of the signatures and tokens among *proofs* that are missing in *written*."""
    return [name for name in _PROOFS if name in proofs and encode_json(proofs[name]).strip(b'"') not in written]


def _batch(content: bytes) -> list[Any]:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DialectError("", "no JSON", "a list of events") from error
    return [encode_json(item) for item in found]


def is_whole_json(content: bytes) -> bool:
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        # Cut off: the rest may be on the next lines. Anything else is a line that is wrong.
        return "truncated" not in str(error)
    except RecursionError:
        return True
    return True


class MessageText(NamedTuple):
    line: int
    content: bytes | None


def message_texts(file: BinaryIO) -> Iterator[MessageText]:
    """Yield each line; or the whole file where its first line begins a message and does not end it."""
    lines = read_lines(file, _MAX_BYTES)
    first = next(lines, None)
    if first is None:
        return
    if first.content is None or is_whole_json(first.content):
        for line in itertools.chain([first], lines):
            yield MessageText(line.number, line.content)
        return
    rest, size = [first.content], len(first.content)
    for line in lines:
        size += len(line.content or b"") + 1
        if line.content is None or size > _MAX_BYTES:
            yield MessageText(first.number, None)
            return
        rest.append(line.content)
    yield MessageText(first.number, b"\n".join(rest))
