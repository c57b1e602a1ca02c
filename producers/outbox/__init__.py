"""The outbox: a message becomes a row in the application's own transaction.

A relay publishes it after the commit.

    outbox = Outbox("shop@svc", namespace="agents")
    with connection:                                   # sqlite3
        connection.execute("INSERT INTO orders ...")
        message_id = outbox.add(connection, OrderPlaced(number=7), key="customer-3")
    async with connection.transaction():               # asyncpg
        await connection.execute("INSERT INTO orders ...")
        message_id = await outbox.add(connection, OrderPlaced(number=7), key="customer-3")

`add` seals the message, and raises for one that receivers would refuse. A rollback removes the row. After a commit,
`sealbus serve outbox DATABASE_URL` (or `Relay` inside a program) publishes it, in the order of ids per topic and key. A
row is deleted after the log has acknowledged it. If a relay dies in between, its successor sends the same bytes again,
and receivers recognize the id. A message that expired in the meantime is still sent, and becomes a dead letter with its
reason. A message that the log refuses for ever keeps its row, with the error, and later messages of its key go on;
`UPDATE sealbus_outbox SET error = NULL` retries it.

    sealbus_outbox  id, message_id, added_ms, topic, key, value, headers (msgpack: [[name, value as bin], ...]),
                    error (NULL: still to be sent)

With other drivers, insert the row yourself: `outbox.seal(payload, ...)` returns its values.
"""

from __future__ import annotations

from producers.outbox.outbox import Outbox
from producers.outbox.relay import Relay
from producers.outbox.rows import NewRow

__all__ = ["NewRow", "Outbox", "Relay"]
