"""The source of `sealbus publish --dialect`: lines that are foreign messages, sealed at the time of publishing.

Owns what the command line says in the place of an ingress: the namespace, the clock and what fragments lack.
"""

from __future__ import annotations

from typing import BinaryIO

from bus.clock import SystemClock
from bus.dialects import Defaults, Dialect
from bus.dialects.sealing import seal_foreign
from bus.protocol.identifiers import Entropy, uuid7
from bus.topics.names import message_topic
from consumers.cli.publish.json_lines import LineFeed
from producers.publisher import Publisher
from producers.sealing.sealed_record import sealed_as
from producers.stream import Item

__all__ = ["ForeignFeed"]


class ForeignFeed(LineFeed):
    """Lines that are messages of one dialect."""

    def __init__(self, publisher: Publisher, dialect: Dialect, defaults: Defaults, stream: BinaryIO) -> None:
        super().__init__(publisher, stream)
        self._dialect = dialect
        self._defaults = defaults
        self._clock = SystemClock()
        self._entropy = Entropy()

    def item(self, number: int, content: bytes) -> Item:  # noqa: ARG002 - a line says all by itself
        """Return the message in a line, sealed now. Raises ContractError."""
        now_ms = self._clock.now_ms()
        namespace = self._publisher.sealer.origin.namespace
        message = seal_foreign(
            self._dialect.decode(content, defaults=self._defaults),
            namespace=namespace,
            sender=self._defaults.sender,
            now_ms=now_ms,
            message_id=uuid7(now_ms, self._entropy(10)),
        )
        return sealed_as(message, message_topic(namespace, message.message_type))
