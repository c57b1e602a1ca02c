"""The subscription of an app's schedules: one message type for all, told apart by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from bus.errors import MissingSetting, Reject
from bus.protocol.timestamps import parse_ms
from bus.telemetry.logs import get_logger
from consumers.delivery.declaration import HandlerDeclaration
from consumers.processes.schedules.schedule import Schedule, was_missed

if TYPE_CHECKING:
    from bus.vocabulary.bus import ScheduleDue
    from consumers.delivery.context import Context

__all__ = ["schedule_subscription"]

_log = get_logger("schedules")


def schedule_subscription(schedules: Sequence[Schedule], agent_id: str) -> Mapping[str, HandlerDeclaration]:
    """Return the subscription by which the *schedules* of *agent_id* run; none without schedules."""
    if not schedules:
        return {}
    from bus.payloads.payload_types import payload_type
    from bus.vocabulary.bus import ScheduleDue

    known = {each.name: each for each in schedules}
    left_out = Counter[str]()
    """By name, the times that this worker has left out since the last run."""

    async def run_schedule(due: ScheduleDue, context: Context) -> Any:
        if context.message.metadata.sender.id != agent_id:
            raise Reject("only the own agent of a schedule may announce it")
        schedule = known.get(due.name)
        if schedule is None:
            # Another version of the app declares it: a worker of that one runs it.
            raise MissingSetting(f"schedule {due.name}", "this version of the app does not declare it")
        now_ms, sealed_ms = context.now_ms, parse_ms(context.message.metadata.timestamp) or 0
        is_first = context.attempt == 1 and not context.redrives
        due_ms = round(due.due_at.timestamp() * 1000)
        if is_first and was_missed(schedule, due_ms, waited_ms=now_ms - sealed_ms, now_ms=now_ms):
            left_out[due.name] += 1 + due.missed
            return None
        if missed := left_out[due.name]:
            due = msgspec.structs.replace(due, missed=due.missed + missed)
        answer = await (schedule.function(due, context) if schedule.takes_context else schedule.function(due))
        if missed:
            # Only now: the next run tells of them if this one fails.
            left_out[due.name] -= missed
            _log.warning("schedule.missed", schedule=due.name, times=missed, detail="they waited for over a minute")
        return answer

    kind = payload_type(ScheduleDue)
    return {
        kind.name: HandlerDeclaration(
            kind=kind,
            handler=run_schedule,
            takes_context=True,
            retry=None,
            timeout_s=msgspec.UNSET,
            order="key",
            asks=True,
        )
    }
