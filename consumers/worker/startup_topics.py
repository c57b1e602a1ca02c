"""A worker's topics at its start: what is missing is made, what is left over from other settings is found.

Owns that nothing else is changed then: fewer days of retention delete records, more partitions move keys, and whoever
starts a worker with other settings than the last one had has asked for neither. Does not own which topics there shall
be (`bus.topics.specs`), nor bringing them into line (`sealbus topics apply`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from bus.errors import NotPermittedError
from bus.telemetry.logs import get_logger
from bus.transports.base import Admin, TopicSpec
from consumers.group_plan import GroupPlan, leftover_tiers
from consumers.resilience.retry import Tier

__all__ = ["find_leftover", "provide"]

_log = get_logger("worker")


async def provide(admin: Admin, specs: Sequence[TopicSpec]) -> None:
    """Create those of *specs* that are missing, and say which of the others are not as they should be.

    Raises what `Admin.create_topics` does.
    """
    existing = await admin.topics()
    if missing := [spec for spec in specs if spec.name not in existing]:
        await admin.create_topics(missing)
    # Whoever may not see what they are like can use them all the same.
    with contextlib.suppress(NotPermittedError):
        plan = await admin.plan([spec for spec in specs if spec.name in existing])
        differing = sorted({change.topic for change in plan if not change.by_hand})
        if differing:
            _log.warning(
                "worker.topics_differ",
                topics=differing,
                detail="they stay as they are, and not as the settings say; `sealbus topics apply` brings them into "
                "line",
            )


async def find_leftover(admin: Admin, plan: GroupPlan) -> dict[str, Tier]:
    """By topic, the tiers that the group of *plan* has in the log and no longer in its settings; says which."""
    left = leftover_tiers(await admin.topics(), plan)
    if left:
        detail = "not in retry.tiers any more; read until empty"
        _log.warning("worker.leftover_tiers", group=plan.group, topics=sorted(left), detail=detail)
    return left
