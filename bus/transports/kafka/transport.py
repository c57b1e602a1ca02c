"""Apache Kafka as a `Transport`.

Owns creating its parts, and closing them in order within a deadline, even if no broker answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from bus.clock import Clock
from bus.errors import BusError, ClosedError, RecordTooLargeError
from bus.transports.base import (
    Admin,
    AppendOutcome,
    Features,
    Listener,
    NewRecord,
    OnOutcomes,
    Record,
    check_group_name,
    check_topic_name,
)
from bus.transports.kafka.admin.admin import KafkaAdmin
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.cluster.topic_facts import TopicFacts
from bus.transports.kafka.consumer.reader import Reading
from bus.transports.kafka.consumer.subscription import KafkaSubscription
from bus.transports.kafka.options import KafkaOptions
from bus.transports.kafka.producer.appender import Appender
from bus.transports.kafka.producer.partition_choice import too_large

__all__ = ["KafkaTransport"]

_CLOSE_S = 5.0
_APPENDS = 64


class KafkaTransport:
    """A Kafka cluster. Connects at first use; belongs to the event loop that uses it."""

    features: Features
    admin: Admin

    def __init__(self, options: KafkaOptions, *, clock: Clock) -> None:
        self.features = Features(
            name="kafka",
            durable=True,
            between_processes=True,
            max_record_bytes=options.max_record_bytes,
            creates_topics_at_start=False,
            appends_in_flight=_APPENDS,
        )
        self._options = options
        self._link = ClusterClient(options, clock)
        self._sending = Appender(options, self._link, clock)
        self._reading = Reading(options, self._link, clock)
        self._subscriptions: list[KafkaSubscription] = []
        self._closed: asyncio.Task[None] | None = None
        self.admin = KafkaAdmin(self._link, self._ready, max_record_bytes=options.max_record_bytes)

    async def append(
        self, records: Sequence[NewRecord], *, timeout_s: float, on_outcomes: OnOutcomes | None = None
    ) -> Sequence[AppendOutcome]:
        self._ready()
        return await self._sending.append(records, timeout_s=timeout_s, on_outcomes=on_outcomes)

    async def refusals(self, records: Sequence[NewRecord]) -> Sequence[RecordTooLargeError | None]:
        self._ready()
        facts: dict[str, TopicFacts | None] = {}
        for name in {record.topic for record in records}:
            facts[name] = self._link.known(name)
            if facts[name] is None:
                with contextlib.suppress(BusError):
                    facts[name] = await self._link.topic(name)
        return [too_large(record, facts[record.topic], self._options.max_record_bytes) for record in records]

    async def subscribe(
        self, group: str, topics: Sequence[str], listener: Listener, *, member: str
    ) -> KafkaSubscription:
        self._ready()
        check_group_name(group)
        for topic in topics:
            check_topic_name(topic)
        await self._link.topics(topics)
        subscription = KafkaSubscription(group, topics, listener, member=member, link=self._link)
        await subscription.open()
        if self._closed is not None:
            # The transport was closed during the join: nothing else would close this member, and its partitions would
            # lie idle.
            await subscription.close()
            self._ready()
        self._subscriptions = [*(known for known in self._subscriptions if not known.closed), subscription]
        return subscription

    async def read(
        self, topic: str, partition: int, offset: int, *, max_records: int, max_bytes: int, wait_s: float = 0.0
    ) -> Sequence[Record]:
        self._ready()
        return await self._reading.read(
            topic, partition, offset, max_records=max_records, max_bytes=max_bytes, wait_s=wait_s
        )

    async def close(self) -> None:
        if self._closed is None:
            # The shutdown is a task of its own: it must go on when the caller is cancelled, as a second call could not
            # finish it.
            self._closed = asyncio.get_running_loop().create_task(self._shut())
        await asyncio.shield(self._closed)

    async def _shut(self) -> None:
        await asyncio.gather(*(subscription.close() for subscription in self._subscriptions), self._reading.close())
        await self._sending.close(_CLOSE_S)
        await self._link.close()

    def _ready(self) -> None:
        if self._closed is not None:
            raise ClosedError("the transport is closed")
