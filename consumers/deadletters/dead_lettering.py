"""Find the message that an operator wants dead-lettered, and write the order for the workers of a group.

Owns what may be ordered. The group's workers carry the order out when they reach the message
(`consumers.deadletters.park_orders`).
"""

from __future__ import annotations

from bus.clock import Clock
from bus.errors import BusError, ContractError
from bus.nearest import nearest
from bus.protocol import sealing
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings
from bus.topics.names import TopicName, message_topic, read_topic
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import Record, Transport
from bus.transports.read_all import read_record
from consumers.deadletters.journal import operator
from consumers.deadletters.park_orders import ParkOrder
from consumers.deadletters.records import Control, read_control

__all__ = ["park_order_of"]


async def park_order_of(
    transport: Transport, settings: Settings, clock: Clock, *, group: str, location: tuple[str, int, int], why: str
) -> ParkOrder:
    """Return the order to dead-letter for *group* the message at *location*: topic or type, partition, offset.

    Raises BusError if there is no such message or group, or the group has finished it.
    """
    name, partition, offset = location
    topic = message_topic(settings.bus.namespace, name)
    topic = topic if topic in await transport.admin.topics() else name
    named = read_topic(topic)
    if named is None or named.namespace != settings.bus.namespace or named.kind not in ("message", "retry", "redrive"):
        raise BusError(f"{topic} is not a topic of messages in namespace {settings.bus.namespace}")
    await _check_group(transport, group, named)
    record = await read_record(transport, topic, partition, offset)
    if record is None:
        raise BusError(f"no message at {topic}/{partition}/{offset}")
    committed = (await NamespaceGroups(transport.admin, named.namespace).committed(group)).get((topic, partition))
    if committed is not None and offset < committed:
        error = BusError(f"{group} has already finished {topic}/{partition}/{offset} (committed offset {committed})")
        error.add_note("for a message in retry give its location in the retry topic (`_retry`)")
        raise error
    control = Control(topic, partition, offset) if named.kind == "message" else read_control(record)
    return ParkOrder(
        group=group,
        topic=control.origin_topic,
        partition=control.origin_partition,
        offset=control.origin_offset,
        message_id=_id(record),
        redrives=control.redrive_count,
        at=format_ms(clock.now_ms()),
        by=operator(),
        why=why,
    )


async def _check_group(transport: Transport, group: str, named: TopicName) -> None:
    # Kafka forgets a group without commits soon after its last member leaves; its topics remain.
    own = {
        name.group
        for topic in await transport.admin.topics()
        if (name := read_topic(topic)) is not None and name.group and name.namespace == named.namespace
    }
    names = sorted(own | {info.name for info in await NamespaceGroups(transport.admin, named.namespace).infos()})
    if group not in names:
        raise BusError(f"no group {group!r}{nearest(group, names)}")
    if named.kind != "message" and named.group != group:
        raise BusError(f"that topic belongs to group {named.group!r}")


def _id(record: Record) -> str:
    try:
        return sealing.parse(record.value).message_id
    except ContractError:
        return ""
