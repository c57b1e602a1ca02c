"""Live tail: records as they are appended, with secrets masked; and what tells pages that something is new."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from litestar import MediaType, Response, get
from litestar.response import ServerSentEvent

from bus.errors import BusError
from bus.protocol.timestamps import format_ms
from bus.redaction import masked
from bus.topics.names import TopicName, read_topic
from bus.transports.base import PartitionRange, Record
from consumers.operations.console.model import Console
from consumers.operations.console.pages.frame import PageRequest, console_of, json_text, page_of, parameter
from consumers.operations.lineage.log_search import stored_copy

__all__ = ["TAIL_ROUTES"]

_TAILED: Final = 20
_EVENT_S: Final = 10.0
_PAUSE_S: Final = 0.5
_MOST_A_TURN: Final = 100
"""Of a busy log only so many are sent each half second; the page tells how many were left out."""
_MAX_TEXT: Final = 2_000
_TECHNICAL: Final = frozenset({"agent.heartbeat", "agent.announcement", "agent.discover"})
"""Left out unless they are asked for by name."""


async def _types(console: Console) -> list[str]:
    namespace = console.settings.bus.namespace
    named = [read_topic(topic) for topic in await console.transport.admin.topics()]
    return sorted({n.message_type for n in named if n is not None and n.kind == "message" and n.namespace == namespace})


@get("/tail")
async def tail_page(request: PageRequest) -> Response[str]:
    """Show records as they are appended."""
    return page_of(
        request,
        "tail.html",
        types=await _types(console_of(request)),
        type=parameter(request, "type"),
        agent=parameter(request, "agent"),
    )


@get("/tail/events")
async def tail_events(request: PageRequest) -> ServerSentEvent:
    """Send records as lines of JSON: of a type, of those that match a pattern, or of all."""
    console = console_of(request)
    follower = _Follower(console, parameter(request, "type") or "*", parameter(request, "agent"))

    async def lines() -> AsyncGenerator[str]:
        while not console.is_stopping:
            begun_s = console.clock.monotonic_s()
            rows, left_out = await follower.turn()
            for row in rows:
                yield row
            if left_out:
                yield json_text({"left_out": left_out})
            # A log of many topics takes long to ask: it is asked more rarely.
            await asyncio.sleep(max(_PAUSE_S, 4 * (console.clock.monotonic_s() - begun_s)))

    return ServerSentEvent(lines(), event_type="record")


class _Follower:
    """Reads on in all topics of the types that match *pattern*; of *agent* only, where it is not empty."""

    def __init__(self, console: Console, pattern: str, agent: str) -> None:
        self._console = console
        self._pattern = pattern.replace("[", "[[]")
        self._agent = agent
        self._offsets: dict[tuple[str, int], int] = {}
        self._begun = False

    async def turn(self) -> tuple[list[str], int]:
        """Return what has come since the last turn, oldest first, and how many records were left out."""
        rows, left_out = list[tuple[int, str]](), 0
        for topic in await self._console.transport.admin.topics():
            name = read_topic(topic)
            if name is None or name.namespace != self._console.settings.bus.namespace or not self._takes(name):
                continue
            try:
                ranges = await self._console.transport.admin.ranges(topic)
                for partition, retained in ranges.items():
                    left_out += await self._read(topic, name.kind, partition, retained, rows)
            except BusError:
                # The topic was deleted between two turns.
                continue
        self._begun = True
        rows.sort()
        return [row for _, row in rows[-_MOST_A_TURN:]], left_out + max(0, len(rows) - _MOST_A_TURN)

    def _takes(self, name: TopicName) -> bool:
        kind = name.message_type or ""
        if self._pattern == "*" and kind in _TECHNICAL:
            return False
        return name.kind in ("message", "reply", "dlq") and fnmatch.fnmatchcase(kind, self._pattern)

    async def _read(
        self, topic: str, kind: str, partition: int, retained: PartitionRange, rows: list[tuple[int, str]]
    ) -> int:
        """Add the new records of a partition to *rows*; return how many were left out."""
        first = retained.start if self._begun else retained.end - _TAILED
        at = max(retained.start, self._offsets.get((topic, partition), first))
        self._offsets[topic, partition] = max(at, retained.end)
        if at >= retained.end:
            return 0
        skipped = max(0, retained.end - at - _MOST_A_TURN)
        for record in await self._console.transport.read(
            topic, partition, at + skipped, max_records=_MOST_A_TURN, max_bytes=4 << 20, wait_s=0.0
        ):
            found = _tail_line(record, kind)
            self._offsets[topic, partition] = max(self._offsets[topic, partition], record.offset + 1)
            if self._agent in ("", found.get("sender"), found.get("recipient")):
                rows.append((record.timestamp_ms, json_text(found)))
        return skipped


def _tail_line(record: Record, kind: str) -> dict[str, Any]:
    copy = stored_copy(record, kind)
    described = {"at": format_ms(record.timestamp_ms), "place": f"{record.topic}/{record.partition}/{record.offset}"}
    described["kind"] = kind
    if copy.message is None:
        return {**described, "text": f"{len(record.value or b'')} bytes that are not a message"}
    metadata = copy.message.metadata
    return {
        **described,
        "id": copy.message_id,
        "type": metadata.message_type,
        "sender": metadata.sender.id or "",
        "recipient": "" if metadata.recipient is None else metadata.recipient.id or metadata.recipient.role or "",
        "conversation": copy.conversation_id,
        "text": json_text(masked(msgspec.json.decode(copy.message.data)))[:_MAX_TEXT],
    }


@get("/events")
async def events(request: PageRequest) -> ServerSentEvent:
    """Send an event when there is something new to show."""
    console = console_of(request)

    async def versions() -> AsyncGenerator[str]:
        while not console.is_stopping:
            yield json_text({"version": console.version})
            await console.changed(_EVENT_S)

    return ServerSentEvent(versions(), event_type="changed")


@get("/healthz/live", media_type=MediaType.TEXT)
async def live(request: PageRequest) -> str:
    """Answer that the console runs."""
    return f"ok {console_of(request).version}"


TAIL_ROUTES = (tail_page, tail_events, events, live)
