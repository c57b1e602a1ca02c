"""AuditState: how far the audit is behind the log, whether a process of it works, and what it knows as spent today."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from bus.errors import BusError, TopicMissingError
from bus.settings.schema import Settings
from bus.transports.base import Transport
from consumers.operations.audit.reading import read_audit

__all__ = ["AuditState", "look_at_audit"]

_ANSWER_S: Final = 5.0
_MAX_READ: Final = 16


class AuditState(msgspec.Struct, frozen=True, kw_only=True):
    """The audit of a namespace, as its database and the log show it."""

    behind: int = 0
    """Records of the log that it has not recorded yet, in the partitions that it follows."""
    oldest_ms: int | None = None
    """When the first of them was appended; None: none waits."""
    lease_ms: int = 0
    """Until when a process of it has said to work, Unix time in milliseconds; 0: the last one ended in order."""
    is_empty: bool = False
    """Whether it has recorded nothing of the namespace."""
    error: str = ""
    """Why that is unknown."""
    spent: float | None = None
    """What agents have reported as spent since midnight UTC; None where there is no budget."""
    is_summed: bool = True
    """Whether every row of the audit is in *spent*."""
    daily_budget: float = 0.0


async def look_at_audit(transport: Transport, settings: Settings, now_ms: int) -> AuditState | None:
    """Compare the audit with the log; None where there is no audit. Raises BusError where the log cannot be read."""
    try:
        async with asyncio.timeout(_ANSWER_S), read_audit(settings) as store:
            if store is None:
                return None
            heads = await store.heads()
            budget = settings.audit.daily_budget
            spent = await store.costs("day", days=1, now_ms=now_ms) if budget else None
    except TimeoutError:
        return AuditState(error=f"its database did not answer in {_ANSWER_S:g} s")
    except BusError as error:
        return AuditState(error=str(error))
    if not heads:
        return AuditState(is_empty=True)
    behind, oldest_ms = 0, list[int]()
    for topic in sorted({topic for topic, _ in heads}):
        try:
            ranges = await transport.admin.ranges(topic)
        except TopicMissingError:
            continue
        for partition, retained in ranges.items():
            head = heads.get((topic, partition))
            at = max(retained.start, 0 if head is None else head.next_offset)
            if at >= retained.end:
                continue
            behind += retained.end - at
            if len(oldest_ms) < _MAX_READ:
                first = await transport.read(topic, partition, at, max_records=1, max_bytes=1)
                oldest_ms += [record.timestamp_ms for record in first]
    lease_ms = max((head.lease_ms for head in heads.values()), default=0)
    return AuditState(
        behind=behind,
        oldest_ms=min(oldest_ms, default=None),
        lease_ms=lease_ms,
        spent=None if spent is None else spent.total.cost,
        is_summed=spent is not None and spent.is_whole,
        daily_budget=budget,
    )
