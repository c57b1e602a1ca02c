"""Presence: which agents are there, from cards and heartbeats, by the reader's monotonic clock. Pure.

An agent is healthy while one of its instances is: heard within `healthy_s`, and not saying otherwise. What was in the
topic before the reader came counts by its distance from the newest append there, so a wall clock that is wrong changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from bus.protocol.identifiers import is_message_type
from bus.vocabulary.parts import AgentCard

__all__ = ["AgentEntry", "Health", "Instance", "Presence", "accepts_version"]

_MOST_TYPES: Final = 256
Health: TypeAlias = Literal["healthy", "unhealthy", "gone"]


class Instance(msgspec.Struct, kw_only=True):
    """One running copy of an agent."""

    card: AgentCard | None = None
    heard_s: float | None = None
    """When it was heard last, on the reader's monotonic clock."""
    is_well: bool = True
    """Whether it said so."""
    is_gone: bool = False
    active_tasks: int | None = None
    is_draining: bool = False


class AgentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about an agent. Its name and description are a stranger's text."""

    agent_id: str
    health: Health
    instances: int
    """Those that are healthy."""
    heard_s_ago: float | None
    name: str = ""
    capabilities: tuple[str, ...] = ()
    """Those that count: granted by the policy, or where there is none, as claimed."""
    claimed: tuple[str, ...] = ()
    """Those that its card claims and nobody grants."""
    accepts: tuple[tuple[str, ...], ...] = ()
    """By healthy instance, the types and versions that it takes."""
    roles: tuple[str, ...] = ()
    active_tasks: int | None = None
    types: tuple[str, ...] = ()
    """The message types whose topics its healthy instances say that they read or append to."""
    unwell: int = 0
    """Instances that were heard and say that they are stuck or cut off."""

    @property
    def is_healthy(self) -> bool:
        """Whether it is there and well."""
        return self.health == "healthy"


class Presence:
    """The instances of all agents."""

    def __init__(self, healthy_s: float) -> None:
        self._healthy_s = healthy_s
        self._agents: dict[str, dict[str, Instance]] = {}

    def carded(self, agent_id: str, session: str, card: AgentCard) -> None:
        """Note the card of an instance; it says nothing about when."""
        instance = self._instance(agent_id, session)
        instance.card = card

    def heard(
        self, agent_id: str, session: str, at_s: float, *, is_well: bool, active_tasks: int | None, draining: bool
    ) -> None:
        """Note a heartbeat, heard at *at_s*. An instance that has left stays gone: the topics are read in any order."""
        instance = self._instance(agent_id, session)
        if instance.heard_s is None or at_s >= instance.heard_s:
            instance.heard_s, instance.is_well = at_s, is_well
            instance.active_tasks, instance.is_draining = active_tasks, draining

    def left(self, agent_id: str, session: str) -> None:
        """Note a goodbye, of this instance alone."""
        self._instance(agent_id, session).is_gone = True

    def agents(self) -> Iterable[str]:
        """Return the ids of all agents that were ever heard of."""
        return sorted(self._agents)

    def entry(self, agent_id: str, now_s: float, granted: frozenset[str] | None) -> AgentEntry | None:
        """Return what is known about an agent now; *granted* are its capabilities by the policy, None without one."""
        instances = self._agents.get(agent_id)
        if not instances:
            return None
        present = [each for each in instances.values() if not each.is_gone]
        well = [each for each in present if self._is_well(each, now_s)]
        known = well or present or list(instances.values())
        card = next((each.card for each in known if each.card is not None), None)
        said = () if card is None else card.capabilities
        heard = [each.heard_s for each in instances.values() if each.heard_s is not None]
        return AgentEntry(
            agent_id=agent_id,
            health="healthy" if well else "unhealthy" if present else "gone",
            instances=len(well),
            heard_s_ago=now_s - max(heard) if heard else None,
            name="" if card is None else card.name,
            capabilities=tuple(each for each in said if granted is None or each in granted),
            claimed=() if granted is None else tuple(each for each in said if each not in granted),
            accepts=tuple(() if each.card is None else each.card.accepts for each in well),
            roles=() if card is None else card.roles,
            active_tasks=sum(each.active_tasks or 0 for each in well) if well else None,
            types=tuple(sorted({name for each in well for name in _types_of(each.card)})),
            unwell=sum(not each.is_well and self._is_heard(each, now_s) for each in present),
        )

    def _is_well(self, instance: Instance, now_s: float) -> bool:
        return instance.is_well and self._is_heard(instance, now_s)

    def _is_heard(self, instance: Instance, now_s: float) -> bool:
        return instance.heard_s is not None and now_s - instance.heard_s <= self._healthy_s

    def _instance(self, agent_id: str, session: str) -> Instance:
        return self._agents.setdefault(agent_id, {}).setdefault(session, Instance())


def _types_of(card: AgentCard | None) -> tuple[str, ...]:
    """Return the message types that *card* lists: a stranger's text, of which only what can be a type counts."""
    listed = () if card is None else card.metadata.get("types", ())
    if not isinstance(listed, list | tuple):
        return ()
    return tuple(each for each in listed[:_MOST_TYPES] if isinstance(each, str) and is_message_type(each))


def accepts_version(ranges: Iterable[str], message_type: str, version: str) -> bool:
    """Tell whether one of *ranges* (`order@1`, `order@1.2`) takes *message_type* in *version*.

    `x@1` is any 1.y.z, `x@1.2` is 1.y.z with y of 2 or more, `x@1.2.3` exactly that.
    """
    major, minor, patch = (int(part) for part in version.split("."))
    for each in ranges:
        name, _, wanted = each.partition("@")
        if name != message_type:
            continue
        parts = [int(part) for part in wanted.split(".")]
        if parts[0] != major:
            continue
        if len(parts) == 1 or (len(parts) == 2 and minor >= parts[1]) or parts == [major, minor, patch]:  # noqa: PLR2004
            return True
    return False
