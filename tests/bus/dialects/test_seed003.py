"""Dialect 003 against its own examples and its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Examples = Callable[[str], dict[str, dict[str, Any]]]
Check = Callable[..., None]


@pytest.mark.parametrize("name", ["request", "inform", "error"])
def test_the_formats_examples_come_back_unchanged(examples: Examples, assert_kept_whole: Check, name: str) -> None:
    assert_kept_whole("003", examples("003")[name])
