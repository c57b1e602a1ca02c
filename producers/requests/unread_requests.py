"""Why a request was not answered: whether any group reads its topic, and how many members it has.

Owns asking the log, in a bounded time and not more often than once in a while for each type. What the log does not tell
is left out.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bus.clock import Clock
from bus.errors import BusError
from bus.topics.names import group_of_agent, message_topic
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import GroupInfo, Transport

__all__ = ["UnreadRequests", "unread_text"]

_PATIENCE_S: Final = 0.5
_FRESH_S: Final = 5.0
_MAX_KNOWN: Final = 256
_MAX_SHOWN: Final = 3


def unread_text(infos: list[GroupInfo], topic: str, message_type: str, to: str | None = None) -> str:
    """Return what the groups of the namespace, *infos*, show about *topic* and the agent *to*; empty if all is well."""
    at_work = [info for info in infos if any(name == topic for parts in info.members.values() for name, _ in parts)]
    if at_work:
        own = None if to is None else group_of_agent(to)
        if own is None or any(info.name == own and info.members for info in infos):
            return ""
        return f"{to} may not be running: {own}, the group that it has by default, has no members"
    known = sorted(info.name for info in infos if any(name == topic for name, _ in info.committed))
    if not known:
        return f"no group reads {topic}: is a worker with a handler of {message_type} running, in this namespace?"
    more = f" and {len(known) - _MAX_SHOWN} more" if len(known) > _MAX_SHOWN else ""
    return f"no worker reads {topic} now: {', '.join(known[:_MAX_SHOWN])}{more} read it before and has no members"


class UnreadRequests:
    """Asks the log about topics of requests."""

    def __init__(self, transport: Transport, namespace: str, clock: Clock) -> None:
        self._transport = transport
        self._namespace = namespace
        self._clock = clock
        self._known: dict[tuple[str, str | None], tuple[float, str]] = {}

    async def text_of(self, message_type: str, to: str | None = None) -> str:
        """Return why requests of *message_type* to agent *to* may be unread; empty if they are read, or unknown."""
        now_s = self._clock.monotonic_s()
        asked = message_type, to
        known = self._known.get(asked)
        if known is not None and now_s - known[0] < _FRESH_S:
            return known[1]
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                infos = await NamespaceGroups(self._transport.admin, self._namespace).infos()
        except (BusError, TimeoutError):
            return ""
        text = unread_text(infos, message_topic(self._namespace, message_type), message_type, to)
        self._known[asked] = now_s, text
        return text
