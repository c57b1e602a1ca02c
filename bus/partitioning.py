"""Which partition a key belongs to: murmur2, bit for bit what Kafka's Java client computes.

Owns the hash and the choice for records that have a key. Does not own the choice for records without one: an adapter takes turns.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["murmur2", "partition_of"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def _mixed(word: int) -> int:
    word = (word * _M) & _MASK
    return ((word ^ (word >> 24)) * _M) & _MASK


def murmur2(data: bytes) -> int:
    """The hash of *data* as an unsigned 32-bit number."""
    whole = len(data) & ~3
    state = _SEED ^ len(data)
    for start in range(0, whole, 4):
        state = ((state * _M) & _MASK) ^ _mixed(int.from_bytes(data[start : start + 4], "little"))
    if tail := data[whole:]:
        state = ((state ^ int.from_bytes(tail, "little")) * _M) & _MASK
    state = ((state ^ (state >> 13)) * _M) & _MASK
    return state ^ (state >> 15)


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """The partition of *key* among *partitions*; the sign bit is dropped, as Kafka's `toPositive` does."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
