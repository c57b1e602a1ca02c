"""The partition of a key: murmur2, bit for bit as in Kafka's Java client.

Owns the hash and the choice for records that have a key. For records without one, each adapter chooses by itself.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct

from bus import native

__all__ = ["murmur2", "murmur2_many", "partition_of", "partition_of_hash"]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_FEW = 8
_WORD_BYTES = 4


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
    """Return `murmur2` of each of *keys*.

    Many keys of one length that is a multiple of four, such as UUIDs, cost a quarter each.
    """
    if native.core is not None:
        hashes: list[int] = native.core.murmur2_many(keys)
        return hashes
    length = len(keys[0]) if keys else 0
    alike = length and length % _WORD_BYTES == 0 and all(len(key) == length for key in keys)
    if len(keys) < _FEW or not alike or sys.byteorder != "little" or array("I").itemsize != _WORD_BYTES:
        return [murmur2(key) for key in keys]
    return _side_by_side(keys, length)


def _side_by_side(keys: Sequence[bytes], length: int) -> list[int]:
    """Hash all keys at once: one key per 64-bit lane of long integers, so that each step covers every key."""
    lanes, ones = _lanes(len(keys))
    words = array("I", b"".join(keys))
    count = length // _WORD_BYTES
    state = ones * (_SEED ^ length)
    for index in range(count):
        mixed = (int.from_bytes(array("Q", words[index::count]).tobytes(), "little") * _M) & lanes
        mixed = (((mixed ^ (mixed >> 24)) & lanes) * _M) & lanes
        state = ((state * _M) & lanes) ^ mixed
    state = (((state ^ (state >> 13)) & lanes) * _M) & lanes
    state = (state ^ (state >> 15)) & lanes
    return array("Q", state.to_bytes(8 * len(keys), "little")).tolist()


@lru_cache(maxsize=64)
def _lanes(count: int) -> tuple[int, int]:
    """Return *count* lanes of 32 set bits, and *count* lanes of the value one."""
    ones = ((1 << 64 * count) - 1) // ((1 << 64) - 1)
    return ones * _MASK, ones


def partition_of_hash(hashed: int, partitions: int) -> int:
    """Return the partition, among *partitions*, of a key with the hash *hashed*.

    The sign bit is dropped, as in Kafka's `toPositive`.
    """
    return (hashed & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of *key* among *partitions*."""
    return partition_of_hash(murmur2(key), partitions)
