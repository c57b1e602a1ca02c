"""RunningMessages: what one process runs, in fixed slots of a memory-mapped file that outlives it.

A slot is written when a handler begins and cleared when it ends.

Owns the file's layout, taking and clearing slots, and reading those of others. A write is a copy in memory, without a
system call. The pages are the kernel's: they survive kill -9, `os._exit` and the lack of memory, and are lost only with
the machine. Files are in `consumers.delivery.crashes.process_files`, the meaning of a death in
`consumers.delivery.crashes.crash_rules`.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from typing import Final

from consumers.deadletters.records import Control
from consumers.delivery.crashes.crash_rules import Mark, MarkKind

__all__ = ["HANDLER", "INBOX", "JUDGED", "MAX_SLOTS", "RunningMessages", "read"]

HANDLER: Final = 1
INBOX: Final = 2
JUDGED: Final = 3
_KINDS: Final[dict[int, MarkKind]] = {HANDLER: "handler", INBOX: "inbox", JUDGED: "judged"}

MAX_SLOTS: Final = 1_024
"""Further messages are not noted: with so many beside it, a message runs alone at nothing."""

_MAGIC: Final = b"sealbus deaths 1"
_HEADER: Final = 512
_MEMBER: Final = slice(64, _HEADER)
_ORDERLY: Final = 32
"""The position of a byte that means: a crash from now on counts against no message."""

# The kind comes last: once it is written, the rest is.
_SLOT: Final = struct.Struct("<QQQ249s128sB")
_SIZE: Final = 512
_KIND: Final = _SLOT.size - 1
_write = _SLOT.pack_into


class RunningMessages:
    """The slots of this process, a *member* of its group, in the new file behind *descriptor*.

    Raises OSError where the disk has no room for it.
    """

    __slots__ = ("_free", "_judging", "_map")

    def __init__(self, descriptor: int, count: int, member: str) -> None:
        count = min(count, MAX_SLOTS)
        size = _HEADER + (count + 1) * _SIZE
        # Written, not only extended: a page without room on the disk would end the process when it is first touched.
        os.write(descriptor, _MAGIC.ljust(size, b"\0"))
        if os.fstat(descriptor).st_size != size:
            raise OSError("no space left for its slots")
        self._map = mmap.mmap(descriptor, size)
        self._map[_MEMBER] = member.encode()[: _HEADER - _MEMBER.start].ljust(_HEADER - _MEMBER.start, b"\0")
        self._judging = _HEADER
        self._free = [_HEADER + number * _SIZE for number in range(count, 0, -1)]

    def begin(self, control: Control, name: str, kind: int) -> int:
        """Record that the message *name* with *control* runs; return the slot to clear, or 0 if none is free.

        *kind* is INBOX where the message has a row in an inbox, which counts its deaths, else HANDLER.
        """
        free = self._free
        if not free:
            return 0
        at = free.pop()
        _write(
            self._map,
            at,
            control.origin_offset,
            control.origin_partition,
            control.redrive_count,
            control.origin_topic.encode(),
            name.encode(),
            kind,
        )
        return at

    def end(self, at: int) -> None:
        """Clear the slot *at*: its message has ended."""
        self._map[at + _KIND] = 0
        self._free.append(at)

    def judge(self, mark: Mark) -> None:
        """Note that the record of *mark* is being judged, until `judged`; one at a time."""
        _write(
            self._map, self._judging, mark.offset, mark.partition, 0, mark.topic.encode(), mark.name.encode(), JUDGED
        )

    def judged(self) -> None:
        """Note that the record has been judged."""
        self._map[self._judging + _KIND] = 0

    def end_in_order(self) -> None:
        """Note that a crash from now on counts against no message."""
        self._map[_ORDERLY] = 1


def read(descriptor: int) -> tuple[str, list[Mark]]:
    """Return which member a dead process was, and what ran in it, from its file.

    Nothing runs where it ended in order; both are empty where the file is not of this kind.
    """
    data = os.pread(descriptor, _HEADER + (MAX_SLOTS + 1) * _SIZE, 0)
    if not data.startswith(_MAGIC) or len(data) < _HEADER:
        return "", []
    return _text(data[_MEMBER]), [] if data[_ORDERLY] else list(_marks(data))


def _marks(data: bytes) -> Iterator[Mark]:
    for at in range(_HEADER, len(data) - _SIZE + 1, _SIZE):
        kind = _KINDS.get(data[at + _KIND])
        if kind is not None:
            offset, partition, redrives, topic, name, _ = _SLOT.unpack_from(data, at)
            yield Mark(_text(topic), partition, offset, _text(name), redrives, kind)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("utf-8", "replace")
