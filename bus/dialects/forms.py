"""The forms of foreign members, each a pair of functions: read the foreign value, write it again. Pure.

Owns the values that one member may have in a dialect. A form whose written value equals the value it read has no
`write`. Where reading normalises (`+07:00`, `medium`), `write` gives the plain spelling, and `bus.dialects.keeping`
keeps the original one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from bus.dialects.faults import MISSING, kind_shown, shown
from bus.errors import DialectError
from bus.protocol.identifiers import is_message_id, is_text_id
from bus.protocol.timestamps import format_ms

_T = TypeVar("_T")

LAST_WRITABLE_MS: Final = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last time that can be written."""
_FIRST_MS: Final = -62_135_596_800_000
_MAX_TIME_CHARACTERS: Final = 64
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))\Z"
)
_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h|d)\Z")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class UnfitValueError(ValueError):
    """The value does not have the form."""


def same(value: Any) -> Any:
    """Return *value*."""
    return value


class Form(Generic[_T]):
    """The values a member may have: *expected* describes them, *read* gives the canonical value, *write* the plain
    spelling.

    *fits* returns whether a value has the form; *read* may raise UnfitValueError, too. Without *write* the canonical
    value is written unchanged. *is_secret*: errors never show the value.
    """

    __slots__ = ("expected", "is_secret", "read", "write")

    def __init__(
        self,
        expected: str,
        read: Callable[[Any], _T] = same,
        write: Callable[[_T], Any] | None = None,
        *,
        fits: Callable[[Any], object] | None = None,
        is_secret: bool = False,
    ) -> None:
        def read_fitting(value: Any) -> _T:
            if fits is not None and fits(value):
                return read(value)
            raise UnfitValueError

        self.expected = expected
        self.read = read if fits is None else read_fitting
        self.write = write
        self.is_secret = is_secret

    def written(self, value: _T) -> Any:
        """Return the plain spelling of *value*."""
        return value if self.write is None else self.write(value)

    def reads(self, spelling: Any) -> Any:
        """Return the value of *spelling*; MISSING if it has not the form."""
        try:
            return self.read(spelling)
        except UnfitValueError:
            return MISSING

    def demand(self, value: Any, pointer: str) -> _T:
        """Read *value* at *pointer* by this form; raise DialectError if it does not fit."""
        try:
            return self.read(value)
        except UnfitValueError:
            raise DialectError(pointer, kind_shown(value) if self.is_secret else shown(value), self.expected) from None

    def accepts(self, spelling: Any) -> bool:
        """Tell whether *spelling* has the form."""
        return self.reads(spelling) is not MISSING


def matching(expected: str, fits: Callable[[str], object], *, is_secret: bool = False) -> Form[str]:
    """Make the form of texts that *fits* accepts."""

    def read(value: Any) -> Any:
        if value.__class__ is str and fits(value):
            return value
        raise UnfitValueError

    return Form(expected, read, is_secret=is_secret)


def _of_kind(expected: str, kind: type) -> Form[Any]:
    def read(value: Any) -> Any:
        if value.__class__ is kind:
            return value
        raise UnfitValueError

    return Form(expected, read)


def one_of(words: Collection[str]) -> Form[str]:
    """Make the form of a closed set of words."""
    return matching(f"one of {', '.join(words)}", frozenset(words).__contains__)


def choice(values: dict[str, _T], write: Callable[[_T], str]) -> Form[_T]:
    """Make the form of words that stand for *values*."""
    return Form(f"one of {', '.join(values)}", values.__getitem__, write, fits=lambda value: is_text_in(value, values))


def is_text_in(value: Any, words: Collection[str]) -> bool:
    """Tell whether *value* is one of *words*."""
    return value.__class__ is str and value in words


def priority_words(middle: str) -> Form[int]:
    """Make the form of priorities in four words, of which *middle* differs between formats."""
    bounds = ((3, "low"), (6, middle), (8, "high"), (9, "critical"))
    write = lambda priority: next(word for maximum, word in bounds if priority <= maximum)  # noqa: E731
    return choice({"low": 2, middle: 5, "high": 7, "critical": 9}, write)


def whole_number(minimum: int, maximum: int | None = None) -> Form[int]:
    """Make the form of integers from *minimum* to *maximum*; `2.0` is one."""
    expected = f"an integer of at least {minimum}" if maximum is None else f"an integer from {minimum} to {maximum}"

    def fits(value: Any) -> bool:
        return _is_integer(value) and value >= minimum and (maximum is None or value <= maximum)

    return Form(expected, int, fits=fits)


def _is_integer(value: Any) -> bool:
    return value.__class__ is int or (value.__class__ is float and bool(value.is_integer()))


def are_texts(value: Any) -> bool:
    """Tell whether *value* is a list of texts."""
    return value.__class__ is list and all(item.__class__ is str for item in value)


def time_form(
    write: Callable[[int], str], fits: Callable[[str], object] | None = None, expected: str = ""
) -> Form[int]:
    """Make the form of RFC 3339 times, read to Unix milliseconds; *fits* narrows the spelling."""

    def read(value: Any) -> int:
        if value.__class__ is not str or len(value) > _MAX_TIME_CHARACTERS or (fits is not None and not fits(value)):
            raise UnfitValueError
        ms = _parsed_ms(value)
        if ms is None:
            raise UnfitValueError
        return ms

    return Form(expected or "a time such as 2026-01-31T12:00:00Z (RFC 3339)", read, write)


@lru_cache(maxsize=1024)
def _parsed_ms(text: str) -> int | None:
    found = _RFC3339.match(text)
    if found is None:
        return None
    day, clock, fraction, sign, hours, minutes = found.groups()
    try:
        seconds = datetime.fromisoformat(f"{day}T{clock}+00:00")
    except ValueError:
        return None
    ms = (seconds - _EPOCH) // _MILLISECOND + (int(fraction[:3].ljust(3, "0")) if fraction else 0)
    if sign is not None:
        offset = int(hours) * 3_600_000 + int(minutes) * 60_000
        ms += -offset if sign == "+" else offset
    return ms if _FIRST_MS <= ms <= LAST_WRITABLE_MS else None


def _short_time(ms: int) -> str:
    """Write milliseconds only where there are any."""
    text = format_ms(ms)
    return text if ms % 1000 else f"{text[:-5]}Z"


def _read_duration(value: Any) -> int:
    found = _DURATION.match(value) if value.__class__ is str else None
    if found is None:
        raise UnfitValueError
    ms = round(float(found[1]) * _UNIT_MS[found[2]])
    if not 1 <= ms <= LAST_WRITABLE_MS:
        raise UnfitValueError
    return ms


def _write_duration(ms: int) -> str:
    whole_seconds, rest = divmod(ms, 1000)
    return f"{whole_seconds}.{rest:03d}".rstrip("0") + "s" if rest else f"{whole_seconds}s"


VALUE: Final = Form[Any]("a JSON value other than null", fits=lambda value: value is not None)
OBJECT: Final = _of_kind("an object", dict)
LIST: Final = _of_kind("a list", list)
FLAG: Final = _of_kind("true or false", bool)
LONG: Final = _of_kind("a text", str)
NUMBER: Final = Form[float]("a number, at least 0", fits=lambda value: value.__class__ in (int, float) and value >= 0)
TEXT: Final = matching("a text of at least one character", len)
NAME: Final = matching("a text of 1 to 256 characters without control characters", is_text_id)
MESSAGE_ID: Final = matching("1 to 128 visible ASCII characters", is_message_id)
TIME: Final = time_form(_short_time)
SECONDS: Final = Form(
    "a number of whole seconds, at least 1",
    lambda value: int(value) * 1000,
    lambda ms: -(-ms // 1000),
    fits=lambda value: _is_integer(value) and 1 <= value <= LAST_WRITABLE_MS // 1000,
)
"""Whole seconds, in milliseconds here; written rounded up."""
DURATION: Final = Form("a duration such as 300s, 5m or 250ms", _read_duration, _write_duration)
"""A duration in text, in milliseconds here."""
RETRIES: Final = whole_number(0, 99)
SECRET: Final = matching(TEXT.expected, len, is_secret=True)
URIS: Final = Form(
    "a list of URIs",
    lambda value: [{"uri": item} for item in value],
    lambda references: [reference["uri"] for reference in references],
    fits=are_texts,
)
"""Texts, which are references here."""
