"""The outbox: a message becomes a row in the application's own transaction.

A relay publishes it once that is committed.

    outbox = Outbox("shop@svc", namespace="agents")
    with connection:                                   # sqlite3
        connection.execute("INSERT INTO orders ...")
        message_id = outbox.add(connection, OrderPlaced(number=7), key="customer-3")

    async with connection.transaction():               # asyncpg
        await connection.execute("INSERT INTO orders ...")
        message_id = await outbox.add(connection, OrderPlaced(number=7), key="customer-3")

The message is sealed when it is added; what receivers would refuse is refused there. The row is gone with a rollback,
and published after a commit by `sealbus outbox relay DATABASE_URL` (or `Relay` inside a program), in the order of ids
per topic and key. A row is deleted after the log has acknowledged it: a relay that dies in between leaves it, and its
successor sends the same bytes again, which receivers know by their id. A message that expired meanwhile is sent all the
same and becomes a dead letter with its reason. One that the log refuses for ever keeps its row, with the error, and
later messages of its key go on, as they do behind a dead letter; `UPDATE sealbus_outbox SET error = NULL` has it tried
again.

    sealbus_outbox  id, message_id, added_ms, topic, key, value, headers (msgpack: [[name, value as bin], ...]), error
    (NULL: still to be sent)

Other drivers write the row themselves: `outbox.seal(payload, ...)` has its values.
"""

from __future__ import annotations

from producers.outbox.outbox import Outbox
from producers.outbox.relay import Relay
from producers.outbox.rows import NewRow

__all__ = ["NewRow", "Outbox", "Relay"]
