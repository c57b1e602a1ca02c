"""The locations of dead letters, as users write them: TOPIC/PARTITION/OFFSET, or the id of the dead message.

Owns parsing, finding the dead letter, and limiting a selection to those that exist now.
"""

from __future__ import annotations

import msgspec

from bus.errors import BusError, NameRefusedError
from bus.protocol.identifiers import is_message_id
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.topics.names import dead_letter_topic, message_topic, read_topic
from bus.topics.topic_reader import resolve_topic
from bus.transports.base import Record, Transport
from bus.transports.read_all import read_record
from consumers.deadletters.letters import dead_letter_ends, list_dead_letters
from consumers.deadletters.selection import Selection, with_causes

__all__ = ["find_letter", "parse_location", "pinned"]

_MAX_DIGITS = 18


async def pinned(transport: Transport, settings: Settings, selection: Selection) -> Selection:
    """Limit *selection* to the dead letters that exist now.

    The user confirms these dead letters only, and may take long to answer. Locations get full topic names. Raises
    BusError for a location without a dead letter, NameRefusedError for text that is not a location.
    """
    locations = [parse_location(location) for location in sorted(selection.places)]
    topics = {
        name: await _letter_topic_of(transport, settings, name) for name in sorted({name for name, *_ in locations})
    }
    ranges = {topic: await transport.admin.ranges(topic) for topic in topics.values()}
    for name, partition, offset in locations:
        topic = topics[name]
        retained = ranges[topic].get(partition)
        if not _is_dead_letter_topic(topic) or retained is None or not retained.start <= offset < retained.end:
            raise _nothing_at(topic, partition, offset)
    found = frozenset(f"{topics[name]}/{partition}/{offset}" for name, partition, offset in locations)
    ends = await dead_letter_ends(transport, settings.bus.namespace, selection.message_type)
    selection = await with_causes(transport, settings.bus.namespace, selection)
    return msgspec.structs.replace(selection, places=found, ends=ends)


def parse_location(location: str) -> tuple[str, int, int]:
    """Parse TOPIC/PARTITION/OFFSET, with a message type in place of the topic if you like; raise NameRefusedError."""
    parts = location.rsplit("/", 2)
    # Check the digits before int(): Python refuses to parse numbers of thousands of digits.
    are_numbers = all(part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS for part in parts[1:])
    if len(parts) != 3 or not are_numbers:  # noqa: PLR2004
        raise NameRefusedError(
            f"{printable(location[:200])!r} is not TOPIC/PARTITION/OFFSET; `sealbus dlq list` shows locations"
        )
    return parts[0], int(parts[1]), int(parts[2])


async def find_letter(transport: Transport, settings: Settings, which: str) -> Record:
    """Return the newest dead letter of the message with the id *which*, or the one at this location.

    Raises BusError, TopicMissingError.
    """
    if "/" not in which and is_message_id(which):
        newest = None
        async for letter in list_dead_letters(transport, settings.bus.namespace):
            if letter.message is not None and letter.message.message_id == which:
                newest = letter.record
        if newest is None:
            raise BusError(f"no dead letter of message {which}: `sealbus show {which}` shows what became of it")
        return newest
    name, partition, offset = parse_location(which)
    topic = await _letter_topic_of(transport, settings, name)
    record = await read_record(transport, topic, partition, offset)
    if record is None:
        raise _nothing_at(topic, partition, offset)
    return record


async def _letter_topic_of(transport: Transport, settings: Settings, name: str) -> str:
    existing = await transport.admin.topics()
    candidates = (dead_letter_topic(message_topic(settings.bus.namespace, name)), dead_letter_topic(name))
    topic = next((candidate for candidate in candidates if candidate in existing and not name.endswith(".dlq")), None)
    return await resolve_topic(transport, settings.bus.namespace, name) if topic is None else topic


def _is_dead_letter_topic(topic: str) -> bool:
    name = read_topic(topic)
    return name is not None and name.kind == "dlq"


def _nothing_at(topic: str, partition: int, offset: int) -> BusError:
    error = BusError(f"no dead letter at {topic}/{partition}/{offset}")
    error.add_note("`sealbus dlq list` shows locations; retention deletes them after topics.deadletter_retention_s")
    return error
