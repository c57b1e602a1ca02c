"""What waits in an outbox, as rows."""

from __future__ import annotations

import msgspec

from bus.settings import durations
from producers.outbox.rows import Backlog

__all__ = ["OutboxTopic", "age_of", "age_text"]


class OutboxTopic(msgspec.Struct, frozen=True, kw_only=True):
    """What waits in an outbox for one topic."""

    topic: str
    pending: int
    oldest_s: float | None
    failed: int
    """Listing that the log refuses for good."""
    error: str | None


def age_of(each: Backlog, now_ms: int) -> float | None:
    return None if each.oldest_ms is None else max(0, now_ms - each.oldest_ms) / 1000


def age_text(age_s: float) -> str:
    return durations.duration_words(float(round(age_s)))
