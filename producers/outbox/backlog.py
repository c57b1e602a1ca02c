"""What waits in an outbox, as rows."""

from __future__ import annotations

import msgspec

from bus.errors import InboxError, UnreachableError
from bus.settings import durations
from bus.transports.base import Transport
from producers.outbox.rows import Backlog
from producers.outbox.rows import Rows as OutboxRows

__all__ = ["OutboxTopic", "age_of", "age_text", "check_reachable", "unreachable"]


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
