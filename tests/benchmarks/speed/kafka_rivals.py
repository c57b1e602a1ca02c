"""How other libraries' clients are set up: the settings that all variants share.

Owns the settings only: 1 MB batches where a variant says nothing else, 5 ms linger, acks=all, idempotence, and the
compression that the task names.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from speed.measurement import Task

__all__ = [
    "BATCH_BYTES",
    "LINGER_MS",
    "aiokafka_consumer",
    "aiokafka_producer",
    "confluent_consumer",
    "confluent_producer",
    "codec",
]

BATCH_BYTES = 1_048_576
LINGER_MS = 5
Codec: TypeAlias = Literal["gzip", "snappy", "lz4", "zstd"]


def codec(task: Task) -> Codec | None:
    """The compression as aiokafka names it."""
    return None if task.compression == "none" else cast("Codec", task.compression)


def aiokafka_producer(task: Task, *, linger_ms: int = LINGER_MS, batch_bytes: int = BATCH_BYTES) -> AIOKafkaProducer:
    """Of aiokafka."""
    return AIOKafkaProducer(
        bootstrap_servers=task.bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=linger_ms,
        max_batch_size=batch_bytes,
        compression_type=codec(task),
        # A compressed batch is measured before it is compressed.
        max_request_size=4 * BATCH_BYTES,
    )


def aiokafka_consumer(task: Task) -> AIOKafkaConsumer:
    """Of aiokafka, with its defaults: what was read is committed every five seconds, handled or not."""
    return AIOKafkaConsumer(
        task.topic, bootstrap_servers=task.bootstrap, group_id=task.group, auto_offset_reset="earliest"
    )


def confluent_producer(task: Task) -> dict[str, object]:
    """Of confluent-kafka; its queue holds everything, so that the program never waits for room."""
    return {
        "bootstrap.servers": task.bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": LINGER_MS,
        "batch.size": BATCH_BYTES,
        "compression.type": task.compression,
        "partitioner": "murmur2_random",
        "queue.buffering.max.messages": 10_000_000,
        "queue.buffering.max.kbytes": 2_097_151,
    }


def confluent_consumer(task: Task) -> dict[str, object]:
    """Of confluent-kafka, with its defaults."""
    return {"bootstrap.servers": task.bootstrap, "group.id": task.group, "auto.offset.reset": "earliest"}
