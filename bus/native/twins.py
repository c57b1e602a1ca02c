"""The twins of the compiled functions in Python: the same answers, slower.

Owns the behaviour without compiled code. Optional shortcuts of the compiled code have no twin: here they return None,
and the caller takes its exact path.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final

__all__ = [
    "Caster",
    "Encoder",
    "Links",
    "Receipts",
    "Sealer",
    "acknowledge",
    "count_extremes",
    "count_marks",
    "digest",
    "distribute",
    "has_long_integer",
    "header_bytes",
    "is_canonical_object",
    "murmur2_many",
    "read_records",
    "record_sizes",
    "seal_caused",
    "seal_plain",
    "write_batch",
    "write_records",
]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_RECORD_OVERHEAD: Final = 40
_HEADER_OVERHEAD: Final = 10
# Fractions are full of digits, and looking at every value costs as much as reading them: only a number that begins with
# sixteen digits may be too large.
_OUTLINE: Final = bytes(
    ord("0") if chr(code) in "0123456789" else ord(":") if chr(code) in ":,[-" else code for code in range(256)
)
_LONG_INTEGER: Final = b":" + b"0" * 16
_EXTREME_EXPONENT: Final = re.compile(rb"(?<=[0-9])e(?:-3|-29|\+?28|\+?29|\+?30)")


def digest(data: bytes) -> str:
    """Return `sha256:` and 64 lower-case hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def murmur2(data: bytes) -> int:
    """Return the hash of *data* as an unsigned 32-bit number."""
    count = len(data) >> 2
    state = _SEED ^ len(data)
    for word in _words(count)(data):
        mixed = (word * _M) & _MASK
        state = ((state * _M) & _MASK) ^ (((mixed ^ (mixed >> 24)) * _M) & _MASK)
    if tail := data[count << 2 :]:
        state = ((state ^ int.from_bytes(tail, "little")) * _M) & _MASK
    state = ((state ^ (state >> 13)) * _M) & _MASK
    return state ^ (state >> 15)


@lru_cache(maxsize=256)
def _words(count: int) -> Callable[[bytes], tuple[int, ...]]:
    return Struct(f"<{count}I").unpack_from


def murmur2_many(keys: Sequence[bytes]) -> list[int]:
    """Return `murmur2` of each of *keys*."""
    return [murmur2(key) for key in keys]


def record_sizes(records: Sequence[Any]) -> list[int]:
    """Return an upper bound of the bytes each of *records* takes in a batch."""
    return [
        len(record.key or b"")
        + len(record.value or b"")
        + sum(len(name.encode()) + len(value) + _HEADER_OVERHEAD for name, value in record.headers)
        + _RECORD_OVERHEAD
        for record in records
    ]


def has_long_integer(data: bytes) -> bool:
    """Return whether a number of sixteen digits or more may stand in JSON *data*."""
    return _LONG_INTEGER in data.translate(_OUTLINE)


def count_extremes(data: bytes) -> int:
    """Return how many numbers in JSON *data* may end in an exponent beyond 28 or below -28, strings included."""
    return len(_EXTREME_EXPONENT.findall(data))


def count_marks(data: bytes, start: int, end: int) -> tuple[int, int, int]:
    """Return how many `{`, `[` and `,` stand in *data* from *start* to before *end*."""
    return data.count(b"{", start, end), data.count(b"[", start, end), data.count(b",", start, end)


def header_bytes(headers: Sequence[tuple[str, bytes]]) -> int:
    """Return the lengths of the names and values of *headers*."""
    total = 0
    for name, content in headers:
        total += len(name) + len(content)
    return total


def acknowledge(  # noqa: PLR0917 - as the compiled one
    outcomes: list[Any],
    indices: Sequence[int],
    kind: Callable[..., Any],
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
) -> int:
    """Fill in the *outcomes* at *indices* that are None, as records from *offset* on; return how many there were."""
    filled = 0
    for location, index in enumerate(indices):
        if outcomes[index] is None:
            outcomes[index] = kind(topic, partition, offset + location, timestamp_ms)
            filled += 1
    return filled


def _undecided(*_: object) -> None:
    """Leave it to the exact way."""


class _Undecided:
    """Leaves all it is asked to the exact way."""

    def __init__(self, *_: object) -> None:
        pass

    cast = judge = have_form = hold = of = _undecided


is_canonical_object = distribute = read_records = seal_caused = seal_plain = write_batch = write_records = _undecided
Encoder = Sealer = _undecided
Caster = Links = Receipts = _Undecided
