"""Rounds: what a gateway looks at every few seconds: whether store and log answer, and which credentials are gone.

Owns that the open tasks of a removed credential end. A credential is gone when no replica has had it for a while: each
stamps its own in the store of the tasks, since a file of credentials may be changed on one replica before others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from bus.errors import BusError, text_of
from bus.telemetry.logs import get_logger
from bus.topics.names import mailbox_topic
from consumers.gateway.agents import GATEWAY_GROUP
from consumers.gateway.gateway import Gateway
from consumers.web.refusal import HttpRefusal

__all__ = ["Rounds", "gone_owners"]

_EVERY_S: Final = 2.0
_LOG_ANSWER_S: Final = 4.0
_STAMP_S: Final = 10.0
_GONE_S: Final = 30.0
_WHY: Final = "its credential was removed"

_log = get_logger("gateway")


class Rounds:
    """The rounds of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._present: set[str] = set()
        self._lost: set[str] = set()
        """Owners that this replica had, or that opened a task here, and that it has no more."""
        self._stamped_s = -math.inf
        self._steady_s = math.inf
        """Since when this replica has stamped without a gap."""

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_EVERY_S)

    async def look(self) -> None:
        """Look once, and tell the metrics how it went."""
        self._gateway.metrics.begin_round(self._gateway.clock.monotonic_s())
        error = ""
        try:
            await self._gateway.tasks.store.next_nudge_s()
            await self._look_at_credentials()
            error = await self._log_fault()
        except (BusError, HttpRefusal) as failure:
            error = text_of(failure)
        if error:
            _log.warning("gateway.round_failed", error=error)
        self._gateway.metrics.error = error

    async def _log_fault(self) -> str:
        """Return why a task that is opened now would not reach its agent; "": the log answers, and takes appends."""
        tasks = self._gateway.tasks
        mailbox = mailbox_topic(tasks.group.namespace, GATEWAY_GROUP)
        try:
            async with asyncio.timeout(_LOG_ANSWER_S):
                await tasks.publisher.transport.admin.ranges(mailbox)
        except TimeoutError:
            return f"the log has not answered within {_LOG_ANSWER_S:.0f} s"
        return tasks.append_fault()

    async def _look_at_credentials(self) -> None:
        """Stamp the credentials that are here, and end the tasks of those that are nowhere."""
        gateway, now_s = self._gateway, self._gateway.clock.monotonic_s()
        present = {each.owner for each in gateway.source.current().all}
        self._lost = (self._lost | self._present | gateway.owners) - present
        is_new = not present <= self._present
        self._present = present
        gateway.owners &= present
        if not is_new and now_s - self._stamped_s < _STAMP_S:
            return
        await gateway.tasks.rows.stamp(present)
        if now_s - self._stamped_s > _GONE_S:
            # While the store was away, or nobody ran, the others could not stamp either: they get their time.
            self._steady_s = now_s
        self._stamped_s = now_s
        if now_s - self._steady_s >= _GONE_S + _STAMP_S:
            await self._end_tasks(present)

    async def _end_tasks(self, present: AbstractSet[str]) -> None:
        # A stamp may be as old as the pause between two, and its replica has the credential all the same.
        rows, gone_ms = self._gateway.tasks.rows, round((_GONE_S + _STAMP_S) * 1000)
        for name in sorted(gone_owners(await rows.unseen_ms(), present, self._lost, gone_ms=gone_ms)):
            count = await self._gateway.tasks.cancel_all(name, _WHY)
            self._lost.discard(name)
            await rows.forget_owner(name, gone_ms)
            if count:
                _log.info("gateway.credential_removed", door=name, cancelled=count)


def gone_owners(
    unseen_ms: Mapping[str, int], present: AbstractSet[str], lost: AbstractSet[str], *, gone_ms: int
) -> set[str]:
    """Return the owners that no replica has any more. Pure.

    *unseen_ms* is how long ago a replica had each. A replica of the version before stamps nothing: an owner without a
    stamp counts as gone only where this replica has *lost* it.
    """
    stale = {owner for owner, since_ms in unseen_ms.items() if since_ms > gone_ms}
    return (stale | (lost - unseen_ms.keys())) - present
