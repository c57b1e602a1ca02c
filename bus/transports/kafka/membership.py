"""A member's life: joining, partitions coming and going, positions from the group's commits, and noticing that it is a member no more.

Owns the listener's side of a rebalance, and a watch: a member that was suspended, that does not poll, or whose client has lost its brokers
gives its partitions up. Does not own fetching and committing (`subscription`) or the library's consumer (`member`).

Kafka's classic protocol revokes every partition at each rebalance, so each brings new assignments; an assignment's epoch is the group's
generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from bus.clock import Clock
from bus.errors import BusError, OffsetOutOfRangeError, TransportError
from bus.logs import get_logger
from bus.transports.base import Assignment, Listener, PartitionRange
from bus.transports.kafka.faults import said, translated
from bus.transports.kafka.holdings import Held, Holdings
from bus.transports.kafka.link import Link
from bus.transports.kafka.member import Consumer
from bus.transports.kafka.options import Options

__all__ = ["Membership", "out_of_range"]

_WATCH_S = 1.0
_PAUSE_S = 0.5
_END_S = 5.0
_REVOKE_MARGIN_S = 5.0
_LOST_S = 30.0
_MOST_FAULTS = 16

_log = get_logger("kafka")


class Membership:
    """One member of one group. *changed* is called whenever whoever polls should look again."""

    def __init__(
        self,
        group: str,
        topics: Sequence[str],
        listener: Listener,
        *,
        member: str,
        options: Options,
        link: Link,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self.group = group
        self.holdings = Holdings()
        self.consumer: Consumer | None = None
        self._retiring: Consumer | None = None
        self.faults: list[Exception] = []
        self.gave_up = ""
        """Why this is no member any more, by its own doing."""
        self._topics = tuple(dict.fromkeys(topics))
        self._listener = listener
        self._member = member
        self._options = options
        self._link = link
        self._clock = clock
        self._changed = changed
        self._tasks: set[asyncio.Task[None]] = set()
        self._polled_s = self._ticked_s = clock.monotonic_s()
        self._astray = False
        """What this member believes may not be what the group believes: join anew."""
        self._closed = False

    async def open(self) -> None:
        """Join the group. Raises UnreachableError, NotPermittedError."""
        self.consumer = await self._joined()
        self.spawn(self._watch())

    async def close(self) -> None:
        """Leave the group, and end within seconds."""
        self._closed = True
        self.holdings.clear()
        current = asyncio.current_task()
        others = self._tasks - {current}
        # The watch first: left alone it would take the missing consumer for a lost one, and join again behind the back of whoever closes.
        for task in others:
            task.cancel()
        ending = [consumer for consumer in (self.consumer, self._retiring) if consumer is not None]
        self.consumer = None
        await asyncio.gather(*(consumer.kill() for consumer in ending))
        if others:
            await asyncio.wait(others, timeout=_END_S)

    def polled(self) -> None:
        """Whoever owns this member is alive."""
        self._polled_s = self._clock.monotonic_s()
        self.note_silence()

    def note_silence(self) -> None:
        """A process that was suspended finds out by its own clock: others hold its partitions by now, and the next heartbeat is too late."""
        if self._clock.monotonic_s() - self._ticked_s > self._options.session_timeout_s + _WATCH_S:
            self._ticked_s = self._clock.monotonic_s()
            self._astray = True
            self._lose()

    def fail(self, error: Exception) -> None:
        """Whoever polls next gets *error*."""
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(error)
        self._changed()

    def place(self, held: Held, offset: int) -> None:
        """Go on at *offset*."""
        held.position = offset
        held.version += 1
        held.buffer.clear()
        if self.consumer is not None:
            self.consumer.seek(held.place, offset)
            if not held.paused:
                self.consumer.resume((held.place,))

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run *work* beside; if it dies, whoever polls hears of it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(TransportError(f"a background task of group {self.group!r} died: {said(error)}"))

    # Called by the library while it rebalances.

    async def _revoked(self, _: Iterable[TopicPartition]) -> None:
        leaving = self.holdings.all()
        if not leaving:
            return
        if self.consumer is None or self.consumer.generation != leaving[0].assignment.epoch:
            # Thrown out: the others own these already.
            self._lose()
            return
        for held in leaving:
            held.leaving = True
        assignments = [held.assignment for held in leaving]
        try:
            async with asyncio.timeout(max(1.0, self._options.rebalance_timeout_s - _REVOKE_MARGIN_S)):
                await self._listener.revoked(assignments)
        except TimeoutError:
            # The group goes on without this member now.
            self._tell(self._listener.lost, assignments)
        except Exception as error:  # noqa: BLE001 - the library would swallow it
            self.fail(error)
        finally:
            self.holdings.drop(leaving)
            self._changed()

    async def _assigned(self, places: Iterable[TopicPartition]) -> None:
        consumer = self.consumer
        if self._closed or consumer is None:
            return
        self._lose()
        epoch = consumer.generation
        gained = self.holdings.add(Assignment(place.topic, place.partition, epoch) for place in sorted(places))
        for held in gained:
            # Until the group's commit is known nothing may be fetched, least of all from where the library thinks.
            consumer.seek(held.place, 0)
        consumer.pause(held.place for held in gained)
        if gained:
            self._tell(self._listener.assigned, [held.assignment for held in gained])
            self.spawn(self._positioned(gained))

    async def _positioned(self, gained: Sequence[Held]) -> None:
        """Look up where the group stands, for as long as it takes, and begin there."""
        while pending := [held for held in gained if held.position is None and self.holdings.get(held.assignment) is held]:
            try:
                await self._look_up(pending)
            except BusError as error:
                if not error.retriable:
                    self.fail(error)
                    return
                _log.warning("kafka.positions_unknown", group=self.group, error=str(error))
                await self._clock.sleep(_PAUSE_S)

    async def _look_up(self, pending: Sequence[Held]) -> None:
        places = [held.place for held in pending]
        committed = await self._link.administer(
            f"reading the commits of group {self.group!r}", lambda admin: admin.list_consumer_group_offsets(self.group, partitions=places)
        )
        spans = await self._link.spans(places)
        for held in pending:
            found, span = committed.get(held.place), spans[held.place]
            offset = span.start if found is None or found.offset < 0 else found.offset
            if held.position is not None or self.holdings.get(held.assignment) is not held:
                continue
            held.committed = -1 if found is None else found.offset
            if not span.start <= offset <= span.end:
                self.fail(out_of_range(held.place, offset, span))
            self.place(held, offset)
        self._changed()

    def _lose(self) -> None:
        """Everything held is another's by now."""
        lost = self.holdings.all()
        if lost:
            self.holdings.drop(lost)
            self._tell(self._listener.lost, [held.assignment for held in lost])
            self._changed()

    def _tell(self, told: Callable[[Sequence[Assignment]], None], assignments: Sequence[Assignment]) -> None:
        try:
            told(assignments)
        except Exception as error:  # noqa: BLE001 - the library would swallow it
            self.fail(error)

    async def _joined(self) -> Consumer:
        try:
            return await Consumer.joined(
                self._options, self.group, self._topics, member=self._member, revoked=self._revoked, assigned=self._assigned
            )
        except (KafkaError, OSError, TimeoutError) as error:
            raise translated(error, f"joining group {self.group!r}") from error

    async def _watch(self) -> None:
        while not self._closed:
            await self._clock.sleep(_WATCH_S)
            self.note_silence()
            self._ticked_s = now_s = self._clock.monotonic_s()
            if now_s - self._polled_s > self._options.poll_timeout_s:
                self.gave_up = f"nothing was polled for {self._options.poll_timeout_s:g} s: its partitions were given to others"
                self._lose()
                await self.close()
                return
            await self._keep_in_touch()

    async def _keep_in_touch(self) -> None:
        """A client that has heard of no broker for long has lost its way; if the cluster is there, begin anew."""
        if self.consumer is not None and not self._astray and self._clock.monotonic_s() - self.consumer.refreshed_s < _LOST_S:
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
            consumer = await self._joined()
        except BusError as error:
            _log.warning("kafka.rejoin_failed", group=self.group, error=str(error))
            return
        self.consumer, self._astray = consumer, False
        if self._closed:
            # Closed while it was joining.
            await self.close()
        self._changed()


def out_of_range(place: TopicPartition, offset: int, span: PartitionRange) -> OffsetOutOfRangeError:
    """The error that says so."""
    return OffsetOutOfRangeError(
        f"{place.topic} partition {place.partition}: offset {offset} is outside the kept offsets {span.start} to {span.end}; "
        "what lay between may be lost: see `sealbus groups`, then decide where to go on"
    )
