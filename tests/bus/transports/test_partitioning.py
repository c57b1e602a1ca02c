"""murmur2 against the vectors of Kafka's Java client."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.native import murmur2_many
from bus.native.twins import murmur2
from bus.transports.partitioner import partition_of

VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), VECTORS.items())
def test_murmur2_is_kafkas(key, signed):
    assert murmur2(key) == signed % 2**32


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_a_key_has_one_partition_in_range(key, partitions):
    assert 0 <= partition_of(key, partitions) < partitions
    assert partition_of(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions


@given(st.integers(0, 40), st.integers(0, 60), st.randoms(use_true_random=False))
def test_many_at_once_are_hashed_as_each_alone(length: int, count: int, chance: random.Random) -> None:
    keys = [chance.randbytes(length) for _ in range(count)]
    assert murmur2_many(keys) == [murmur2(key) for key in keys]


def test_keys_of_several_lengths_are_hashed_as_each_alone() -> None:
    keys = [b"x" * length for length in range(40)]
    assert murmur2_many(keys) == [murmur2(key) for key in keys]
