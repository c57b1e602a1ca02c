"""The Kafka that is measured against: one real node on a processor of its own.

Owns its start and end, making and removing topics, and how many bytes a topic takes in its log. Does not own Kafka
itself (`deploy.kafka`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deploy.kafka.cluster import Cluster

__all__ = ["Broker", "bound_to", "started"]

_SETTINGS = {
    "message.max.bytes": "4194304",
    "log.segment.delete.delay.ms": "1000",
    "group.min.session.timeout.ms": "1000",
}
_TIMEOUT_S, _AT_ONCE = 30.0, 200


class Broker:
    """A running Kafka."""

    def __init__(self, bootstrap: str, data: Path, pid: int | None = None) -> None:
        self.bootstrap = bootstrap
        self.pid = pid
        self._data = data
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def make_topic(self, name: str, partitions: int) -> None:
        """A new topic, replicated once."""
        self.make_topics([name], partitions)

    def make_topics(self, names: Sequence[str], partitions: int) -> None:
        """New topics alike; in several requests, for a controller refuses too large ones."""
        for some in _apart(names):
            for future in self._admin.create_topics(
                [NewTopic(name, num_partitions=partitions, replication_factor=1) for name in some]
            ).values():
                future.result(_TIMEOUT_S)

    def topics(self) -> set[str]:
        """All topics there are, but Kafka's own."""
        return {name for name in self._admin.list_topics(timeout=_TIMEOUT_S).topics if not name.startswith("__")}

    def keep_only(self, names: set[str]) -> None:
        """Remove every topic but *names*: whatever a measurement left."""
        gone = sorted(self.topics() - names)
        for some in _apart(gone):
            for future in self._admin.delete_topics(some).values():
                with suppress(Exception):  # a topic too much costs nothing but disk
                    future.result(_TIMEOUT_S)

    def bytes_in(self, topic: str) -> int:
        """What the log of *topic* takes on disk, which is what went over the wire."""
        return sum(file.stat().st_size for file in self._data.glob(f"{topic}-*/*.log"))


def _apart(names: Sequence[str]) -> list[list[str]]:
    return [list(names[at : at + _AT_ONCE]) for at in range(0, len(names), _AT_ONCE)]


@contextmanager
def bound_to(cpu: int | None) -> Iterator[bool]:
    """Bind this process to *cpu* for a while: what it starts meanwhile stays there. Yields whether that worked."""
    if cpu is None or not hasattr(os, "sched_setaffinity"):
        yield False
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def started(folder: Path, cpu: int | None) -> Iterator[Broker]:
    """A Kafka in *folder*, on *cpu* alone where that is possible; ended with this context in any case."""
    cluster = Cluster(folder, settings=_SETTINGS, heap_mb=1024)
    with bound_to(cpu):
        cluster.start()
    try:
        yield Broker(cluster.bootstrap, cluster.nodes[0].folder / "data", cluster.nodes[0].pid)
    finally:
        cluster.stop()
