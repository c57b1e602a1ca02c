"""`ToolResult.trimmed`: no secrets and no megabytes go from a tool into the next agent's context."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.payloads.payload_types import payload_type
from bus.vocabulary.tool import ToolResult
from bus.vocabulary.trimming import masked_data, trimmed

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=20), inner, max_size=8),
    max_leaves=40,
)


def size(value: Any) -> int:
    return len(msgspec.json.encode(value))


@pytest.mark.medium
@given(values, st.integers(64, 2_000))
def test_what_is_trimmed_fits_and_is_whole_where_it_fitted(value: Any, most: int) -> None:
    kept, is_cut = trimmed(value, most)
    assert size(kept) <= most
    assert is_cut == (size(value) > most)
    if not is_cut:
        assert kept == value


def test_the_beginning_of_texts_and_lists_is_kept() -> None:
    assert trimmed("a" * 100, 20) == ("a" * 15 + "…", True)
    kept, _ = trimmed(list(range(100)), 30)
    assert kept == list(range(len(kept)))
    assert len(kept) > 8


def test_every_member_of_an_object_gets_its_share() -> None:
    kept, _ = trimmed({"id": 7, "title": "short", "body": "b" * 500, "log": "l" * 500}, 200)
    assert (kept["id"], kept["title"]) == (7, "short")
    assert len(kept["body"]) > 40
    assert len(kept["log"]) > 40


@pytest.mark.parametrize(
    "output",
    [
        "Authorization: Bearer abc123def456",
        {"headers": {"Authorization": "abc"}, "token": "ghx", "nested": [{"api_key": "k-123456"}]},
        "see https://user:hunter2@host/path",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    ],
)
def test_what_looks_like_a_secret_is_masked(output: Any) -> None:
    result = ToolResult.trimmed(tool_call_id="c-1", tool_name="fetch", output=output)
    text = msgspec.json.encode(result.output).decode()
    assert "***" in text
    for secret in ("abc123def456", "hunter2", "ghp_abc", "k-123456", '"abc"', "ghx"):
        assert secret not in text


@pytest.mark.medium
@given(values)
def test_masking_keeps_the_shape(value: Any) -> None:
    assert type(masked_data(value)) is type(value)


def test_a_trimmed_result_is_a_payload_that_says_so() -> None:
    result = ToolResult.trimmed(tool_call_id="c-1", tool_name="fetch", output={"page": "x" * 200_000})
    assert result.is_truncated
    kind = payload_type(ToolResult)
    data = kind.encode(result)
    assert len(data) < 66_000
    assert kind.decode(data) == result


def test_a_secret_is_masked_before_it_could_be_cut_in_two() -> None:
    token = "ghp_" + "a" * 36
    result = ToolResult.trimmed(tool_call_id="c-1", tool_name="t", output="x" * 40 + " " + token, max_bytes=64)
    assert "ghp_" not in result.output


def test_too_little_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 64"):
        ToolResult.trimmed(tool_call_id="c", tool_name="t", output="x", max_bytes=10)
