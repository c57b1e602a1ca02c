"""Canonical bytes are those of RFC 8785, whatever the value; foreign bytes are read strictly and cheaply."""

import enum
import gc
import hashlib
import json
import math
import random
import struct
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import ContractError
from bus.protocol import canonical

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "canonical.json").read_text())
MIB = 1 << 20
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def filled(token: str | bytes) -> bytes:
    """A list of as many *token* as fit into 1 MiB."""
    item = token.encode() if isinstance(token, str) else token
    return b"[" + b",".join([item] * ((MIB - 2) // (len(item) + 1))) + b"]"


def members(*items: str) -> bytes:
    return ("{" + ",".join(items) + "}").encode()


def judge(data: bytes) -> bool | None:
    """None: refused; else whether it is canonical."""
    try:
        value = canonical.parse_canonical(data)
    except ContractError:
        return None
    return canonical.is_canonical(data, value)


def fault(call: Callable[[], object]) -> ContractError:
    with pytest.raises(ContractError) as caught:
        call()
    return caught.value


# --- encode -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["documents"], ids=lambda vector: vector["name"])
def test_golden_documents(vector: dict[str, str]) -> None:
    expected = vector["canonical"].encode()
    assert canonical.encode(json.loads(vector["input"])) == expected
    assert canonical.encode_parsed(canonical.parse_canonical(vector["input"].encode())) == expected
    assert (
        canonical.digest(expected) == "sha256:" + vector["sha256"] == "sha256:" + hashlib.sha256(expected).hexdigest()
    )


def random_text(rng: random.Random) -> str:
    alphabet = (
        'abc019 .,:[]{}e-6+"\\/\b\n\x00\x1f\x7f\u00e9\u20ac\u2028\ud7ff\ue000\ufb33\uffff\U00010000\U0001f600\U0010ffff'
    )
    return "".join(rng.choices(alphabet, k=rng.randint(0, 6)))


def random_number(rng: random.Random) -> float | int:
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randint(-(2 ** (bits := rng.randint(1, 53))) + 1, 2**bits - 1)
    if kind == 1:
        value = float(struct.unpack(">d", rng.randbytes(8))[0])
        return value if math.isfinite(value) else 0.0
    if kind == 2:
        return float(rng.randint(-(10**9), 10**9))
    return rng.uniform(-10, 10) * 10.0 ** rng.randint(-9, 22)


def random_value(rng: random.Random, room: int) -> Any:
    kind = rng.randrange(9 if room else 6)
    if kind < 2:
        return random_number(rng)
    if kind < 5:
        return random_text(rng)
    if kind == 5:
        return rng.choice((None, True, False))
    if kind == 6:
        return [random_value(rng, room - 1) for _ in range(rng.randrange(4))]
    return {random_text(rng): random_value(rng, room - 1) for _ in range(rng.randrange(4))}


@pytest.mark.slow  # a hundred thousand documents
def test_a_hundred_thousand_documents_are_written_as_the_reference_writes_them() -> None:
    rng = random.Random(20)
    for _ in range(100_000):
        value = {random_text(rng): random_value(rng, 3) for _ in range(rng.randrange(6))}
        written = canonical.encode(value)
        assert written == rfc8785.dumps(value)
        assert canonical.is_canonical(written, canonical.parse_canonical(written))


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({"a": [1, math.nan]}, "/a/1"),
        ({"a": math.inf}, "/a"),
        (-math.inf, ""),
        ({"a/b": {"~": 2**53}}, "/a~1b/~0"),
        ([0, -(2**53)], "/1"),
        ({"a": "\ud800"}, "/a"),
        ({"a": {"\udfff": 1}}, "/a"),
        ({"a": {1: 2}}, "/a"),
        ({"a": {None: 2}}, "/a"),
        ([b"bytes"], "/0"),
        ([{1, 2}], "/0"),
        ({"id": uuid.UUID(int=1)}, "/id"),
        ([enum.Enum("Colour", ["RED"])["RED"]], "/0"),
        ([enum.StrEnum("Colour", ["RED"])["RED"]], "/0"),
        ([1.0, object()], "/1"),
    ],
)
def test_values_without_canonical_form_are_refused_with_their_pointer(value: object, pointer: str) -> None:
    assert fault(lambda: canonical.encode(value)).pointer == pointer


def nested(levels: int) -> object:
    value: object = []
    for level in range(levels - 1):
        value = [value] if level % 2 else {"a": value}
    return value


def test_sixty_four_levels_are_written() -> None:
    assert judge(canonical.encode(nested(64)))


def test_sixty_five_levels_are_refused() -> None:
    assert "deeper than 64" in fault(lambda: canonical.encode(nested(65))).text


def test_depth_counts_from_where_the_value_will_stand() -> None:
    canonical.encode(nested(63), depth=2)
    assert fault(lambda: canonical.encode(nested(64), depth=2)).pointer.count("/") == 63


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[object] = []
    value.append(value)
    assert "deeper" in fault(lambda: canonical.encode(value)).text


def test_tuples_are_lists() -> None:
    assert (
        canonical.encode((1, ("\U0001f600", {"\U0001f600": 1, "\uffff": (2.0,)})))
        == '[1,["😀",{"😀":1,"\uffff":[2]}]]'.encode()
    )


def test_pointer_tokens_are_escaped() -> None:
    assert canonical.escape_pointer_token("a/b~c") == "a~1b~0c"


# --- parse and is_canonical -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"\xef\xbb\xbf{}",
        b"NaN",
        b"[Infinity]",
        b"[-Infinity]",
        b"1e999",
        b"-1e999",
        b"9" * 400,
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'{"\\ud800":1}',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b'"\xc0\x80"',
        "[1]".encode("utf-16"),
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"[1,]",
        b"{} {}",
        b"{'a':1}",
        b'{"a":1,}',
        b'"\n"',
        b'"\\x41"',
        b"/**/1",
        b"nul",
        b"True",
        b"[" * 65 + b"]" * 65,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b"[" * 200_000,
        b"[" * 200_000 + b"]" * 200_000,
    ],
    ids=lambda data: repr(data[:20]),
)
def test_non_strict_json_is_refused(data: bytes) -> None:
    fault(lambda: canonical.parse_canonical(data))


@pytest.mark.parametrize(
    "data", [b"[" * 64 + b"]" * 64, b'["' + b"[{" * 500 + b'\\"[["]', b'{"a":' * 64 + b'"]]\\\\"' + b"}" * 64]
)
def test_depth_counts_objects_and_lists_and_not_the_brackets_in_strings(data: bytes) -> None:
    canonical.parse_canonical(data)


def test_a_parsed_part_counts_its_depth_from_where_it_stands() -> None:
    data = b"[" * 63 + b"]" * 63
    canonical.parse_canonical(data, depth=2)
    fault(lambda: canonical.parse_canonical(data, depth=3))


@given(st.integers(0, 2**32), st.integers(1, 300))
def test_depth_is_that_of_the_value(seed: int, size: int) -> None:
    rng = random.Random(seed)
    depth, deepest = 0, 0
    written: list[str] = []
    for _ in range(size):
        step = rng.choice((1, 1, -1)) if depth else 1
        written.append("," if step > 0 and written and written[-1] == "]" else "")
        written.append("[" if step > 0 else "]")
        depth += step
        deepest = max(deepest, depth)
        if depth == 0:
            break
    data = ("".join(written) + "]" * depth).encode()
    assert (judge(data) is None) == (deepest > 64)


@pytest.mark.parametrize(
    "literal",
    ["0", "-1", "9007199254740991", "9007199254740992", "10000000000000000", "18446744073709552000",
     "100000000000000000000", "1e+21", "-100000000000000000000", "999999999999999900000", "0.000001", "-0.0000012",
     "1e-7", "1.5", "5e-324", "-9223372036854776000"],
)  # fmt: skip
def test_a_literal_that_is_the_form_of_its_double_is_canonical(literal: str) -> None:
    assert judge(f'{{"a":[{literal}]}}'.encode())
    assert judge(literal.encode())


@pytest.mark.parametrize(
    "literal",
    ["-0", "0.0", "-0.0", "1.0", "1.50", "1e0", "1E2", "9007199254740993", "9223372036854775808",
     "18446744073709551615", "1e21", "1e16", "18446744073709551616", "1000000000000000000000", "1e-6", "1.2e-6",
     "0.0000001", "1e+16", "1e20", "1e-400", "9" * 300, "1.5e308"],
)  # fmt: skip
def test_any_other_literal_is_not(literal: str) -> None:
    assert judge(f'{{"a":[{literal}]}}'.encode()) is False
    assert judge(literal.encode()) is False


@pytest.mark.parametrize(
    "data",
    ['{"b":1,"a":2}', '{"a":1,"a":2}', '{"a":1,"a":1}', '{"a": 1}', "[1]\n", r'"\u0061"', r'"\/"', r'"\u000A"',
     r'"\u001F"', r'"\ud83d\ude00"', '{"\ufb33":1,"😀":2}',
     '{"\uffff":1,"😀":2.0}', r'["\\",1.0]', r'["\"",1e-6,"\\\""]'],
)  # fmt: skip
def test_other_spellings_and_orders_are_not_canonical(data: str) -> None:
    assert judge(data.encode()) is False


@pytest.mark.parametrize(
    "data",
    ['{"😀":1,"\ufb33":2}', '{"\\"":[0.000002,"1.0,"],"\\\\":"e-6"}', '["\\\\",",1.0,","\\\\\\"",1]', '{"":{},"a":[]}'],
)
def test_numbers_inside_strings_and_keys_beyond_the_bmp_do_not_mislead(data: str) -> None:
    assert judge(data.encode())


@given(VALUES)
def test_encoded_data_are_canonical(value: object) -> None:
    written = canonical.encode(value)
    parsed = canonical.parse_canonical(written)
    assert canonical.is_canonical(written, parsed)
    assert canonical.encode_parsed(parsed) == written


@pytest.mark.medium
@settings(max_examples=300)
@given(VALUES, st.integers(0, 2**20), st.integers(1, 255))
def test_one_changed_byte_is_another_value_or_not_canonical(value: object, place: int, change: int) -> None:
    written = canonical.encode(value)
    mutated = bytearray(written)
    mutated[place % len(mutated)] ^= change
    if judge(bytes(mutated)):
        assert canonical.encode_parsed(canonical.parse_canonical(bytes(mutated))) == bytes(mutated) != written


@settings(max_examples=300)
@given(st.text(alphabet='0123456789.eE+-[],"\\', min_size=1, max_size=24))
def test_is_canonical_agrees_with_the_reference_on_any_text(text: str) -> None:
    data = f"[{text}]".encode()
    if (verdict := judge(data)) is not None:
        doubles = json.loads(data, parse_int=float)
        assert verdict == (rfc8785.dumps(doubles) == data)


# --- hostile bytes ----------------------------------------------------------------------------------------------------

ASTRAL_KEYS = [f'"{number:x}\U0001f600":0' for number in range(70_000)]
HOSTILE = {
    "lists": filled("[]"),
    "objects": filled("{}"),
    "lists of one": filled("[0]"),
    "integers": filled("1"),
    "empty strings": filled('""'),
    "integral floats": filled("1.0"),
    "exponents": filled("1e0"),
    "tiny floats": filled("1e-7"),
    "small floats": filled("0.0000012"),
    "huge floats, misspelled": filled("1e300"),
    "huge floats": filled("1e+300"),
    "integers beyond 2^53": filled("9007199254740992"),
    "integers beyond 2^64": filled("100000000000000000000"),
    "integers of 300 digits": filled("9" * 300),
    "depth 200,000": b"[" * 200_000 + b"]" * 200_000,
    "a key of 1 MB": members('"' + "k" * 1_000_000 + '":1'),
    "a string of escapes": b'"' + b"\\n" * 500_000 + b'"',
    "a string of quotes": b'"' + b'\\"' * 500_000 + b'"',
    "duplicate keys": members(*['"a":1'] * 100_000),
    "astral keys": members(*ASTRAL_KEYS),
    "objects with astral keys": filled('{"😀":0}'),
    "quotes only": b'"' * MIB,
    "invalid UTF-8": b'"' + b"\xff" * 1_000_000 + b'"',
    "white space": b" " * MIB,
    "minus signs": b"-" * MIB,
}
# What only many objects at once can cost: creating and freeing them takes most of it.
SLOWER = {
    "lists 64 deep": filled(b"[" * 63 + b"]" * 63),
    "objects in two orders": filled('{"😀":0,"\uffff":0}'),
    "small floats among objects": b"[0.0000012," + filled('{"":0}')[1:],
}


@pytest.mark.medium
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_megabyte_costs_less_than_fifty_milliseconds(name: str, best_of_many: Callable[..., float]) -> None:
    assert best_of_many(lambda: judge(HOSTILE[name]), 0.05) < 0.05


@pytest.mark.medium
@pytest.mark.parametrize("name", SLOWER)
def test_the_worst_megabyte_costs_less_than_two_hundred_milliseconds(
    name: str, best_of_many: Callable[..., float]
) -> None:
    assert best_of_many(lambda: judge(SLOWER[name]), 0.2) < 0.2


@pytest.mark.medium
@pytest.mark.parametrize("name", [*HOSTILE, *SLOWER])
def test_a_hostile_megabyte_takes_bounded_memory_and_gives_it_back(name: str) -> None:
    data = (HOSTILE | SLOWER)[name]
    tracemalloc.start()
    try:
        judge(data)
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 160 * MIB
    assert left < MIB


def test_the_collector_runs_again_after_a_large_document() -> None:
    canonical.parse_canonical(filled("[]"))
    fault(lambda: canonical.parse_canonical(filled("[]") + b"x"))
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        canonical.parse_canonical(filled("[]"))
        assert not gc.isenabled()
    finally:
        gc.enable()
