"""Limiter: the limits of one group, in the inbox's database, so that all of its workers share them.

Owns the rows. A rate is one row with the time at which its next unit is free: whoever takes units moves it on, and
waits until then. A run whose turn is near takes its units at once, and comes back then, by another worker if need be;
what is further away asks again. A place of a `Concurrency` is a row that is renewed while its run lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from bus.clock import Clock
from bus.errors import InboxError
from bus.telemetry.logs import get_logger
from consumers.delivery.inbox.base import Inbox, OwnTransaction
from consumers.delivery.resilience.limits import Concurrency, Limit, Rate, spacing_ms, units_of

__all__ = ["Limiter"]

_NEAR_MS: Final = 30_000
"""Units are taken so long before their time."""
_LATE_SHARE: Final = 0.03
"""A run that comes later than its units by this share of the period takes others: late ones would run in a crowd."""
_SHORTEST_LATE_S: Final = 0.25
_LEASE_S: Final = 60.0
_LONGEST_S: Final = 30.0
_SHORTEST_S: Final = 0.02
_AGAIN_S: Final = 0.5
_FORGOTTEN_MS: Final = 3_600_000.0
"""Units that were never used are forgotten after so long."""
_SCHEMA_LOCK: Final = 0x5EA1B050
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS sealbus_rates (id text PRIMARY KEY, free_ms double precision NOT NULL)",
    """CREATE TABLE IF NOT EXISTS sealbus_units (
    id text NOT NULL, run text NOT NULL, due_ms double precision NOT NULL, PRIMARY KEY (id, run))""",
    """CREATE TABLE IF NOT EXISTS sealbus_places (
    id text NOT NULL, holder text NOT NULL, until_ms double precision NOT NULL, PRIMARY KEY (id, holder))""",
)
_TAKE: Final = """
INSERT INTO sealbus_rates (id, free_ms) VALUES ($1, {now} + $2)
ON CONFLICT (id) DO UPDATE SET free_ms = {later}(sealbus_rates.free_ms, {now}) + $2
WHERE sealbus_rates.free_ms <= {now} + $3 RETURNING free_ms - $2 - {now}"""
_TAKEN: Final = "SELECT due_ms - {now} FROM sealbus_units WHERE id = $1 AND run = $2"
_NOTE: Final = """
INSERT INTO sealbus_units (id, run, due_ms) VALUES ($1, $2, {now} + $3)
ON CONFLICT (id, run) DO UPDATE SET due_ms = excluded.due_ms"""
_DROP: Final = "DELETE FROM sealbus_units WHERE id = $1 AND (run = $2 OR due_ms < {now} - $3)"
_LEFT: Final = "SELECT free_ms - {now} FROM sealbus_rates WHERE id = $1"
_CLEAR: Final = "DELETE FROM sealbus_places WHERE id = $1 AND until_ms < {now}"
_ENTER: Final = """
INSERT INTO sealbus_places (id, holder, until_ms) SELECT $1, $2, {now} + $3
WHERE (SELECT count(*) FROM sealbus_places WHERE id = $1 AND holder <> $2) < $4
ON CONFLICT (id, holder) DO UPDATE SET until_ms = excluded.until_ms RETURNING holder"""
_RENEW: Final = "UPDATE sealbus_places SET until_ms = {now} + $3 WHERE id = $1 AND holder = $2"

_log = get_logger("limits")


class Limiter:
    """The limits of the group *scope* (namespace and group) as the worker *member* uses them."""

    def __init__(self, inbox: Inbox, *, scope: Sequence[str], member: str, clock: Clock) -> None:
        self._inbox = inbox
        self._scope = "/".join(scope)
        self._member = member
        self._clock = clock
        self._due_s: dict[tuple[str, str], float] = {}
        """By run and limit, when the units that it has taken are free, on the monotonic clock."""
        self._held: dict[tuple[str, str], None] = {}
        """The places held now, by limit and holder."""

    async def open(self) -> None:
        """Create the tables where they are missing. Raises InboxError."""
        async with self._transaction() as transaction:
            if self._inbox.dialect == "postgres":
                await transaction.fetch("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
            for statement in _TABLES:
                await transaction.execute(statement)

    async def acquire(self, run: str, limits: Sequence[Limit], payload: object, *, ahead: bool = True) -> float:
        """Return 0 where *run* may begin now, else the seconds after which to ask again. Raises InboxError.

        What it has taken by then stays its own. Where not *ahead*, it takes nothing before its time.
        """
        for limit in sorted(limits, key=lambda each: isinstance(each, Concurrency)):
            if isinstance(limit, Rate):
                wait_s = await self._take(run, limit, payload, _NEAR_MS if ahead else 0)
            else:
                wait_s = await self._enter(run, limit)
            if wait_s > 0:
                return wait_s
        return 0.0

    async def release(self, run: str, limits: Sequence[Limit]) -> None:
        """Give back the places of *run*, which has ended, and forget its units."""
        for limit in limits:
            if isinstance(limit, Rate):
                self._due_s.pop((run, limit.name), None)
                with contextlib.suppress(InboxError):
                    async with self._transaction() as transaction:
                        await transaction.execute(self._timed(_DROP), self._id(limit), run, _FORGOTTEN_MS)
            elif (self._id(limit), self._holder(run)) in self._held:
                await self._leave(limit, run)

    async def renew(self) -> None:
        """Keep the places of running handlers, until cancelled."""
        while True:
            await self._clock.sleep(_LEASE_S / 4)
            for identity, holder in list(self._held):
                try:
                    async with self._transaction() as transaction:
                        await transaction.execute(self._timed(_RENEW), identity, holder, _LEASE_S * 1000)
                except InboxError as error:
                    _log.warning("limits.not_renewed", limit=identity, error=str(error))

    async def _take(self, run: str, rate: Rate, payload: object, near_ms: int) -> float:
        identity, late_s = self._id(rate), max(_SHORTEST_LATE_S, rate.per_s * _LATE_SHARE)
        due_s = self._due_s.get((run, rate.name))
        if due_s is None or self._clock.monotonic_s() > due_s + late_s:
            space_ms = spacing_ms(rate, units_of(rate, payload))
            async with self._transaction() as transaction:
                # A worker that had the message before may have taken its units.
                left_ms = await _first(transaction, self._timed(_TAKEN), identity, run)
                if left_ms is None or left_ms < -1000 * late_s:
                    left_ms = await _first(transaction, self._timed(_TAKE), identity, space_ms, float(near_ms))
                    if left_ms is None:
                        far_ms = await _first(transaction, self._timed(_LEFT), identity) or 0.0
                        return min(_LONGEST_S, max(_AGAIN_S, (far_ms - near_ms / 2) / 1000))
                    await transaction.execute(self._timed(_NOTE), identity, run, left_ms)
                # Counted from the store's answer and not from the question: others may have held the row for long.
                due_s = self._clock.monotonic_s() + max(0.0, left_ms / 1000)
            self._due_s[run, rate.name] = due_s
        left_s = due_s - self._clock.monotonic_s()
        return max(_SHORTEST_S, left_s) if left_s > 0 else 0.0

    async def _enter(self, run: str, limit: Concurrency) -> float:
        identity, holder = self._id(limit), self._holder(run)
        if (identity, holder) in self._held:
            return 0.0
        async with self._transaction() as transaction:
            if self._inbox.dialect == "postgres":
                # Two that count at once would each see room for one.
                await transaction.fetch("SELECT pg_advisory_xact_lock(hashtext($1))", identity)
            await transaction.execute(self._timed(_CLEAR), identity)
            row = await transaction.fetchrow(self._timed(_ENTER), identity, holder, _LEASE_S * 1000, limit.count)
        if row is None:
            return _AGAIN_S
        self._held[identity, holder] = None
        return 0.0

    async def _leave(self, limit: Concurrency, run: str) -> None:
        identity, holder = self._id(limit), self._holder(run)
        self._held.pop((identity, holder), None)
        # A place that cannot be given back now is free when its lease is over.
        with contextlib.suppress(InboxError):
            async with self._transaction() as transaction:
                await transaction.execute("DELETE FROM sealbus_places WHERE id = $1 AND holder = $2", identity, holder)

    def _id(self, limit: Limit) -> str:
        return f"{self._scope}/{limit.name}"

    def _holder(self, run: str) -> str:
        return f"{self._member}/{run}"

    def _timed(self, statement: str) -> str:
        """Return *statement* with the store's present in it: PostgreSQL's clock, on SQLite the worker's."""
        if self._inbox.dialect == "postgres":
            return statement.format(
                now="(extract(epoch FROM clock_timestamp()) * 1000)::double precision", later="GREATEST"
            )
        return statement.format(now=repr(float(self._clock.now_ms())), later="max")

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Any]:
        transaction: OwnTransaction = await self._inbox.begin()
        try:
            yield transaction
            await transaction.commit()
        finally:
            await asyncio.shield(transaction.rollback())


async def _first(transaction: Any, statement: str, *arguments: Any) -> float | None:
    """Return the first value of the first row of *statement*, or None."""
    row = await transaction.fetchrow(statement, *arguments)
    return None if row is None else float(row[0])
