"""ApprovalWatch: the approvals that are open in the log, of messages that a group has stored until a decision.

Reads on at each look. What is open here and unknown to the inbox lies in another inbox: nobody who decides is heard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec

from bus.errors import ContractError, TopicMissingError
from bus.payloads.payload_types import payload_type
from bus.protocol.identifiers import is_namespace
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.protocol.timestamps import parse_ms
from bus.topics.names import message_topic
from bus.transports.base import Transport
from bus.transports.read_all import new_partition_starts, scan_topic
from bus.vocabulary.approval import ApprovalRequest
from bus.vocabulary.bus import ApprovalClosed
from consumers.processes.approvals.deciding import request_in
from consumers.processes.approvals.open_requests import is_proven, valid_message

__all__ = ["ApprovalWatch"]

_REQUEST: Final = payload_type(ApprovalRequest).name
_CLOSED: Final = payload_type(ApprovalClosed).name
_MAX_OPEN: Final = 10_000


class ApprovalWatch:
    """Follows the requests of *namespace* and their closings; with *verifier*, what is not proven does not count."""

    def __init__(self, transport: Transport, namespace: str, verifier: Verifier | None) -> None:
        self._transport = transport
        self._namespace = namespace
        self._verifier = verifier
        self._offsets: dict[str, dict[int, int]] = {}
        self._open: dict[tuple[str, str], tuple[str, int]] = {}
        """By sender and approval, the group that waits, and until when."""

    async def look(self, now_ms: int) -> Mapping[str, frozenset[str]]:
        """Return by group the ids of its open approvals. Raises BusError."""
        # Closings first: the request of each that is read now is known, or is read below.
        closed = {
            (message.metadata.sender.id or "", str(msgspec.json.decode(message.data).get("approval_id")))
            async for message in self._news(message_topic(self._namespace, _CLOSED))
            if is_proven(message, self._verifier)
        }
        async for message in self._news(message_topic(self._namespace, _REQUEST)):
            self._asked(message, now_ms)
        self._open = {name: entry for name, entry in self._open.items() if entry[1] > now_ms and name not in closed}
        found: dict[str, set[str]] = {}
        for (_, approval_id), (group, _) in self._open.items():
            found.setdefault(group, set()).add(approval_id)
        return {group: frozenset(ids) for group, ids in found.items()}

    def _asked(self, message: Message, now_ms: int) -> None:
        until_ms = parse_ms(message.routing.expires_at) or 0
        if until_ms <= now_ms or len(self._open) >= _MAX_OPEN:
            return
        try:
            request = request_in(message)
        except ContractError:
            return
        # What an agent asks for an action of its own is in no inbox.
        group = request.action.group or ""
        # To verify takes longer than all else, and most requests are of the past.
        if request.seal is not None and is_namespace(group) and is_proven(message, self._verifier):
            self._open[message.metadata.sender.id or "", request.approval_id] = group, until_ms

    async def _news(self, topic: str) -> AsyncIterator[Message]:
        """Yield the messages of *topic*, unproven, that have come since the last look."""
        offsets = self._offsets.setdefault(topic, {})
        try:
            offsets |= new_partition_starts(offsets, await self._transport.admin.ranges(topic))
            async for record in scan_topic(self._transport, topic, dict(offsets)):
                offsets[record.partition] = record.offset + 1
                if (message := valid_message(record)) is not None:
                    yield message
        except TopicMissingError:
            offsets.clear()
