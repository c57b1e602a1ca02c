"""The subscription of an app's schedules: one message type for all, told apart by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from bus.errors import MissingSetting, Reject
from consumers.delivery.declaration import HandlerDeclaration
from consumers.processes.schedules.schedule import Schedule

if TYPE_CHECKING:
    from bus.vocabulary.bus import ScheduleDue
    from consumers.delivery.context import Context

__all__ = ["schedule_subscription"]


def schedule_subscription(schedules: Sequence[Schedule], agent_id: str) -> Mapping[str, HandlerDeclaration]:
    """Return the subscription by which the *schedules* of *agent_id* run; none without schedules."""
    if not schedules:
        return {}
    from bus.payloads.payload_types import payload_type
    from bus.vocabulary.bus import ScheduleDue

    known = {each.name: each for each in schedules}

    async def run_schedule(due: ScheduleDue, context: Context) -> Any:
        if context.message.metadata.sender.id != agent_id:
            raise Reject("only the own agent of a schedule may announce it")
        schedule = known.get(due.name)
        if schedule is None:
            # Another version of the app declares it: a worker of that one runs it.
            raise MissingSetting(f"schedule {due.name}", "this version of the app does not declare it")
        return await (schedule.function(due, context) if schedule.takes_context else schedule.function(due))

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
