"""One life of a consumer: it joins a group, fetches, commits, and ends for certain.

Owns the library's consumer with its traps: a fetch must never be cancelled, `commit` and `stop` may hang for as long as
the brokers are away, a commit that is tried again is sent in the name of whatever generation it is by then, errors of a
rebalance listener are swallowed, a member that was thrown out of an empty group may rewind its offsets, of topics that
are gone nothing is said. Does not own what partitions mean to the bus: see `subscription`.
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

__all__ = ["Committing", "Consumer", "Rebalance", "Unfinished", "killed"]

# What was fetched lies there compressed until it is asked for: all at once it would be ten times as much memory, and
# cold when its turn comes.
_FETCH_RECORDS = 500
_START_S = 15.0
_KILL_S = 3.0
_COMMIT_S = 10.0
_FRESH_S = 5.0

Rebalance = Callable[[Iterable[TopicPartition]], Awaitable[None]]

_log = get_logger("kafka")


class _Attempt:
    """A commit that is under way: whether it may be sent just now, and whether nobody waits for it any more."""

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
    """What became of a commit."""

    TAKEN = enum.auto()
    OVERTAKEN = enum.auto()
    """Not taken: a new round of the group's began before it. What is held after that may be committed again."""
    FENCED = enum.auto()
    """The group has gone on without this member."""


class Consumer:
    """A started member of a group."""

    def __init__(self, consumer: AIOKafkaConsumer, group: str, topics: Sequence[str]) -> None:
        self._consumer = consumer
        self._group = group
        self._topics = frozenset(topics)
        self._seen: set[str] = set()
        self._gone: set[str] = set()
        self._unfinished = Unfinished()
        self._ending: asyncio.Task[None] | None = None
        self.refreshed_s = time.monotonic()
        """When the cluster last answered this client (monotonic)."""
        # There is no public way to see that a client has lost its way.
        consumer._client.cluster.add_listener(self._refreshed)  # noqa: SLF001

    @classmethod
    async def joined(
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
        """A new member; partitions arrive through *assigned*.

        Raises what the library raises, TimeoutError after a while.
        """
        arguments = options.member(group) | {"client_id": member, "partition_assignment_strategy": (assignor,)}
        consumer = AIOKafkaConsumer(**arguments)
        try:
            # Started without topics: with one that is unknown it would wait for ever.
            async with asyncio.timeout(_START_S):
                await consumer.start()
        except BaseException:
            await killed(consumer)
            raise
        _fence(consumer._coordinator)  # noqa: SLF001 - there is no public way
        joined = cls(consumer, group, topics)
        consumer.subscribe(list(topics), listener=_Bridge(revoked, assigned))
        return joined

    @property
    def generation(self) -> int:
        """Which round of the group's rebalances this is; negative while this is no member."""
        return int(self._consumer._coordinator.generation)  # noqa: SLF001 - commits are fenced by it

    @property
    def member_id(self) -> str:
        """The id that the group gave this member; another one after it was thrown out, empty before it has any."""
        return str(self._consumer._coordinator.member_id)  # noqa: SLF001 - it says whether what is held is still held

    def rejoin(self) -> None:
        """Begin a rebalance: something was let go of."""
        # The library knows no other reason than changed topics.
        self._consumer._coordinator.request_rejoin()  # noqa: SLF001

    async def fetch(self, timeout_s: float) -> Mapping[TopicPartition, Sequence[Record]]:
        """The next of what has been fetched, by partition.

        Never cancel it: the library would stop watching over its membership.
        """
        found: Mapping[TopicPartition, Sequence[Record]] = await self._consumer.getmany(
            timeout_ms=round(timeout_s * 1000), max_records=_FETCH_RECORDS
        )
        return found

    async def commit(self, offsets: Mapping[TopicPartition, int], is_current: Callable[[], bool]) -> Committing:
        """Commit, or say what is in the way. Raises DeadlineError, and the library's errors.

        *is_current* is asked before each try: what is another member's by then must not be committed.
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

    def pause(self, places: Iterable[TopicPartition]) -> None:
        """Fetch nothing from these."""
        self._consumer.pause(*self._assigned(places))

    def resume(self, places: Iterable[TopicPartition]) -> None:
        """Fetch from these again."""
        self._consumer.resume(*self._assigned(places))

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Fetch *place* from *offset* on."""
        if self._assigned((place,)):
            self._consumer.seek(place, offset)

    def position(self, place: TopicPartition) -> int | None:
        """Where fetching stands, if that is known: behind all that `fetch` has answered with."""
        # The public way waits until it is known.
        assignment = self._consumer._subscription.subscription.assignment  # noqa: SLF001
        state = assignment.state_value(place) if assignment is not None else None
        return int(state.position) if state is not None and state.has_valid_position else None

    def restore(self, places: Mapping[TopicPartition, tuple[int, bool] | None]) -> None:
        """Go on at these offsets after a rebalance, in which the library forgets.

        At once or when resumed; None means that none is known.
        """
        for place, known in places.items():
            self.seek(place, known[0] if known else 0)
        self.pause(place for place, known in places.items() if not (known and known[1]))

    async def kill(self) -> None:
        """Leave the group if that is possible, and end within seconds, whatever the brokers do.

        Goes on when the task that waits for it is cancelled.
        """
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(killed(self._consumer))
        await asyncio.shield(self._ending)

    def _assigned(self, places: Iterable[TopicPartition]) -> list[TopicPartition]:
        held = self._consumer.assignment()
        return [place for place in places if place in held]

    def _refreshed(self, cluster: Any) -> None:
        self.refreshed_s = time.monotonic()
        self._say_what_is_gone(cluster)
        self._say_what_is_held_up()

    def _say_what_is_gone(self, cluster: Any) -> None:
        there = {topic for topic in self._topics if cluster.partitions_for_topic(topic) is not None}
        gone = self._seen - there
        self._seen |= there
        if news := gone - self._gone:
            # To whoever holds their partitions it looks as if others had taken them.
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

    def _say_what_is_held_up(self) -> None:
        if late := self._unfinished.late(self._held_up(), self.refreshed_s):
            places = [f"{place.topic}/{place.partition}" for place in late]
            detail = (
                "another program has left a transaction open: "
                "nothing behind it is read until it ends, or the broker ends it"
            )
            _log.error("kafka.transaction_open", group=self._group, partitions=places, detail=detail)

    def _held_up(self) -> dict[TopicPartition, int]:
        """The offsets at which reading ends although there are records behind them.

        By partition that was fetched from a moment ago.
        """
        assignment = self._consumer._subscription.subscription.assignment  # noqa: SLF001 - there is no public way
        states = {place: assignment.state_value(place) for place in assignment.tps} if assignment is not None else {}
        fresh_ms = (time.time() - _FRESH_S) * 1000
        return {
            place: state.lso
            for place, state in states.items()
            if (state.timestamp or 0) > fresh_ms and state.lso < state.highwater
        }


def _fence(coordinator: Any) -> None:
    """Let every try of a commit ask first.

    Between that and the request, which names the generation, the library awaits nothing.
    """
    send = coordinator._do_commit_offsets  # noqa: SLF001 - the one step that each try makes

    async def fenced(*arguments: Any) -> None:
        attempt = _attempt.get()
        try:
            if not attempt.is_current():
                raise RebalanceInProgressError
            await send(*arguments)
        except (KafkaError, OSError):
            # The library makes each try a task of its own: of one that nobody waits for any more the error would be
            # reported as forgotten.
            if not attempt.over:
                raise

    coordinator._do_commit_offsets = fenced  # noqa: SLF001 - see above


async def killed(consumer: AIOKafkaConsumer) -> None:
    """End *consumer* within seconds, whatever the brokers do.

    Where they are away its own stopping may end as if it were cancelled.
    """
    # Whoever waits for an assignment would wait for ever: stopping does not wake it. Where it never came to fetch, the
    # library fails at that.
    if consumer._fetcher is not None:  # noqa: SLF001 - there is no public way
        consumer._subscription.abort_waiters(ConsumerStoppedError())  # noqa: SLF001 - see above
    quiet = contextlib.suppress(KafkaError, OSError, TimeoutError, asyncio.CancelledError)
    with quiet:
        await asyncio.wait_for(consumer.stop(), _KILL_S)
        return
    # It hangs on a coordinator that is away: end its tasks one by one.
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


class Unfinished:
    """Where each partition that is held up stands, and since when."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        self._told: set[TopicPartition] = set()

    def late(self, held_up: Mapping[TopicPartition, int], now_s: float) -> list[TopicPartition]:
        """Those of *held_up* that have stood there for long; each is told once.

        *held_up*: by partition the offset behind which nothing is given out.
        """
        before = self._since
        self._since = {
            place: known if (known := before.get(place, (-1, now_s)))[0] == at else (at, now_s)
            for place, at in held_up.items()
        }
        late = {place for place, (_, since_s) in self._since.items() if now_s - since_s >= _LATE_S}
        news, self._told = sorted(late - self._told), late
        return news
