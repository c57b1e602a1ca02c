"""What the larger families compare: name, label, the function that measures it, what it does for its user, and how few
messages it gets.

Owns these rows: the last number divides the messages of what is slow. Sizes and rounds are `speed.catalog`'s.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["CONSUME", "PATHS", "PUBLISH", "QUEUE_CONSUME", "QUEUE_PUBLISH", "SEALED"]

SEALED = "sealed, checked by type"
PUBLISH = (
    ("aiokafka-send", "aiokafka send(), keyed", "kafka_publish:aiokafka_send", "no seal, no types; bytes; keyed", 1),
    (
        "aiokafka-batch",
        "aiokafka, batches by hand",
        "kafka_publish:aiokafka_batch",
        "no seal, no types; bytes; partitions by hand",
        1,
    ),
    (
        "confluent-produce",
        "confluent-kafka produce(), keyed",
        "kafka_publish:confluent_produce",
        "no seal, no types; bytes; keyed; C client",
        1,
    ),
    (
        "faststream-batch",
        "FastStream publish_batch(500)",
        "kafka_publish:faststream_batch",
        "no seal, no types; bytes; no keys",
        1,
    ),
    (
        "faststream-batches",
        "FastStream publish_batch(500), 12 at a time",
        "kafka_publish:faststream_batches",
        "no seal, no types; bytes; no keys, no order",
        1,
    ),
    (
        "faststream-one",
        "FastStream publish, one by one",
        "kafka_publish:faststream_one",
        "no seal, no types; bytes; keyed",
        16,
    ),
    (
        "sealbus-many",
        "sealbus publish_many",
        "sealbus_publish:many",
        f"{SEALED}; Structs given; keyed by message id; an outcome for each",
        1,
    ),
    (
        "sealbus-keyed",
        "sealbus publish_many, 1,000 keys",
        "sealbus_publish:many_keyed",
        f"{SEALED}; Drafts given; keyed; an outcome for each",
        1,
    ),
)
_AT_MAX_ONCE = "not verified; at most once (ACK_FIRST)"
CONSUME = (
    (
        "aiokafka-getmany",
        "aiokafka getmany",
        "kafka_consume:aiokafka_getmany",
        "bytes only, nothing looked at; commits by timer, handled or not",
        1,
    ),
    (
        "aiokafka-for",
        "aiokafka async for",
        "kafka_consume:aiokafka_for",
        "bytes only, nothing looked at; commits by timer, handled or not",
        1,
    ),
    (
        "confluent-consume",
        "confluent-kafka consume(500)",
        "kafka_consume:confluent_consume",
        "bytes only; commits by timer; C client",
        1,
    ),
    (
        "faststream-message",
        "FastStream, per message",
        "kafka_consume:faststream_message",
        f"typed by its msgspec serializer, {_AT_MAX_ONCE}",
        5,
    ),
    (
        "faststream-message-tuned",
        "FastStream, per message, decoder by hand",
        "kafka_consume:faststream_message_tuned",
        f"decoded by hand into the type, {_AT_MAX_ONCE}",
        4,
    ),
    (
        "faststream-batch",
        "FastStream, batch=True",
        "kafka_consume:faststream_batch",
        f"typed by its msgspec serializer, {_AT_MAX_ONCE}; lists of 500",
        1,
    ),
    (
        "faststream-batch-tuned",
        "FastStream, batch=True, decoder by hand",
        "kafka_consume:faststream_batch_tuned",
        f"decoded by hand into the type, {_AT_MAX_ONCE}; lists of 500",
        1,
    ),
    (
        "faststream-confluent",
        "FastStream on confluent-kafka, per message",
        "kafka_consume:faststream_confluent",
        f"typed by its msgspec serializer, {_AT_MAX_ONCE}",
        8,
    ),
    (
        "sealbus-worker",
        "sealbus run",
        "sealbus_consume:worker",
        "verified, typed, order per key, retries, commits after handling",
        1,
    ),
    (
        "sealbus-unverified",
        "sealbus run, verification cut out",
        "sealbus_consume:no_verification",
        "not a product: typed, order per key, nothing verified",
        1,
    ),
)
QUEUE_PUBLISH = (
    (
        "sqlite3-batches",
        "sqlite3 by hand, batches of 500",
        "queues:put_by_hand",
        "a table, no queue; bytes given; FULL",
        1,
    ),
    ("sqlite3-one", "sqlite3 by hand, one by one", "queues:put_one_by_hand", "a table, no queue; bytes given; FULL", 4),
    (
        "persist-queue",
        "persist-queue SQLiteAckQueue",
        "queues:put_persistqueue",
        "one put a transaction; FULL; one reader gets a message, no groups",
        4,
    ),
    (
        "litequeue",
        "litequeue, 500 puts a transaction",
        "queues:put_litequeue",
        "text given; set to FULL (its own default is NORMAL); no groups",
        1,
    ),
    ("huey", "huey SqliteStorage, fsync", "queues:put_huey", "one enqueue a transaction; FULL; no groups", 4),
    (
        "sealbus-many",
        "sealbus publish_many",
        "sealbus_publish:many",
        f"{SEALED}; Structs given; 12 partitions, any number of groups; FULL",
        1,
    ),
)
QUEUE_CONSUME = (
    (
        "sqlite3-batches",
        "sqlite3 by hand, batches of 500",
        "queues:get_by_hand",
        "bytes only; position kept every 500",
        1,
    ),
    ("sqlite3-one", "sqlite3 by hand, one by one", "queues:get_one_by_hand", "bytes only; position kept for each", 4),
    ("persist-queue", "persist-queue SQLiteAckQueue", "queues:get_persistqueue", "bytes only; an ack for each", 8),
    (
        "persist-queue-batches",
        "persist-queue SQLiteQueue, 500 a task_done",
        "queues:get_persistqueue_batches",
        "bytes only; no ack of one message",
        2,
    ),
    (
        "litequeue",
        "litequeue, 500 done marks a transaction",
        "queues:get_litequeue",
        "text only; a done mark for each",
        8,
    ),
    ("huey", "huey SqliteStorage dequeue", "queues:get_huey", "bytes only; at most once: what was taken is gone", 8),
    (
        "sealbus-worker",
        "sealbus run",
        "sealbus_consume:worker",
        "verified, typed, order per key, retries, commits after handling",
        1,
    ),
)
PATHS: tuple[tuple[str, str, str, str, Literal["off", "require"]], ...] = (
    ("native-publish", "compiled", "sealbus publish_many, compiled hot path", "sealbus_publish:many", "require"),
    ("native-publish", "pure", "sealbus publish_many, SEALBUS_NATIVE=off", "sealbus_publish:many", "off"),
    ("native-consume", "compiled", "sealbus run, compiled hot path", "sealbus_consume:worker", "require"),
    ("native-consume", "pure", "sealbus run, SEALBUS_NATIVE=off", "sealbus_consume:worker", "off"),
)
