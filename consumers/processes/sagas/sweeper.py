"""WaitSweeper: makes waits fall due, by sending `wait.due` to the group's own mailbox.

Owns when: at the due time by the store's clock, once more after a minute without acknowledgement, then hourly while the
row stands. A wait that died is looked at again within the hour: a saga heals when its code does.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from bus import failpoints
from bus.clock import Clock
from bus.errors import BusError, ClosedError, ContractError
from bus.protocol import sealing
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.transports.base import Appended
from bus.vocabulary.bus import WaitDue
from consumers.processes.sagas.process_group import ProcessGroup
from consumers.processes.sagas.store import ProcessStore, Swept
from producers.outcomes import PublishRejected
from producers.publisher import Publisher
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from producers.sealing.sealed_record import SealedRecord

__all__ = ["WaitSweeper"]

_EVERY_S: Final = 0.8
"""With the spread, a second at most: a wait is late by that and the mailbox's lag."""
_SPREAD: Final = 0.2
_COUNTED_EVERY: Final = 10
_PURGED_EVERY: Final = 600
_FULL: Final = 200

_log = get_logger("sagas")


class WaitSweeper:
    """Nudges the waits of one group; every worker of the group runs one."""

    def __init__(
        self,
        store: ProcessStore,
        publisher: Publisher,
        *,
        group: ProcessGroup,
        clock: Clock,
        metrics: Metrics,
        max_processes: int,
        crowded: Callable[[frozenset[str]], None],
        randomness: Callable[[], float] = random.random,
    ) -> None:
        """*crowded* is called every ten rounds with the senders that have *max_processes* open processes."""
        self._max_processes = max_processes
        self._crowded = crowded
        self._store = store
        self._publisher = publisher
        self._group = group
        self._clock = clock
        self._metrics = metrics
        self._randomness = randomness
        self._known: set[str] = set()

    async def run(self) -> None:
        """Sweep within each second until cancelled; a store or log that is away is asked again."""
        rounds = 0
        while True:
            await self._clock.sleep(_EVERY_S * (1 + _SPREAD * (2 * self._randomness() - 1)))
            rounds += 1
            try:
                while await self.sweep() >= _FULL:
                    pass
                if rounds % _COUNTED_EVERY == 1:
                    await self.count()
                if not rounds % _PURGED_EVERY:
                    await self._store.purge()
            except ClosedError:
                return
            except BusError as error:
                _log.error("sagas.not_swept", group=self._group.name, error=str(error))

    async def sweep(self) -> int:
        """Nudge the waits that are due now, at most 200; return how many there were."""
        due = await self._store.sweep()
        if not due:
            return 0
        sealed = [(wait, made) for wait in due if (made := self._sealed(wait)) is not None]
        records = [made.record for _, made in sealed]
        await self._publisher.prepare_topics({self._group.mailbox})
        outcomes = await self._publisher.batcher.append(records, timeout_s=self._publisher.settings.publish.timeout_s)
        failpoints.reach("nudged")
        sent = [wait for (wait, _), outcome in zip(sealed, outcomes, strict=True) if isinstance(outcome, Appended)]
        if len(sent) < len(sealed):
            _log.warning("sagas.nudges_not_sent", group=self._group.name, count=len(sealed) - len(sent))
        if sent:
            await self._store.nudged(sent)
        return len(due)

    async def next_due_s(self) -> float | None:
        """Return the seconds until the next nudge; None where nothing waits."""
        return await self._store.next_nudge_s()

    async def count(self) -> None:
        """Refresh the gauges of open processes and overdue waits, and who has too many."""
        self._crowded(await self._store.crowded(self._max_processes))
        by_saga, overdue = await self._store.counts()
        for saga in self._known - set(by_saga):
            self._metrics.processes_open.labels(self._group.name, saga).set(0)
        for saga, count in by_saga.items():
            self._metrics.processes_open.labels(self._group.name, saga).set(count)
        self._known |= set(by_saga)
        self._metrics.waits_overdue.labels(self._group.name).set(overdue)

    def _sealed(self, wait: Swept) -> SealedRecord | None:
        due_at = datetime.fromtimestamp(wait.due_ms / 1000, UTC)
        draft = Outgoing(
            payload=WaitDue(wait=wait.id, name=wait.name, due_at=due_at),
            to=self._group.agent_id,
            message_id=self._store.ids.nudge(wait.id, wait.number),
            # It may have to wait for a worker whose code knows it; dead it would only tell people what a row tells.
            ttl_s=self._publisher.settings.publish.max_ttl_s,
        )
        try:
            # What nobody has opened, a schedule, has no cause.
            opener = sealing.parse(wait.opener) if wait.opener else None
            return self._publisher.sealer.seal(draft, SealRequest(cause=opener, topic=self._group.mailbox))
        except (PublishRejected, ContractError) as error:
            _log.error("sagas.nudge_refused", wait=wait.id, error=str(error))
            return None
