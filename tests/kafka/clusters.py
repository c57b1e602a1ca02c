"""Starting real clusters for tests, or saying why there is none.

Owns what their brokers are told, and what follows when Kafka cannot be had: a skip, or a failure where it is required.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.kafka.cluster import Cluster
from deploy.kafka.errors import KafkaUnavailableError

__all__ = ["SETTINGS", "started", "unavailable"]

SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "message.max.bytes": "20000000",
    "replica.fetch.max.bytes": "20000000",
}
unavailable: list[str] = []
"""Why there is no Kafka, once that is known."""


def started(folder: Path, **shape: object) -> Cluster:
    """A cluster in *folder*, running; a skip, or a failure where Kafka is required, when there can be none."""
    if unavailable:
        pytest.skip(unavailable[0])
    cluster = Cluster(folder, settings=SETTINGS, **shape)
    try:
        cluster.start()
    except KafkaUnavailableError as error:
        unavailable.append(f"no Kafka: {error}")
        if os.environ.get("SEALBUS_REQUIRE_KAFKA") == "1":
            pytest.fail(unavailable[0])
        pytest.skip(unavailable[0])
    return cluster
