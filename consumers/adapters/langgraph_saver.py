"""Saver: the checkpoints of a LangGraph graph as rows beside the inbox's row of one message.

Owns the rows. Every checkpoint and every write is appended as a row, under the claim of the message, and goes with its
result. A run reads them all when it begins, and answers from memory. So the saver has the behaviour of the framework's
own one in memory, and needs no connection of its own.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from langgraph.checkpoint.base import get_checkpoint_metadata
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME

from bus.errors import Reject

__all__ = ["CheckpointRows", "Saver", "SwallowedInterruptError", "strict_serializer"]

_MAX_ROW: Final = 6_000_000
"""Bytes of one row before they are text; as text they take a third more, and a step keeps 8 MiB."""


class CheckpointRows(Protocol):
    """Where the rows are kept."""

    async def read(self) -> list[Any]:
        """Return the rows of earlier runs, in their order."""

    async def append(self, row: Any) -> None:
        """Keep one more row."""


class Saver(InMemorySaver):  # type: ignore[misc]
    """The checkpoints of one message. *rows* keep them; None: they are kept in memory alone, as for a test.

    *eager*: a checkpoint is a row at once. Otherwise it goes with the next writes: until then nothing follows from it,
    and the graph makes it again of the writes before.

    *swallowed* returns the interrupts that a task has lost, of its id and its writes. They are kept instead of what it
    wrote, and the graph ends there.
    """

    def __init__(
        self,
        rows: CheckpointRows | None = None,
        *,
        serde: Any = None,
        eager: bool = False,
        swallowed: Callable[[str, Sequence[tuple[str, Any]]], tuple[Any, ...]] = lambda *_: (),
    ) -> None:
        super().__init__(serde=serde)
        self._rows = rows
        self._eager = eager
        self._swallowed = swallowed
        self.lost: tuple[Any, ...] = ()
        """The interrupts that a task has swallowed; nothing follows from its writes."""
        self._waiting: list[list[Any]] = []
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Take in what earlier runs of the message have written."""
        if self._rows is not None:
            for row in await self._rows.read():
                self._take(row)

    def begin(self) -> None:
        """Forget what was swallowed: the graph is called anew."""
        self.lost = ()

    def inputs(self, thread_id: str) -> int:
        """Return how many inputs the graph of that thread has begun with."""
        checkpoints = self.storage[thread_id].get("", {}).values() if thread_id in self.storage else ()
        return sum(self.serde.loads_typed(metadata).get("source") == "input" for _, metadata, _ in checkpoints)

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Keep a checkpoint and the values that are new in it."""
        if self.lost:
            raise SwallowedInterruptError
        place = config["configurable"]
        thread, space = place["thread_id"], place.get("checkpoint_ns", "")
        values = checkpoint["channel_values"]
        plain = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        blobs = [
            [name, version, _texted(self.serde.dumps_typed(values[name]) if name in values else ("empty", b""))]
            for name, version in new_versions.items()
        ]
        row = [
            "checkpoint",
            [thread, space, checkpoint["id"], place.get("checkpoint_id")],
            _texted(self.serde.dumps_typed(plain)),
            _texted(self.serde.dumps_typed(get_checkpoint_metadata(config, metadata))),
            blobs,
        ]
        await self._append(row)
        return {"configurable": {"thread_id": thread, "checkpoint_ns": space, "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task has written."""
        place = config["configurable"]
        key = [place["thread_id"], place.get("checkpoint_ns", ""), place["checkpoint_id"]]
        lost = self._swallowed(task_id, writes)
        if lost:
            self.lost = self.lost or lost
            writes = [(INTERRUPT, lost), *(each for each in writes if each[0] == RESUME)]
        written = [[channel, _texted(self.serde.dumps_typed(value))] for channel, value in writes]
        await self._append(["writes", key, task_id, task_path, written])
        if lost:
            raise SwallowedInterruptError

    async def adelete_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        await self._append(["delete", thread_id])

    def put(self, *_: Any, **__: Any) -> Any:
        """Refuse a call outside the event loop, where no row could be kept."""
        raise NotImplementedError("this saver is used by `ainvoke`, which `serve` calls")

    put_writes = put
    delete_thread = put

    async def _append(self, row: list[Any]) -> None:
        async with self._lock:
            self._waiting.append(row)
            if self._rows is not None and (self._eager or row[0] != "checkpoint"):
                await self._rows.append(["rows", self._waiting])
                self._waiting = []
            self._take(row)

    def _take(self, row: Any) -> None:
        kind, *rest = row
        if kind == "rows":
            for each in rest[0]:
                self._take(each)
        elif kind == "checkpoint":
            (thread, space, checkpoint_id, parent), checkpoint, metadata, blobs = rest
            for name, version, value in blobs:
                self.blobs[thread, space, name, version] = _typed(value)
            self.storage[thread][space][checkpoint_id] = (_typed(checkpoint), _typed(metadata), parent)
        elif kind == "writes":
            (thread, space, checkpoint_id), task_id, task_path, written = rest
            config = {"thread_id": thread, "checkpoint_ns": space, "checkpoint_id": checkpoint_id}
            values = [(channel, self.serde.loads_typed(_typed(value))) for channel, value in written]
            super().put_writes({"configurable": config}, values, task_id, task_path)
        else:
            super().delete_thread(*rest)


class StepRows:
    """CheckpointRows as steps, numbered in their order. *step* takes a number and what makes the row, and keeps it."""

    def __init__(self, step: Callable[[int, Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
        self._step = step
        self._next = 0

    async def read(self) -> list[Any]:
        """Return the rows that are kept: those up to the first that is not."""
        found = []
        for number in itertools.count():
            try:
                found.append(await self._step(number, _absent))
            except _NoRowError:
                self._next = number
                return found
        raise AssertionError  # pragma: no cover - count has no end

    async def append(self, row: Any) -> None:
        """Keep one more row. Raises Reject for one that is too large."""
        size = sum(map(len, _texts_of(row)))
        if size > _MAX_ROW:
            raise Reject(
                f"the state of the graph has {size} bytes in one checkpoint, and {_MAX_ROW} are kept: keep large "
                "content elsewhere, and its location in the state"
            )

        async def made() -> Any:
            return row

        await self._step(self._next, made)
        self._next += 1


class SwallowedInterruptError(Exception):
    """A node has caught its own interrupt, and went on."""


class _NoRowError(Exception):
    """There is no row of that number."""


async def _absent() -> Any:
    raise _NoRowError


def strict_serializer(allowed: Sequence[Any]) -> JsonPlusSerializer:
    """Return the framework's serializer, which makes objects of no class but the safe ones and those *allowed*."""
    return JsonPlusSerializer(allowed_msgpack_modules=None).with_msgpack_allowlist(allowed)


def _texted(typed: tuple[str, bytes]) -> list[str]:
    return [typed[0], base64.b64encode(typed[1]).decode()]


def _typed(texted: Any) -> tuple[str, bytes]:
    return texted[0], base64.b64decode(texted[1])


def _texts_of(row: Any) -> list[str]:
    if isinstance(row, str):
        return [row]
    return [text for each in row for text in _texts_of(each)] if isinstance(row, list) else []
