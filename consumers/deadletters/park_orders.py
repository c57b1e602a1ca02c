"""Park orders: an operator names a location, and the group's workers dead-letter its message instead of running it.

Owns the order records in `<ns>._deadletters` and following them; their key `park GROUP TOPIC/PARTITION/OFFSET` differs
from every letter's location. A worker settles the message like any other: first its dead letter is written, then its
offset is committed, and no earlier message is skipped. Orders are made in
`consumers.deadletters.dead_lettering` and carried out in `consumers.delivery.crashes.crash_guard`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from bus.clock import Clock
from bus.errors import BusError, ContractError, TopicMissingError
from bus.protocol import canonical
from bus.telemetry.logs import get_logger
from bus.topics.names import own_topic
from bus.transports.base import NewRecord, Record, Transport
from bus.transports.read_all import scan_topic

__all__ = ["PARKED", "PARK_FOLLOWED_S", "ParkOrders", "ParkOrder", "Parked", "RecordKey", "follow_orders"]

PARK_FOLLOWED_S: Final = 5.0
"""Seconds between looks for new orders."""

_PREFIX: Final = b"park "

RecordKey = tuple[str, int, int]

_log = get_logger("park")


class Parked(ContractError):  # noqa: N818 - the name stands in dead letters
    """An operator has set the message aside."""

    def __init__(self, why: str) -> None:
        super().__init__(f"dead-lettered by an operator: {why}", "", "rejected")


PARKED: Final = Parked.__name__
"""The error name in dead letters of such messages."""


class ParkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One order.

    *redrives*: how often the message had been redriven; once it is sent back again the order no longer applies.
    """

    group: str
    topic: str
    partition: int
    offset: int
    message_id: str
    redrives: int
    at: str
    by: str
    why: str

    @property
    def place(self) -> RecordKey:
        """The location where the message was first read."""
        return self.topic, self.partition, self.offset

    def record(self, namespace: str) -> NewRecord:
        """Return the record of this order."""
        key = _PREFIX + f"{self.group} {self.topic}/{self.partition}/{self.offset}".encode()
        return NewRecord(own_topic(namespace, "_deadletters"), key, canonical.encode(msgspec.to_builtins(self)))


class ParkOrders:
    """The orders to one group, and the offsets from which reading continues."""

    def __init__(self, transport: Transport, namespace: str, group: str) -> None:
        self.known: dict[RecordKey, ParkOrder] = {}
        self._transport = transport
        self._topic = own_topic(namespace, "_deadletters")
        self._group = group
        self._offsets: dict[int, int] = {}

    async def read_on(self) -> bool:
        """Read the orders since the last call; return whether there was one. Raises BusError."""
        found = False
        with contextlib.suppress(TopicMissingError):
            async for record in scan_topic(self._transport, self._topic, self._offsets):
                self._offsets[record.partition] = record.offset + 1
                order = _read(record)
                if order is not None and order.group == self._group:
                    self.known[order.place] = order
                    found = True
        return found


async def follow_orders(
    orders: ParkOrders, on_orders: Callable[[Mapping[RecordKey, ParkOrder]], object], clock: Clock
) -> None:
    """Pass *orders* to *on_orders* as they come, until cancelled. A log that cannot be read is read again later."""
    while True:
        await clock.sleep(PARK_FOLLOWED_S)
        try:
            if await orders.read_on():
                on_orders(orders.known)
        except BusError as error:
            _log.debug("park.orders_not_read", error=str(error))


def _read(record: Record) -> ParkOrder | None:
    if record.key is None or not record.key.startswith(_PREFIX) or not record.value:
        return None
    try:
        return _decode(record.value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_decode = msgspec.json.Decoder(ParkOrder).decode
