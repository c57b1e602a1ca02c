"""The embedded log: topics in one SQLite file, shared by the processes of one machine.

Owns the file and its URL, `sqlite:///relative.db`, `sqlite:////absolute.db` or `memory://` (private to the transport).
The meaning of records belongs to other packages. All access is plain SQL; other tools may read and write the file while
it is in use (schema 1):

    topics      id, name, partitions, retention_ms, retention_bytes, compacted
    partitions  id, topic_id, partition, next_offset, start_offset, bytes
                start_offset: oldest kept; bytes: counted by appends
    records     id, part (= partitions.id), off, ts (ms since 1970), key, value, headers
                unique (part, off); blobs, each may be NULL; headers is NULL or msgpack: [[name, value as bin], ...]
    members     id (one incarnation), grp, name, topics (JSON), renewed_s, timeout_s
                monotonic seconds of this boot
    leases      grp, part, owner (= members.id or NULL), epoch, committed
                primary key (grp, part)
    listeners   port, expires_s
                loopback ports to wake when records are committed
    generation  number
                add 1 after changing topics, partitions, listeners

Appending by hand, in one transaction (readers see it at their next heartbeat, or at the next append to the topic):

    BEGIN IMMEDIATE;
    INSERT INTO records (part, off, ts, key, value, headers) SELECT id, next_offset, 1767225600000, NULL, x'7b7d', NULL
        FROM partitions WHERE id = 1;
    UPDATE partitions SET next_offset = next_offset + 1 WHERE id = 1;
    COMMIT;

The file must be on a local disk: write-ahead logging needs memory shared by all processes that use it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from bus.clock import Clock
from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from bus.transports.sqlite.schema import MEMORY
from bus.transports.sqlite.transport import SqliteTransport

__all__ = ["SqliteTransport", "open_url", "options_of"]


def open_url(url: str, *, clock: Clock, **options: Any) -> SqliteTransport:
    """Open the log at a `sqlite:///` or `memory://` URL; *options* are those of SqliteTransport."""
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        if rest:
            raise ConfigurationError(f"a log in memory has no name: write memory:// instead of {url!r}")
        return SqliteTransport(MEMORY, clock=clock, **options)
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or not path or "?" in rest:
        raise ConfigurationError(f"{url!r} names no file: write sqlite:///relative.db or sqlite:////absolute/path.db")
    return SqliteTransport(path, clock=clock, **options)


def options_of(settings: Settings) -> dict[str, Any]:
    """Return the options of this log that *settings* decide, besides its URL."""
    return {"shared_files": settings.bus.shared_files}
