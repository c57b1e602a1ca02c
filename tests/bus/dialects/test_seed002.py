"""Dialect 002 against its own examples and its table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from bus.dialects.seed002 import decode
from bus.errors import DialectError

Examples = Callable[[str], dict[str, dict[str, Any]]]
Check = Callable[..., None]

NAMES = [
    "request",
    "success response",
    "error response",
    "handshake",
    "error",
    "discover",
    "announcement",
    "authenticated request",
]


def mended(text: str) -> str:
    """The format's own ids are not hexadecimal and have a wrong version: a UUID that looks like one of them."""
    digits = re.sub(r"[g-z]", lambda found: format(ord(found[0]) % 16, "x"), text)
    return f"{digits[:14]}4{digits[15:19]}8{digits[20:]}"


def mend(message: dict[str, Any]) -> dict[str, Any]:
    """*message* with true UUIDs."""
    ids = {name: mended(message[name]) for name in ("message_id", "correlation_id") if message.get(name)}
    return {**message, **ids}


@pytest.mark.parametrize("name", NAMES)
def test_the_formats_examples_are_refused_for_their_ids(examples: Examples, name: str) -> None:
    with pytest.raises(DialectError) as caught:
        decode(examples("002")[name])
    assert caught.value.pointer == "/message_id"


@pytest.mark.parametrize("name", NAMES[:-1])
def test_the_formats_examples_come_back_unchanged_with_true_ids(
    examples: Examples, assert_kept_whole: Check, name: str
) -> None:
    assert_kept_whole("002", mend(examples("002")[name]))


def test_the_authenticated_example_has_a_nonce_of_33_characters(examples: Examples, assert_kept_whole: Check) -> None:
    message = mend(examples("002")["authenticated request"])
    with pytest.raises(DialectError) as caught:
        decode(message)
    assert caught.value.pointer == "/auth/nonce"
    message["auth"]["nonce"] = message["auth"]["nonce"][:32]
    assert_kept_whole("002", message)
