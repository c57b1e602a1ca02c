"""An agent of the directory as a row. Pure."""

from __future__ import annotations

import asyncio
import time

import msgspec

from producers.directory import AgentEntry, Directory

__all__ = ["AgentRow", "HealthChange", "agent_row", "wait_for_heartbeat"]


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    """One agent, as the heartbeats of its workers tell it."""

    agent: str
    health: str
    workers: int
    heartbeat_s_ago: float | None
    running: int
    """Messages that its workers are handling."""
    capabilities: tuple[str, ...]
    """Those that the policy grants."""
    unconfirmed_capabilities: tuple[str, ...]
    """Those that it claims, and the policy does not grant."""
    accepts: tuple[str, ...]
    """Message types and versions."""
    roles: tuple[str, ...]
    name: str


class HealthChange(msgspec.Struct, frozen=True, kw_only=True):
    """An agent whose health changed."""

    agent: str
    before: str
    health: str
    at: str


def agent_row(entry: AgentEntry) -> AgentRow:
    return AgentRow(
        agent=entry.agent_id,
        health=entry.health,
        workers=entry.instances,
        heartbeat_s_ago=None if entry.heard_s_ago is None else round(entry.heard_s_ago, 1),
        running=entry.active_tasks or 0,
        capabilities=tuple(entry.capabilities),
        unconfirmed_capabilities=tuple(entry.claimed),
        accepts=tuple(sorted({each for ranges in entry.accepts for each in ranges})),
        roles=tuple(entry.roles),
        name=entry.name or "",
    )


async def wait_for_heartbeat(directory: Directory, name: str, timeout_s: float) -> float | None:
    """Return after how many seconds the next heartbeat of *name* came; None if none did."""
    begun_s = time.monotonic()
    before = await directory.get(name)
    known_s = None if before is None or before.heard_s_ago is None else begun_s - before.heard_s_ago
    while (now_s := time.monotonic()) - begun_s < timeout_s:
        entry = await directory.get(name)
        heard_s = None if entry is None or entry.heard_s_ago is None else now_s - entry.heard_s_ago
        if heard_s is not None and (known_s is None or heard_s > known_s + 0.1):
            return now_s - begun_s
        await asyncio.sleep(0.2)
    return None
