"""The source of `sealbus publish --dialect`: lines that are foreign messages, sealed at the time of publishing.

Owns the values that the command line supplies in place of an ingress: the namespace, the clock and missing parts of
fragments.
"""

from __future__ import annotations

from typing import BinaryIO

from bus.clock import SystemClock
from bus.dialects import Defaults, Dialect
from bus.dialects.sealing import seal_foreign
from bus.errors import ContractError
from bus.payloads.payload_types import Registry, raised_risk
from bus.protocol.identifiers import Entropy, uuid7
from bus.topics.names import message_topic
from producers.json_lines.payload_lines import LineFeed
from producers.publisher import Publisher
from producers.sealing.sealed_record import sealed_as
from producers.stream import Item

__all__ = ["ForeignFeed"]


class ForeignFeed(LineFeed):
    """Lines that are messages of one dialect."""

    def __init__(
        self, publisher: Publisher, dialect: Dialect, defaults: Defaults, stream: BinaryIO, *, types: Registry
    ) -> None:
        super().__init__(publisher, stream)
        self._dialect = dialect
        self._types = types
        self._defaults = defaults
        self._clock = SystemClock()
        self._entropy = Entropy()

    def item(self, number: int, content: bytes) -> Item:  # noqa: ARG002 - a line says all by itself
        """Return the message in a line, sealed now. Raises ContractError, KeyRefusedError."""
        now_ms, sealer = self._clock.now_ms(), self._publisher.sealer
        namespace = sealer.origin.namespace
        foreign = self._dialect.decode(content, defaults=self._defaults)
        sender = foreign.claims.sender or self._defaults.sender
        signer = None if sender is None else sealer.signer_for(sender.id or "", foreign.type)
        message = seal_foreign(
            foreign,
            namespace=namespace,
            sender=self._defaults.sender,
            now_ms=now_ms,
            message_id=uuid7(now_ms, self._entropy(10)),
            signer=signer,
            types=self._types,
        )
        risk = raised_risk(self._types.get(message.message_type), sealer.origin.high_risk)
        if sealer.proves and risk != "low" and message.verification.signature is None:
            who = message.metadata.sender.id
            text = f"{who} is not {sealer.origin.sender.id}, the agent of this key: unsigned it would be refused"
            raise ContractError(text, "/verification/signature", "signature_missing")
        return sealed_as(message, message_topic(namespace, message.message_type))
