"""A blackboard: two researchers write into shared notes, each only its own part, and nobody overwrites what it has not
seen.

sealbus run shared_notes:board
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from sealbus import App, RequestFailed
from sealbus.patterns import Blackboard
from sealbus.vocabulary import (
    BlackboardConflict,
    BlackboardRead,
    BlackboardValue,
    BlackboardWrite,
    BlackboardWritten,
)


class Notes(Blackboard, version="1.0.0", name="blackboard"):
    owners: ClassVar = {"facts/": ("researcher@svc", "checker@svc"), "verdict/": ("checker@svc",)}


board = App("board@svc", types=[BlackboardWritten, BlackboardConflict, BlackboardValue])
board.add(Notes)


async def test_who_has_not_seen_the_newest_note_does_not_overwrite_it() -> None:
    async with board.test() as bus:
        researcher, checker = bus.as_agent("researcher@svc"), bus.as_agent("checker@svc")
        first = BlackboardWrite(key="facts/tea", expected_version=0, value="tea is old")
        assert (await researcher.request(first, BlackboardWritten, idempotency_key="1")).version == 1
        blind = BlackboardWrite(key="facts/tea", expected_version=0, value="tea is new")
        conflict = await checker.request(blind, BlackboardConflict, idempotency_key="2")
        assert (conflict.current_version, conflict.written_by) == (1, "researcher@svc")
        seen = await checker.request(BlackboardRead(key="facts/tea"), BlackboardValue)
        better = BlackboardWrite(key="facts/tea", expected_version=seen.version, value="tea is 5,000 years old")
        assert (await checker.request(better, BlackboardWritten, idempotency_key="3")).version == 2


async def test_a_note_has_an_owner() -> None:
    async with board.test() as bus:
        verdict = BlackboardWrite(key="verdict/tea", expected_version=0, value="good")
        with pytest.raises(RequestFailed, match="does not own"):
            await bus.as_agent("researcher@svc").request(verdict, BlackboardWritten, idempotency_key="1")
