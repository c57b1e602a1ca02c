"""Dead letters by their location: which exist now, and which one is meant."""

from __future__ import annotations

from bus.errors import BusError
from bus.settings.schema import Settings
from bus.topics.names import dead_letter_topic, message_topic, read_topic
from bus.topics.topic_reader import resolve_topic
from bus.transports.base import Transport

__all__ = ["is_dead_letter_topic", "letter_topic_of", "nothing_at"]


async def letter_topic_of(transport: Transport, settings: Settings, name: str) -> str:
    existing = await transport.admin.topics()
    candidates = (dead_letter_topic(message_topic(settings.bus.namespace, name)), dead_letter_topic(name))
    topic = next((candidate for candidate in candidates if candidate in existing and not name.endswith(".dlq")), None)
    return await resolve_topic(transport, settings.bus.namespace, name) if topic is None else topic


def is_dead_letter_topic(topic: str) -> bool:
    name = read_topic(topic)
    return name is not None and name.kind == "dlq"


def nothing_at(topic: str, partition: int, offset: int) -> BusError:
    error = BusError(f"no dead letter at {topic}/{partition}/{offset}")
    error.add_note("`sealbus dlq list` shows locations; retention deletes them after topics.deadletter_retention_s")
    return error
