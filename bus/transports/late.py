"""A log that may come later: each call opens it if need be, and fails as long as it is not there.

For services that are started before the log is, and must say so instead of ending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bus.errors import RecordTooLargeError
from bus.transports.base import (
    Admin,
    AppendOutcome,
    Features,
    Listener,
    LogSubscription,
    NewRecord,
    OnOutcomes,
    Record,
    Transport,
)

__all__ = ["LateTransport"]


class LateTransport:
    """The log that *open_log* opens, as a `Transport`. Every use raises what it raises, until it opens one."""

    def __init__(self, open_log: Callable[[], Transport]) -> None:
        self._open_log = open_log
        self._log: Transport | None = None

    @property
    def features(self) -> Features:
        """Those of the log."""
        return self._opened().features

    @property
    def admin(self) -> Admin:
        """That of the log."""
        return self._opened().admin

    async def append(
        self, records: Sequence[NewRecord], *, timeout_s: float, on_outcomes: OnOutcomes | None = None
    ) -> Sequence[AppendOutcome]:
        return await self._opened().append(records, timeout_s=timeout_s, on_outcomes=on_outcomes)

    async def refusals(self, records: Sequence[NewRecord]) -> Sequence[RecordTooLargeError | None]:
        return await self._opened().refusals(records)

    async def subscribe(self, group: str, topics: Sequence[str], listener: Listener, *, member: str) -> LogSubscription:
        return await self._opened().subscribe(group, topics, listener, member=member)

    async def read(
        self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int, wait_s: float = 0.0
    ) -> Sequence[Record]:
        return await self._opened().read(
            topic, partition, offset, max_records=max_records, max_bytes=max_bytes, wait_s=wait_s
        )

    async def close(self) -> None:
        """Close the log, if it was opened."""
        if self._log is not None:
            await self._log.close()

    def _opened(self) -> Transport:
        if self._log is None:
            self._log = self._open_log()
        return self._log
