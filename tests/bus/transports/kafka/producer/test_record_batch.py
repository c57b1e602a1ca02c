"""Batches written and read by the compiled way are those of the library."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from bus import native
from bus.transports.base import NewRecord, Record
from bus.transports.kafka.cluster.topic_facts import BATCH_OVERHEAD
from bus.transports.kafka.consumer import record_parsing as parsing
from bus.transports.kafka.producer.record_batch import Writing
from tests.twins_alone import twins_alone

pytestmark = pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")

HEADERS = st.lists(
    st.tuples(st.text(st.characters(blacklist_categories=["Cs"]), max_size=5), st.binary(max_size=200)), max_size=4
).map(tuple)
RECORDS = st.lists(
    st.builds(
        NewRecord, st.just("t"), st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=400), HEADERS
    ),
    min_size=1,
    max_size=20,
)
PLACE = TopicPartition("t", 3)


class Library:
    """Stands for a producer: it only makes builders."""

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(10**8, 0, is_transactional=0)


def batch_of(records: list[NewRecord], compression: str = "none", *, state: tuple[int, int, int] = (7, 2, 5)) -> bytes:
    builder = Writing(Library(), compression).written(records, timestamp_ms=1_700_000_000_000)
    builder._set_producer_state(*state)
    return bytes(builder._build())


def read(batch: bytes) -> list[Record] | None:
    found, _ = parsing._bounded(memoryview(batch), PLACE)
    return None if found is None else list(found)


def read_by_library(batch: bytes) -> list[Record]:
    return [
        Record(
            "t",
            3,
            each.offset,
            each.timestamp,
            each.key,
            each.value,
            tuple((name, content or b"") for name, content in each.headers),
        )
        for each in DefaultRecordBatch(bytearray(batch))
    ]


@pytest.mark.medium
@given(RECORDS)
def test_a_batch_is_byte_for_byte_the_librarys(records: list[NewRecord]) -> None:
    with twins_alone():
        theirs = batch_of(records)
    assert batch_of(records) == theirs


@pytest.mark.medium
@given(RECORDS)
def test_sizes_are_counted_alike_and_are_enough(records: list[NewRecord]) -> None:
    with twins_alone():
        sizes = native.record_sizes(records)
    assert native.record_sizes(records) == sizes
    assert sum(sizes) + BATCH_OVERHEAD >= len(batch_of(records))


@given(RECORDS, st.sampled_from(["none", "zstd"]))
def test_compiled_and_python_code_read_the_same_batches(records: list[NewRecord], compression: str) -> None:
    batch = batch_of(records, compression)
    assert DefaultRecordBatch(bytearray(batch)).validate_crc()
    found = read(bytes(batch))
    assert found == read_by_library(batch)
    assert [(each.key, each.value, each.headers) for each in found or []] == [
        (each.key, each.value, each.headers) for each in records
    ]


@pytest.mark.parametrize("size", [0, 1, 300_000, 1_048_000, 1_048_576, 3_000_000])
def test_batches_of_any_size_are_read(size: int) -> None:
    batch = batch_of([NewRecord("t", b"k", b"ab" * (size // 2)), NewRecord("t", b"l", b"c")], "zstd")
    assert read(batch) == read_by_library(batch)


def test_the_bytes_are_the_same_at_each_try() -> None:
    builder: Any = Writing(Library(), "zstd").written([NewRecord("t", b"k", b"v")], timestamp_ms=1)
    builder._set_producer_state(1, 1, 1)
    assert builder._build() is builder._build()
    assert builder.size() == len(builder._build())
    assert builder.record_count() == 1


@pytest.mark.medium
@given(RECORDS, st.data())
def test_a_damaged_batch_is_read_as_the_library_reads_it_or_left_to_it(
    records: list[NewRecord], draw: st.DataObject
) -> None:
    batch = bytearray(batch_of(records))
    batch[draw.draw(st.integers(61, len(batch) - 1))] = draw.draw(st.integers(0, 255))
    found = read(bytes(batch))
    try:
        alike = read_by_library(bytes(batch))
    except Exception:  # noqa: BLE001 - whatever it raises: its checksum is wrong, and nobody reads it
        return
    if found is not None:
        assert [each.offset for each in found] == [each.offset for each in alike]
