"""Observations of both acts of the demo: messages in the log, and expected against observed outcomes.

Every observation is read from the log, never from a process's own report.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from bus import gates
from bus.clock import SystemClock
from bus.errors import BusError, ContractError, TopicMissingError
from bus.payloads.class_forms import Payload
from bus.payloads.payload_types import payload_type
from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.topics.names import message_topic
from bus.transports.base import Record
from bus.transports.read_all import scan_topic
from bus.vocabulary import BUILT_IN
from consumers.agents.demo.crew import Crew
from producers.connection import Bus

__all__ = ["Check", "Event", "StuckError", "watched_events", "first", "until"]

_DEADLINE_S = 40.0
_LOOK_S = 0.05
_Found = TypeVar("_Found")


class StuckError(BusError):
    """An expected event did not happen in time; the text names it and shows the workers' logs."""


class Check(msgspec.Struct, frozen=True):
    """One expectation: the demo fails unless *observed* equals *expected*."""

    what: str
    expected: str
    observed: str

    @property
    def holds(self) -> bool:
        return self.expected == self.observed


class Event(msgspec.Struct, frozen=True):
    """A message and its place in the log."""

    message: Message
    record: Record

    @property
    def is_sealed(self) -> bool:
        kind = BUILT_IN.get(self.message.message_type)
        try:
            gates.prove(self.message, kind.risk if kind else "medium", None)
        except ContractError:
            return False
        return True


async def watched_events(bus: Bus, *kinds: type[Payload]) -> list[Event]:
    """Return the messages of *kinds*, oldest first."""
    found: list[Event] = []
    for kind in kinds:
        topic = message_topic(bus.namespace, payload_type(kind).name)
        with contextlib.suppress(TopicMissingError):
            found += [Event(sealing.parse(record.value), record) async for record in scan_topic(bus.transport, topic)]
    return sorted(found, key=lambda event: (event.record.timestamp_ms, event.message.metadata.hops))


async def first(bus: Bus, kind: type[Payload], *, by: str | None = None) -> Message | None:
    """Return the first message of a type, of an agent where it is named."""
    found = [
        event.message for event in await watched_events(bus, kind) if by in (None, event.message.metadata.sender.id)
    ]
    return found[0] if found else None


async def until(crew: Crew, what: str, look: Callable[[], Awaitable[_Found | None]]) -> _Found:
    """Return what *look* returns, once it is something. Raises StuckError."""
    clock = SystemClock()
    give_up_s = clock.monotonic_s() + _DEADLINE_S
    while not (found := await look()):
        late = f"waited {_DEADLINE_S:.0f} s for {what} in vain" if clock.monotonic_s() > give_up_s else None
        if fault := crew.check(what) or late:
            raise StuckError(f"{fault}\n{crew.tail()}")
        await asyncio.sleep(_LOOK_S)
    return found
