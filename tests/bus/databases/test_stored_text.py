"""Text that databases refuse becomes text that they hold, and comes back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.databases.stored_text import restored, storable

_any = st.text(st.one_of(st.characters(), st.sampled_from("\x00\x10\ud800\udfff01dfa9")))


@given(_any)
def test_every_text_comes_back_as_it_was(text: str) -> None:
    assert restored(storable(text)) == text


@given(_any)
def test_stored_text_is_utf_8_without_nul(text: str) -> None:
    assert b"\0" not in storable(text).encode()


@given(_any, _any)
def test_two_texts_never_become_one(one: str, other: str) -> None:
    assert (storable(one) == storable(other)) == (one == other)


@pytest.mark.parametrize("text", ["", "a b", "ä\u2028\U0001f600", "a\x01\x1f\x7f"])
def test_ordinary_text_is_stored_unchanged(text: str) -> None:
    assert storable(text) == text
