"""Choose the database of an outbox by its URL.

Owns the table of schemes; `sqlite` and `postgres` beside it own the access. asyncpg is imported only for its scheme.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from bus.clock import Clock
from bus.errors import ConfigurationError
from bus.settings.texts import outside_name
from producers.outbox.rows import Rows

__all__ = ["open_rows"]

_KNOWN: Final = "postgresql://user@host/database, sqlite:///relative.db, sqlite:////absolute.db"


def open_rows(url: str, *, clock: Clock) -> Rows:
    """Return the outbox in the database at *url*, not yet opened. Raises ConfigurationError."""
    url = outside_name(url, "the database of the outbox")
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        from bus.databases.postgres import driver
        from producers.outbox.postgres import PostgresRows

        driver()
        return PostgresRows(url)
    if not separator or scheme != "sqlite":
        raise ConfigurationError(f"no outbox in this database (scheme {scheme[:20]!r}); known are {_KNOWN}")
    from producers.outbox.sqlite import SqliteRows

    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or not path or "?" in rest:
        raise ConfigurationError(f"{url!r} names no file: write sqlite:///relative.db or sqlite:////absolute/path.db")
    return SqliteRows(path, clock)
