"""Dialect 004 against its own examples and its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bus.dialects import Defaults, Foreign
from bus.protocol.sealing import Message

Examples = Callable[[str], dict[str, dict[str, Any]]]
Check = Callable[..., None]
Seal = Callable[[Foreign], Message]


@pytest.mark.parametrize("name", ["task request", "task response"])
def test_the_formats_whole_examples_come_back_unchanged(
    examples: Examples, assert_kept_whole: Check, name: str
) -> None:
    assert_kept_whole("004", examples("004")[name])


@pytest.mark.parametrize("name", ["status update", "error", "heartbeat"])
def test_the_formats_fragments_come_back_unchanged(
    examples: Examples, assert_kept_whole: Check, fragment_defaults: Defaults, name: str
) -> None:
    assert_kept_whole("004", examples("004")[name], fragment_defaults)
