"""What one process is running, in a file that outlives it: fixed slots in shared memory.

A slot is written when a handler begins and cleared when it ends.

Owns the file's layout, taking and clearing slots, and reading those of others. A write is a copy in memory, without a
system call: the pages are the kernel's, so they survive kill -9, `os._exit` and the lack of memory, and only the
machine's own end loses them. Does not own which files there are, nor what a death means (`roll`, `rules`).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from typing import Final

from consumers.crashes.crash_rules import Kind, Mark
from consumers.deadletters.records import Control

__all__ = ["HANDLER", "INBOX", "JUDGED", "MOST_SLOTS", "RunningMessages", "read"]

HANDLER: Final = 1
INBOX: Final = 2
JUDGED: Final = 3
_KINDS: Final[dict[int, Kind]] = {HANDLER: "handler", INBOX: "inbox", JUDGED: "judged"}

MOST_SLOTS: Final = 1_024
"""What runs beyond that is not noted: so many others beside it, and it stands alone at nothing."""

_MAGIC: Final = b"sealbus deaths 1"
_HEADER: Final = 512
_MEMBER: Final = slice(64, _HEADER)
_ORDERLY: Final = 32
"""Where the byte lies that says: whatever ends this process now, no message does."""

# The kind last: where it stands, the rest does.
_SLOT: Final = struct.Struct("<QQQ249s128sB")
_SIZE: Final = 512
_KIND: Final = _SLOT.size - 1
_write = _SLOT.pack_into


class RunningMessages:
    """The slots of this process, a *member* of its group, in the new file behind *descriptor*.

    Raises OSError where there is no room for it.
    """

    __slots__ = ("_free", "_judging", "_map")

    def __init__(self, descriptor: int, count: int, member: str) -> None:
        count = min(count, MOST_SLOTS)
        size = _HEADER + (count + 1) * _SIZE
        # Written, and not only made that long: a page of a file that finds no room when it is first touched would end
        # the process.
        os.write(descriptor, _MAGIC.ljust(size, b"\0"))
        if os.fstat(descriptor).st_size != size:
            raise OSError("no space left for its slots")
        self._map = mmap.mmap(descriptor, size)
        self._map[_MEMBER] = member.encode()[: _HEADER - _MEMBER.start].ljust(_HEADER - _MEMBER.start, b"\0")
        self._judging = _HEADER
        self._free = [_HEADER + number * _SIZE for number in range(count, 0, -1)]

    def begin(self, control: Control, name: str, kind: int) -> int:
        """Note that the message *name* with *control* runs from now on; the slot to clear, or 0 where none is free."""
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
        """What was noted in the slot has ended."""
        self._map[at + _KIND] = 0
        self._free.append(at)

    def judge(self, mark: Mark) -> None:
        """Note that this record is being judged, until `judged`: one at a time."""
        _write(
            self._map, self._judging, mark.offset, mark.partition, 0, mark.topic.encode(), mark.name.encode(), JUDGED
        )

    def judged(self) -> None:
        """It has been."""
        self._map[self._judging + _KIND] = 0

    def end_in_order(self) -> None:
        """Whatever ends this process from now on, no message is to blame."""
        self._map[_ORDERLY] = 1


def read(descriptor: int) -> tuple[str, list[Mark]]:
    """Which member a process that has ended was, and what was running in it, by its file.

    Nothing where it ended in order, or the file is none of ours.
    """
    data = os.pread(descriptor, _HEADER + (MOST_SLOTS + 1) * _SIZE, 0)
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
