"""The mark of a store, by which the workers of a group find out whether they share one inbox.

Owns the row: part `store` of `sealbus_schema`, whose version is a number that the first worker draws. The URL is no
mark: one database has several names, and one path is another file on another machine.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import Final

from bus.telemetry.logs import get_logger
from consumers.delivery.inbox.base import Inbox, Write

__all__ = ["NO_STORE", "mark_of_store", "members_elsewhere"]

NO_STORE: Final = "none"
"""The mark of a worker without an inbox."""
_LARGEST: Final = (1 << 31) - 1
_DRAW: Final = "INSERT INTO sealbus_schema (part, version) VALUES ('store', $1) ON CONFLICT (part) DO NOTHING"
_READ: Final = "SELECT version FROM sealbus_schema WHERE part = 'store'"
_ENROLLED: Final = "SELECT DISTINCT name FROM sealbus_inbox_owners"

_log = get_logger("inbox")


async def mark_of_store(inbox: Inbox | None) -> str:
    """Return the mark of the store behind *inbox*, which is open; NO_STORE without one, empty where it is unknown."""
    if inbox is None:
        return NO_STORE
    try:
        rows = await inbox.read(_READ)
        if not rows:
            await inbox.write([Write(_DRAW, (secrets.randbelow(_LARGEST),))])
            # Of two workers that draw at once the first has drawn.
            rows = await inbox.read(_READ)
    except Exception as error:  # noqa: BLE001 - a user of the database may lack a right; the worker works without
        _log.warning("inbox.unmarked", error=str(error))
        return ""
    return f"{int(rows[0][0]):08x}" if rows else ""


async def members_elsewhere(inbox: Inbox, members: Collection[str]) -> Sequence[str]:
    """Return those of *members*, workers that have joined a group, that have never opened this *inbox*.

    A worker opens its inbox before it joins. Raises InboxError.
    """
    known = {str(row[0]) for row in await inbox.read(_ENROLLED)}
    # Two members of one name are told apart by a word behind it.
    return sorted(each for each in members if each.partition(" ")[0] not in known)
