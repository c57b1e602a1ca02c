"""One consumer from joining a group to its certain end.

Owns the library's consumer and its traps. A fetch must never be cancelled. `commit` and `stop` may hang as long as the
brokers are away. A retried commit carries the generation current at the retry. The library swallows errors of a
rebalance listener. A member thrown out of an empty group may rewind its offsets. Deleted topics are not reported.
`subscription` decides what partitions mean to the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    IllegalStateError,
    KafkaError,
    RebalanceInProgressError,
)

from bus.errors import DeadlineError
from bus.telemetry.logs import get_logger
from bus.transports.base import Record
from bus.transports.kafka.options import KafkaOptions

__all__ = ["Committing", "Consumer", "Rebalance", "StalledPartitions", "kill"]

# The library keeps fetched batches compressed until they are asked for. Taking all at once would need ten times the
# memory, and the records would be out of the CPU cache when used.
_FETCH_RECORDS = 500
_START_S = 15.0
_KILL_S = 3.0
_COMMIT_S = 10.0
_FRESH_S = 5.0

Rebalance = Callable[[Iterable[TopicPartition]], Awaitable[None]]

_log = get_logger("kafka")


class _Attempt:
    """A commit in progress: whether it may be sent now, and whether its caller has stopped waiting."""

    __slots__ = ("is_current", "over")

    def __init__(self, is_current: Callable[[], bool]) -> None:
        self.is_current = is_current
        self.over = False


_attempt: ContextVar[_Attempt] = ContextVar("attempt")


class _Bridge(ConsumerRebalanceListener):  # type: ignore[misc]  # the library has no types
    def __init__(self, revoked: Rebalance, assigned: Rebalance) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        await self._revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        await self._assigned(assigned)


class Committing(enum.Enum):
    """The result of a commit."""

    TAKEN = enum.auto()
    OVERTAKEN = enum.auto()
    """Not committed: a new rebalance round began first. Partitions that are still owned afterwards can be committed
    again."""
    FENCED = enum.auto()
    """Not committed: the group has continued without this member."""


class Consumer:
    """A started member of a group."""

    def __init__(self, consumer: AIOKafkaConsumer, group: str, topics: Sequence[str]) -> None:
        self._consumer = consumer
        self._group = group
        self._topics = frozenset(topics)
        self._seen: set[str] = set()
        self._gone: set[str] = set()
        self._unfinished = StalledPartitions()
        self._ending: asyncio.Task[None] | None = None
        self.refreshed_s = time.monotonic()
        """When the cluster last answered this client (monotonic, in seconds)."""
        # There is no public way to detect a client that has lost all brokers.
        consumer._client.cluster.add_listener(self._refreshed)  # noqa: SLF001

    @classmethod
    async def join(
        cls,
        options: KafkaOptions,
        group: str,
        topics: Sequence[str],
        *,
        member: str,
        assignor: AbstractPartitionAssignor,
        revoked: Rebalance,
        assigned: Rebalance,
    ) -> Consumer:
        """Start a new member; partitions arrive through *assigned*.

        Raises the library's errors, and TimeoutError after 15 s.
        """
        arguments = options.member(group) | {"client_id": member, "partition_assignment_strategy": (assignor,)}
        consumer = AIOKafkaConsumer(**arguments)
        try:
            # Start without topics: with an unknown one, `start` would wait for ever.
            async with asyncio.timeout(_START_S):
                await consumer.start()
        except BaseException:
            await kill(consumer)
            raise
        _fence(consumer._coordinator)  # noqa: SLF001 - there is no public way
        joined = cls(consumer, group, topics)
        consumer.subscribe(list(topics), listener=_Bridge(revoked, assigned))
        return joined

    @property
    def generation(self) -> int:
        """The group's generation as seen by this member; negative while it is not a member."""
        return int(self._consumer._coordinator.generation)  # noqa: SLF001 - commits are fenced by it

    @property
    def member_id(self) -> str:
        """The id that the group gave this member; a new one after it was thrown out, empty before the first join."""
        return str(self._consumer._coordinator.member_id)  # noqa: SLF001 - it says whether what is held is still held

    def rejoin(self) -> None:
        """Start a rebalance, because this member has released partitions."""
        # The library's only public reason to rejoin is changed topics.
        self._consumer._coordinator.request_rejoin()  # noqa: SLF001

    async def fetch(self, timeout_s: float) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return the next fetched records, by partition.

        Never cancel this call: the library would stop watching its membership.
        """
        found: Mapping[TopicPartition, Sequence[Record]] = await self._consumer.getmany(
            timeout_ms=round(timeout_s * 1000), max_records=_FETCH_RECORDS
        )
        return found

    async def commit(self, offsets: Mapping[TopicPartition, int], is_current: Callable[[], bool]) -> Committing:
        """Commit *offsets*, or say what prevents it. Raises DeadlineError and the library's errors.

        *is_current* is checked before each attempt: the partition of another member must not be committed.
        """
        attempt = _Attempt(is_current)
        _attempt.set(attempt)
        try:
            async with asyncio.timeout(_COMMIT_S):
                await self._consumer.commit(dict(offsets))
        except IllegalStateError:
            return Committing.FENCED
        except CommitFailedError as error:
            return Committing.OVERTAKEN if isinstance(error.__cause__, RebalanceInProgressError) else Committing.FENCED
        except TimeoutError as error:
            raise DeadlineError(f"Kafka did not take the commit within {_COMMIT_S:g} s") from error
        finally:
            attempt.over = True
        return Committing.TAKEN

    def pause(self, locations: Iterable[TopicPartition]) -> None:
        """Fetch nothing from *locations*."""
        self._consumer.pause(*self._assigned(locations))

    def resume(self, locations: Iterable[TopicPartition]) -> None:
        """Fetch from *locations* again."""
        self._consumer.resume(*self._assigned(locations))

    def seek(self, location: TopicPartition, offset: int) -> None:
        """Fetch *location* from *offset* on."""
        if self._assigned((location,)):
            self._consumer.seek(location, offset)

    def position(self, location: TopicPartition) -> int | None:
        """Return the fetch position, behind everything `fetch` has returned; None if unknown."""
        # The public method waits until the position is known.
        assignment = self._consumer._subscription.subscription.assignment  # noqa: SLF001
        state = assignment.state_value(location) if assignment is not None else None
        return int(state.position) if state is not None and state.has_valid_position else None

    def restore(self, locations: Mapping[TopicPartition, tuple[int, bool] | None]) -> None:
        """Restore positions after a rebalance, in which the library forgets them.

        Per partition: the offset and whether to fetch at once. None means unknown; such a partition stays paused.
        """
        for location, known in locations.items():
            self.seek(location, known[0] if known else 0)
        self.pause(location for location, known in locations.items() if not (known and known[1]))

    async def kill(self) -> None:
        """Leave the group if possible, and stop within seconds, even if no broker answers.

        The shutdown continues if the caller is cancelled.
        """
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(kill(self._consumer))
        await asyncio.shield(self._ending)

    def _assigned(self, locations: Iterable[TopicPartition]) -> list[TopicPartition]:
        owned = self._consumer.assignment()
        return [location for location in locations if location in owned]

    def _refreshed(self, cluster: Any) -> None:
        self.refreshed_s = time.monotonic()
        self._log_missing_topics(cluster)
        self._log_open_transactions()

    def _log_missing_topics(self, cluster: Any) -> None:
        there = {topic for topic in self._topics if cluster.partitions_for_topic(topic) is not None}
        gone = self._seen - there
        self._seen |= there
        if news := gone - self._gone:
            # To the members that hold these partitions, it looks as if others had taken them.
            denied = sorted(news & cluster.unauthorized_topics)
            _log.error(
                "kafka.topics_gone",
                group=self._group,
                topics=sorted(news),
                denied=denied,
                detail="not read until they are back",
            )
        if news := self._gone - gone:
            _log.info("kafka.topics_back", group=self._group, topics=sorted(news))
        self._gone = gone

    def _log_open_transactions(self) -> None:
        if late := self._unfinished.late(self._held_up(), self.refreshed_s):
            locations = [f"{location.topic}/{location.partition}" for location in late]
            detail = (
                "another program has left a transaction open: "
                "nothing behind it is read until it ends, or the broker ends it"
            )
            _log.error("kafka.transaction_open", group=self._group, partitions=locations, detail=detail)

    def _held_up(self) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition that has records behind it.

        Only partitions that were fetched within the last seconds are included.
        """
        assignment = self._consumer._subscription.subscription.assignment  # noqa: SLF001 - there is no public way
        states = (
            {location: assignment.state_value(location) for location in assignment.tps}
            if assignment is not None
            else {}
        )
        fresh_ms = (time.time() - _FRESH_S) * 1000
        return {
            location: state.lso
            for location, state in states.items()
            if (state.timestamp or 0) > fresh_ms and state.lso < state.highwater
        }


def _fence(coordinator: Any) -> None:
    """Make every attempt of a commit check `_Attempt.is_current` first.

    The library awaits nothing between that check and the request, which names the generation.
    """
    send = coordinator._do_commit_offsets  # noqa: SLF001 - the one step that each try makes

    async def fenced(*arguments: Any) -> None:
        attempt = _attempt.get()
        try:
            if not attempt.is_current():
                raise RebalanceInProgressError
            await send(*arguments)
        except (KafkaError, OSError):
            # The library runs each attempt as its own task. If its caller no longer waits, the error would be reported
            # as never retrieved.
            if not attempt.over:
                raise

    coordinator._do_commit_offsets = fenced  # noqa: SLF001 - see above


async def kill(consumer: AIOKafkaConsumer) -> None:
    """Stop *consumer* within seconds, even if no broker answers.

    If the brokers are away, the library's own stop may end as if it were cancelled.
    """
    # Stopping does not wake a caller that waits for an assignment; it would wait for ever. Without a fetcher, the
    # library's stop fails at this step.
    if consumer._fetcher is not None:  # noqa: SLF001 - there is no public way
        consumer._subscription.abort_waiters(ConsumerStoppedError())  # noqa: SLF001 - see above
    quiet = contextlib.suppress(KafkaError, OSError, TimeoutError, asyncio.CancelledError)
    with quiet:
        await asyncio.wait_for(consumer.stop(), _KILL_S)
        return
    # The stop hangs because the coordinator is away: end its tasks one by one.
    coordinator, fetcher = consumer._coordinator, consumer._fetcher  # noqa: SLF001 - there is no public way
    tasks = [
        getattr(coordinator, name, None) for name in ("_coordination_task", "_heartbeat_task", "_commit_refresh_task")
    ]
    for task in tasks:
        if task is not None:
            task.cancel()
    pending = [task for task in tasks if task is not None and not task.done()]
    if pending:
        await asyncio.wait(pending, timeout=_KILL_S)
    if fetcher is not None:
        with quiet:
            await asyncio.wait_for(fetcher.close(), _KILL_S)
    with quiet:
        await asyncio.wait_for(consumer._client.close(), _KILL_S)  # noqa: SLF001 - see above


_LATE_S = 10.0


class StalledPartitions:
    """Tracks the offset at which each stalled partition has stopped, and since when."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        self._logged_late: set[TopicPartition] = set()

    def late(self, held_up: Mapping[TopicPartition, int], now_s: float) -> list[TopicPartition]:
        """Return the partitions of *held_up* that have stood still for 10 s; each is returned once.

        *held_up* maps a partition to the offset behind which no record is returned.
        """
        before = self._since
        self._since = {
            location: known if (known := before.get(location, (-1, now_s)))[0] == at else (at, now_s)
            for location, at in held_up.items()
        }
        late = {location for location, (_, since_s) in self._since.items() if now_s - since_s >= _LATE_S}
        news, self._logged_late = sorted(late - self._logged_late), late
        return news
