"""The inbox in PostgreSQL, shared by workers on any number of machines. Needs the extra `postgres`.

Owns the tables, which begin with `sealbus_`, in the first schema of the user's search path:

    sealbus_inbox         id (SHA-256 of key), key (JSON: namespace, sender, message type, group, idempotency key),
    content_hash, state,
                          owner, token, starts, deaths, suspect, alone, reopened, keep_until_ms, outputs (msgpack)
    sealbus_inbox_owners  id (one incarnation), name, alive_until
    sealbus_schema        part, version

The database's clock decides about leases.
"""

from __future__ import annotations

from consumers.delivery.inbox.postgres.inbox import PostgresInbox

__all__ = ["PostgresInbox"]
