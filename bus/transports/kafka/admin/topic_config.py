"""The settings a topic needs on Kafka: its spec, replication by cluster size, and what keeps acknowledged records safe.

Pure. Owns replication and the settings common to all topics of the bus. `bus.topics.specs` owns the specs,
`bus.transports.topic_settings` their comparison.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.transports.base import TopicSpec
from bus.transports.topic_settings import INSYNC, MAX_BATCH, REPLICAS, RETENTION_BYTES, RETENTION_MS, settings_of

__all__ = ["shape", "spec_of"]

_BATCH_OVERHEAD = 1024
_MAX_REPLICAS = 3


def shape(spec: TopicSpec, found: Mapping[str, str] | None, *, brokers: int, max_record_bytes: int) -> dict[str, str]:
    """Return all wanted settings of a topic whose present settings are *found* (None: missing)."""
    replicas = min(_MAX_REPLICAS, brokers)
    # A topic with fewer replicas than wanted must not require more in-sync replicas: nothing could be written.
    present = replicas if found is None else int(found[REPLICAS])
    return settings_of(spec) | {
        REPLICAS: str(replicas),
        INSYNC: str(max(1, min(_MAX_REPLICAS, present) - 1)),
        MAX_BATCH: str(max_record_bytes + _BATCH_OVERHEAD),
        # Retention uses the record's time: a publisher's wrong clock must not delete records early or never
        # (KAFKA-7910).
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
    }


def spec_of(name: str, partitions: int, settings: Mapping[str, str]) -> TopicSpec:
    """Return the spec that describes a topic with these *settings*."""
    return TopicSpec(
        name=name,
        partitions=partitions,
        retention_ms=_limit(settings.get(RETENTION_MS)),
        retention_bytes=_limit(settings.get(RETENTION_BYTES)),
        compacted="compact" in settings.get("cleanup.policy", ""),
    )


def _limit(text: str | None) -> int | None:
    return None if text is None or int(text) < 0 else int(text)
