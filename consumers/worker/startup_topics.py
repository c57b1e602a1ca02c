"""Startup topics: a starting worker makes missing topics or names them, and finds tiers left over from other settings.

It changes nothing else: less retention deletes records, more partitions move keys, and starting a worker asks for
neither. Which topics are needed is in `consumers.worker.needed_topics`; `sealbus topic apply` brings them into line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from bus.errors import NotPermittedError, TopicMissingError
from bus.telemetry.logs import get_logger
from bus.transports.base import Admin, TopicSpec
from consumers.delivery.group_plan import GroupPlan, leftover_tiers
from consumers.delivery.resilience.retry import Tier
from consumers.worker.needed_topics import missing_topics

__all__ = ["check_topics", "find_orphan_tiers", "create_missing"]

_MAX_NAMED = 5
_OWN_AGENTS: Final = frozenset({"gateway@sealbus", "permits@svc", "registry@sealbus", "workflow@sealbus"})

_log = get_logger("worker")


async def create_missing(admin: Admin, specs: Sequence[TopicSpec]) -> None:
    """Create the missing ones of *specs*, and log which others differ from their spec.

    Raises what `Admin.create_topics` does.
    """
    existing = await admin.topics()
    if missing := [spec for spec in specs if spec.name not in existing]:
        await admin.create_topics(missing)
    # A worker that may not read topic settings can still use the topics.
    with contextlib.suppress(NotPermittedError):
        plan = await admin.plan([spec for spec in specs if spec.name in existing])
        differing = sorted({change.topic for change in plan if not change.by_hand})
        if differing:
            _log.warning(
                "worker.topics_differ",
                topics=differing,
                detail="they stay unchanged, although the settings differ; `sealbus topic apply` brings them into line",
            )


async def check_topics(admin: Admin, specs: Sequence[TopicSpec], agent_id: str) -> None:
    """Raise TopicMissingError naming those of *specs* of *agent_id* that do not exist: each could hold a partition."""
    missing = missing_topics(specs, await admin.topics())
    if not missing:
        return
    more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
    error = TopicMissingError(f"no topic {', '.join(missing[:_MAX_NAMED])}{more}")
    # The bus's own agents are in no module of the user's.
    target = agent_id if agent_id in _OWN_AGENTS else "MODULE:APP"
    error.add_note(f"`sealbus topic apply {target}` creates all topics of an app, and those of the bus in it")
    raise error


async def find_orphan_tiers(admin: Admin, plan: GroupPlan) -> dict[str, Tier]:
    """Return, by topic, the tiers that the group of *plan* has in the log but not in its settings; log them."""
    left = leftover_tiers(await admin.topics(), plan)
    if left:
        detail = "not in retry.tiers any more; read until empty"
        _log.warning("worker.leftover_tiers", group=plan.group, topics=sorted(left), detail=detail)
    return left
