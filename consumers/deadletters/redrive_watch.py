"""Watch: counts redriven letters that die again.

Owns waiting until the groups have settled the redriven messages, and counting their new dead letters. Sending is in
`consumers.deadletters.redrive`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

import msgspec

from bus.clock import Clock
from bus.telemetry.logs import get_logger
from bus.topics.namespace_groups import NamespaceGroups
from bus.transports.base import Appended, Transport
from consumers.deadletters.death_times import DeathTimes
from consumers.deadletters.letters import dead_letter_ends, read_letter_facts
from consumers.deadletters.redrive_rules import RedrivenDeath, death_of

__all__ = ["Watch"]

_GLANCE_S = 0.1
_SAY_AFTER_S = 10.0
_PATIENCE_S = 300.0
_PAGE_RECORDS = 250
_PAGE_BYTES = 2 * 1_048_576

_log = get_logger("redrive")


class Watch:
    """Follows the dead letter topics from where they ended when it began."""

    def __init__(
        self, transport: Transport, namespace: str, clock: Clock, positions: dict[tuple[str, int], int]
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._groups = NamespaceGroups(transport.admin, namespace)
        self._clock = clock
        self._positions = positions
        self._expected = DeathTimes()
        """When each death that would be of a sent message was seen; 0: not yet."""
        self._seen = 0
        self._behind: dict[str, dict[tuple[str, int], int]] = {}

    @classmethod
    async def begin(cls, transport: Transport, namespace: str, clock: Clock) -> Watch:
        """Watch from now on."""
        return cls(transport, namespace, clock, await dead_letter_ends(transport, namespace))

    def sent(self, sent: Iterable[tuple[RedrivenDeath, Appended]]) -> None:
        """Note that these deaths were undone by records at these places."""
        for death, location in sent:
            self._expected.put(msgspec.structs.replace(death, count=death.count + 1), 0)
            ends = self._behind.setdefault(death.group, {})
            ends[location.topic, location.partition] = max(
                ends.get((location.topic, location.partition), 0), location.offset + 1
            )

    async def wait_settled(self, stop: asyncio.Event) -> bool:
        """Wait until the groups have settled all that was sent.

        Returns False when *stop* was set or they make no progress.
        """
        moved_s, was_logged, left_before = self._clock.monotonic_s(), False, -1
        while not stop.is_set():
            left = await self._left()
            if not left:
                return True
            now_s = self._clock.monotonic_s()
            if left != left_before:
                left_before, moved_s, was_logged = left, now_s, False
            if now_s - moved_s > _PATIENCE_S:
                return False
            if now_s - moved_s > _SAY_AFTER_S and not was_logged:
                was_logged = True
                _log.warning(
                    "redrive.waiting",
                    groups=sorted(self._behind),
                    records=left,
                    hint="is a worker of the group running?",
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _GLANCE_S)
        return False

    async def failures(self) -> int:
        """Return how many of the sent messages have died again so far."""
        for location, end in (await dead_letter_ends(self._transport, self._namespace)).items():
            topic, partition = location
            offset = self._positions.get(location, 0)
            while offset < end:
                records = await self._transport.read(
                    topic, partition, offset, max_records=_PAGE_RECORDS, max_bytes=_PAGE_BYTES
                )
                if not records:
                    break
                for record in records:
                    letter = read_letter_facts(record)
                    if self._expected.get(death_of(letter)) == 0:
                        self._expected.put(death_of(letter), letter.failed_ms or 1)
                        self._seen += 1
                offset = records[-1].offset + 1
            self._positions[location] = max(offset, self._positions.get(location, 0))
        return self._seen

    async def _left(self) -> int:
        """Return how many records the groups have not settled; settled places are not asked about again."""
        left = 0
        for group in list(self._behind):
            committed = await self._groups.committed(group)
            ends = {location: end for location, end in self._behind[group].items() if committed.get(location, 0) < end}
            left += sum(end - committed.get(location, 0) for location, end in ends.items())
            if ends:
                self._behind[group] = ends
            else:
                del self._behind[group]
        return left
