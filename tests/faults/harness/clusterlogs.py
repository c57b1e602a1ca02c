"""Kafka as the fault tests see it from outside: every record, every commit as the cluster itself wrote it down, and the
lag.

Owns reading with another client library than the product's, past the links. Nothing is sampled: the topic of the
group's offsets holds all commits.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from harness.history import Commit, Entry, Note
from harness.linked import LinkedCluster
from harness.logs import NOTES, entry_of, kind_of, value_of

__all__ = ["KafkaLog", "quiet", "read_commit"]

_OFFSETS = "__consumer_offsets"
_TIMEOUT_S = 20.0
_MOMENT_S = 0.2


class KafkaLog:
    """The topics of one namespace on one cluster."""

    name = "kafka"

    def __init__(self, cluster: LinkedCluster, namespace: str, group: str) -> None:
        self.url = f"kafka://{cluster.linked_bootstrap}"
        self.direct_url = f"kafka://{cluster.bootstrap}"
        self._addresses = cluster.bootstrap
        self._namespace = namespace
        self._group = group
        self._admin = AdminClient(quiet(self._addresses))
        # It never joins. An admin client asked for a group's offsets dies of a coordinator that has moved (librdkafka
        # 2.16).
        self._member = Consumer(quiet(self._addresses) | {"group.id": group, "enable.auto.commit": False})

    def watch(self) -> None:
        """The cluster writes every commit down by itself."""

    def lag(self) -> int | None:
        """Records of the group's topics that it has not committed; None while nobody can tell."""
        try:
            places = [
                place
                for place in self._places(("message", "retry", "redrive"))
                if not place.topic.endswith("fault.answer")
            ]
            ends = self._ends(places)
            committed = {
                (place.topic, place.partition): max(0, place.offset)
                for place in self._member.committed(places, timeout=_TIMEOUT_S)
            }
        except (KafkaException, TimeoutError):
            return None
        return sum(max(0, end - committed.get(place, 0)) for place, end in ends.items())

    def entries(self) -> list[Entry]:
        """Every record that a reader of committed records sees, partition by partition."""
        found = []
        for message in self._read(self._places(("message", "dlq", "retry", "redrive", "reply"))):
            headers: Any = message.headers() or ()
            entry = entry_of(
                (message.topic() or "", message.partition() or 0, message.offset() or 0),
                message.timestamp()[1],
                message.value(),
                [(name, value or b"") for name, value in headers],
            )
            if entry is not None:
                found.append(entry)
        return found

    def commits(self) -> list[Commit]:
        """Every commit of the group for this namespace, in order per partition."""
        numbers = self._admin.list_topics(_OFFSETS, timeout=_TIMEOUT_S).topics[_OFFSETS].partitions
        found = []
        for message in self._read([TopicPartition(_OFFSETS, number) for number in numbers]):
            commit = read_commit(message.key() or b"", message.value())
            if commit is not None and commit[0] == self._group and commit[1].startswith(f"{self._namespace}."):
                found.append(
                    Commit(topic=commit[1], partition=commit[2], offset=commit[3], at_ms=message.timestamp()[1])
                )
        return found

    def notes(self) -> list[Note]:
        """What the bus wrote down about dead letters."""
        places = self._places_in(lambda topic: topic.partition(".")[2] in NOTES)
        return [
            Note(topic=message.topic() or "", key=(message.key() or b"").decode(), told=value_of(message.value()))
            for message in self._read(places)
        ]

    def size(self, kind: str) -> int:
        """How many records the topics of *kind* have had."""
        return sum(self._ends(self._places((kind,))).values())

    def _ends(self, places: list[TopicPartition]) -> dict[tuple[str, int], int]:
        asked = self._admin.list_offsets({place: OffsetSpec.latest() for place in places}, request_timeout=_TIMEOUT_S)
        return {(place.topic, place.partition): future.result(_TIMEOUT_S).offset for place, future in asked.items()}

    def _places(self, kinds: tuple[str, ...]) -> list[TopicPartition]:
        return self._places_in(lambda topic: kind_of(topic) in kinds)

    def _places_in(self, wanted: Callable[[str], bool]) -> list[TopicPartition]:
        topics: Mapping[str, object] = self._admin.list_topics(timeout=_TIMEOUT_S).topics
        return [
            TopicPartition(topic, number)
            for topic, metadata in sorted(topics.items())
            if topic.startswith(f"{self._namespace}.") and wanted(topic)
            for number in metadata.partitions  # type: ignore[attr-defined]
        ]

    def _read(self, places: list[TopicPartition]) -> Iterator[Message]:
        """Every record of *places* up to their ends."""
        consumer = Consumer(
            quiet(self._addresses)
            | {"group.id": "fault-auditor", "enable.auto.commit": False, "enable.partition.eof": True}
        )
        try:
            consumer.assign([TopicPartition(place.topic, place.partition, OFFSET_BEGINNING) for place in places])
            ended: set[tuple[str | None, int | None]] = set()
            heard_s = time.monotonic()
            while len(ended) < len(places):
                # It waits until so many are there: not for long, the end of a partition is one of them.
                messages = consumer.consume(1000, _MOMENT_S)
                if messages:
                    heard_s = time.monotonic()
                elif time.monotonic() - heard_s > _TIMEOUT_S:
                    raise RuntimeError("the log cannot be read")
                for message in messages:
                    if message.error() is None:
                        yield message
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        ended.add((message.topic(), message.partition()))
        finally:
            consumer.close()


def quiet(addresses: str) -> dict[str, Any]:
    """Settings of a client that says nothing about brokers that are away: that is what these tests are about."""
    return {"bootstrap.servers": addresses, "log_level": 0, "log.connection.close": False}


def read_commit(key: bytes, value: bytes | None) -> tuple[str, str, int, int] | None:
    """Group, topic, partition and offset of a record of the offsets topic; None for one that is no commit."""
    (version,) = struct.unpack_from(">h", key)
    if version > 1 or value is None:
        return None
    at, texts = 2, []
    for _ in range(2):
        (length,) = struct.unpack_from(">h", key, at)
        texts.append(key[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return texts[0], texts[1], struct.unpack_from(">i", key, at)[0], struct.unpack_from(">hq", value)[1]
