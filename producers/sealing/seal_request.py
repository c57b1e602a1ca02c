"""SealRequest: how a draft is sealed, beyond what its sender says of it. A value."""

from __future__ import annotations

import msgspec

from bus.protocol.sealing import Message
from producers.sealing.options import PublisherIdentity
from producers.sealing.run_labels import RunLabels

__all__ = ["PLAIN_REQUEST", "SealRequest"]


class SealRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the bus says about one draft; by default nothing."""

    cause: Message | None = None
    """The message that caused it."""
    run: RunLabels | None = None
    """What the run that handles *cause* has taken in."""
    answers: bool = False
    """Whether it answers *cause*."""
    topic: str | None = None
    """Where it goes, instead of its type's topic."""
    origin: PublisherIdentity | None = None
    """Who publishes it, instead of the sealer's own agent."""
    data: bytes | None = None
    """The canonical form that `encode_payload` gave, for a payload that may have changed since."""
    both_versions: bool = True
    """Whether it is sent in its older version, too, where its type says so."""
    now_ms: int | None = None
    """When it is sealed, instead of now."""


PLAIN_REQUEST = SealRequest()
