"""What a topic shall be on Kafka: a spec, the size of the cluster, and what keeps acknowledged records safe. Pure.

Owns replication and the settings that every topic of the bus gets. Does not own specs and their comparison
(`bus.topics.specs`).
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.transports.base import TopicSpec
from bus.transports.topic_settings import INSYNC, MAX_BATCH, REPLICAS, RETENTION_BYTES, RETENTION_MS, settings_of

__all__ = ["shape", "spec_of"]

_BATCH_OVERHEAD = 1024
_MAX_REPLICAS = 3


def shape(spec: TopicSpec, found: Mapping[str, str] | None, *, brokers: int, max_record_bytes: int) -> dict[str, str]:
    """Everything that is wanted of a topic which is as *found* now (None: missing)."""
    replicas = min(_MAX_REPLICAS, brokers)
    # A topic that has fewer replicas than it should must not be asked for more of them in sync: nothing could be
    # written.
    present = replicas if found is None else int(found[REPLICAS])
    return settings_of(spec) | {
        REPLICAS: str(replicas),
        INSYNC: str(max(1, min(_MAX_REPLICAS, present) - 1)),
        MAX_BATCH: str(max_record_bytes + _BATCH_OVERHEAD),
        # Retention goes by the time of a record: a publisher's wrong clock must not delete early or never (KAFKA-7910).
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
    }


def spec_of(name: str, partitions: int, settings: Mapping[str, str]) -> TopicSpec:
    """The spec that a topic with these *settings* answers to."""
    return TopicSpec(
        name=name,
        partitions=partitions,
        retention_ms=_limit(settings.get(RETENTION_MS)),
        retention_bytes=_limit(settings.get(RETENTION_BYTES)),
        compacted="compact" in settings.get("cleanup.policy", ""),
    )


def _limit(text: str | None) -> int | None:
    return None if text is None or int(text) < 0 else int(text)
