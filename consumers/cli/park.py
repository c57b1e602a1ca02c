"""`sealbus groups GROUP --park PLACE`: set aside a message that a group has not settled yet.

Owns finding the message, the confirmation, and writing the order. The group's workers carry it out, now or when they
start, when they reach the message, and settle it like any other (`consumers.deadletters.park_orders`).
"""

from __future__ import annotations

import click

from bus.clock import SystemClock
from bus.errors import BusError, ContractError
from bus.nearest import nearest
from bus.protocol import sealing
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.topics.names import TopicName, message_topic, read_topic
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import Record, Transport
from consumers.cli.dlq.places import parse_location
from consumers.cli.interrupts import execute
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.session import CommandSession
from consumers.deadletters.journal import Journal, operator, prepare_journal
from consumers.deadletters.park_orders import PARK_FOLLOWED_S, ParkOrder
from consumers.deadletters.records import Control, read_control

__all__ = ["park"]

_MAX_RECORD_BYTES = 64 * 1_048_576


def park(
    session: CommandSession, settings: Settings, group: str, location: str, *, why: str, dry_run: bool, yes: bool
) -> int:
    """Order the message at *location* to be dead-lettered instead of handled.

    Raises UsageError for text that is no place, BusError if there is nothing to park.
    """
    name, partition, offset = parse_location((location,))
    found: list[ParkOrder] = []

    async def look(_: object) -> int:
        async with session.open(settings) as transport:
            await prepare_journal(transport, settings, create=False)
            topic = message_topic(settings.bus.namespace, name)
            topic = topic if topic in await transport.admin.topics() else name
            found.append(await _order(transport, settings, group, (topic, partition, offset), why))
        return 0

    async def give(_: object) -> int:
        async with session.open(settings) as transport:
            await prepare_journal(transport, settings)
            journal = Journal(transport, settings, SystemClock(), verb="groups", why=why)
            await journal.order(found[0])
            await journal.note("parked", group=group, why=why, place=location, message_id=found[0].message_id)
        click.echo(
            f"its workers dead-letter it when they reach it; running workers learn of it within {PARK_FOLLOWED_S:g} s",
            err=True,
        )
        return 0

    code = execute(look)
    if code:
        return code
    _show(session, found[0])
    if dry_run:
        click.echo("it would be parked", err=True)
        return 0
    if not yes:
        click.confirm(f"Dead-letter this message for {printable(group)} instead of running it?", abort=True, err=True)
    return execute(give)


async def _order(
    transport: Transport, settings: Settings, group: str, location: tuple[str, int, int], why: str
) -> ParkOrder:
    topic, partition, offset = location
    named = read_topic(topic)
    if named is None or named.namespace != settings.bus.namespace or named.kind not in ("message", "retry", "redrive"):
        raise BusError(f"{topic} is not a topic of messages in namespace {settings.bus.namespace}")
    await _check_group(transport, group, named)
    record = await _read(transport, *location)
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
        at=format_ms(SystemClock().now_ms()),
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
        raise BusError(f"there is no group {group!r}{nearest(group, names)}")
    if named.kind != "message" and named.group != group:
        raise BusError(f"that topic is group {named.group!r}'s")


async def _read(transport: Transport, topic: str, partition: int, offset: int) -> Record:
    if partition in await transport.admin.ranges(topic):
        found = await transport.read(topic, partition, offset, max_records=1, max_bytes=_MAX_RECORD_BYTES)
        if found and found[0].offset == offset:
            return found[0]
    raise BusError(f"there is no message at {topic}/{partition}/{offset}")


def _id(record: Record) -> str:
    try:
        return sealing.parse(record.value).message_id
    except ContractError:
        return ""


def _show(session: CommandSession, order: ParkOrder) -> None:
    if session.as_json:
        print_json(order)
    else:
        cells = (
            order.group,
            f"{order.topic}/{order.partition}/{order.offset}",
            order.message_id or "-",
            order.redrives,
        )
        print_table(("GROUP", "PLACE", "MESSAGE", "REDRIVES"), [cells])
