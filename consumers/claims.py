"""Claims: what a worker asks its inbox, and insists on.

Owns which messages have a key, asking again for as long as a store that is away needs (the partition is not fetched meanwhile, nothing is
handled without a claim), and counting the answers. The decision is `consumers.inbox.rules`', what follows from it `consumers.execution`'s.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from bus.clock import Clock
from bus.errors import InboxError
from bus.failpoints import reach
from bus.logs import get_logger
from bus.metrics import Metrics
from bus.sealing import Message
from bus.transports.base import NewRecord
from consumers.app import Subscription
from consumers.delivery import Delivery, Partition
from consumers.inbox.base import Claim, Claimed, Conflict, CrashLoop, Done, Inbox, Key, Transaction
from consumers.settlement import GaveUpError

__all__ = ["Claims"]

T = TypeVar("T")

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0

_log = get_logger("inbox")


class Claims:
    """The inbox of one group, as its worker uses it."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        namespace: str,
        group: str,
        keep_s: float,
        clock: Clock,
        metrics: Metrics,
        hold: Callable[[Partition, bool], None],
    ) -> None:
        self._inbox = inbox
        self._namespace = namespace
        self._group = group
        self._keep_ms = round(keep_s * 1000)
        self._clock = clock
        self._metrics = metrics
        self._hold = hold
        self._counters = {kind: metrics.inbox.labels(group, name) for kind, name in _NAMES.items()}

    def key_of(self, message: Message, subscription: Subscription) -> Key | None:
        """The row that *message* stands under; None where nothing is to be remembered about it."""
        if subscription.dedup == "off":
            return None
        chosen = message.message_id if subscription.dedup == "always" else message.routing.idempotency_key
        if chosen is None:
            return None
        return Key(self._namespace, message.metadata.sender.id or "", message.message_type, self._group, chosen)

    async def claim(self, key: Key, delivery: Delivery, message: Message, *, alone: bool = False) -> Claim:
        """Ask for *message*, which is to run *alone* in this process or not, for as long as it takes.

        Raises GaveUpError when its partition has gone meanwhile.
        """
        keep_until_ms = delivery.expires_ms + self._keep_ms
        content_hash, reopen = message.verification.content_hash, delivery.control.redrive_count
        try:
            claim = await self._inbox.claim(key, content_hash, keep_until_ms=keep_until_ms, reopen=reopen, alone=alone)
        except InboxError as error:
            claim = await self._insist(
                delivery.partition,
                lambda: self._inbox.claim(key, content_hash, keep_until_ms=keep_until_ms, reopen=reopen, alone=alone),
                error,
            )
        if counter := self._counters.get(type(claim)):
            counter.inc()
        if isinstance(claim, Claimed):
            reach("claimed")
        return claim

    async def finish(self, key: Key, token: int, outputs: Sequence[NewRecord], transaction: Transaction | None, partition: Partition) -> bool:
        """Make the result durable. False: another worker has claimed the message since. Raises GaveUpError, and InboxError where *transaction*
        is lost with the store's connection: what was written in it is, too."""
        if transaction is not None:
            return await self._inbox.finish(key, token, outputs, transaction)
        try:
            return await self._inbox.finish(key, token, outputs)
        except InboxError as error:
            return await self._insist(partition, lambda: self._inbox.finish(key, token, outputs), error)

    async def release(self, key: Key, token: int, transaction: Transaction | None) -> None:
        """Give the claim up in order."""
        try:
            if transaction is not None:
                await transaction.rollback()
            await self._inbox.release(key, token)
        except InboxError as error:
            # The store finds out by itself that this owner does not run it any more.
            _log.warning("inbox.release_failed", error=str(error))
        self._metrics.inbox.labels(self._group, "abandoned").inc()

    async def begin(self) -> Transaction:
        """A transaction for one handler; raises InboxError."""
        return await self._inbox.begin()

    async def purge(self) -> None:
        """Forget the keys whose time has passed."""
        try:
            count = await self._inbox.purge()
        except InboxError as error:
            _log.warning("inbox.purge_failed", error=str(error))
            return
        if count:
            _log.info("inbox.purged", rows=count)

    async def _insist(self, partition: Partition, ask: Callable[[], Awaitable[T]], error: InboxError) -> T:
        """*ask* again after *error*, until there is an answer."""
        pause_s = _FIRST_PAUSE_S
        self._hold(partition, True)
        try:
            while True:
                _log.error("inbox.unreachable", error=str(error), again_in_s=pause_s)
                await self._clock.sleep(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
                if partition.closed:
                    raise GaveUpError
                try:
                    return await ask()
                except InboxError as again:
                    error = again
        finally:
            self._hold(partition, False)


_NAMES: dict[type[Claim], str] = {Claimed: "new", Done: "duplicate", Conflict: "conflict", CrashLoop: "crash_loop"}
