"""However much a batch blows up to, what is read of it is bounded; and what is read is what was written."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable, Iterator, Sequence

import pytest
import zstandard
from aiokafka import TopicPartition
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from bus import native
from bus.transports.base import Record
from bus.transports.kafka.consumer import decompression as decompressing
from bus.transports.kafka.consumer import record_parsing as parsing
from bus.transports.kafka.consumer.decompression import MAX_DECOMPRESSED_BYTES, TooLargeError, usual, whole
from bus.transports.kafka.consumer.record_parsing import _FETCHED_BYTES
from bus.transports.kafka.options import as_bus_records
from tests.twins_alone import twins_alone

HEAD_BYTES = 61
GZIP, ZSTD = 1, 4
PLACE = TopicPartition("t", 3)


def in_one_step(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(content)


def without_its_length(content: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    return stream.compress(content) + stream.flush()


def in_two_frames(content: bytes) -> bytes:
    return in_one_step(content[: len(content) // 3]) + without_its_length(content[len(content) // 3 :])


WAYS = [(in_one_step, ZSTD), (without_its_length, ZSTD), (in_two_frames, ZSTD), (gzip.compress, GZIP)]
"""In which a batch can be compressed, and the codec's number."""
ways = pytest.mark.parametrize(("compress", "codec"), WAYS)
Compress = Callable[[bytes], bytes]


def batch(values: Sequence[bytes], compress: Compress, codec: int, headers: int = 0) -> bytes:
    """Records with these values, the offset of the first one being 100; the last one has so many headers."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for number, value in enumerate(values, 1):
        builder.append(number - 1, 1000, b"key", value, [("", None)] * headers if number == len(values) else [])
    raw = bytearray(builder.build())
    raw[HEAD_BYTES:] = compress(bytes(raw[HEAD_BYTES:]))
    raw[8:12] = (len(raw) - 12).to_bytes(4, "big")
    raw[:8] = (100).to_bytes(8, "big")
    raw[21:23] = codec.to_bytes(2, "big")
    return bytes(raw)


def read(raw: bytes) -> list[Record]:
    return list(parsing._Batch(memoryview(raw), PLACE))


@pytest.fixture
def compiled() -> None:
    """The compiled way of reading records."""
    if native.core is None:
        pytest.skip("there is no compiled hot path")


@pytest.fixture(params=["compiled", "library"])
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways of reading records."""
    if request.param == "library":
        with twins_alone():
            yield
    else:
        request.getfixturevalue("compiled")
        yield


@given(
    content=st.binary(max_size=300) | st.binary(min_size=1, max_size=20).map(lambda some: some * 80_000),
    way=st.sampled_from(WAYS),
)
def test_compressed_data_round_trip(content: bytes, way: tuple[Compress, int]) -> None:
    compress, codec = way
    assert whole(memoryview(compress(content)), codec) == content


@given(content=st.binary(max_size=1000), cut=st.integers(1, 400), way=st.sampled_from(WAYS))
def test_damaged_compressed_data_raise_or_give_a_prefix(content: bytes, cut: int, way: tuple[Compress, int]) -> None:
    compress, codec = way
    section = memoryview(compress(content)[:-cut])
    for read_by in (usual, whole):
        try:
            found = read_by(section, codec)
        except ValueError:
            continue
        assert found is None or content.startswith(bytes(found))


@given(st.binary(max_size=100))
def test_uncompressed_data_raise_or_give_little(noise: bytes) -> None:
    for codec in (GZIP, ZSTD):
        with contextlib.suppress(ValueError):
            assert len(whole(memoryview(noise), codec) or b"") < 100_000


@ways
def test_no_more_is_decompressed_than_the_bound(compress: Compress, codec: int) -> None:
    content = bytes(MAX_DECOMPRESSED_BYTES)
    assert whole(memoryview(compress(content)), codec) == content
    with pytest.raises(TooLargeError) as raised:
        whole(memoryview(compress(content + b"x")), codec)
    assert raised.value.beginning == content


def test_a_frame_that_claims_to_hold_terabytes_gets_no_memory_for_them() -> None:
    # RFC 8878, 3.1.1: one segment, and eight bytes for the length of the content.
    claim = b"\x28\xb5\x2f\xfd\xe0" + (1 << 42).to_bytes(8, "little") + b"\x01\x00\x00"
    assert zstandard.frame_content_size(claim) == 1 << 42
    assert usual(memoryview(claim), ZSTD) is None
    with pytest.raises(ValueError, match="memory"):
        whole(memoryview(claim), ZSTD)


@ways
@pytest.mark.usefixtures("path")
def test_every_record_of_a_sound_batch_is_read(compress: Compress, codec: int) -> None:
    values = [b"value" * number for number in range(300)]
    found = read(batch(values, compress, codec))
    assert [(record.offset, record.value) for record in found] == list(enumerate(values, 100))


@ways
@pytest.mark.usefixtures("path")
def test_the_unreadable_rest_of_an_oversized_batch_becomes_one_record(compress: Compress, codec: int) -> None:
    values = [b"first", b"second", bytes(MAX_DECOMPRESSED_BYTES), b"behind", b"last"]
    with capture_logs() as logs:
        found = read(batch(values, compress, codec))
    assert found[:2] == [Record("t", 3, 100 + number, 1000, b"key", values[number], ()) for number in range(2)]
    assert found[2:] == [Record("t", 3, 104, 1000, None, b"", ())]
    assert [(line["event"], line["offset"]) for line in logs] == [("kafka.batch_unreadable", 100)]


@ways
@pytest.mark.usefixtures("compiled")
def test_one_record_stands_for_one_with_headers_without_end(compress: Compress, codec: int) -> None:
    assert len(read(batch([b"first", b"second"], compress, codec, headers=10_000))[1].headers) == 256
    with capture_logs() as logs:
        found = read(batch([b"first", b"second"], compress, codec, headers=10_001))
    assert [(record.offset, record.value) for record in found] == [(100, b"first"), (101, b"")]
    assert [line["error"].split(": ")[-1] for line in logs] == ["10001 headers are more than 10000"]


@ways
@pytest.mark.usefixtures("path")
def test_very_many_records_are_read_one_after_the_other(
    compress: Compress, codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "_MAX_RECORDS", 1000)
    monkeypatch.setattr(decompressing, "_USUAL_BYTES", 10_000)
    raw = batch([b"%d" % number for number in range(1001)], compress, codec)
    records = iter(parsing._Batch(memoryview(raw), PLACE))
    assert not isinstance(parsing._bounded(memoryview(raw), PLACE), list)
    assert [(record.offset, record.value) for record in records] == [
        (100 + number, b"%d" % number) for number in range(1001)
    ]


@pytest.mark.usefixtures("path")
def test_a_fetch_brings_no_more_than_it_may_and_the_next_one_goes_on_behind_it() -> None:
    each = batch([bytes(_FETCHED_BYTES // 3)], in_one_step, ZSTD)
    raw = b"".join((100 + number).to_bytes(8, "big") + each[8:] for number in range(10))
    offset, found = 100, []
    while offset < 110:
        records = parsing._Records(raw[(offset - 100) * len(each) :])
        fetched = parsing._PartitionRecords(PLACE, records, (), offset, as_bus_records, None, False, 0)
        found.append([record.offset for record in fetched])
        offset = fetched.next_fetch_offset
    assert found == [[100, 101, 102], [103, 104, 105], [106, 107, 108], [109]]
