"""The agent `registry`: answers `agent.discover` for agents that keep no view of their own.

It answers under its own principal, with what its view says, once that has read to the end of both topics.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final

from bus.settings.schema import Settings
from bus.vocabulary.agent import AgentAnnouncement, AgentDiscover
from bus.vocabulary.parts import AgentInfo
from consumers.app.app import App
from producers.connection import Bus, connect
from producers.directory.presence import AgentEntry

__all__ = ["REGISTRY_AGENT", "registry_app"]

REGISTRY_AGENT: Final = "registry@sealbus"
_LIMIT: Final = 100


def registry_app(settings: Settings) -> App:
    """Return the app of the registry, `registry@sealbus`, on the log of *settings*.

    sealbus serve registry
    """
    app = App(REGISTRY_AGENT, roles=["registry"])

    @app.lifespan
    async def view() -> AsyncIterator[Bus]:
        async with connect(agent=REGISTRY_AGENT, settings=settings) as bus:
            await bus.directory.ready()
            yield bus

    @app.on(AgentDiscover, provide={"bus": view}, dedup="off")
    async def discover(query: AgentDiscover, *, bus: Bus) -> AgentAnnouncement:
        begun_s = time.perf_counter()
        status = "all" if query.filters is None else query.filters.status
        max_found = _LIMIT if query.filters is None else query.filters.max_results
        known = await bus.directory.find(healthy=None)
        found = [
            entry
            for entry in known
            if entry.health != "gone"
            and set(query.capabilities) <= set(entry.capabilities)
            and (status == "all" or entry.is_healthy == (status == "healthy"))
            and (query.accepts is None or any(query.accepts in ranges for ranges in entry.accepts))
        ]
        found.sort(key=lambda entry: (not entry.is_healthy, entry.agent_id))
        took_ms = round((time.perf_counter() - begun_s) * 1000, 1)
        infos = tuple(_info(entry) for entry in found[:max_found])
        return AgentAnnouncement(agents=infos, total_count=len(found), query_time_ms=took_ms)

    return app


def _info(entry: AgentEntry) -> AgentInfo:
    heard = None if entry.heard_s_ago is None else datetime.now(UTC) - timedelta(seconds=entry.heard_s_ago)
    return AgentInfo(
        agent_id=entry.agent_id,
        name=entry.agent_id,
        capabilities=entry.capabilities,
        status="healthy" if entry.is_healthy else "unhealthy",
        last_heartbeat=heard,
        accepts=tuple(sorted({each for ranges in entry.accepts for each in ranges})),
    )
