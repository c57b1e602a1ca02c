"""Which partition a key belongs to: murmur2, bit for bit what Kafka's Java client computes.

Owns the hash and the choice for records that have a key. Does not own the choice for records without one: an adapter takes turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct

__all__ = ["murmur2", "partition_of"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The hash of *data* as an unsigned 32-bit number."""
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


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition of *key* among *partitions*; the sign bit is dropped, as Kafka's `toPositive` does."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
