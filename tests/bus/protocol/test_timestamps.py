"""Times in an envelope have one form: RFC 3339, UTC, exactly milliseconds, `Z`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.protocol.timestamps import format_ms, parse_ms

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00.000Z", 0),
        ("1969-12-31T23:59:59.999Z", -1),
        ("0001-01-01T00:00:00.000Z", FIRST_MS),
        ("9999-12-31T23:59:59.999Z", LAST_MS),
        ("2024-02-29T12:00:00.001Z", 1_709_208_000_001),
    ],
)
def test_a_time_is_read_and_written_the_same(text: str, ms: int) -> None:
    assert parse_ms(text) == ms
    assert format_ms(ms) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-01T24:00:00.000Z",
        "2026-01-01T23:59:60.000Z",
        "2026-01-01T23:60:00.000Z",
        "2026-02-30T00:00:00.000Z",
        "2026-02-29T00:00:00.000Z",
        "1900-02-29T00:00:00.000Z",
        "2026-04-31T00:00:00.000Z",
        "0000-01-01T00:00:00.000Z",
        "2026-00-01T00:00:00.000Z",
        "2026-13-01T00:00:00.000Z",
        "2026-01-00T00:00:00.000Z",
        "2026-01-32T00:00:00.000Z",
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.00Z",
        "2026-01-01T00:00:00.0000Z",
        "2026-01-01T00:00:00.000000Z",
        "2026-01-01T00:00:00.000",
        "2026-01-01T00:00:00.000+00:00",
        "2026-01-01T00:00:00.000z",
        "2026-01-01t00:00:00.000Z",
        "2026-01-01 00:00:00.000Z",
        "2026-01-01T00:00:00,000Z",
        "20260101T000000.000Z",
        "2026-W01-1T00:00:00.000Z",
        "+026-01-01T00:00:00.000Z",
        "10000-01-01T00:00:00.000Z",
        " 2026-01-01T00:00:00.000Z",
        "2026-01-01T00:00:00.000Z\n",
        "\u0662026-01-01T00:00:00.000Z",
    ],
)
def test_other_text_is_not_a_timestamp(text: str) -> None:
    assert parse_ms(text) is None


@given(st.integers(FIRST_MS, LAST_MS))
def test_every_millisecond_of_the_years_1_to_9999_has_one_text(ms: int) -> None:
    text = format_ms(ms)
    assert parse_ms(text) == ms
    assert text == (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@given(st.lists(st.integers(FIRST_MS, LAST_MS), max_size=9))
def test_the_order_of_texts_is_the_order_of_times(times: list[int]) -> None:
    assert sorted(map(format_ms, times)) == list(map(format_ms, sorted(times)))


@pytest.mark.parametrize("ms", [FIRST_MS - 1, LAST_MS + 1])
def test_other_years_have_no_text(ms: int) -> None:
    with pytest.raises((OverflowError, ValueError)):
        format_ms(ms)
