"""A batch whose header names are no UTF-8 is read, and where it is broken besides that it is corrupt, and nothing
worse."""

from __future__ import annotations

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from bus.transports.kafka.consumer import record_parsing as parsing

HEAD_BYTES = 61
NAME = b"\xff\xfe"


def batch() -> bytes:
    """Three records; the header names of the last two are no UTF-8."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 10_000)
    for number, name in enumerate(("ok", "zz", "zz")):
        builder.append(number, 1000 + number, b"key", b"value" * number, [(name, b"content"), ("none", None)])
    return bytes(builder.build()).replace(b"zz", NAME)


def read(raw: bytes) -> list[parsing._Tolerated]:
    return list(parsing._Batch(memoryview(raw), None))


def test_header_names_outside_utf_8_are_read_with_escapes() -> None:
    found = read(batch())
    assert [(each.offset, each.timestamp, each.key, each.value) for each in found] == [
        (number, 1000 + number, b"key", b"value" * number) for number in range(3)
    ]
    assert [each.headers for each in found] == [
        [(name, b"content"), ("none", None)] for name in ("ok", "\ufffd\ufffd", "\ufffd\ufffd")
    ]


@given(st.integers(HEAD_BYTES, len(batch()) - 1))
def test_such_a_batch_that_is_cut_off_is_corrupt(end: int) -> None:
    with pytest.raises(CorruptRecordException):
        read(batch()[:end])


@pytest.mark.medium
@given(st.data())
def test_such_a_batch_that_is_damaged_is_read_or_corrupt(draw: st.DataObject) -> None:
    raw = bytearray(batch())
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(HEAD_BYTES, len(raw) - 1))
        raw[at : at + draw.draw(st.integers(0, 3))] = draw.draw(
            st.binary(max_size=3) | st.sampled_from([b"\xff" * 12, b"\xff" * 8 + b"\x7f"])
        )
    try:
        found = read(bytes(raw))
    except CorruptRecordException:
        return
    assert len(found) == 3
