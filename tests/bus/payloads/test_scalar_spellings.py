"""One reading of each scalar spelling, and one writing of each value, by all four forms of classes."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
import zoneinfo
from dataclasses import make_dataclass
from typing import Any

import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import example, given
from hypothesis import strategies as st

from bus import native
from bus.errors import ContractError
from bus.payloads.payload_types import PayloadType, encode_payload, payload, payload_type


class Colour(enum.Enum):
    RED = "red"
    ONE = "1"


class Number(enum.IntEnum):
    ONE = 1


def forms_of(annotation: Any, of_model: Any = None) -> tuple[PayloadType, ...]:
    """The four forms of a class with one field of *annotation*."""
    classes = (
        msgspec.defstruct("AsStruct", [("x", annotation)]),
        make_dataclass("AsDataclass", [("x", annotation)]),
        typing_extensions.TypedDict("AsDict", {"x": annotation}),  # type: ignore[operator]
        pydantic.create_model("AsModel", x=(of_model or annotation, ...)),
    )
    return tuple(payload_type(payload("scalar.of")(cls)) for cls in classes)


SCALARS: dict[str, tuple[PayloadType, ...]] = {
    **{
        kind.__name__: forms_of(kind)
        for kind in (
            decimal.Decimal,
            dt.datetime,
            dt.date,
            dt.time,
            dt.timedelta,
            uuid.UUID,
            float,
            int,
            bool,
            str,
            Colour,
            Number,
        )
    },
    "bytes": forms_of(bytes, pydantic.Base64Bytes),
    "list": forms_of(list[decimal.Decimal]),
    "map": forms_of(dict[str, dt.datetime]),
    "optional": forms_of(dt.timedelta | None),
    "either": forms_of(dt.datetime | int),
}


def value_of(subject: Any) -> Any:
    return subject["x"] if isinstance(subject, dict) else subject.x


def verdict(kind: PayloadType, data: bytes) -> Any:
    try:
        return value_of(kind.decode(data))
    except ContractError as error:
        return error.pointer, error.reason


def same(verdicts: list[Any]) -> bool:
    first = verdicts[0]
    return all(each == first and type(each) is type(first) for each in verdicts) and (
        not isinstance(first, dt.datetime | dt.time) or len({each.utcoffset() for each in verdicts}) == 1
    )


DIGITS = st.text("0123456789", min_size=1, max_size=9)
TIMES = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["2026-01-31", "0001-01-01", "9999-12-31", "2026-02-30", "2026-1-3", "20260131", ""]),
    st.sampled_from(["T", "t", " ", "_", ""]),
    st.sampled_from(["12:00:00", "23:59:59", "24:00:00", "12:00", "12", "12:00:60", "120000", ""]),
    st.builds(
        "{}{}".format,
        st.one_of(st.just(""), DIGITS.map(lambda digits: f".{digits}"), DIGITS.map(lambda digits: f",{digits}")),
        st.sampled_from(["", "Z", "z", "+01:00", "-01:30", "+0100", "+01", "-00:00", "+23:59", "+24:00", "+01:00:30"]),
    ),
)
DURATIONS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "-", "+"]),
    st.sampled_from(["P", "p", "PT", "pt", "P1DT", "P1W", "P1Y", ""]),
    st.lists(
        st.builds("{}{}".format, st.one_of(DIGITS, st.just("1.5"), st.just("0,5")), st.sampled_from("DHMSdhms"))
    ).map("".join),
)
NUMBERS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "-", "+", " "]),
    st.one_of(
        st.sampled_from(["nan", "NaN", "sNaN", "inf", "Infinity", "NaN12", "0x1", "1_000", "\u0663", ".5", "5.", ""]),
        DIGITS,
        st.builds("{}.{}".format, DIGITS, DIGITS),
    ),
    st.sampled_from(["", "e3", "E+3", "e-400", "e400", "e999999", " "]),
)
TEXTS = st.one_of(
    TIMES,
    DURATIONS,
    NUMBERS,
    st.sampled_from(
        ["red", "RED", "1", "true", "aGk=", "aGk", "-_8=", "aG k=", "1 day", "1:00:00", str(uuid.UUID(int=1))]
    ),
    st.uuids().map(str),
    st.uuids().map(lambda each: each.hex),
    st.uuids().map(lambda each: each.urn),
    st.text(max_size=4),
)
RAW = st.one_of(
    TEXTS.map(msgspec.json.encode),
    st.floats(allow_nan=False, allow_infinity=False).map(msgspec.json.encode),
    st.integers(-(2**53), 2**53).map(msgspec.json.encode),
    st.sampled_from([b"true", b"null", b"1.0", b"1E2", b"-0.0", b"0.1000000000000000055", b"1e400", b"[1]", b"{}"]),
)


@pytest.mark.parametrize("name", [name for name in SCALARS if name not in ("list", "map")])
@given(spelling=RAW)
@example(spelling=b'"NaN"')
@example(spelling=b'"2026-01-31T12:00:00.123456789Z"')
@example(spelling=b'"pt1h"')
def test_all_forms_read_a_spelling_alike(name: str, spelling: bytes) -> None:
    verdicts = [verdict(kind, b'{"x":' + spelling + b"}") for kind in SCALARS[name]]
    assert same(verdicts), verdicts


@given(spelling=RAW)
def test_all_forms_read_a_spelling_inside_alike(spelling: bytes) -> None:
    for name, data in (("list", b'{"x":[%b]}'), ("map", b'{"x":{"a":%b}}')):
        verdicts = [verdict(kind, data % spelling) for kind in SCALARS[name]]
        assert same(verdicts), verdicts


# --- values -----------------------------------------------------------------------------------------------------------

ZONES = st.one_of(
    st.none(),
    st.just(dt.UTC),
    st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23))),
    st.builds(dt.timezone, st.integers(-1400, 1400).map(lambda minutes: dt.timedelta(minutes=minutes))),
    st.sampled_from([zoneinfo.ZoneInfo(name) for name in ("Europe/Berlin", "Africa/Monrovia", "America/New_York")]),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "Decimal": st.decimals(),
    "datetime": st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29), timezones=ZONES),  # noqa: DTZ001 - zones are drawn
    "date": st.dates(),
    "time": st.times(timezones=ZONES),
    "timedelta": st.timedeltas(),
    "UUID": st.uuids(),
    "float": st.floats(),
    "int": st.integers(),
    "bool": st.booleans(),
    "str": st.text(),
    "bytes": st.binary(),
    "map": st.dictionaries(st.text(max_size=3), st.datetimes(timezones=ZONES), max_size=2),
    "list": st.lists(st.decimals(), max_size=2),
}


def is_same_value(read: Any, written: Any) -> bool:
    if isinstance(written, dict):
        return read.keys() == written.keys() and all(is_same_value(read[key], written[key]) for key in written)
    if isinstance(written, list):
        return len(read) == len(written) and all(map(is_same_value, read, written))
    if isinstance(written, dt.datetime) and written.utcoffset() is not None:
        epoch = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
        return read.utcoffset() == written.utcoffset() and read - epoch == written - epoch
    if isinstance(written, dt.time):
        return read.utcoffset() == written.utcoffset() and read.replace(tzinfo=None) == written.replace(
            tzinfo=None, fold=0
        )
    return bool(read == written)


@pytest.mark.parametrize("name", VALUES)
@given(data=st.data())
def test_a_value_is_read_as_it_was_written_or_refused_by_all_forms(name: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[name])
    written: list[bytes | str] = []
    for kind in SCALARS[name]:
        # A model's constructor refuses some of them itself.
        subject = getattr(kind.cls, "model_construct", kind.cls)(x=value)
        try:
            encoded = encode_payload(subject)
        except ContractError as error:
            written.append(error.pointer[:7])
            continue
        written.append(encoded)
        assert is_same_value(value_of(kind.decode(encoded)), value)
    assert len(set(written)) == 1, written


@pytest.mark.parametrize(
    ("name", "value", "cure"),
    [
        ("datetime", dt.datetime(2026, 1, 31, tzinfo=dt.timezone(dt.timedelta(seconds=30))), "astimezone"),
        ("datetime", dt.datetime(1880, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), "astimezone"),
        ("time", dt.time(12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), "write a datetime"),
        ("time", dt.time(12, tzinfo=dt.timezone(dt.timedelta(seconds=-1))), "in UTC"),
    ],
)
def test_a_time_that_cannot_be_carried_is_refused_with_the_cure(name: str, value: Any, cure: str) -> None:
    for kind in SCALARS[name]:
        with pytest.raises(ContractError, match=cure) as caught:
            encode_payload(kind.cls(x=value))
        assert caught.value.pointer == "/data/x"


@payload("spellings.open", version="1.0.0")
class Open(msgspec.Struct):
    x: Any


def test_such_a_time_is_found_as_deep_as_data_may_be() -> None:
    value: Any = dt.datetime(2026, 1, 31, tzinfo=dt.timezone(dt.timedelta(seconds=30)))
    for _ in range(55):
        value = [value]
    with pytest.raises(ContractError, match="astimezone") as caught:
        encode_payload(Open(x=value))
    assert caught.value.pointer == "/data/x" + "/0" * 55


@pytest.mark.parametrize("times", [1, 2])
def test_a_value_that_holds_itself_is_refused_at_once(times: int) -> None:
    value: list[Any] = []
    value += [value] * times
    with pytest.raises(ContractError, match="cannot be written as JSON: maximum recursion depth"):
        encode_payload(Open(x=value))


@pytest.mark.skipif(native.core is None, reason="needs the compiled way")
@given(zone=ZONES)
def test_the_compiled_way_leaves_an_offset_with_seconds_to_the_exact_way(zone: dt.tzinfo | None) -> None:
    kind = SCALARS["datetime"][0]
    value = dt.datetime(1900, 1, 1, tzinfo=zone)
    found = kind.encoder.compiled.encode(kind.cls(x=value))
    offset = value.utcoffset()
    is_exact = offset is None or offset % dt.timedelta(minutes=1) == dt.timedelta()
    assert (found is not None) == (is_exact and (zone is None or type(zone) is dt.timezone))
