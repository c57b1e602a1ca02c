"""The partition of a key, by murmur2, bit for bit as in Kafka's Java client.

Owns the choice for records with a key. Each adapter chooses the partition of records without a key.
"""

from __future__ import annotations

from functools import lru_cache

from bus.native.twins import murmur2

__all__ = ["partition_of", "partition_of_hash"]


def partition_of_hash(hashed: int, partitions: int) -> int:
    """Return the partition, among *partitions*, of a key with the hash *hashed*.

    The sign bit is dropped, as in Kafka's `toPositive`.
    """
    return (hashed & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of *key* among *partitions*."""
    return partition_of_hash(murmur2(key), partitions)
