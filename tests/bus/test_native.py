"""The compiled hot path says what Python says: the same bytes, and yes only where the exact way says yes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bus import native
from bus.native import twins
from bus.protocol import canonical, sealing
from tests.twins_alone import twins_alone

compiled = pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")

ROOM = canonical.MAX_DEPTH - 1
TEXTS = st.text(max_size=8) | st.sampled_from(
    ["\x00", "\x1f", "\x7f", "\u2028", "é", "\ue000", "\U0001f600", '"', "\\", "/", "a\nb"]
)
NUMBERS = (
    st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.0, -0.0, 1e21, 1e-7, 1e-6, 1e16, 5e-324, 123456789012345680.0, 2**53 - 1, 1 - 2**53])
)
NESTS: dict[str, Callable[..., st.SearchStrategy[Any]]] = {
    "lists": st.lists,
    "objects": lambda inner, **bounds: st.dictionaries(TEXTS, inner, **bounds),
}
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.one_of(*(nest(inner, max_size=4) for nest in NESTS.values())),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=5)
ODD_STRINGS = [
    '"',
    "\\",
    "\\u0000",
    "\\u001f",
    "\\u001F",
    "\\n",
    "\\/",
    "\\u0008",
    "\\ud800",
    '"a"',
    '"b"',
    '"aa"',
    "é",
    "\ue000",
]
ODD_NUMBERS = [
    "0",
    "-0",
    "1",
    "01",
    "1.0",
    "1.5",
    "1e5",
    "1E5",
    "1e+21",
    "1e21",
    "0.1",
    ".1",
    "1.",
    "-",
    "1e-7",
    "0.000001",
    "1e400",
]
LARGE_NUMBERS = ["9007199254740991", "9007199254740992", "99999999999999999"]
ODD_REST = ["{", "}", "[", "]", ":", ",", "true", "false", "null", "tru", " ", "\n", "\x00", "\x1f", "\x7f"]
ODDS = st.lists(st.sampled_from([*ODD_STRINGS, *ODD_NUMBERS, *LARGE_NUMBERS, *ODD_REST]), max_size=12).map("".join)


def proven_in_python(data: bytes) -> bool:
    with twins_alone():
        return sealing.is_canonical_data(data)


def compiled_proof(data: bytes, room: int = ROOM) -> bool:
    return native.is_canonical_object(data, room)


@pytest.mark.slow  # thousands of cases
@compiled
@settings(max_examples=1_500)
@given(OBJECTS)
def test_the_canonical_form_is_proven_unless_a_key_is_odd(value: dict[str, object]) -> None:
    data = canonical.encode(value, depth=2)
    keys = "".join(_keys(value))
    if keys.isprintable() and keys.isascii() and not set(keys) & {'"', "\\"}:
        assert compiled_proof(data)
    assert proven_in_python(data)


@pytest.mark.slow  # thousands of cases
@compiled
@settings(max_examples=6_000)
@given(
    ODDS.map(lambda text: f'{{"k":{text}}}'.encode())
    | ODDS.map(lambda text: f"{{{text}}}".encode())
    | st.binary(max_size=12)
)
@example(b'{"a":1,"a":2}')
@example(b'{"b":1,"a":2}')
@example(b'{"a":"\\u000a"}')
@example(b'{"a":"\xff"}')
@example(b"\xef\xbb\xbf{}")
@example(b"{} ")
def test_compiled_proofs_imply_python_proofs(data: bytes) -> None:
    if compiled_proof(data):
        assert proven_in_python(data)


@pytest.mark.slow  # thousands of cases
@compiled
@settings(max_examples=1_500)
@given(OBJECTS, st.data())
def test_a_changed_byte_is_proven_only_where_the_exact_way_proves_it(
    value: dict[str, object], draw: st.DataObject
) -> None:
    data = bytearray(canonical.encode(value, depth=2))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(
        st.sampled_from(list(b'{}[]:," \\0123456789.eE+-abu\x00\x1f\x7f\xc3\xff'))
    )
    if compiled_proof(bytes(data)):
        assert proven_in_python(bytes(data))


DECIMALS = st.from_regex(r"-?(0|[1-9]\d{0,17})\.(0{0,7})\d{1,18}([eE.+-]\d?)?", fullmatch=True)


@pytest.mark.slow  # thousands of cases
@compiled
@settings(max_examples=1_500)
@given(DECIMALS)
@example("0.000001")
@example("0.0000001")
@example("-0.0")
@example("1.10")
@example("999999999999.999")
@example("9999999999999.999")
@example("0.30000000000000004")
@example("100000000000000.5")
def test_a_decimal_is_proven_exactly_when_the_exact_way_proves_it(text: str) -> None:
    data = f'{{"k":{text}}}'.encode()
    assert compiled_proof(data) == proven_in_python(data)


@compiled
@pytest.mark.parametrize("opening", [b'{"a":', b'{"a":['])
def test_levels_are_counted_as_the_exact_way_counts_them(opening: bytes) -> None:
    per = opening.count(b"{") + opening.count(b"[")
    for many in range(ROOM // per - 1, ROOM // per + 3):
        data = opening * many + b"1" + (b"]}" if per == 2 else b"}") * many
        assert compiled_proof(data) == proven_in_python(data)
    assert not compiled_proof(b'{"a":' + b"[" * 500_000)


@given(st.lists(st.binary(max_size=70), max_size=20))
def test_keys_hash_as_in_python(keys: list[bytes]) -> None:
    assert native.murmur2_many(keys) == twins.murmur2_many(keys)


@given(st.lists(st.sampled_from([b"123", b"0123456789012345", b":", b",", b"[", b"-", b'"', b"1."]), max_size=12))
@example([b":", b"123" * 6])
@example([b"0123456789012345"])
@example([b":" + b"1" * 15 + b"," + b"1" * 15])
def test_a_long_integer_is_seen_as_in_python(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert native.has_long_integer(data) == twins.has_long_integer(data)


@given(
    st.lists(
        st.sampled_from([b"1e", b"e", b"-", b"+", b"28", b"29", b"3", b"300", b"292", b"x", b",", b'"']), max_size=12
    )
)
@example([b"1e", b"-", b"3"])
@example([b"1e"])
def test_extreme_exponents_are_counted_as_in_python(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert native.count_extremes(data) == twins.count_extremes(data)


@given(st.text(alphabet="{[,}a", max_size=600), st.integers(0, 700), st.integers(0, 700))
def test_marks_are_counted_as_in_python(text: str, start: int, end: int) -> None:
    assert native.count_marks(text.encode(), start, end) == twins.count_marks(text.encode(), start, end)


@given(st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=5))
def test_headers_are_measured_as_in_python(headers: list[tuple[str, bytes]]) -> None:
    assert native.header_bytes(tuple(headers)) == twins.header_bytes(headers)


def loaded(wish: str) -> str:
    code = "from bus import native; print(native.core is not None)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"SEALBUS_NATIVE": wish},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@compiled
@given(st.binary(max_size=300))
def test_a_digest_is_that_of_the_standard_library(data: bytes) -> None:
    assert canonical.digest(data) == twins.digest(data)


def test_compiled_code_can_be_disabled() -> None:
    assert loaded("off") == "False\n"
    if os.environ.get("SEALBUS_NATIVE") != "off":
        assert loaded("") == f"{native.core is not None}\n"


def _keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for inner in value.values() for key in _keys(inner))]
    if isinstance(value, list):
        return [key for inner in value for key in _keys(inner)]
    return []
