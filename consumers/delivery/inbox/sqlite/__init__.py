"""The inbox in one SQLite file, shared by the processes of one machine, or in memory.

Owns the file's tables, which begin with `sealbus_`. A handler that takes effect together with its row keeps its own
tables in the same file.

    sealbus_inbox         key (JSON: namespace, sender, message type, group, idempotency key), content_hash, state
    (claimed, free, done),
                          owner, token, starts, deaths, suspect, alone, reopened, keep_until_ms, outputs (msgpack)
    sealbus_inbox_owners  id (one incarnation), name, renewed_s and lease_s (monotonic seconds of this boot), renewed_ms
    sealbus_schema        part, version

The file must lie on a local disk: write-ahead logging needs memory shared by all who use it.
"""

from __future__ import annotations

from consumers.delivery.inbox.sqlite.inbox import SqliteInbox
from consumers.delivery.inbox.sqlite.table import MEMORY

__all__ = ["MEMORY", "SqliteInbox"]
