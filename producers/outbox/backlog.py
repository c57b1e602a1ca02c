"""What waits in an outbox, as rows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bus.errors import InboxError, UnreachableError
from bus.settings import durations
from bus.transports.base import Transport
from producers.outbox.rows import Backlog
from producers.outbox.rows import Rows as OutboxRows

__all__ = ["OutboxTopic", "age_text", "backlog_rows", "check_reachable", "unreachable"]


class OutboxTopic(msgspec.Struct, frozen=True, kw_only=True):
    """What waits in an outbox for one topic."""

    topic: str
    pending: int
    oldest_s: float | None
    failed: int
    """Messages that the log refuses for good."""
    error: str | None


def backlog_rows(found: Iterable[Backlog], now_ms: int) -> list[OutboxTopic]:
    """Return a row for each topic of *found*, with the age of its oldest message at *now_ms*."""
    return [
        OutboxTopic(
            topic=each.topic,
            pending=each.pending,
            oldest_s=None if each.oldest_ms is None else max(0, now_ms - each.oldest_ms) / 1000,
            failed=each.failed,
            error=each.error,
        )
        for each in found
    ]


def age_text(age_s: float) -> str:
    return durations.duration_words(float(round(age_s)))


async def check_reachable(rows: OutboxRows, transport: Transport) -> None:
    """Raise UnreachableError unless database and log can be used."""
    try:
        await rows.open()
    except InboxError as error:
        raise unreachable(error) from error
    await transport.admin.topics()


def unreachable(error: InboxError) -> UnreachableError:
    """Return the error for an unreachable database; the log is not at fault."""
    unreachable = UnreachableError(str(error))
    unreachable.add_note("check DATABASE_URL")
    return unreachable
