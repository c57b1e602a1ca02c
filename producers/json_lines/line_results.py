"""What became of each line of `sealbus publish`."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from bus.errors import BusError, TopicMissingError
from bus.nearest import nearest
from bus.topics.names import message_topic
from producers.connection import Bus
from producers.outcomes import PublishUnknown, Receipt, Result

__all__ = ["PublishedLine", "Tally", "require_topic"]


class PublishedLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one line: published, with its location in the log; rejected, and why; or unknown."""

    line: int
    outcome: str
    message_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    reason: str = ""
    pointer: str = ""
    error: str = ""


class Tally:
    """Counts how the lines ended, and prints the summary."""

    def __init__(self) -> None:
        self.accepted = self.rejected = self.unknown = self._for_good = 0

    @property
    def total(self) -> int:
        return self.accepted + self.rejected + self.unknown

    @property
    def is_worth_repeating(self) -> bool:
        """Whether a line may be in the log or not, or all that were rejected may be accepted later."""
        return bool(self.unknown or (self.rejected and not self._for_good))

    def count(self, result: Result, line: int) -> PublishedLine:
        if isinstance(result, Receipt):
            self.accepted += 1
            return PublishedLine(
                line=line,
                outcome="published",
                message_id=result.message_id,
                topic=result.topic,
                partition=result.partition,
                offset=result.offset,
            )
        if isinstance(result, PublishUnknown):
            self.unknown += 1
            return PublishedLine(line=line, outcome="unknown", message_id=result.message.message_id, error=str(result))
        self.rejected += 1
        cause = result.__cause__
        self._for_good += not (isinstance(cause, BusError) and cause.retriable)
        return PublishedLine(
            line=line,
            outcome="rejected",
            reason=getattr(cause, "reason", ""),
            pointer=getattr(cause, "pointer", ""),
            error=str(result),
        )


async def require_topic(bus: Bus, message_type: str) -> None:
    """Check the topic once instead of failing for each line.

    A type known only by name may be a typo, and a cluster may refuse every record.
    """
    topic = message_topic(bus.namespace, message_type)
    existing = await bus.transport.admin.topics()
    if topic not in existing:
        # Topics this user may not see are not listed; the log reports them when asked by name.
        with suppress(TopicMissingError):
            await bus.transport.admin.ranges(topic)
        raise TopicMissingError(f"no topic {topic}{nearest(topic, existing)}")
