"""Worker: one group member that takes records from a log and settles each in exactly one way.

Owns the loop (poll, receive, commit), partitions coming and going, and stopping. Receiving is in
`consumers.delivery.receiving.receiver`, running handlers in `consumers.delivery.handling.executor`, durable appends in
`consumers.delivery.settling.durable_append`, the assembly in `consumers.worker.wiring`, the process in
`consumers.worker.process`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence

from bus import failpoints, native
from bus.clock import Interval
from bus.errors import ClosedError, TransportError
from bus.protocol.reasons import REASONS
from bus.telemetry.logs import get_logger
from bus.topics.names import consumer_group
from bus.transports.base import Assignment, LogSubscription
from bus.trust.keys.key_pairing import SOON_MS
from consumers.delivery.crashes.crash_guard import CrashGuard
from consumers.delivery.declaration import Declaration
from consumers.delivery.group_plan import GroupPlan
from consumers.delivery.handling.claims import InboxClient
from consumers.delivery.inbox.base import Inbox
from consumers.delivery.state.assignments import names_of
from consumers.delivery.state.delivery import Delivery
from consumers.worker import lag
from consumers.worker.denial_journal import DenialJournal
from consumers.worker.drain import CUT_GRACE_S, cancel_handlers, drain, end_if_strict, running_for
from consumers.worker.health import POLL_S, StuckHandler, WorkerSigns
from consumers.worker.hold_ups import HoldUpWatch, WorkerFaults
from consumers.worker.needed_topics import needed_topics, used_topics
from consumers.worker.startup_topics import check_topics, create_missing, find_orphan_tiers
from consumers.worker.wiring import assemble
from producers.publisher import Publisher

__all__ = ["Worker"]

_POLL_S = 0.5
_LITTLE_ROOM, _PLENTY, _PLENTY_S = 256, 256, 0.002
_ENOUGH, _CATCH_UP_S = 64, 0.05
_FETCH_RECORDS = 500
_FETCH_BYTES = 8 * 1_048_576
_INBOX_LOOK_S, _INBOX_ANSWER_S = 5.0, 5.0
_LAST_COMMIT_S, _PURGE_S, _LEFTOVERS_S = 3.0, 600.0, 1.0
_HOLD_UPS_S = 1.0
_SLOW_COMMIT_S, _TOLD_SLOW_S = 1.0, 30.0
_TOLD_AGAIN_S = 86_400.0
_BLOCKED = "; blocked by "
_CROWDED_S = 0.01
"""Seconds between looks at a type that crowds out others."""

_log = get_logger("worker")


class Worker:
    """Runs one App on one transport, from one event loop: `start`, then `run` or `cycle`, then `stop`."""

    def __init__(
        self,
        app: Declaration,
        plan: GroupPlan,
        publisher: Publisher,
        *,
        inbox: Inbox | None,
        member: str,
        guard: CrashGuard | None = None,
        denials: DenialJournal | None = None,
    ) -> None:
        self._denials = denials
        self.app = app
        self._plan = plan
        clock, metrics = publisher.clock, publisher.metrics
        self._transport = publisher.transport
        self._settings = publisher.settings
        self._member = member
        self._clock = clock
        self._metrics = metrics
        metrics.begin(
            plan.group,
            sorted(
                {plan.view.registry.label(name) for name in (*plan.view.subscriptions, *plan.view.mail)} | {"other"}
            ),
            reasons=sorted(REASONS),
            tiers=[tier.name for tier in plan.tiers],
        )
        self.inbox = inbox
        self._publisher = publisher
        self._rarely = Interval(clock)
        self._shares = len(app.subscriptions) > 1
        """Whether there are several types, of which one could keep the others out."""
        self._committing = asyncio.Lock()
        self.fetched_s = clock.monotonic_s()
        """When the log was asked last, on the monotonic clock."""
        self._committed_s = clock.monotonic_s()
        """When every offset that could be committed was."""
        self._inbox_error = ""
        """Why the inbox did not answer."""
        self._log_error = self._lag_error = ""
        """Why the log was not reached at the last fetch, and when its ends were asked for."""
        self._is_stopping = False
        self._cut_beside: int | None = None
        """Handlers cut since stopping began because their partition went away meanwhile; None before."""
        guard = guard or CrashGuard(None, clock)
        parts = assemble(app, plan, publisher, inbox=inbox, guard=guard, wake=self._wake)
        self._partitions = parts.partitions
        self._receiver = parts.receiver
        self.in_flight = parts.in_flight
        self.lanes = parts.lanes
        self._waiting = parts.timers
        self.slots = parts.slots
        self.requests = parts.requests
        self._retry_clock = parts.retry_clock
        self._claims = parts.claims
        self._dependencies = parts.dependencies
        self._late = parts.late
        self.steps = parts.steps
        self.sweeper = parts.sweeper
        self.cancels = parts.cancels
        self.overflow = parts.overflow
        self.appender = parts.appender
        self._limiter = parts.limiter
        self._schedules = parts.schedules
        self._tasks = parts.tasks
        self.hold_ups = HoldUpWatch(parts, plan.group, clock, metrics, faults=self._faults, blames=guard.blames)

    async def start(self, *, create_topics: bool) -> None:
        """Create missing topics if *create_topics*, else refuse to work without them; open the inbox, join the group.

        Raises TopicMissingError, UnreachableError, InboxError.
        """
        if create_topics:
            await create_missing(self._transport.admin, needed_topics(self._settings, self.app))
        else:
            await check_topics(self._transport.admin, used_topics(self._settings, self.app), self.app.agent_id)
        # What was cancelled while no worker ran is known before anything runs.
        await self.cancels.look()
        if self.inbox is not None:
            await self.inbox.open()
        try:
            if self.steps is not None:
                await self.steps.store.open()
            if self._schedules is not None:
                await self._schedules.open()
            if self._tasks is not None:
                await self._tasks.start()
            if self._limiter is not None:
                await self._limiter.open()
            # Its first card names a message that ended others: it may end this worker, too, before the next look.
            self.hold_ups.look()
            await self._join()
        except BaseException:
            # The caller retries with a new worker and its own inbox connection.
            if self.inbox is not None:
                await self.inbox.close()
            raise
        _log.info(
            "worker.started",
            agent=self.app.agent_id,
            group=self._plan.group,
            member=self._member,
            types=sorted(self.app.subscriptions),
            **native.hot_path(),
        )

    async def _join(self) -> None:
        left = await find_orphan_tiers(self._transport.admin, self._plan)
        self._partitions.add_tiers(left.values())
        topics = (*self._plan.topics, *left)
        self._partitions.subscription = await self._transport.subscribe(
            consumer_group(self._settings.bus.namespace, self._plan.group), topics, self, member=self._member
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work until *stop* is set.

        Raises errors that no retry can repair: a lost log, an offset out of range, a dead background task.
        """
        measuring = lag.watch_lag(
            self._transport,
            self._partitions.all,
            self._clock,
            self._metrics,
            self._plan.group,
            namespace=self._settings.bus.namespace,
            on_error=self._note_lag_error,
            first_appended_ms=self.in_flight.first_appended_ms,
        )
        works = [self._keep(), measuring]
        works += [] if self._claims is None else [self._watch_inbox(self._claims)]
        works += [] if self.sweeper is None else [self.sweeper.run()]
        works += [] if self._limiter is None else [self._limiter.renew()]
        works += [self.cancels.follow(self.slots)]
        beside = [asyncio.get_running_loop().create_task(work) for work in works]
        try:
            while not stop.is_set():
                try:
                    await self.cycle(_POLL_S)
                except TransportError as error:
                    if not error.retriable:
                        raise
                    self._log_error = str(error)
                    _log.error("worker.log_unreachable", error=self._log_error)
                    await self._clock.sleep(1.0)
                else:
                    self._log_error = ""
                for task in beside:
                    if task.done():
                        task.result()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)

    async def cycle(self, timeout_s: float) -> int:
        """Fetch once, waiting up to *timeout_s*, and queue the records in lanes; return how many came."""
        if self.slots.failure is not None:
            raise self.slots.failure
        self.fetched_s = self._clock.monotonic_s()
        subscription = self._joined()
        if self._shares and (self.in_flight.is_half_full or self._partitions.crowding):
            self._partitions.pause_crowding(self.in_flight.crowding(self._partitions.crowding, self._waiting.held_up()))
            timeout_s = min(timeout_s, _CROWDED_S if self._partitions.crowding else timeout_s)
        if self.overflow.is_needed:
            self.overflow.relieve()
        count, size = self.in_flight.room(self._partitions.waiting, self._waiting.held_up)
        # With plenty to do, room for a few records is not worth a fetch. The pause is real time: a test's clock stands
        # still.
        if not count or (count < _LITTLE_ROOM and self.lanes.ready > _PLENTY):
            await (asyncio.sleep(_PLENTY_S) if count else self._wait_for_room(timeout_s))
            # A member that does not poll is taken for dead.
            await subscription.poll(timeout_s=0, max_records=0, max_bytes=0)
            return 0
        records = await subscription.poll(
            timeout_s=timeout_s, max_records=min(count, _FETCH_RECORDS), max_bytes=min(size, _FETCH_BYTES)
        )
        # The budget is per fetch: where several types share the worker, the others are fetched only after it.
        left_s = _CATCH_UP_S
        for _ in self._receiver.admit(records, size):
            self.slots.wake_slots()
            # Let the slots begin before the next piece or fetch; handlers that do not wait finish these deliveries
            # meanwhile.
            await asyncio.sleep(0)
            if self.lanes.ready > _ENOUGH and left_s > 0:
                left_s -= await self._catch_up(left_s)
        return len(records)

    async def _catch_up(self, within_s: float) -> float:
        """Let handlers work off ready lanes for at most *within_s* seconds; return the seconds used.

        A message that is parsed long before it is handled has left the CPU cache.
        """
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        timer = loop.call_later(within_s, self.in_flight.landed.set)
        while self.lanes.ready > _ENOUGH and loop.time() < timer.when():
            self.in_flight.landed.clear()
            await self.in_flight.landed.wait()
        timer.cancel()
        return loop.time() - begun_s

    @property
    def progress(self) -> tuple[int, int, int]:
        """Something that differs whenever a delivery has been taken, begun, settled or postponed."""
        return len(self.in_flight), self.lanes.ready, len(self._waiting)

    def signs(self) -> WorkerSigns:
        """Return what shows whether it makes progress. Callable from any thread: the loop may stand still."""
        now_s = self._clock.monotonic_s()
        fetched_s_ago = now_s - self.fetched_s
        return WorkerSigns(
            agent=self.app.agent_id,
            group=self._plan.group,
            is_started=True,
            is_stopping=self._is_stopping,
            fetched_s_ago=fetched_s_ago,
            uncommitted_s=now_s - self._committed_s,
            log_error=self._log_error or self._lag_error,
            inbox_error=self._inbox_error,
            hold_ups=self.hold_ups.found,
            running=tuple(
                StuckHandler(
                    handler=work.handler, message_type=work.message_type, over_s=over_s if over_s > 0 else None
                )
                for work, over_s in self.slots.overruns(now_s)
                if over_s > 0 or fetched_s_ago > POLL_S
            ),
        )

    def wake_ordered(self, is_ordered: Callable[[Delivery], bool]) -> None:
        """Look at once at messages that wait for their next attempt and are not to run any more."""
        self._waiting.wake(is_ordered)

    def _faults(self) -> WorkerFaults:
        fault = self._publisher.sealer.key_fault()
        return WorkerFaults(
            inbox=self._inbox_error,
            key="" if fault is None else fault.text,
            missing=tuple(sorted(self.appender.missing)),
            append=self.appender.error,
        )

    async def _watch_inbox(self, claims: InboxClient) -> None:
        """Note how the inbox is, by what was asked of it in earnest; where nothing was, by a question of its own.

        An empty question is answered while a lock keeps every claim waiting.
        """
        while True:
            if trouble := claims.trouble():
                holder = await claims.who_blocks()
                # As long as the trouble lasts: a statement that was given up waits for nobody.
                known = self._inbox_error.partition(_BLOCKED)[2]
                told = f"{_BLOCKED}{holder or known}" if holder or known else ""
                self._inbox_error = trouble + told
                await self._clock.sleep(1.0)
                continue
            asking = asyncio.get_running_loop().create_task(claims.look())
            try:
                # A store that hangs is asked once, and not cancelled: its connection would be lost.
                while not (await asyncio.wait([asking], timeout=_INBOX_ANSWER_S))[0]:
                    self._inbox_error = f"has not answered for {_INBOX_ANSWER_S:.0f} s"
            finally:
                asking.cancel()
            self._inbox_error = asking.result()
            for _ in range(round(_INBOX_LOOK_S)):
                await self._clock.sleep(1.0)
                if claims.trouble():
                    break

    def learn_time(self, appended_ms: int) -> None:
        """Note that the log has taken a record just now, at *appended_ms* of its clock."""
        self._retry_clock.learn(appended_ms)

    def _note_lag_error(self, error: str) -> None:
        # A client that connects again by itself fetches nothing meanwhile, and raises nothing.
        self._lag_error = error

    async def commit(self) -> None:
        """Commit every frontier that has moved; one commit at a time, never backwards."""
        async with self._committing:
            moved = {
                partition.assignment: offset
                for partition in self._partitions.all()
                if (offset := partition.frontier.committable) is not None and offset != partition.committed
            }
            if not moved:
                self._committed_s = self._clock.monotonic_s()
            if (self._claims is not None and not await self._claims.made_durable()) or not moved:
                return
            started_s = self._clock.monotonic_s()
            failpoints.reach("committing")
            refused = await self._joined().commit(moved)
            failpoints.reach("committed")
            took_s = self._clock.monotonic_s() - started_s
            self._metrics.commit_seconds.labels(self._plan.group).observe(took_s)
            if took_s > _SLOW_COMMIT_S and self._rarely.is_due("slow log", _TOLD_SLOW_S):
                _log.warning("worker.log_slow", commit_s=round(took_s, 2), detail="look at the brokers")
            self._committed_s = self._clock.monotonic_s()
            for partition in self._partitions.held_among(moved.keys() - set(refused)):
                partition.committed = moved[partition.assignment]
        if refused:
            _log.warning("worker.commit_fenced", partitions=names_of(refused))
            self.lost(refused)

    async def stop(self, drain_timeout_s: float) -> int:
        """Drain, cut the rest after *drain_timeout_s*, commit, leave the group; return how many handlers were cut."""
        self._is_stopping = True
        self.slots.stop()
        self._cut_beside = 0
        left = await drain(self.slots, self._partitions.all(), drain_timeout_s, self._clock)
        left += self._cut_beside
        if self._partitions.subscription is not None:
            try:
                # A log that does not answer must not keep the process alive: uncommitted messages are delivered again.
                await asyncio.wait_for(self.commit(), _LAST_COMMIT_S)
            except (TransportError, TimeoutError) as error:
                _log.warning("worker.last_commit_failed", error=str(error) or "no answer in time")
            try:
                await self._partitions.subscription.close()
            except TransportError as error:
                _log.warning(
                    "worker.leave_failed",
                    error=str(error),
                    detail="its partitions go to others when its session has timed out",
                )
            self._partitions.subscription = None
        await self.slots.close()
        if self._denials is not None:
            await self._denials.flush()
        await self._late.close()
        await self.requests.close()
        if self.inbox is not None:
            await self.inbox.close()
        _log.info("worker.stopped", group=self._plan.group, member=self._member, cut=left)
        return left

    # The transport's Listener.

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Start on *assignments*; nothing is remembered about them, their records are read again."""
        self._partitions.add(assignments)
        self._metrics.rebalances.labels(self._plan.group).inc()
        _log.info("worker.assigned", partitions=names_of(assignments))

    async def revoked(self, assignments: Sequence[Assignment]) -> None:
        """Finish what runs for *assignments*, commit, then let them go."""
        leaving = self._partitions.held_among(assignments)
        left = await drain(self.slots, leaving, self._settings.worker.drain_timeout_s, self._clock, self._count_cut)
        try:
            await self.commit()
        except TransportError as error:
            # The next owner repeats what was done here since the last commit.
            _log.warning("worker.commit_failed", error=str(error))
        self._forget(assignments)
        self._metrics.rebalances.labels(self._plan.group).inc()
        _log.info("worker.revoked", partitions=names_of(assignments), cut=left)

    def lost(self, assignments: Sequence[Assignment]) -> None:
        """Drop *assignments*, which another member owns already: their running handlers must not count."""
        gone = self._partitions.held_among(assignments)
        self._forget(assignments)
        self._count_cut(len(running_for(self.slots, gone)))
        cancel_handlers(self.slots, gone)
        self._clock.call_later(CUT_GRACE_S, lambda: end_if_strict(running_for(self.slots, gone)))
        _log.warning("worker.partitions_lost", partitions=names_of(assignments))

    def _forget(self, assignments: Iterable[Assignment]) -> None:
        self._partitions.forget(assignments)
        self._waiting.let_go()

    def _count_cut(self, count: int) -> None:
        if self._cut_beside is not None:
            self._cut_beside += count

    async def _wait_for_room(self, timeout_s: float) -> None:
        self.in_flight.landed.clear()
        if timeout_s > 0:
            timer = self._clock.call_later(timeout_s, self.in_flight.landed.set)
            await self.in_flight.landed.wait()
            timer.cancel()

    async def _keep(self) -> None:
        """Commit at intervals, refresh all gauges but the lag, purge old keys; its death ends `run`."""
        interval_s = self._settings.worker.commit_interval_s
        rarely = Interval(self._clock)
        while True:
            await self._clock.sleep(interval_s)
            await self.keep_up()
            if self._claims is not None and rarely.is_due("give back", _LEFTOVERS_S):
                await self._claims.release_leftovers()
            if self._claims is not None and rarely.is_due("purge", _PURGE_S):
                await self._claims.purge()

    async def keep_up(self) -> None:
        """Do one round of housekeeping: release full partitions, commit, check clocks, refresh gauges."""
        self._retry_clock.watch()
        self._dependencies.watch()
        self._partitions.release_full()
        try:
            await self.commit()
        except ClosedError:
            raise
        except TransportError as error:
            if not error.retriable:
                raise
            _log.error("worker.commit_failed", error=str(error))
        if self._denials is not None:
            await self._denials.flush()
        self._look_at_trust()
        if self._rarely.is_due("hold ups", _HOLD_UPS_S):
            self.hold_ups.look()
        group = self._plan.group
        self._metrics.in_flight.labels(group).set(len(self.in_flight))
        self._metrics.lanes.labels(group).set(len(self.lanes))
        self._metrics.oldest_unsettled_seconds.labels(group).set(self.in_flight.oldest_s())
        self._metrics.clock_offset_seconds.set(self._retry_clock.offset_s)

    def _look_at_trust(self) -> None:
        """Read changed keys and policy also while no message arrives; unreadable files are reported at once."""
        for source, gauge in (
            (self.app.verifier, self._metrics.keys_age_seconds),
            (self.app.policy, self._metrics.policy_age_seconds),
        ):
            age_s = getattr(source, "age_s", None)
            if age_s is not None:
                gauge.set(age_s())
        guard = self._publisher.sealer.keys
        if guard is None or (key := guard.key) is None:
            return
        ends_s = math.inf if key.not_after_ms is None else key.not_after_ms / 1000
        self._metrics.key_expiry_timestamp_seconds.labels(self.app.agent_id).set(ends_s)
        left_s = ends_s - self._clock.now_ms() / 1000
        if left_s * 1000 < SOON_MS and self._rarely.is_due("key ends", _TOLD_AGAIN_S):
            _log.warning(
                "trust.key_ends",
                agent=self.app.agent_id,
                kid=key.kid,
                in_s=round(left_s),
                detail=f"then nothing can be signed: `sealbus key rotate {self.app.agent_id}`",
            )

    def _wake(self) -> None:
        self.slots.changed()

    def _joined(self) -> LogSubscription:
        if self._partitions.subscription is None:
            raise ClosedError("the worker has not started or has stopped")
        return self._partitions.subscription
