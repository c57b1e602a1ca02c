"""HeldRun: what the log has about the approval that a message waits for: the request, its decisions, its closing.

Reads the log alone, as people do who have no inbox, or another one than the worker that holds the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from bus.clock import Clock
from bus.errors import ContractError, TopicMissingError
from bus.payloads.payload_types import payload_type
from bus.protocol.identifiers import is_namespace
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.protocol.timestamps import parse_ms
from bus.topics.names import mailbox_topic, message_topic
from bus.transports.base import Transport
from bus.transports.read_all import scan_topic
from bus.vocabulary.approval import ApprovalDecision, ApprovalRequest
from bus.vocabulary.bus import ApprovalClosed
from consumers.processes.approvals.deciding import request_in
from consumers.processes.approvals.open_requests import is_proven, valid_message

__all__ = ["HeldRun", "held_runs"]

_BEFORE_MS: Final = 60_000
"""The clocks of brokers differ."""
_REQUEST: Final = payload_type(ApprovalRequest).name
_CLOSED: Final = payload_type(ApprovalClosed).name


class HeldRun(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a group has stored until an approval is decided, and has neither run nor ended since."""

    digits: str
    """The id of the approval, without the name of the hash."""
    asked_ms: int
    """When the log took the request."""
    is_given: bool = False
    """The group says that it is approved."""
    approvers: tuple[str, ...] = ()
    """Who sent a decision to approve that the group has not answered; untrusted names."""
    refusers: tuple[str, ...] = ()
    """Who sent another decision."""
    is_late: bool = False
    """The time for a decision is over."""


async def held_runs(
    transport: Transport, namespace: str, message_id: str, *, since_ms: int, verifier: Verifier | None, clock: Clock
) -> Mapping[str, HeldRun]:
    """Return by group what holds the message appended at *since_ms*; groups that do not hold it are absent.

    With *verifier*, what is not proven does not count. Raises BusError.
    """
    reader, found = _Reader(transport, namespace, since_ms - _BEFORE_MS, verifier), dict[str, HeldRun]()
    for asked_ms, message in await reader.naming(message_topic(namespace, _REQUEST), message_id):
        try:
            request = request_in(message)
        except ContractError:
            continue
        group = request.action.group or ""
        if message.metadata.causation_id != message_id or not is_namespace(group):
            continue
        state = await reader.closing(message, request)
        if state not in ("", "approved"):
            found.pop(group, None)
            continue
        decisions = await reader.decisions(group, request)
        found[group] = HeldRun(
            digits=request.approval_id.removeprefix("sha256:"),
            asked_ms=asked_ms,
            is_given=state == "approved",
            approvers=tuple(sorted(who for who, verb in decisions.items() if verb == "approve")),
            refusers=tuple(sorted(who for who, verb in decisions.items() if verb != "approve")),
            is_late=(parse_ms(message.routing.expires_at) or 0) < clock.now_ms(),
        )
    return found


class _Reader:
    """Reads the proven messages that a log has of approvals since a time."""

    def __init__(self, transport: Transport, namespace: str, since_ms: int, verifier: Verifier | None) -> None:
        self._transport = transport
        self._namespace = namespace
        self._since_ms = max(0, since_ms)
        self._verifier = verifier

    async def closing(self, asked: Message, request: ApprovalRequest) -> str:
        """Return the last state that the group gives the *request* that it *asked*; empty without one."""
        state = ""
        for _, message in await self.naming(message_topic(self._namespace, _CLOSED), request.approval_id):
            told = msgspec.json.decode(message.data)
            is_own = message.metadata.sender.id == asked.metadata.sender.id
            # Newer code may have further states.
            state = str(told.get("state")) if is_own and told.get("approval_id") == request.approval_id else state
        return state

    async def decisions(self, group: str, request: ApprovalRequest) -> Mapping[str, str]:
        """Return by sender what *group* was sent as a decision about *request*."""
        kind, found = payload_type(ApprovalDecision), dict[str, str]()
        for _, message in await self.naming(mailbox_topic(self._namespace, group), request.approval_id):
            if message.message_type != kind.name:
                continue
            try:
                decision = kind.open(message)
            except ContractError:
                continue
            assert isinstance(decision, ApprovalDecision)  # noqa: S101 - of that very type
            is_other = decision.decision == "approve" and decision.approved_action_hash != request.action_hash
            if decision.approval_id == request.approval_id and not is_other:
                found[message.metadata.sender.id or ""] = decision.decision
        return found

    async def naming(self, topic: str, name: str) -> list[tuple[int, Message]]:
        """Return the messages of *topic* whose bytes have *name*, with their append times, in that order."""
        needle, found = msgspec.json.encode(name)[1:-1], list[tuple[int, Message]]()
        try:
            locations = [(topic, partition) for partition in await self._transport.admin.ranges(topic)]
            starts = await self._transport.admin.offsets_at(locations, self._since_ms)
            by_partition = {partition: offset for (_, partition), offset in starts.items()}
            async for record in scan_topic(self._transport, topic, by_partition):
                # To parse takes longer than to look, and most are about others.
                if needle not in (record.value or b""):
                    continue
                if (message := valid_message(record)) is not None and is_proven(message, self._verifier):
                    found.append((record.timestamp_ms, message))
        except TopicMissingError:
            return []
        return sorted(found, key=lambda each: each[0])
