"""Open requests: messages that wait for a decision, and the ends of closed ones, read only from the log.

Reads the requests, their closings, and the waiting message itself, whose bytes are compared with the hashed packet.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bus import gates
from bus.clock import Clock, SystemClock
from bus.errors import BusError, ContractError, TopicMissingError
from bus.protocol import sealing
from bus.protocol.sealing import Message
from bus.protocol.signatures import Verifier
from bus.protocol.timestamps import parse_ms
from bus.settings.schema import Settings
from bus.topics.names import message_topic
from bus.transports.base import Record, Transport
from bus.transports.read_all import scan_topic
from bus.trust import opening
from bus.vocabulary.approval import ApprovalRequest, hash_of
from consumers.processes.approvals.deciding import request_in

__all__ = [
    "Closing",
    "HASH_DIGITS",
    "OpenRequest",
    "action_of",
    "agrees",
    "held_message",
    "is_proven",
    "open_requests",
    "readable_requests",
    "request_of",
    "valid_message",
    "within_of",
]

_PREFIX: Final = "sha256:"
HASH_DIGITS: Final = 8


class Closing(msgspec.Struct, frozen=True):
    """The last message of the requesting group about its request: the `state` and `decided_by` of `ApprovalClosed`.

    Newer code may have further states.
    """

    state: str = ""
    decided_by: tuple[str, ...] = ()


class OpenRequest(msgspec.Struct, frozen=True):
    """One request and its closing; None while it is open."""

    message: Message
    request: ApprovalRequest
    closing: Closing | None = None
    is_late: bool = False
    """Its time is over."""

    @property
    def is_open(self) -> bool:
        """Tell whether it waits for a decision."""
        return self.closing is None and not self.is_late

    @property
    def digits(self) -> str:
        """Its id, without the name of the hash."""
        return self.request.approval_id.removeprefix(_PREFIX)

    def is_named_by(self, digits: str) -> bool:
        """Return whether *digits* begin with the first 8 of the action's hash, as evidence that a person has read
        it."""
        wanted = self.request.action_hash.removeprefix(_PREFIX)[:HASH_DIGITS]
        return digits.removeprefix(_PREFIX)[:HASH_DIGITS] == wanted


async def open_requests(
    transport: Transport, namespace: str, *, verifier: Verifier | None, clock: Clock, closed: bool = False
) -> list[OpenRequest]:
    """Return the requests that wait for a decision; with *closed* also the closed ones. Raises BusError."""
    closings: dict[tuple[str | None, str], list[Message]] = {}
    for message in await _messages(transport, message_topic(namespace, "approval.closed")):
        name = str(msgspec.json.decode(message.data).get("approval_id"))
        closings.setdefault((message.metadata.sender.id, name), []).append(message)
    found: dict[str, OpenRequest] = {}
    for message in await _messages(transport, message_topic(namespace, "approval.request")):
        is_late = (parse_ms(message.routing.expires_at) or 0) < clock.now_ms()
        if is_late and not closed:
            continue
        try:
            request = request_in(message)
        except ContractError:
            continue
        # To verify takes longer than all else, and most requests were closed.
        ends = reversed(closings.get((message.metadata.sender.id, request.approval_id), ()))
        closing = next((_closing_in(end) for end in ends if is_proven(end, verifier)), None)
        one = OpenRequest(message, request, closing, is_late)
        if (closed or one.is_open) and is_proven(message, verifier):
            found[message.message_id] = one
    return list(found.values())


def _closing_in(message: Message) -> Closing:
    try:
        return msgspec.json.decode(message.data, type=Closing)
    except msgspec.ValidationError:
        return Closing()


def is_proven(message: Message, verifier: Verifier | None) -> bool:
    """Return whether the sender of *message* is verified: a forged one must not open or close a request."""
    if verifier is None:
        return True
    try:
        gates.prove(message, "medium", verifier)
    except ContractError:
        return False
    return True


async def held_message(transport: Transport, namespace: str, found: OpenRequest) -> Message | None:
    """Return the waiting message itself, found in the log by its seal; None if the log no longer has it."""
    name, seal = found.request.action.message_type, found.request.seal
    if name is None or seal is None:
        return None
    for message in await _messages(transport, message_topic(namespace, name)):
        if message.seal == seal:
            return message
    return None


async def _messages(transport: Transport, topic: str) -> list[Message]:
    """Return the valid messages of *topic*; none if the topic does not exist."""
    try:
        return [found async for each in scan_topic(transport, topic) if (found := valid_message(each)) is not None]
    except TopicMissingError:
        return []


def valid_message(record: Record) -> Message | None:
    """Return the message of *record*, of which nothing is proven yet; None where it was changed, or is none."""
    try:
        message = sealing.parse(record.value)
        sealing.check_integrity(message)
    except ContractError:
        return None
    return message


def agrees(request: Message, pending: Message) -> bool:
    """Return whether the packet has the type, sender and data of the waiting message."""
    action = action_of(request)
    data = msgspec.json.decode(pending.data)
    same_version = action.get("schema_version") == pending.metadata.schema_version
    names = action.get("sender") == pending.metadata.sender.id and action.get("message_type") == pending.message_type
    # Defaults are written out in the packet, and left out on the way.
    packed = action.get("data")
    says = isinstance(packed, dict) and all(packed.get(name) == value for name, value in data.items())
    return same_version and names and says and hash_of(action) == msgspec.json.decode(request.data).get("action_hash")


def action_of(request: Message) -> dict[str, Any]:
    """Return the action packet of *request* as it is written."""
    action = msgspec.json.decode(request.data).get("action")
    return action if isinstance(action, dict) else {}


def within_of(action: dict[str, Any]) -> dict[str, Any]:
    """Return the step that the *action* packet is about; empty where it is about a whole message."""
    found = action.get("within")
    return found if isinstance(found, dict) else {}


async def readable_requests(transport: Transport, settings: Settings, *, closed: bool = False) -> list[OpenRequest]:
    clock = SystemClock()
    keys = opening.believed_keys(settings, clock)
    return await open_requests(transport, settings.bus.namespace, verifier=keys, clock=clock, closed=closed)


async def request_of(transport: Transport, settings: Settings, digits: str) -> OpenRequest:
    """Return the approval whose id begins with *digits*, an open one before others. Raises BusError."""
    wanted = digits.removeprefix("sha256:")
    matching = [
        each for each in await readable_requests(transport, settings, closed=True) if each.digits.startswith(wanted)
    ]
    found = [each for each in matching if each.is_open] or matching
    if len({each.digits for each in found}) > 1:
        raise BusError(f"{digits!r} begins the ids of {len(found)} approvals: give more digits")
    if not found:
        raise BusError(f"no approval begins with {digits!r}: `sealbus approval list --all` shows them")
    return found[-1]
