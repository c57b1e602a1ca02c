"""Rounds: what a gateway looks at every few seconds: whether its store answers, and which credentials are gone.

Owns that the open tasks of a removed credential end. Each replica that has seen the removal tries it, and the versions
of the rows decide. A credential that was never seen here is not judged: another replica may have read a newer file.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bus.errors import BusError, text_of
from bus.telemetry.logs import get_logger
from consumers.gateway.gateway import Gateway
from consumers.web.refusal import HttpRefusal

__all__ = ["Rounds"]

_EVERY_S: Final = 2.0
_WHY: Final = "its credential was removed"

_log = get_logger("gateway")


class Rounds:
    """The rounds of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._known = _owners(gateway)
        self._gone: set[str] = set()

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
            await self._end_tasks()
        except (BusError, HttpRefusal) as failure:
            error = text_of(failure)
            _log.warning("gateway.round_failed", error=error)
        self._gateway.metrics.error = error

    async def _end_tasks(self) -> None:
        """End the tasks of the credentials that have gone since the last round."""
        present = _owners(self._gateway)
        self._gone = (self._gone | self._known | self._gateway.owners) - present
        self._known = present
        for name in sorted(self._gone):
            count = await self._gateway.tasks.cancel_all(name, _WHY)
            self._gone.discard(name)
            self._gateway.owners.discard(name)
            _log.info("gateway.credential_removed", door=name, cancelled=count)


def _owners(gateway: Gateway) -> set[str]:
    return {each.owner for each in gateway.source.current().all}
