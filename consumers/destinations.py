"""Where letters are sent back to: which groups have a redrive topic, and what keeps the others from having one.

Owns making the topic where that is wanted, and remembering what was found, group by group: one that has none holds up no other. Sending is
`consumers.redrive`'s.
"""

from __future__ import annotations

from bus.errors import BusError, NotPermittedError, TopicMissingError
from bus.settings import Settings
from bus.topics import dead_letter_topic, redrive_topic
from bus.topology import creates_topics, group_topics
from bus.transports.base import Transport

__all__ = ["Destinations"]


class Destinations:
    """The redrive topics of the groups that one redrive meets."""

    def __init__(self, transport: Transport, settings: Settings) -> None:
        self._transport = transport
        self._settings = settings
        self._prepared: set[str] = set()
        self.unreachable: dict[str, str] = {}
        """By group, why it can't be sent anything back."""

    async def has(self, group: str, *, create: bool) -> bool:
        """Whether *group* can be sent something back; its topic is made where it is missing, that is wanted, and *create* says so."""
        if group not in self._prepared and group not in self.unreachable:
            try:
                await self._prepare(group, create=create)
                self._prepared.add(group)
            except (TopicMissingError, NotPermittedError) as error:
                self.lose(group, error)
        return group not in self.unreachable

    def lose(self, group: str, error: BusError) -> None:
        """Nothing more goes to *group*."""
        self.unreachable[group] = str(error)

    async def _prepare(self, group: str, *, create: bool) -> None:
        existing = await self._transport.admin.topics()
        topic = redrive_topic(self._settings.bus.namespace, group)
        if topic in existing:
            return
        if not creates_topics(self._settings, self._transport.features):
            raise TopicMissingError(f"{topic} does not exist")
        if create:
            wanted = {topic, dead_letter_topic(topic)} - existing.keys()
            await self._transport.admin.create_topics([spec for spec in group_topics(self._settings, group) if spec.name in wanted])
