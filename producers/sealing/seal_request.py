"""SealRequest: the bus's own requirements for sealing a draft. A value."""

from __future__ import annotations

import msgspec

from bus.protocol.sealing import Message
from producers.sealing.options import PublisherIdentity
from producers.sealing.run_labels import RunLabels

__all__ = ["PLAIN_REQUEST", "SealRequest"]


class SealRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The bus's own requirements for one draft; by default none."""

    cause: Message | None = None
    """The message that caused it."""
    run: RunLabels | None = None
    """The inputs of the run that handles *cause*."""
    answers: bool = False
    """Whether it answers *cause*."""
    topic: str | None = None
    """The topic, instead of that of its type."""
    origin: PublisherIdentity | None = None
    """The publisher, instead of the sealer's own agent."""
    data: bytes | None = None
    """The canonical form that `encode_payload` gave, for a payload that may have changed since."""
    both_versions: bool = True
    """Whether to send the older version, too, if its type declares one."""
    accepts_progress: bool = False
    """Whether its sender takes progress of it where its answer comes."""
    progress: bool = False
    """Whether it is progress of *cause*."""
    now_ms: int | None = None
    """When it is sealed, instead of now."""


PLAIN_REQUEST = SealRequest()
