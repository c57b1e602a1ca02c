"""Draining: what a handler that will not stop costs, and whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from consumers.delivery.state.delivery import Accepted
from consumers.worker.drain import end_if_strict


def accepted(order: str) -> Accepted:
    facts: Any = {"label": "a.b", "subscription": SimpleNamespace(order=order)}
    rest: Any = dict.fromkeys(("record", "partition", "control", "key", "message", "payload"))
    return Accepted(**rest, size=0, **facts)


def slot(order: str, *, in_handler: bool = True) -> SimpleNamespace:
    return SimpleNamespace(in_handler=in_handler, delivery=accepted(order))


@pytest.mark.parametrize(
    ("running", "codes"),
    [
        ([], []),
        ([slot("key"), slot("none")], []),
        ([slot("key"), slot("key_strict"), slot("key_strict")], [70]),
        # Its handler has ended; what is left is to be written down, and the next owner waits for no append of this one.
        ([slot("key_strict", in_handler=False)], []),
    ],
)
def test_only_a_handler_that_holds_a_strict_key_ends_its_process(
    running: list[SimpleNamespace], codes: list[int]
) -> None:
    ended: list[int] = []
    end_if_strict(running, ended.append)
    assert ended == codes
