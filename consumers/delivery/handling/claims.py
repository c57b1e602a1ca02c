"""InboxClient: what a worker asks its inbox, repeated until the store answers.

Owns the choice of keys, retries while the store is away, the later release of claims, and counting answers. While it
retries, the partition is paused: no message runs without its claim. The decision is in
`consumers.delivery.inbox.claim_rules`, what follows from it in `consumers.delivery.handling.executor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from bus import failpoints
from bus.backoff import Backoff
from bus.clock import Clock, Interval
from bus.errors import InboxError
from bus.payloads.payload_types import PayloadType, raised_risk
from bus.protocol.sealing import Message
from bus.telemetry.logs import get_logger
from bus.telemetry.metrics import Metrics
from bus.transports.base import NewRecord
from consumers.delivery.declaration import HandlerDeclaration
from consumers.delivery.inbox.base import (
    AlreadyDead,
    AlreadyDone,
    Ask,
    Claim,
    Claimed,
    Conflict,
    End,
    Inbox,
    InboxKey,
    KeepsCrashing,
    Transaction,
    Write,
    Written,
    principal_of,
)
from consumers.delivery.inbox.conversation import MemoryRow
from consumers.delivery.inbox.step_call import OperatorAnswer
from consumers.delivery.settling.durable_append import GaveUpError
from consumers.delivery.state.delivery import Accepted, Delivery
from consumers.delivery.state.lanes import Lane
from consumers.delivery.state.partition import Partition

__all__ = ["ActiveClaim", "ClaimOfRun", "ClaimRequest", "InboxClient", "Keeping", "ResultRequest"]

_T = TypeVar("_T")
_Question = TypeVar("_Question", bound=Ask | End)

_ANSWER_S: Final = 5.0
"""A store that keeps a claim waiting for longer is not well."""

_ACTING: Final = frozenset({"request", "propose", "accept", "cancel"})
"""Performatives of messages that ask for an action."""
_REPEAT: Final = "repeat/"
_LONG_S: Final = 5.0
"""A SQLite transaction open for longer is logged, because it blocks all other writers."""

_BACKOFF = Backoff(0.5, 30.0)
_OVER = "the run that this transaction belongs to has ended"

_log = get_logger("inbox")


class Keeping(NamedTuple):
    """How many seconds rows are kept after the end of their messages."""

    usual: float
    asking: float
    """Of messages whose runs may ask for approvals."""


class InboxClient:
    """Asks the inbox of one group on behalf of its worker."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        namespace: str,
        group: str,
        keep_s: Keeping,
        clock: Clock,
        metrics: Metrics,
        pause: Callable[[Partition, bool], None],
        high_risk: Collection[str] = (),
        has_keys: bool = False,
        remembers_all: bool = False,
    ) -> None:
        self._remembers_all = remembers_all
        self._high_risk = high_risk
        self._has_keys = has_keys
        self.inbox = inbox
        self._namespace = namespace
        self._group = group
        self._keep_s = keep_s
        self._clock = clock
        self._pause = pause
        self._tallies = {kind: metrics.inbox_knew(group, name) for kind, name in _NAMES.items()}
        self._abandoned = metrics.inbox_knew(group, "abandoned")
        self._unreleased: list[tuple[InboxKey, int]] = []
        """Claims whose release failed."""
        self._unconfirmed: list[Ask] = []
        """Claims that were requested and abandoned before the store answered."""
        self._rarely = Interval(clock)
        self._open_s: dict[int, float] = {}
        """By question that the store has not answered yet, when it was asked, on the monotonic clock."""
        self._questions = 0
        self._failed = ""
        """The error of the last question, if the store has answered none since."""

    def key_of(self, message: Message, subscription: HandlerDeclaration) -> InboxKey | None:
        """Return the inbox key of *message*, handled by *subscription*; None where the inbox keeps nothing about it."""
        if subscription.dedup == "off":
            return None
        by_id = subscription.dedup == "always"
        chosen = None if by_id else message.routing.idempotency_key
        # Messages that wait for their turn keep the offset back: what was handled behind them would run again after
        # each rebalance, and what has a limit is rarely free of charge.
        if chosen is None and (
            by_id or subscription.asks or subscription.limits or self._is_remembered(subscription.kind)
        ):
            chosen = message.message_id
        if chosen is None:
            return None
        principal = principal_of(message, has_keys=self._has_keys)
        return InboxKey(self._namespace, principal, message.message_type, self._group, chosen)

    def _is_remembered(self, kind: PayloadType) -> bool:
        """Return whether the inbox must record a message of *kind* without a key, so that a copy of its record does not
        run again.

        True for high risk and, where senders are verified, for every message that asks for an action (security S10),
        because a replayed record has a valid signature, too.
        """
        is_high = raised_risk(kind, self._high_risk) == "high"
        return self._remembers_all or is_high or (self._has_keys and not _ACTING.isdisjoint(kind.terms.words))

    def claim_request(self, key: InboxKey, delivery: Accepted, lane: Lane[Delivery]) -> ClaimRequest:
        """Build the claim request for *delivery*, the head of *lane*, under *key*."""
        message = delivery.message
        content_hash, until_ms = _content_hash(message), self._keep_until_ms(delivery)
        return ClaimRequest(
            key, content_hash, until_ms, delivery.control.redrive_count, message_id=message.message_id, lane=lane
        )

    def claim_soon(self, asks: Sequence[ClaimRequest], on_answers: Callable[[Sequence[ClaimRequest]], object]) -> None:
        """Ask for claims once, without waiting; *on_answers* receives *asks* on the loop, with answers or errors."""
        self.inbox.claim_soon(asks, self._asked(len(asks), on_answers))

    async def claim(
        self, key: InboxKey, delivery: Delivery, *, alone: bool = False, after: InboxError | None = None
    ) -> Claim:
        """Claim *delivery*, asking until the store answers; *alone*: no other handler runs in this process.

        *after* is the error of a request that has failed already.

        Raises GaveUpError when its partition has gone meanwhile, InboxError where the store's error is permanent.
        """
        message, keep_until_ms = delivery.message, self._keep_until_ms(delivery)
        assert message is not None  # noqa: S101 - its key was made of it
        content_hash, reopen = _content_hash(message), delivery.control.redrive_count

        async def ask() -> Claim:
            return await self.inbox.claim(
                key,
                content_hash,
                keep_until_ms=keep_until_ms,
                reopen=reopen,
                alone=alone,
                message_id=message.message_id,
            )

        try:
            return self.count_answer(await self._answer(delivery.partition, ask, after))
        except GaveUpError:
            self._unconfirmed.append(Ask(key, content_hash, keep_until_ms, reopen, message_id=message.message_id))
            raise

    def _keep_until_ms(self, delivery: Delivery) -> int:
        """Return until when the row of *delivery* is kept: that of a run with approvals as long as its dead letter.

        An operator who answers for a step finds it.
        """
        asks = isinstance(delivery, Accepted) and delivery.subscription.asks
        return delivery.expires_ms + round(1000 * (self._keep_s.asking if asks else self._keep_s.usual))

    async def ended_before(self, key: InboxKey, delivery: Delivery) -> AlreadyDone | AlreadyDead | None:
        """Look up whether this message, by id and content, has ended under *key*. Raises GaveUpError."""
        message = delivery.message
        assert message is not None  # noqa: S101 - its key was made of it
        content_hash = _content_hash(message)
        found = await self._answer(delivery.partition, lambda: self.inbox.find_done(key, content_hash), None)
        return found if found is not None and found.message_id == message.message_id else None

    def count_answer(self, claim: Claim) -> Claim:
        """Count the answer *claim* in the metrics, and return it."""
        if (tally := self._tallies.get(type(claim))) is not None:
            tally.count += 1
        if isinstance(claim, Claimed):
            failpoints.reach("claimed")
        return claim

    def finish_soon(
        self, ends: Sequence[ResultRequest], on_answers: Callable[[Sequence[ResultRequest]], object]
    ) -> None:
        """Store results without outputs, without waiting; *on_answers* receives *ends* on the loop.

        The answer False means that another worker has claimed the message since.
        """
        self.inbox.finish_soon(ends, self._asked(len(ends), on_answers))

    async def finish(
        self, claim: ActiveClaim, outputs: Sequence[NewRecord], delivery: Delivery, *, after: InboxError | None = None
    ) -> bool:
        """Store the result of *claim*, and commit its transaction where it has one.

        False: another worker has claimed the message since, or the result is stored already; claim again. Raises
        GaveUpError. Raises InboxError where the connection is lost with the transaction: its writes are lost too.
        """
        partition = delivery.partition
        if claim.transaction is not None:
            try:
                return await self.inbox.finish(claim.key, claim.token, outputs, claim.transaction)
            except InboxError:
                if not await self._is_done(claim, delivery):
                    raise
                return False
        return await self._answer(partition, lambda: self.inbox.finish(claim.key, claim.token, outputs), after)

    async def finish_with(self, claim: ActiveClaim, outputs: Sequence[NewRecord], writes: Sequence[Write]) -> Written:
        """Store the result of *claim* together with *writes*.

        "stale": another result counts, or the store has not answered whether this one is there: claim again. Raises
        an error of the store that does not pass, and the database's own about a write.
        """
        try:
            return await self.inbox.finish_with(claim.key, claim.token, outputs, writes)
        except InboxError as error:
            if not error.retriable:
                raise
            # If it is there all the same, the next claim says so; else the message runs again.
            await self._release(claim)
            return "stale"

    def repeat_key(self, key: InboxKey, message: Message) -> InboxKey:
        """Return the key of the row with the end of *message*, which repeats another message of the same *key*."""
        return msgspec.structs.replace(key, idempotency_key=f"{_REPEAT}{message.message_id}")

    async def forget_steps(self, claim: ActiveClaim) -> None:
        """Delete what runs of the message have remembered. Raises InboxError."""
        await self.inbox.forget(claim.key)

    async def release_with(self, claim: ActiveClaim) -> bool:
        """Free *claim* in its transaction, and commit both; False: another worker has claimed it since."""
        assert claim.transaction is not None  # noqa: S101 - what was written is in it
        is_free = await self.inbox.release_with(claim.key, claim.token, claim.transaction)
        # It has ended: nothing is warned about it later.
        claim.transaction = None
        return is_free

    async def made_durable(self) -> bool:
        """Return whether all stored results survive a crash of the machine; otherwise no offset may be committed."""
        try:
            await self.inbox.sync()
        except InboxError as error:
            _log.error("inbox.not_durable", error=str(error), detail="no offset is committed until it is")
            return False
        return True

    def trouble(self) -> str:
        """Return what is wrong with the store by what was asked of it in earnest; empty while it answers."""
        waited_s = self._clock.monotonic_s() - min(self._open_s.values(), default=math.inf)
        if waited_s > _ANSWER_S:
            return self._failed or f"a claim or a result has waited for its answer for {waited_s:.0f} s"
        return self._failed

    async def who_blocks(self) -> str:
        """Return which session of the database others wait for; empty where there is none, or it cannot be seen."""
        return await self.inbox.who_blocks()

    async def look(self) -> str:
        """Ask the store for nothing; return why it did not answer, else ""."""
        try:
            await self.inbox.read("SELECT 1")
        except Exception as error:  # noqa: BLE001 - whatever it was, it did not answer; who needs it meets the error itself
            return str(error) or type(error).__name__
        return ""

    async def undo(self, claim: ActiveClaim) -> None:
        """Roll the transaction of *claim* back, and keep the claim: the run has failed, and its end is to be stored."""
        if claim.transaction is not None:
            with contextlib.suppress(InboxError):
                await claim.transaction.rollback()
            claim.transaction = None

    async def release(self, claim: ActiveClaim) -> None:
        """Release *claim* and roll its transaction back."""
        await self._release(claim)
        self._abandoned.count += 1

    async def void(self, claim: ActiveClaim) -> None:
        """Delete the row of *claim*, as if the message had never come."""
        try:
            await self.inbox.void(claim.key, claim.token)
        except InboxError as error:
            self._unreleased.append((claim.key, claim.token))
            _log.warning("inbox.release_failed", error=str(error))

    async def release_leftovers(self) -> None:
        """Release the claims whose release failed while the store was unreachable.

        As long as this owner is alive, no other owner can claim those messages.
        """
        with contextlib.suppress(InboxError):
            while self._unreleased or self._unconfirmed:
                if self._unreleased:
                    await self._again(self._unreleased, lambda claim: self.inbox.release(*claim))
                else:
                    await self._again(self._unconfirmed, self._clear_up)

    async def _release(self, claim: ActiveClaim) -> None:
        try:
            if claim.transaction is not None:
                await claim.transaction.rollback()
            await self.inbox.release(claim.key, claim.token)
        except InboxError as error:
            self._unreleased.append((claim.key, claim.token))
            _log.warning("inbox.release_failed", error=str(error))

    async def _is_done(self, claim: ActiveClaim, delivery: Delivery) -> bool:
        """Return whether the result of *claim* is stored although its commit seemed to fail.

        Then only the answer was lost, and the run must not count as failed.
        """
        assert claim.transaction is not None  # noqa: S101 - it was to be committed
        await claim.transaction.rollback()
        # Until it is released this process counts as running the message, and gets no other claim on it.
        if not isinstance(await self.claim(claim.key, delivery), AlreadyDone | AlreadyDead):
            return False
        await self._release(claim)
        return True

    async def _clear_up(self, ask: Ask) -> None:
        # Another owner's claim or result stays as it is. A claim that is free or this owner's is granted: its token can
        # be released.
        claim = await self.inbox.claim(
            ask.key, ask.content_hash, keep_until_ms=ask.keep_until_ms, reopen=ask.reopen, message_id=ask.message_id
        )
        if isinstance(claim, Claimed):
            self._unreleased.append((ask.key, claim.token))

    async def _again(self, debts: list[_T], settle: Callable[[_T], Awaitable[None]]) -> None:
        debt = debts.pop()
        try:
            await settle(debt)
        except InboxError:
            debts.append(debt)
            raise

    async def begin(self, claim: ActiveClaim, partition: Partition) -> Transaction:
        """The transaction of the handler that has *claim*, the same one for all of its tasks, however long its store
        takes to open one: a handler that failed for that would have its work to do again, and a good message would die
        of it.

        Raises InboxError once the handler has ended, GaveUpError when *partition* has gone meanwhile.
        """
        if claim.turn is None:
            claim.turn = asyncio.Lock()
        async with claim.turn:
            begun = (
                None
                if claim.over
                else claim.transaction or await self._answer(partition, lambda: self._begun(claim), None)
            )
            if begun is None:
                raise InboxError(_OVER)
            if self.inbox.dialect == "sqlite":
                self._clock.call_later(_LONG_S, lambda: self._name_long(claim, begun))
            return begun

    def _name_long(self, claim: ActiveClaim, begun: Transaction) -> None:
        if claim.transaction is begun and not claim.over:
            _log.warning(
                "inbox.long_transaction",
                type=claim.key.message_type,
                key=claim.key.idempotency_key,
                open_s=_LONG_S,
                detail="its handler keeps the one writer of the SQLite inbox: every other claim and lease waits. Open "
                "the transaction last, and do nothing slow in it",
            )

    async def purge(self) -> None:
        """Delete the keys that have expired."""
        try:
            count = await self.inbox.purge()
        except InboxError as error:
            _log.warning("inbox.purge_failed", error=str(error))
            return
        if count:
            _log.info("inbox.purged", rows=count)

    async def _begun(self, claim: ActiveClaim) -> Transaction | None:
        """Begin a transaction for *claim*; None once its handler has ended."""
        return None if claim.over else await _hand_over(claim, await self.inbox.begin())

    async def _answer(self, partition: Partition, ask: Callable[[], Awaitable[_T]], after: InboxError | None) -> _T:
        if after is None:
            try:
                return await self._timed(ask)
            except InboxError as error:
                after = error
        return await self._retry(partition, ask, after)

    async def _timed(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Ask, and note how the store is."""
        number = self._began()
        try:
            answer = await ask()
        except InboxError as error:
            self._failed = str(error) if error.retriable else self._failed
            raise
        finally:
            self._open_s.pop(number, None)
        self._failed = ""
        return answer

    def _began(self) -> int:
        self._questions += 1
        self._open_s[self._questions] = self._clock.monotonic_s()
        return self._questions

    def _asked(self, count: int, on_answers: Callable[[Sequence[_Question]], object]) -> Callable[..., object]:
        """Return *on_answers*, which also notes how the store is once *count* questions have their answers."""
        number, left = self._began(), count

        def answered(questions: Sequence[_Question]) -> object:
            nonlocal left
            left -= len(questions)
            if left <= 0:
                self._open_s.pop(number, None)
            answer = questions[-1].answer
            if not isinstance(answer, InboxError):
                self._failed = ""
            elif answer.retriable:
                self._failed = str(answer)
            return on_answers(questions)

        return answered

    async def _retry(self, partition: Partition, ask: Callable[[], Awaitable[_T]], error: InboxError) -> _T:
        """Repeat *ask* after *error* until the store answers. Raises a permanent error, or GaveUpError."""
        if not error.retriable:
            raise error
        pauses_s = _BACKOFF.delays_s()
        self._pause(partition, True)
        try:
            while True:
                pause_s = next(pauses_s)
                # All messages at hand wait here for the same reason: log one line.
                if self._rarely.is_due("unreachable", pause_s):
                    _log.error("inbox.unreachable", error=str(error), again_in_s=pause_s)
                await self._clock.sleep(pause_s)
                if partition.closed:
                    raise GaveUpError
                try:
                    return await self._timed(ask)
                except InboxError as again:
                    if not again.retriable:
                        raise
                    error = again
        finally:
            self._pause(partition, False)


async def _hand_over(claim: ActiveClaim, begun: Transaction) -> Transaction | None:
    """Give *begun* to *claim*; roll it back if the handler has already ended.

    Otherwise that transaction would never end, and others would wait for its locks.
    """
    if claim.over:
        await begun.rollback()
        return None
    claim.transaction = begun
    return begun


_NAMES: dict[type[Claim], str] = {
    Claimed: "new",
    AlreadyDone: "duplicate",
    AlreadyDead: "duplicate",
    Conflict: "conflict",
    KeepsCrashing: "crash_loop",
}


class ActiveClaim(msgspec.Struct):
    """The claim of a run, with the *client* that ends it; *identity* is the store's own name of the key."""

    client: InboxClient
    key: InboxKey
    token: int
    identity: Any = None
    transaction: Transaction | None = None
    turn: asyncio.Lock | None = None
    """Lets one coroutine of the handler begin the transaction while the others wait."""
    over: bool = False
    """The handler has ended: its leftover tasks get no transaction."""


class ClaimOfRun:
    """The claim of a run, as its context sees it, and the store of its steps."""

    __slots__ = ("_answer", "_claim", "_kept", "_partition")

    def __init__(
        self,
        claim: ActiveClaim,
        partition: Partition,
        kept: Callable[[], object],
        answer: Callable[[], OperatorAnswer | None],
    ) -> None:
        self._claim = claim
        self._partition = partition
        self._kept = kept
        """Called when something of the run is stored."""
        self._answer = answer

    @property
    def answer(self) -> OperatorAnswer | None:
        """What an operator says about a step of the message, which was sent back."""
        return self._answer()

    @property
    def steps(self) -> ClaimOfRun:
        """The store for the results of the run's steps, beside its row."""
        return self

    @property
    def has_transaction(self) -> bool:
        """Whether a transaction of the run is open."""
        return self._claim.transaction is not None

    def memory(self, conversation: str) -> MemoryRow:
        """Return the row of *conversation* for this group and the sender of the message."""
        key = self._claim.key
        named = {
            "conversation": conversation,
            "group": key.group,
            "namespace": key.namespace,
            "sender": key.sender,
        }
        return MemoryRow(self._claim.client.inbox, named)

    @property
    def holds_writer(self) -> bool:
        """Whether an open transaction of the run blocks all other writers."""
        return self._claim.transaction is not None and self._claim.client.inbox.dialect == "sqlite"

    async def begin(self) -> Transaction:
        """Open the run's transaction, the same one each time. Raises InboxError, GaveUpError."""
        return await self._claim.client.begin(self._claim, self._partition)

    async def read(self) -> Mapping[str, bytes]:
        """Return the results that earlier runs have stored. Raises InboxError."""
        return await self._claim.client.inbox.remembered(self._claim.key)

    async def write(self, name: str, data: bytes) -> bool:
        """Keep *data*; False: another worker has the claim. Raises InboxError."""
        is_kept = await self._claim.client.inbox.remember(self._claim.key, self._claim.token, name, data)
        self._kept()
        return is_kept

    async def write_with(self, name: str, data: bytes, writes: Sequence[Write]) -> Written:
        """Keep *data* together with *writes*, or nothing at all. Raises InboxError."""
        return await self._claim.client.inbox.remember_with(self._claim.key, self._claim.token, name, data, writes)


class ClaimRequest(Ask, kw_only=True, eq=False, gc=False):
    """A claim request for the head of *lane*, while no slot waits."""

    lane: Lane[Delivery]


class ResultRequest(End, kw_only=True, eq=False, gc=False):
    """A request to store the result of *delivery*, the head of *lane*, while no slot waits."""

    lane: Lane[Delivery]
    delivery: Accepted
    claim: ActiveClaim


def _content_hash(message: Message) -> str:
    """Return the hash by which *message* is the same content as another: of two versions that of the older."""
    other = message.metadata.other_version
    return message.verification.content_hash if other is None or other.content_hash is None else other.content_hash
