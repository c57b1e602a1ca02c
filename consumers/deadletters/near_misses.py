"""Suggestions for filters that match no dead letter.

Owns finding the nearest type, group and sender among the existing dead letters. Only a selection without result needs
this second scan.
"""

from __future__ import annotations

from bus.errors import BusError
from bus.nearest import nearest
from bus.telemetry.terminal import printable
from bus.topics.names import read_topic
from bus.transports.base import Transport
from consumers.deadletters.causes import CauseBook
from consumers.deadletters.letters import list_letter_facts
from consumers.deadletters.selection import Selection

__all__ = ["near_misses"]


async def near_misses(transport: Transport, namespace: str, selection: Selection) -> list[str]:
    """Return a hint for each filter of *selection* that matches no dead letter."""
    provided = {
        "type": selection.message_type,
        "group": selection.group,
        "sender": selection.sender,
        "cause": selection.cause,
    }
    if not any(provided.values()):
        return []
    known: dict[str, set[str]] = {name: set() for name in provided}
    causes = CauseBook()
    try:
        async for letter in list_letter_facts(transport, namespace):
            topic = read_topic(letter.record.topic)
            known["type"].add(topic.message_type if topic is not None else "")
            known["group"].add(letter.group)
            known["sender"].add(letter.sender)
            causes.add(letter)
    except BusError:
        return []
    known["cause"] = {causes.name(causes.whole(number)) for number in range(len(causes))}
    return [
        f"no dead letters of {name} {printable(value)}{printable(_like(value, known[name]))}"
        for name, value in provided.items()
        if value and value not in known[name]
    ]


def _like(value: str, known: set[str]) -> str:
    """Return the known value that begins with *value*, which was cut when it was copied, else the nearest one."""
    longer = [each for each in sorted(known) if each.startswith(value)]
    return f"; the nearest is {longer[0]}" if len(longer) == 1 else nearest(value, known)
