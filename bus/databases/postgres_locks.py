"""Which session of a PostgreSQL others wait for, so that a person on call knows whom to end.

It is asked on a connection of its own: the pools may be full of statements that wait.
"""

from __future__ import annotations

from typing import Any, Final

from bus.databases.postgres import close_silently, driver, failures
from bus.redaction import cut, redacted

__all__ = ["who_blocks"]

_TIMEOUT_S: Final = 3.0
_MAX_QUERY: Final = 80
# Blockers of our waiting statements, and whoever holds a lock on one of our tables that keeps writers out: between two
# attempts of ours nobody waits.
_HOLDERS: Final = r"""
WITH ours AS (SELECT oid FROM pg_class WHERE relname LIKE 'sealbus\_%' AND relkind IN ('r', 'p')),
waiting AS (
    SELECT w.pid, unnest(pg_blocking_pids(w.pid)) AS holder FROM pg_stat_activity w
    WHERE w.datname = current_database() AND w.application_name LIKE 'sealbus%' AND w.wait_event_type = 'Lock'
),
strong AS (
    SELECT l.pid, string_agg(DISTINCT l.mode || ' on ' || l.relation::regclass, ', ') AS locks FROM pg_locks l
    WHERE l.granted AND l.relation IN (SELECT oid FROM ours)
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    GROUP BY l.pid
)
SELECT h.pid, h.usename, h.application_name, h.state, h.xact_start AT TIME ZONE 'UTC', h.query,
    s.locks, (SELECT count(DISTINCT w.pid) FROM waiting w WHERE w.holder = h.pid)
FROM pg_stat_activity h LEFT JOIN strong s ON s.pid = h.pid
WHERE h.pid <> pg_backend_pid() AND (h.pid IN (SELECT holder FROM waiting) OR s.pid IS NOT NULL)
    AND h.pid NOT IN (SELECT pid FROM waiting) AND h.xact_start < clock_timestamp() - interval '2 seconds'
ORDER BY 8 DESC, h.xact_start LIMIT 1
"""


async def who_blocks(url: str) -> str:
    """Return the session at *url* for which statements of sealbus wait; empty where none is seen."""
    try:
        connection = await driver().connect(
            url, timeout=_TIMEOUT_S, command_timeout=_TIMEOUT_S, server_settings={"application_name": "sealbus looks"}
        )
    except failures():
        return ""
    try:
        row = await connection.fetchrow(_HOLDERS)
    except failures():
        return ""
    finally:
        close_silently(connection)
    return "" if row is None else _told(row)


def _told(row: Any) -> str:
    pid, user, program, state, begun, query, locks, waiting = row
    named = f"{program or 'a program without a name'}, user {user}" if user else "another user's"
    since = "" if begun is None else f" since {begun:%H:%M:%S} UTC"
    text = f"pid {pid} of PostgreSQL ({named}), {state or 'at work'}, in its transaction{since}"
    text += f", which has {locks}" if locks else ""
    text += f"; its statement: {cut(redacted(' '.join(str(query).split()).rstrip('; ')), _MAX_QUERY)}" if query else ""
    return text + (f"; {waiting} statements wait for it" if waiting else "")
