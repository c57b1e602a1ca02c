"""A file that is not one JSON object a line gets the command that puts it in order."""

from __future__ import annotations

import json

import pytest

from bus.byte_lines import layout_hint


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (b"{", "jq -c . FILE"),
        (b'{"sku": "tea",', "jq -c . FILE"),
        (b"[", "jq -c . FILE"),
        (b'{"a": [1,', "jq -c . FILE"),
        (b'[{"a": 1}, {"a": 2}]', "jq -c '.[]' FILE"),
        (json.dumps({"sku": "tea"}).encode("utf-16"), "iconv"),
        (b'{"sku": "tea"}', ""),
        (b'{"sku": tea}', ""),
        (b"1", ""),
    ],
)
def test_each_layout_has_its_hint(line: bytes, hint: str) -> None:
    assert hint in layout_hint(line)
    assert bool(layout_hint(line)) == bool(hint)
