"""Choosing an inbox by its URL.

Owns the table of schemes. Does not own what a store makes of it; each is imported only when its scheme is asked for.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from bus.clock import Clock
from bus.errors import ConfigurationError
from consumers.inbox.base import Inbox

__all__ = ["LEASE_S", "open_inbox"]

LEASE_S: Final = 20.0
"""So long a worker may be silent before others take what it was running."""

_KNOWN = "memory://, postgresql://user@host/database, sqlite:///relative.db, sqlite:////absolute.db"


def open_inbox(url: str, *, owner: str, clock: Clock, lease_s: float = LEASE_S, shared_files: bool = False) -> Inbox:
    """The inbox behind *url*, still to be opened. Raises ConfigurationError."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        from bus.databases.postgres import driver
        from consumers.inbox.postgres import PostgresInbox

        driver()
        return PostgresInbox(url, owner=owner, clock=clock, lease_s=lease_s)
    if not separator or scheme not in ("sqlite", "memory"):
        raise ConfigurationError(f"no inbox for this URL (scheme {scheme[:20]!r}); known are {_KNOWN}")
    from consumers.inbox.sqlite import MEMORY, SqliteInbox

    if scheme == "memory":
        if rest:
            raise ConfigurationError(f"an inbox in memory has no name: write memory:// instead of {url!r}")
        return SqliteInbox(MEMORY, owner=owner, clock=clock, lease_s=lease_s)
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or not path or "?" in rest:
        raise ConfigurationError(f"{url!r} names no file: write sqlite:///relative.db or sqlite:////absolute/path.db")
    return SqliteInbox(path, owner=owner, clock=clock, lease_s=lease_s, shared_files=shared_files)
