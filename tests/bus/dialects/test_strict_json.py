"""Foreign JSON is read as strictly as the protocol reads its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.dialects.strict_json import read_object
from bus.errors import DialectError

REFUSED = [
    ("an empty text", b"", ""),
    ("no object", b"[1]", ""),
    ("not UTF-8", b'{"a":"\xff"}', ""),
    ("a byte order mark", b'\xef\xbb\xbf{"a":1}', ""),
    ("UTF-16", '{"a":1}'.encode("utf-16"), ""),
    ("NaN", b'{"a":NaN}', ""),
    ("Infinity", b'{"a":-Infinity}', ""),
    ("a number beyond a double", b'{"a":1e999}', ""),
    ("a lone surrogate", b'{"a":"\\ud800"}', ""),
    ("bytes behind it", b'{"a":1} x', ""),
    ("a comment", b'{"a":1} // x', ""),
    ("a member twice", b'{"a":{"b":1,"c":2,"b":1}}', "/a"),
    ("a member twice, once escaped", b'{"a":[{"b":1,"\\u0062":1}]}', "/a/0"),
    ("the outermost member twice", b'{"a":1,"a":1}', ""),
    ("an inexact integer", b'{"a":{"x/y":9007199254740993}}', "/a/x~1y"),
    ("an inexact integer beyond 64 bits", b'{"a":[0,18446744073709551617]}', "/a/1"),
    ("an integer of 301 digits", b'{"a":' + b"9" * 301 + b"}", "/a"),
    ("65 levels", b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", ""),
    ("ten thousand levels", b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", ""),
    ("more than a megabyte", b'{"a":"' + b"x" * 1_048_576 + b'"}', ""),
]


@pytest.mark.parametrize(("text", "pointer"), [line[1:] for line in REFUSED], ids=[line[0] for line in REFUSED])
def test_lenient_json_is_refused(text: bytes, pointer: str) -> None:
    with pytest.raises(DialectError) as caught:
        read_object(text)
    assert caught.value.pointer == pointer
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        b' {"a" : 1.0, "b":[1e2, -0, 0.1234567890123456789], "c:d":"\\":{", "e\\\\":{"":{}}}',
        b'{"a":9007199254740992,"b":18446744073709551616,"c":1e300}',
        b'{"a":' + b"[" * 63 + b"]" * 63 + b"}",
        '{"a":"\\ud83d\\ude00 ☂"}'.encode(),
    ],
)
def test_other_spellings_of_the_same_value_are_read(text: bytes) -> None:
    assert read_object(text) == json.loads(text)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.medium
@given(tree=st.dictionaries(st.text(), values, max_size=5), indent=st.sampled_from([None, 1]), plain=st.booleans())
def test_any_json_object_is_read_as_it_is(tree: dict[str, Any], indent: int | None, plain: bool) -> None:
    assert read_object(json.dumps(tree, indent=indent, ensure_ascii=plain).encode()) == tree
    assert read_object(tree) == tree


def test_a_mapping_is_copied() -> None:
    tree = {"a": {"b": [1]}}
    read = read_object(tree)
    read["a"]["b"].append(2)
    assert tree == {"a": {"b": [1]}}


endless: dict[str, Any] = {}
endless["a"] = endless


@pytest.mark.parametrize(
    ("tree", "pointer"),
    [
        ({"a": float("nan")}, "/a"),
        ({"a": {"b": 2**53}}, "/a/b"),
        ({"a": {1: 2}}, "/a"),
        ({"a": b"x"}, "/a"),
        ({"a": ["\ud800"]}, "/a/0"),
        ({"a": {"x"}}, "/a"),
        (endless, "/a" * 64),
    ],
)
def test_a_mapping_of_other_values_is_refused(tree: Any, pointer: str) -> None:
    with pytest.raises(DialectError) as caught:
        read_object(tree)
    assert caught.value.pointer == pointer


def test_a_text_is_no_message() -> None:
    with pytest.raises(DialectError, match="found a str, expected bytes or a mapping"):
        read_object("{}")
