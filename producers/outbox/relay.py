"""The relay: publish the rows of an outbox, in the order of ids per topic and key, at least once.

Owns the rounds, what each outcome means for a row, standing by while another relay leads, and waiting for an
unreachable database or log. `producers.outbox.rows.Rows` owns the SQL, `producers.publisher` appending.

A lane is the rows of one topic and key. Its rows are sent one after another, each after the acknowledgement of the
previous one; lanes run concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from bus import failpoints
from bus.backoff import Backoff
from bus.errors import (
    BusError,
    ConfigurationError,
    ContractError,
    InboxError,
    NameRefusedError,
    NotPermittedError,
    RecordTooLargeError,
    TopicMissingError,
)
from bus.telemetry.logs import get_logger
from producers.outbox.open import open_rows
from producers.outbox.rows import PendingRow, Rows, sealed_of
from producers.outcomes import PublishError
from producers.publisher import Publisher

__all__ = ["RELAY_BATCH", "INTERVAL_S", "Relay", "Round"]

RELAY_BATCH = 500
INTERVAL_S = 0.25

_LONGEST_PAUSE_S = 10.0
_TOPIC_PAUSE_S = 5.0

_log = get_logger("outbox")


class Round(msgspec.Struct):
    """The result of one round."""

    sent: int = 0
    failed: int = 0
    trouble: BusError | None = None
    """The fault that stops other rows too, if it concerns more than one topic."""
    has_moved: bool = False
    """Whether the next round finds other rows than this one, so that it should start at once."""

    def __add__(self, other: Round) -> Round:
        return Round(self.sent + other.sent, self.failed + other.failed, other.trouble, other.has_moved)


class Relay:
    """Publishes the outbox of *database*, a URL or a test's rows, through *publisher*."""

    def __init__(
        self,
        database: str | Rows,
        publisher: Publisher,
        *,
        batch: int = RELAY_BATCH,
        interval_s: float = INTERVAL_S,
        on_round: Callable[[Round], object] | None = None,
    ) -> None:
        self._clock = publisher.clock
        self._rows = open_rows(database, clock=self._clock) if isinstance(database, str) else database
        self._publisher = publisher
        self._batch = batch
        self._interval_s = interval_s
        self._on_round = on_round
        self._blocked: dict[str, float] = {}
        self._acknowledged: dict[int, str] = {}
        """Row ids that were sent but may still be in the table, with their message ids.

        A database may allow reading but not deleting, as a standby does. Without this, such rows would be sent
        endlessly.
        """
        self._stopping = False
        self._woken = asyncio.Event()
        self._logged: str | None = None

    def stop(self) -> None:
        """Stop after the current round."""
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Relay until `stop`, also through outages of the log or the database. Raises ConfigurationError."""
        backoff, troubles = Backoff(2 * self._interval_s, _LONGEST_PAUSE_S), 0
        is_open = False
        while not self._stopping:
            try:
                if not is_open:
                    await self._rows.open()
                    is_open = True
                done = await self._round() if await self._leads() else Round()
            except InboxError as error:
                self._say("outbox.database_unreachable", str(error))
                done = Round(trouble=error)
            troubles = 0 if done.trouble is None else troubles + 1
            if troubles or not done.has_moved:
                await self._wait(backoff.delay_s(troubles) if troubles else self._interval_s)

    async def run_once(self) -> Round:
        """Send what can be sent now. Raises InboxError, also if another relay leads, and ConfigurationError."""
        await self._rows.open()
        if not await self._rows.lead():
            raise InboxError("another relay is at work on this outbox")
        total = Round()
        while not self._stopping:
            done = await self._round()
            total += done
            if done.trouble is not None or not done.has_moved:
                break
        if self._blocked and total.trouble is None:
            total.trouble = TopicMissingError(
                f"not sent, the log does not take them now: {', '.join(sorted(self._blocked))}"
            )
        return total

    async def close(self) -> None:
        """Give up the lead, so that another relay can take it."""
        await self._rows.close()

    async def _leads(self) -> bool:
        leads = await self._rows.lead()
        if not leads:
            self._say("outbox.standing_by", "another relay is at work on this outbox")
        return leads

    async def _round(self) -> Round:
        now_s = self._clock.monotonic_s()
        self._blocked = {topic: until_s for topic, until_s in self._blocked.items() if until_s > now_s}
        blocked = len(self._blocked)
        rows = await self._rows.pending(self._batch, but=tuple(self._blocked))
        lanes: dict[tuple[str, bytes | None], list[PendingRow]] = {}
        for row in rows:
            lanes.setdefault((row.topic, row.key), []).append(row)
        sent: list[int] = []
        failed: dict[int, str] = {}
        troubles = await asyncio.gather(*(self._send(lane, sent, failed) for lane in lanes.values()))
        if sent:
            failpoints.reach("sent")
        if sent or failed:
            is_settled = await self._rows.settle(sent, failed)
            self._acknowledged.clear()
            if not is_settled:
                return Round()
        trouble = next((trouble for trouble in troubles if trouble is not None), None)
        if isinstance(trouble, ConfigurationError):
            raise trouble
        self._say("outbox.log_unreachable" if trouble is not None else None, str(trouble))
        has_moved = bool(sent or failed) or len(self._blocked) > blocked
        done = Round(len(sent), len(failed), trouble, has_moved)
        if self._on_round is not None:
            self._on_round(done)
        return done

    async def _send(self, lane: Sequence[PendingRow], sent: list[int], failed: dict[int, str]) -> BusError | None:
        """Send a lane as far as possible; return the fault that stopped it, if it concerns more than its topic."""
        for row in lane:
            if self._acknowledged.get(row.id) == row.message_id:
                sent.append(row.id)
                continue
            try:
                await self._publisher.send(sealed_of(row))
            except (PublishError, ContractError, NameRefusedError, msgspec.DecodeError, UnicodeDecodeError) as error:
                cause = (
                    error.__cause__
                    if isinstance(error, PublishError) and isinstance(error.__cause__, BusError)
                    else error
                )
                if _is_for_ever(cause):
                    failed[row.id] = str(cause)
                    _log.error("outbox.refused", message=row.message_id, topic=row.topic, error=str(cause))
                    continue
                if isinstance(cause, TopicMissingError | NotPermittedError):
                    self._block(row.topic, cause)
                    return None
                return cause if isinstance(cause, BusError) else None
            self._acknowledged[row.id] = row.message_id
            sent.append(row.id)
        return None

    def _block(self, topic: str, error: BusError) -> None:
        if topic not in self._blocked:
            _log.warning("outbox.topic_waits", topic=topic, error=str(error), again_in_s=_TOPIC_PAUSE_S)
        self._blocked[topic] = self._clock.monotonic_s() + _TOPIC_PAUSE_S

    def _say(self, event: str | None, why: str) -> None:
        """Log *event* once, until it changes."""
        if event is not None and event != self._logged:
            _log.warning(event, error=why)
        elif event is None and self._logged is not None:
            _log.info("outbox.relaying")
        self._logged = event

    async def _wait(self, seconds: float) -> None:
        timer = self._clock.call_later(seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        self._woken.clear()


def _is_for_ever(error: BaseException) -> bool:
    """Tell whether the log can never accept these bytes."""
    return isinstance(error, RecordTooLargeError | NameRefusedError | msgspec.DecodeError | UnicodeDecodeError)
