"""ScheduleService: the process of each schedule: one row, one wait for its next time, and a message for each due time.

Owns the built-in saga `schedule`. The row is opened by the first worker that declares the schedule. When its wait is
due, one transaction arms the next one and sends `schedule.due` to the group's own agent; the message's id comes from
name and due time, so each due time is one message, however often the step is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from bus.clock import Clock
from bus.protocol.identifiers import uuid7
from bus.telemetry.logs import get_logger
from bus.transports.base import NewRecord
from bus.vocabulary.bus import ScheduleDue, WaitDue
from consumers.delivery.settling.outcome import Outcome
from consumers.delivery.state.delivery import Accepted
from consumers.processes.sagas.process import NewerCode, Process, Wait, unpack_plain
from consumers.processes.sagas.process_group import ProcessGroup
from consumers.processes.sagas.rules import CANCEL_WAIT
from consumers.processes.sagas.store import NewWait, ProcessChange, ProcessStore
from consumers.processes.schedules.schedule import Due, Schedule, due_now, next_due_ms
from producers.publisher import Publisher
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest

__all__ = ["SCHEDULE_SAGA", "SCHEDULE_WAIT", "ScheduleService"]

SCHEDULE_SAGA: Final = "schedule"
SCHEDULE_WAIT: Final = "schedule-due"
_SHAPE: Final = "1.0.0"

_log = get_logger("schedules")


class _State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    times: str
    next_ms: int
    missed: int = 0


class ScheduleService:
    """The schedules of one group."""

    hears = False

    def __init__(
        self,
        schedules: Sequence[Schedule],
        store: ProcessStore,
        *,
        group: ProcessGroup,
        publisher: Publisher,
        clock: Clock,
    ) -> None:
        self._schedules: Mapping[str, Schedule] = {each.name: each for each in schedules}
        self._store = store
        self._group = group
        self._publisher = publisher
        self._clock = clock

    async def open(self) -> None:
        """Open the processes of schedules that have none, and give those with other times their next time.

        Another worker may do it first. Raises InboxError.
        """
        for schedule in self._schedules.values():
            process = await self._store.find(self._id(schedule.name))
            now_ms = self._clock.now_ms()
            if process is not None:
                try:
                    state = unpack_plain(process, _SHAPE, _State)
                except NewerCode:
                    continue
                if state.times == schedule.times and process.status == "open":
                    continue
            fresh = _State(times=schedule.times, next_ms=next_due_ms(schedule, now_ms))
            await self._store.change(self._change(schedule.name, process, fresh, now_ms))

    async def mailed(
        self, wait: Wait, process: Process, delivery: Accepted
    ) -> tuple[ProcessChange, Sequence[NewRecord]] | Outcome:
        """Take the step of a due time."""
        if wait.name == CANCEL_WAIT:
            # An operator ends what no version declares any more.
            ended = msgspec.structs.replace(process, version=process.version + 1, status="finished")
            return ProcessChange(before=process, after=ended, keep_ms=self._group.keep_ms, acted=wait.id), ()
        schedule = self._schedules.get(process.key)
        if schedule is None or not isinstance(delivery.payload, WaitDue):
            # Another version of the app declares it.
            raise NewerCode
        state, now_ms = unpack_plain(process, _SHAPE, _State), self._clock.now_ms()
        due, next_ms, missed = due_now(schedule, state.next_ms, now_ms, state.missed)
        if missed or any(each.missed for each in due):
            _log.warning("schedule.missed", schedule=schedule.name, times=missed + sum(each.missed for each in due))
        after = _State(times=state.times, next_ms=next_ms, missed=missed)
        return self._change(process.key, process, after, now_ms, acted=wait.id), [
            record for each in due for record in self._records(schedule, each)
        ]

    def written(self, change: ProcessChange) -> None:
        """Nobody waits for it in this process."""

    async def cancelled(
        self,
        process: Process,  # noqa: ARG002 - the form of a built-in saga
        by: str,  # noqa: ARG002
        why: str,  # noqa: ARG002
    ) -> tuple[ProcessChange, Sequence[NewRecord]] | None:
        """Ignore it: nobody asked for it."""
        return None

    def _records(self, schedule: Schedule, due: Due) -> Sequence[NewRecord]:
        at = datetime.fromtimestamp(due.due_ms / 1000, UTC)
        named = "\n".join((self._group.namespace, self._group.name, schedule.name, str(due.due_ms)))
        draft = Outgoing(
            ScheduleDue(name=schedule.name, due_at=at, missed=due.missed),
            to=self._group.agent_id,
            message_id=uuid7(due.due_ms, hashlib.sha256(named.encode()).digest()[:10]),
            idempotency_key=f"{schedule.name}@{at.isoformat()}",
            key=schedule.name,
            ttl_s=schedule.ttl_s,
        )
        return self._publisher.sealer.seal(draft, SealRequest()).records

    def _change(
        self, name: str, before: Process | None, state: _State, now_ms: int, acted: str | None = None
    ) -> ProcessChange:
        identity, version = self._id(name), 1 if before is None else before.version + 1
        wait = NewWait(
            id=self._store.ids.timer(identity, SCHEDULE_WAIT, version),
            name=SCHEDULE_WAIT,
            after_ms=max(0, state.next_ms - now_ms),
        )
        after = Process(
            id=identity,
            namespace=self._group.namespace,
            group=self._group.name,
            saga=SCHEDULE_SAGA,
            key=name,
            version=version,
            status="open",
            shape=_SHAPE,
            state=msgspec.json.encode(state),
            opener=b"",
            trust="user_request",
            sender=self._group.agent_id,
        )
        return ProcessChange(before=before, after=after, armed=(wait,), ended=(SCHEDULE_WAIT,), acted=acted)

    def _id(self, name: str) -> bytes:
        return self._store.ids.process(SCHEDULE_SAGA, "", name)
