"""Write numbers as RFC 8785 does: ECMAScript's Number::toString (RFC 8785, section 3.2.2.3).

Owns the exact text of a double, the rewriting of orjson's number texts, and the check that this orjson writes as the
rewriting expects. `bus.protocol.canonical` walks documents and orders keys. *Outside text* is JSON text without the
contents of its strings, so that its only digits are those of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final

import orjson

__all__ = [
    "ORJSON_AGREES",
    "SAFE_INTEGER",
    "looks_misspelled",
    "may_need_respelling",
    "orjson_agrees",
    "respell",
    "number_text",
]

SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer whose neighbours are all doubles too."""

_POSITIONAL_DIGITS: Final = 21
_POSITIONAL_ZEROS: Final = -6

# Integers of 16 digits and more may exceed 2^53; translating and searching is faster than a regular expression.
_LONG_RUN: Final = b"0" * 16
_LONG_INTEGERS: Final = tuple(before + _LONG_RUN for before in (b":", b",", b"[", b"-"))
_ALL_ZEROS: Final = bytes(ord("0") if chr(code).isdecimal() and code < 128 else code for code in range(256))  # noqa: PLR2004 - ASCII

_WHOLE: Final = re.compile(rb"\.0(?![0-9])")
_MINUS_ZERO: Final = re.compile(rb"-0\.0(?![0-9])")
_FOREIGN_EXPONENT: Final = re.compile(rb"e(?:[0-9]|[+-]0|-[1-6](?![0-9])|\+(?:[1-9]|1[0-9]|20)(?![0-9]))")
_SMALL: Final = re.compile(rb"(?<![0-9.])([0-9.]++)e-6(?![0-9])")
_LONG_EXPONENT: Final = re.compile(rb"e\+(?:1[6-9]|20)(?![0-9])")
_LONG: Final = re.compile(rb"(?<![0-9.])([0-9](?:\.[0-9]+)?e\+(?:1[6-9]|20)|[0-9]{16,})(?![0-9.])")
_WIDTHS: Final = {b"%d" % exponent: exponent + 1 for exponent in range(15, 21)}
_ANY: Final = re.compile(rb"(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")


def number_text(value: float) -> str:
    """Return the exact RFC 8785 text of any finite double."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    written = whole + fraction
    leading = len(written) - len(written.lstrip("0"))
    return sign + _laid_out(written.strip("0"), len(whole) - leading + int(exponent or 0))


def _laid_out(digits: str, point: int) -> str:
    """Place the decimal point behind *point* of *digits* (ECMA-262, Number::toString, radix 10)."""
    if len(digits) <= point <= _POSITIONAL_DIGITS:
        return digits.ljust(point, "0")
    if 0 < point <= _POSITIONAL_DIGITS:
        return f"{digits[:point]}.{digits[point:]}"
    if _POSITIONAL_ZEROS < point <= 0:
        return f"0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{rest}e{point - 1:+d}"


def looks_misspelled(outside: bytes) -> bool:
    """Tell whether some number in *outside* text is certainly not in RFC 8785 form: `1.0`, `1E9`, `1e5`, `1e-06`."""
    return b"E" in outside or bool(_WHOLE.search(outside) or _FOREIGN_EXPONENT.search(outside))


def may_need_respelling(written: bytes) -> bool:
    """Tell whether `respell` might change *written*, complete JSON text from orjson.

    Strings can cause a false True.
    """
    if not ORJSON_AGREES or b"e-6" in written or (b"+" in written and (b"e+1" in written or b"e+20" in written)):
        return True
    if b".0" in written and (b".0," in written or b".0}" in written or b".0]" in written or written.endswith(b".0")):
        return True
    zeros = written.translate(_ALL_ZEROS)
    # A long run behind a decimal point is a fraction, which orjson writes correctly.
    return (_LONG_RUN in zeros and any(start in zeros for start in _LONG_INTEGERS)) or zeros.startswith(_LONG_RUN)


def respell(outside: bytes, *, trusted: bool | None = None) -> bytes:
    """Rewrite every number of orjson's *outside* text in RFC 8785 form, taking all of them as doubles.

    *trusted* says whether orjson agrees with the golden numbers; if not, each number is parsed and written again.
    """
    if not (ORJSON_AGREES if trusted is None else trusted):
        return _replace(_ANY, outside, _exact_texts)
    if b".0" in outside:
        outside = _WHOLE.sub(b"", _MINUS_ZERO.sub(b"0", outside))
    if b"e-6" in outside:
        outside = _replace(_SMALL, outside, _small_texts)
    if _LONG_EXPONENT.search(outside) or _LONG_RUN in outside.translate(_ALL_ZEROS):
        outside = _replace(_LONG, outside, _long_texts)
    return outside


def _replace(pattern: re.Pattern[bytes], outside: bytes, texts: Callable[[list[bytes]], list[bytes]]) -> bytes:
    parts = pattern.split(outside)
    parts[1::2] = texts(parts[1::2])
    return b"".join(parts)


def _exact_texts(tokens: list[bytes]) -> list[bytes]:
    return [number_text(float(token)).encode() for token in tokens]


def _small_texts(mantissas: list[bytes]) -> list[bytes]:
    """From 1e-6 (inclusive) to 1e-5 (exclusive), turn orjson's `1.2e-6` into `0.0000012`."""
    digits = b",".join(mantissas).replace(b".", b"")
    return (b"0.00000" + digits.replace(b",", b",0.00000")).split(b",") if mantissas else []


def _long_texts(tokens: list[bytes]) -> list[bytes]:
    """From 1e15 to below 1e21, return the shortest digits of the double, padded with zeros."""
    # orjson reads integers ten times as fast as float() does, and doubles as exactly.
    written = orjson.dumps(list(map(float, orjson.loads(b"[" + b",".join(tokens) + b"]"))))[1:-1]
    if b"e" not in written:
        # All numbers are integers in positional form: convert many at once, as a hostile document may consist of them.
        return written.replace(b".0", b"").split(b",") if tokens else []
    # Numbers below 1e16 are in positional form, with ".0". Avoid a Python loop over what may be sixty thousand numbers.
    pieces = (written + b",").replace(b".0,", b"e+15,")[:-1].replace(b".", b"").replace(b"e+", b",").split(b",")
    return list(map(bytes.ljust, pieces[::2], map(_WIDTHS.__getitem__, pieces[1::2]), repeat(b"0")))


_GOLDEN: Final = {
    0.0: b"0",
    1.0: b"1",
    -100.0: b"-100",
    123456789012345.0: b"123456789012345",
    0.1: b"0.1",
    -0.25: b"-0.25",
    0.00001: b"0.00001",
    -0.00001: b"-0.00001",
    0.000012: b"0.000012",
    0.00012345678901234567: b"0.00012345678901234567",
    0.001: b"0.001",
    1.5: b"1.5",
    1 / 3: b"0.3333333333333333",
    2 / 3: b"0.6666666666666666",
    333333333.3333333: b"333333333.3333333",
    -123456.789: b"-123456.789",
    99999999999999.98: b"99999999999999.98",
    123456789012345.67: b"123456789012345.67",
    999999999999999.9: b"999999999999999.9",
    1424953923781206.2: b"1424953923781206.2",
    4503599627370495.5: b"4503599627370495.5",
    9.999999999999997e-7: b"9.999999999999997e-7",
    9e-7: b"9e-7",
    1e-7: b"1e-7",
    -1.5e-10: b"-1.5e-10",
    1.2345678901234567e-100: b"1.2345678901234567e-100",
    2.2250738585072014e-308: b"2.2250738585072014e-308",
    5e-324: b"5e-324",
    -5e-324: b"-5e-324",
    1e21: b"1e+21",
    -1e21: b"-1e+21",
    9.999999999999997e22: b"9.999999999999997e+22",
    1e23: b"1e+23",
    1.0000000000000001e23: b"1.0000000000000001e+23",
    1.5e300: b"1.5e+300",
    1.7976931348623157e308: b"1.7976931348623157e+308",
    1e-6: b"0.000001",
    1.2e-6: b"0.0000012",
    1.2345678901234567e-6: b"0.0000012345678901234567",
    9.999999999999999e-6: b"0.000009999999999999999",
    9007199254740992.0: b"9007199254740992",
    9999999999999998.0: b"9999999999999998",
    1e16: b"10000000000000000",
    12345678901234568.0: b"12345678901234568",
    9223372036854775808.0: b"9223372036854776000",
    295147905179352830000.0: b"295147905179352830000",
    1e20: b"100000000000000000000",
    999999999999999900000.0: b"999999999999999900000",
}


def orjson_agrees(write: Callable[[Sequence[float]], bytes] = orjson.dumps) -> bool:
    """Tell whether *write* followed by `respell` gives the right text for the golden numbers.

    orjson's number format has changed between releases.
    """
    return respell(write(list(_GOLDEN)), trusted=True) == b"[" + b",".join(_GOLDEN.values()) + b"]"


ORJSON_AGREES: Final = orjson_agrees()
"""Decided once, at import; if False, everything is slower but still right."""
