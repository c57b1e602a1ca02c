"""Find the request of a submitted task in the log, by its task id.

Owns where the search begins, and which records are believed: what this agent has sent with its own reply address. A
task id that is a UUIDv7 has the time from which the topic is read; of others the last longest lifetime is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus import gates
from bus.clock import Clock
from bus.errors import TopicMissingError
from bus.payloads.payload_types import PayloadType
from bus.protocol.identifiers import uuid7_ms
from bus.topics.names import message_topic
from bus.transports.base import Record, Transport
from producers.requests.reply_reader import ReplyFilter
from producers.requests.submitted import CLOCKS_MS, TaskKey

__all__ = ["TaskLookup"]

_FIRST_MS: Final = 300_000
"""A request is nearly always appended so soon after its id was made; the rest of the topic is read after that."""
_PAGE_RECORDS: Final = 250
_PAGE_BYTES: Final = 2 * 1_048_576


class TaskLookup:
    """Finds the requests of one agent, whose answers come to *topic*."""

    def __init__(self, transport: Transport, view: ReplyFilter, topic: str, clock: Clock) -> None:
        self._transport = transport
        self._view = view
        self._topic = topic
        self._clock = clock

    async def find(self, task_id: str, kind: PayloadType) -> TaskKey | None:
        """Return the first request of *kind* with *task_id*; None where the log has none, or not any more."""
        topic = message_topic(self._view.namespace, kind.name)
        made_ms = uuid7_ms(task_id)
        since_ms = max(0, (self._clock.now_ms() - self._view.max_ttl_ms if made_ms is None else made_ms) - CLOCKS_MS)
        try:
            locations = [(topic, partition) for partition in await self._transport.admin.ranges(topic)]
            starts = await self._transport.admin.offsets_at(locations, since_ms)
            offsets = {partition: offset for (_, partition), offset in starts.items()}
            until_ms = None if made_ms is None else made_ms + _FIRST_MS
            for end_ms in (until_ms, None) if until_ms is not None else (None,):
                for partition in sorted(offsets):
                    if (found := await self._within(topic, partition, offsets, end_ms, task_id, kind)) is not None:
                        return found
        except TopicMissingError:
            pass
        return None

    async def _within(  # noqa: PLR0917 - where, until when, and what for
        self, topic: str, partition: int, offsets: dict[int, int], end_ms: int | None, task_id: str, kind: PayloadType
    ) -> TaskKey | None:
        """Look through one partition, from its place in *offsets* on, which moves."""
        end = (await self._transport.admin.ranges(topic))[partition].end
        # As it stands in a message, with what JSON escapes.
        wanted = msgspec.json.encode(task_id)
        while offsets[partition] < end:
            records = await self._transport.read(
                topic, partition, offsets[partition], max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES
            )
            if not records:
                return None
            for record in records:
                if wanted in (record.value or b"") and (found := self._read(record, task_id, kind)) is not None:
                    return found
            offsets[partition] = records[-1].offset + 1
            if end_ms is not None and records[-1].timestamp_ms > end_ms:
                return None
        return None

    def _read(self, record: Record, task_id: str, kind: PayloadType) -> TaskKey | None:
        """Return the request in *record* where it is the task's, and was sent by this agent."""
        view = self._view
        checks = gates.Checks(
            max_message_bytes=view.max_message_bytes,
            namespace=view.namespace,
            verifier=view.verifier,
            risk_of=None if view.verifier is None else lambda _: kind.risk,
        )
        case = gates.Case(record=record, key=record.key, expected_type=kind.name)
        verdict = gates.judge(case, checks, until="schema")
        if not isinstance(verdict, gates.Passed):
            return None
        message = verdict.message
        is_own = message.metadata.sender.id == view.agent_id and message.routing.reply_to == self._topic
        if not is_own or message.metadata.task_id != task_id:
            return None
        return TaskKey.of(message, record.timestamp_ms)
