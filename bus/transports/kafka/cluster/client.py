"""One client for questions about metadata, offsets, topics and groups; it is replaced when it stops working.

Owns connecting, the deadline of every question, and a cache of topic facts (partition counts, size limits) for a few
seconds. A client of the library asks only the brokers it last heard of and never its bootstrap list again. A question
that fails is therefore repeated through a new client. Records are carried by the packages `producer` and `consumer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, NotLeaderForPartitionError, for_code
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from bus.backoff import Backoff
from bus.clock import Clock
from bus.errors import BusError, ClosedError, DeadlineError, TopicMissingError, UnreachableError
from bus.transports.base import PartitionRange
from bus.transports.kafka.cluster.diagnosis import probe
from bus.transports.kafka.cluster.topic_facts import TopicFacts
from bus.transports.kafka.errors import kafka_error_of
from bus.transports.kafka.options import KafkaOptions

__all__ = ["ClusterClient"]

_T = TypeVar("_T")

_FRESH_S = 5.0
_QUESTION_S = 15.0
_CLOSE_S = 2.0
_BOOTSTRAP_S = 6.0
_EARLIEST, _LATEST = -2, -1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_LARGEST, _IN_SYNC = "max.message.bytes", "min.insync.replicas"


class ClusterClient:
    """Asks the cluster questions, each with its own deadline. Connects at the first one."""

    def __init__(self, options: KafkaOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self._clients: dict[type[Any], Any] = {}
        self._connecting = asyncio.Lock()
        self._facts: dict[str, tuple[float, TopicFacts]] = {}
        self._closed = False
        self.connected_once = False
        """Whether this cluster has ever answered. Before that, failures are reported at once instead of waited out."""
        self._answered = False
        """Whether a broker has answered at its advertised address."""

    async def ask(
        self, doing: str, question: Callable[[AIOKafkaClient], Awaitable[_T]], *, timeout_s: float = _QUESTION_S
    ) -> _T:
        """Return the answer to *question*; raise a bus error whose text begins with *doing*."""
        return await self._ask(doing, partial(self._connect, AIOKafkaClient, "bootstrap"), question, timeout_s)

    async def administer(
        self, doing: str, question: Callable[[AIOKafkaAdminClient], Awaitable[_T]], *, timeout_s: float = _QUESTION_S
    ) -> _T:
        """Like `ask`, with the client that changes topics and describes groups."""
        return await self._ask(doing, partial(self._connect, AIOKafkaAdminClient, "start"), question, timeout_s)

    async def topic(self, name: str) -> TopicFacts:
        """Return facts about a topic, at most a few seconds old. Raises TopicMissingError, NotPermittedError."""
        known = self._facts.get(name)
        if known is not None and not self.is_stale(name):
            return known[1]
        return (await self.topics([name], limits=known is None or known[1].max_batch_bytes is None))[name]

    def known(self, name: str) -> TopicFacts | None:
        """Return the cached facts about a topic, however old; None without any."""
        known = self._facts.get(name)
        return known[1] if known is not None else None

    def is_stale(self, name: str) -> bool:
        """Tell whether the cached facts about a topic are missing or too old."""
        known = self._facts.get(name)
        return known is None or self.clock.monotonic_s() - known[0] >= _FRESH_S

    def forget(self, name: str) -> None:
        """Drop the cached facts about a topic, which turned out to be wrong."""
        self._facts.pop(name, None)

    async def topics(self, names: Iterable[str], *, limits: bool = False) -> dict[str, TopicFacts]:
        """Return fresh facts about *names*; raise TopicMissingError for the first missing topic."""
        wanted = list(dict.fromkeys(names))
        found = await self.ask("reading topics", lambda client: _describe(client, wanted))
        if limits:
            found = {name: await self._add_limits(name, facts) for name, facts in found.items()}
        self._remember(found)
        return {name: self._facts[name][1] for name in wanted}

    def _remember(self, found: Mapping[str, TopicFacts]) -> None:
        now_s = self.clock.monotonic_s()
        for name, facts in found.items():
            if facts.max_batch_bytes is None and (known := self.known(name)) is not None:
                facts = msgspec.structs.replace(  # noqa: PLW2901
                    facts, max_batch_bytes=known.max_batch_bytes, min_in_sync=known.min_in_sync
                )
            self._facts[name] = now_s, facts

    async def all_topics(self) -> dict[str, TopicFacts]:
        """Return every topic except Kafka's internal ones."""
        return await self.ask("reading topics", lambda client: _describe(client, None))

    async def ranges(self, topic: str) -> dict[int, PartitionRange]:
        """Return the offsets of every partition of *topic*. Raises TopicMissingError, UnreachableError."""

        async def question(client: AIOKafkaClient) -> dict[TopicPartition, PartitionRange]:
            facts = await _describe(client, [topic])
            self._remember(facts)
            partitions = [TopicPartition(topic, number) for number in range(facts[topic].partitions)]
            return await _spans(client, await _led(client, partitions, facts))

        found = await self.ask("reading offsets", question)
        return {location.partition: span for location, span in found.items()}

    async def spans(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionRange]:
        """Return the start and end offset of each partition, as its leader knows them."""

        async def question(client: AIOKafkaClient) -> dict[TopicPartition, PartitionRange]:
            return await _spans(client, await _leaders(client, partitions))

        return await self.ask("reading offsets", question)

    async def offsets_at(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Return for each partition the first offset of that time or later; its end if there is none."""

        async def question(client: AIOKafkaClient) -> dict[TopicPartition, int]:
            leaders = await _leaders(client, partitions)
            found = await _offsets(client, leaders, timestamp_ms if timestamp_ms > 0 else _EARLIEST)
            later = {location: leaders[location] for location, offset in found.items() if offset < 0}
            return found | (await _offsets(client, later, _LATEST))

        return await self.ask("reading offsets", question) if partitions else {}

    async def held_up(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return how many offsets of each partition lie behind the first open transaction, where there is one."""

        async def question(client: AIOKafkaClient) -> dict[TopicPartition, int]:
            leaders = await _leaders(client, partitions)
            # In this order: what is appended between the two answers lies behind no transaction.
            last = await _offsets(client, leaders, _LATEST, _READ_UNCOMMITTED)
            stable = await _offsets(client, leaders, _LATEST)
            return {
                location: last[location] - stable[location]
                for location in partitions
                if last[location] > stable[location]
            }

        return await self.ask("reading offsets", question) if partitions else {}

    async def is_reachable(self) -> bool:
        """Tell whether a new client can reach the cluster, whatever the present client reports."""
        return await probe(self.options) is None

    async def pause(self, delay_s: float) -> None:
        """Wait *delay_s* before the next question."""
        await self.clock.sleep(delay_s)

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        await self._drop()

    async def _ask(
        self,
        doing: str,
        connected: Callable[[], Awaitable[Any]],
        question: Callable[[Any], Awaitable[_T]],
        timeout_s: float,
    ) -> _T:
        deadline_s = self.clock.monotonic_s() + timeout_s
        pauses_s = Backoff(0.1, 1.0).delays_s()
        while True:
            pause_s = next(pauses_s)
            left_s = deadline_s - self.clock.monotonic_s()
            try:
                async with asyncio.timeout(max(0.1, left_s)):
                    answer = await question(await connected())
                self._answered = True
            except (KafkaError, OSError, TimeoutError, AttributeError) as error:
                # AttributeError: the library addresses a node that it has forgotten.
                fault = kafka_error_of(error, doing)
                if not (fault.retriable or isinstance(error, AttributeError)):
                    raise fault from error
                advertised = self._advertised()
                await self._drop()
                if self.clock.monotonic_s() + pause_s >= deadline_s:
                    raise await self._misled(advertised) or fault from error
            else:
                return answer
            await self.clock.sleep(pause_s)

    def _advertised(self) -> tuple[str, ...]:
        """Return the brokers' advertised addresses that are not among the bootstrap addresses."""
        clients = [getattr(client, "_client", client) for client in self._clients.values()]
        found = {f"{broker.host}:{broker.port}" for client in clients for broker in client.cluster.brokers()}
        return tuple(sorted(found.difference(self.options.bootstrap)))

    async def _misled(self, advertised: tuple[str, ...]) -> BusError | None:
        """Return the error for a cluster that answers, but not at its advertised addresses.

        The cluster sends every client to those addresses, and they do not answer from here.
        """
        if self._answered or not advertised:
            return None
        cause = await probe(msgspec.structs.replace(self.options, bootstrap=advertised), has_answered=True)
        addresses = ", ".join(self.options.bootstrap)
        return cause and UnreachableError(
            f"{addresses} answers, and sends clients on to addresses that do not (its advertised.listeners): {cause}"
        )

    async def _connect(self, kind: type[Any], start: str) -> Any:
        async with self._connecting:
            self._check_open()
            if kind not in self._clients:
                client = kind(**self.options.common())
                # Otherwise the client reads every topic of the cluster every few seconds, and thousands of them block
                # the loop.
                getattr(client, "_client", client)._topics = _NoTopics()  # noqa: SLF001 - an empty set means all
                self._clients[kind] = await self._start(client, start)
                self.connected_once = True
            return self._clients[kind]

    async def _start(self, client: Any, method: str) -> Any:
        try:
            async with asyncio.timeout(_BOOTSTRAP_S):
                await getattr(client, method)()
            # Closed in the meantime: nothing else would close this client.
            self._check_open()
        except BaseException as error:
            await _close_all(client)
            if not isinstance(error, KafkaError | TimeoutError):
                raise
            # The library reports a wrong password and a dead broker alike: probe for the cause.
            cause = await probe(self.options, has_answered=self.connected_once)
            raise cause or UnreachableError("Kafka answered, and then not any more") from error
        return client

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the transport is closed")

    async def _drop(self) -> None:
        clients, self._clients = self._clients, {}
        await _close_all(*clients.values())

    async def _add_limits(self, name: str, facts: TopicFacts) -> TopicFacts:
        """Add the topic's own limits to *facts*, if this user may read them.

        Otherwise the broker reports when a batch is too large.
        """
        resource = ConfigResource(ConfigResourceType.TOPIC, name, {_LARGEST: "", _IN_SYNC: ""})
        try:
            answers = await self.administer(
                "reading a topic's limits", lambda admin: admin.describe_configs([resource])
            )
        except (BusError, DeadlineError):
            return facts
        values: Mapping[str, str] = {
            entry[0]: entry[1] for answer in answers for item in answer.resources for entry in item[4]
        }
        limit, in_sync_text = values.get(_LARGEST), values.get(_IN_SYNC)
        return msgspec.structs.replace(
            facts, max_batch_bytes=int(limit) if limit else None, min_in_sync=int(in_sync_text) if in_sync_text else 1
        )


class _NoTopics(set[str]):
    """The topic set of a client that tracks only the brokers, and asks for topics by name when needed."""

    def __bool__(self) -> bool:
        return True


async def _close_all(*clients: Any) -> None:
    # Each close is a task of its own: the task may end as cancelled, which must not look like a cancelled caller.
    closing = [asyncio.get_running_loop().create_task(client.close()) for client in clients]
    for task in closing:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    if closing:
        await asyncio.wait(closing, timeout=_CLOSE_S)
    for task in closing:
        task.cancel()


async def _describe(client: AIOKafkaClient, names: list[str] | None) -> dict[str, TopicFacts]:
    answer = await client.send(client.get_random_node(), MetadataRequest(names, allow_auto_topic_creation=False))
    found: dict[str, TopicFacts] = {}
    for topic in answer.to_object()["topics"]:
        name, code = topic["topic"], topic["error_code"]
        if names is None and (topic.get("is_internal") or code):
            continue
        if code:
            error = for_code(code)()
            raise kafka_error_of(error, f"topic {name[:249]!r}") from error
        items = {item["partition"]: item for item in topic["partitions"]}
        each = [items.get(number, {"leader": -1, "isr": ()}) for number in range(len(items))]
        found[name] = TopicFacts(
            tuple(item["leader"] for item in each), in_sync=tuple(len(item["isr"]) for item in each)
        )
    missing = set(names or ()) - set(found)
    if missing:
        raise TopicMissingError(f"no topic {min(missing)[:249]!r}; create it with `sealbus topic apply`")
    return found


async def _leaders(client: AIOKafkaClient, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    return await _led(client, partitions, await _describe(client, sorted({location.topic for location in partitions})))


async def _led(
    client: AIOKafkaClient, partitions: Sequence[TopicPartition], facts: Mapping[str, TopicFacts]
) -> dict[TopicPartition, int]:
    """Return the leader of each partition by *facts*, which were read just now."""
    leaders = {
        location: facts[location.topic].leaders[location.partition]
        for location in partitions
        if location.partition < facts[location.topic].partitions
    }
    for location in partitions:
        if location not in leaders:
            raise TopicMissingError(f"topic {location.topic!r} has no partition {location.partition}")
        if leaders[location] < 0:
            raise NotLeaderForPartitionError(
                f"partition {location.partition} of {location.topic} has no leader just now"
            )
        if client.cluster.broker_metadata(leaders[location]) is None:
            await client.force_metadata_update()
    return leaders


async def _spans(client: AIOKafkaClient, leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionRange]:
    starts = await _offsets(client, leaders, _EARLIEST)
    ends = await _offsets(client, leaders, _LATEST)
    return {location: PartitionRange(starts[location], ends[location]) for location in leaders}


async def _offsets(
    client: AIOKafkaClient, leaders: Mapping[TopicPartition, int], which: int, isolation: int = _READ_COMMITTED
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for node in sorted(set(leaders.values())):
        queries: dict[str, list[tuple[int, int]]] = {}
        for location, leader in leaders.items():
            if leader == node:
                queries.setdefault(location.topic, []).append((location.partition, which))
        answer = await client.send(node, OffsetRequest(-1, isolation, list(queries.items())))
        for topic, items in answer.topics:
            for partition, code, *rest in items:
                if code:
                    raise for_code(code)(f"{topic} partition {partition}")
                found[TopicPartition(topic, partition)] = rest[-1]
    return found
