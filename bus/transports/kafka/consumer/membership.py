"""One member of a group: joining, gaining and losing partitions, and detecting that it was removed from the group.

Owns the listener callbacks of a rebalance, the start positions, and a watch. The watch makes a member release its
partitions when it was suspended, does not poll, or has lost its brokers. Fetching and committing are in `subscription`,
the balance in `balance`, the library's consumer in `consumer`.

The library ends every assignment at each rebalance. Here an assignment lasts as long as the group knows this member
under the same id, because the leader never reassigns a partition that a member declares. Its epoch is the generation in
which it was gained.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from bus.errors import BusError, TransportError
from bus.telemetry.logs import get_logger
from bus.transports.base import Assignment, Listener
from bus.transports.kafka.cluster.client import ClusterClient
from bus.transports.kafka.consumer.consumer import Consumer
from bus.transports.kafka.consumer.cooperative_assignor import CooperativeAssignor, Declared, declared
from bus.transports.kafka.consumer.held_partitions import HeldPartition, HeldPartitions
from bus.transports.kafka.consumer.start_positions import PositionLookup
from bus.transports.kafka.errors import error_text, kafka_error_of

__all__ = ["Membership"]

_WATCH_S = 1.0
_PAUSE_S = 0.5
_END_S = 5.0
_STEADY_S = 10.0
_LOST_S = 30.0
_MAX_FAULTS = 16

_log = get_logger("kafka")


class Membership:
    """One member of one group.

    *changed* is called when the poller must look again; *positions* looks up the group's offsets.
    """

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        listener: Listener,
        *,
        member: str,
        link: ClusterClient,
        changed: Callable[[], None],
        positions: PositionLookup,
    ) -> None:
        self.group = group
        self.holdings = HeldPartitions()
        self.consumer: Consumer | None = None
        self._retiring: Consumer | None = None
        self.faults: list[Exception] = []
        self.gave_up = ""
        """Why this member left the group on its own; empty while it has not."""
        self._topics = tuple(dict.fromkeys(topics))
        self._listener = listener
        self._member = member
        self._options = link.options
        self._link = link
        self._clock = link.clock
        self._changed = changed
        self._positions = positions
        self._tasks: set[asyncio.Task[None]] = set()
        self._polled_s = self._ticked_s = link.clock.monotonic_s()
        self._astray = False
        """Whether this member's view may differ from the group's: it must join again."""
        self.generation = -1
        self._known_as = ""
        """The member id under which the group assigned the partitions."""
        self._unwanted: set[TopicPartition] = set()
        self._steady = asyncio.Event()
        self._closed = False

    async def open(self) -> None:
        """Join the group. Raises UnreachableError, NotPermittedError."""
        self.consumer = await self._join()
        self.spawn(self._watch())

    async def close(self) -> None:
        """Leave the group, within seconds."""
        self._closed = True
        self.holdings.clear()
        others = self._tasks - {asyncio.current_task()}
        # Cancel the watch first: it would take the missing consumer for a lost one, and join again during the close.
        for task in others:
            task.cancel()
        ending = [consumer for consumer in (self.consumer, self._retiring) if consumer is not None]
        self.consumer = None
        await asyncio.gather(*(consumer.kill() for consumer in ending))
        if others:
            await asyncio.wait(others, timeout=_END_S)

    def polled(self) -> None:
        """Note that the owner of this member is alive."""
        self._polled_s = self._clock.monotonic_s()
        self.note_silence()

    def note_silence(self) -> None:
        """Detect by this process's own clock that it was suspended.

        Its partitions belong to others then, and the next heartbeat would tell too late.
        """
        if self._clock.monotonic_s() - self._ticked_s > self._options.session_timeout_s + _WATCH_S:
            self._ticked_s = self._clock.monotonic_s()
            self._astray = True
            self._lose()

    @property
    def steady(self) -> bool:
        """Whether no rebalance is in progress."""
        return self._steady.is_set()

    async def wait_until_steady(self) -> bool:
        """Wait until no rebalance is in progress; return False after 10 s."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._steady.wait(), _STEADY_S)
        return self.steady

    def knows(self, consumer: Consumer | None) -> bool:
        """Return whether the group still has this member under the id of its assignments."""
        return consumer is not None and consumer.member_id == self._known_as

    def fail(self, error: Exception) -> None:
        """Raise *error* in the next poll."""
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(error)
        self._changed()

    def location(self, owned: HeldPartition, offset: int) -> None:
        """Continue reading *owned* at *offset*."""
        owned.position = offset
        owned.version += 1
        owned.drop()
        if self.consumer is not None:
            self.consumer.seek(owned.location, offset)
            if not owned.paused:
                self.consumer.resume((owned.location,))

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run *work* as a background task; its failure is raised in the next poll."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(TransportError(f"a background task of group {self.group!r} died: {error_text(error)}"))

    # Callbacks of the library during a rebalance.

    def _owned(self) -> Declared:
        """Return what this member declares when it joins.

        With a new id, it was thrown out in between, and other members hold everything.
        """
        if not self.knows(self.consumer):
            self._lose()
        return declared(self.generation, (owned.location for owned in self.holdings.all()))

    def _give_up(self, locations: set[TopicPartition]) -> None:
        self._unwanted = locations

    async def _revoked(self, _: Iterable[TopicPartition]) -> None:
        # No partition is given up here. But a commit that arrives before the new generation would cost the membership.
        self._steady.clear()

    async def _assigned(self, locations: Iterable[TopicPartition]) -> None:
        consumer = self.consumer
        if self._closed or consumer is None:
            return
        if not self.knows(consumer):
            self._lose()
        self._known_as, self.generation = consumer.member_id, consumer.generation
        provided, unwanted = set(locations), self._unwanted
        self._lose([owned for owned in self.holdings.all() if owned.location not in provided])
        new = sorted(location for location in provided if self.holdings.at(location) is None)
        # The library has forgotten all positions. A new partition is not fetched until the group's commit is known.
        consumer.restore(dict.fromkeys(new) | self.holdings.carried())
        gained = self.holdings.add(
            Assignment(location.topic, location.partition, consumer.generation)
            for location in new
            if location not in unwanted
        )
        self._steady.set()
        if gained:
            self._tell(self._listener.assigned, [owned.assignment for owned in gained])
            self.spawn(self._position(gained))
        if leaving := [owned for owned in self.holdings.all() if owned.location in unwanted and not owned.leaving]:
            self.spawn(self._let_go(leaving))
        if unwanted & set(new):
            # Released while this round was in progress.
            consumer.rejoin()
        self._changed()

    async def _let_go(self, leaving: Sequence[HeldPartition]) -> None:
        """Drain partitions that move to other members, then let the group reassign them. Other partitions continue."""
        for owned in leaving:
            owned.leaving = True
        if self.consumer is not None:
            self.consumer.pause(owned.location for owned in leaving)
        assignments = [owned.assignment for owned in leaving]
        try:
            async with asyncio.timeout(self._options.rebalance_timeout_s):
                await self._listener.revoked(assignments)
        except TimeoutError:
            self._tell(self._listener.lost, assignments)
        except Exception as error:  # noqa: BLE001 - the next poll raises it
            self.fail(error)
        finally:
            self.holdings.drop(leaving)
            self._changed()
        if self.consumer is not None:
            self.consumer.rejoin()

    async def _position(self, gained: Sequence[HeldPartition]) -> None:
        """Look up the group's offsets, for as long as it takes, and start reading there."""
        while pending := [
            owned for owned in gained if owned.position is None and self.holdings.get(owned.assignment) is owned
        ]:
            try:
                found = await self._positions(pending)
            except BusError as error:
                if not error.retriable:
                    self.fail(error)
                    return
                _log.warning("kafka.positions_unknown", group=self.group, error=str(error))
                await self._clock.sleep(_PAUSE_S)
                continue
            for owned in pending:
                if (
                    owned.position is None
                    and self.holdings.get(owned.assignment) is owned
                    and (at := found.get(owned.location)) is not None
                ):
                    if at.fault is not None:
                        self.fail(at.fault)
                    self.location(owned, at.offset)
            self._changed()

    def _lose(self, lost: Sequence[HeldPartition] | None = None) -> None:
        """Drop *lost*, or all partitions: other members own them."""
        lost = self.holdings.all() if lost is None else lost
        if lost:
            self.holdings.drop(lost)
            self._tell(self._listener.lost, [owned.assignment for owned in lost])
            self._changed()

    def _tell(self, notify: Callable[[Sequence[Assignment]], None], assignments: Sequence[Assignment]) -> None:
        try:
            notify(assignments)
        except Exception as error:  # noqa: BLE001 - the library would swallow it
            self.fail(error)

    async def _join(self) -> Consumer:
        try:
            return await Consumer.join(
                self._options,
                self.group,
                self._topics,
                member=self._member,
                assignor=CooperativeAssignor(self._owned, self._give_up),
                revoked=self._revoked,
                assigned=self._assigned,
            )
        except (KafkaError, OSError, TimeoutError) as error:
            raise kafka_error_of(error, f"joining group {self.group!r}") from error

    async def _watch(self) -> None:
        while not self._closed:
            await self._clock.sleep(_WATCH_S)
            self.note_silence()
            self._ticked_s = now_s = self._clock.monotonic_s()
            if now_s - self._polled_s > self._options.poll_timeout_s:
                self.gave_up = (
                    f"nothing was polled for {self._options.poll_timeout_s:g} s: its partitions were reassigned"
                )
                self._lose()
                await self.close()
                return
            await self._keep_in_touch()

    async def _keep_in_touch(self) -> None:
        """Replace a client that has heard from no broker for 30 s, if the cluster is reachable."""
        if (
            self.consumer is not None
            and not self._astray
            and self._clock.monotonic_s() - self.consumer.refreshed_s < _LOST_S
        ):
            return
        if not await self._link.is_reachable():
            return
        _log.warning("kafka.consumer_replaced", group=self.group)
        self._lose()
        self._retiring, self.consumer = self.consumer, None
        if self._retiring is not None:
            await self._retiring.kill()
            self._retiring = None
        try:
            consumer = await self._join()
        except BusError as error:
            _log.warning("kafka.rejoin_failed", group=self.group, error=str(error))
            return
        self.consumer, self._astray = consumer, False
        if self._closed:
            # Closed during the join.
            await self.close()
        self._changed()
