"""InboxTurns: a delivery and the inbox, before its run: claimed, known as done or dead, or never to run.

Owns asking for claims, what an answer means for the delivery, and the end of what does not run. The decision about a
claim is in `consumers.delivery.inbox.claim_rules`.
"""

from __future__ import annotations

from typing import Final

from bus.errors import InboxError
from bus.protocol.reasons import gate_of
from consumers.delivery.group_plan import GroupPlan
from consumers.delivery.handling.claim_batches import ClaimBatcher
from consumers.delivery.handling.claims import ActiveClaim, ClaimRequest, InboxClient, ResultRequest
from consumers.delivery.handling.results import STALE, RunResults
from consumers.delivery.handling.slots import HandlerSlot
from consumers.delivery.inbox.base import (
    AlreadyDead,
    AlreadyDone,
    Ask,
    Claim,
    Claimed,
    ClaimedElsewhere,
    End,
    InboxKey,
    Suspect,
)
from consumers.delivery.settling.dispositions import Dispositions
from consumers.delivery.settling.outcome import Dead, Done, Outcome, Skipped
from consumers.delivery.state.delivery import Accepted, Delivery, Refused
from consumers.delivery.state.lanes import Lane

__all__ = ["InboxTurns"]

_UNPROVEN: Final = frozenset({"size", "parse", "integrity", "recipient", "audience", "authenticity"})
"""The gates that verify the sender. A message that one of them refuses gets no inbox row, because its sender may be
forged."""
_LIFETIME: Final = "lifetime"


class InboxTurns:
    """Asks the inbox of one worker before runs."""

    def __init__(
        self,
        plan: GroupPlan,
        *,
        claims: InboxClient,
        batches: ClaimBatcher,
        results: RunResults,
        dispositions: Dispositions,
    ) -> None:
        self._plan = plan
        self._claims = claims
        self._batches = batches
        self._results = results
        self._dispositions = dispositions

    def ask(self, lane: Lane[Delivery], delivery: Accepted) -> bool:
        """Ask for a claim on *delivery*, the head of *lane*; return False where the inbox keeps nothing about it."""
        key = self._claims.key_of(delivery.message, delivery.subscription)
        if key is None:
            return False
        self._batches.ask(key, lane, delivery)
        return True

    async def answer(
        self, delivery: Accepted, inbox_request: Ask | End, slot: HandlerSlot
    ) -> ActiveClaim | ClaimRequest | Outcome:
        """Go on with the inbox's answer: return the claim to run *delivery* with, or its outcome without a run.

        A store that has failed is asked again. The request itself is returned where the delivery must run alone.
        """
        answer = inbox_request.answer
        delivery.inbox_request = None
        delivery.partition.awaiting_inbox -= 1
        if isinstance(answer, Exception) and not isinstance(answer, InboxError):
            raise answer
        failed = answer if isinstance(answer, InboxError) else None
        match inbox_request:
            case ResultRequest():
                return await self._results.store_again(inbox_request.claim, delivery, slot, failed)
            case ClaimRequest(answer=claim) if claim is not None and not isinstance(claim, Exception):
                claim = self._claims.count_answer(claim)
            case _:
                claim = await self._claims.claim(inbox_request.key, delivery, after=failed)
        if isinstance(claim, Suspect) and isinstance(inbox_request, ClaimRequest):
            return inbox_request
        if isinstance(claim, Claimed):
            return ActiveClaim(self._claims, inbox_request.key, claim.token, inbox_request.identity)
        return await self._without_run(inbox_request.key, delivery, slot, claim)

    async def claim_alone(
        self, inbox_request: ClaimRequest, delivery: Accepted, slot: HandlerSlot
    ) -> ActiveClaim | Outcome:
        """Claim *delivery* while no other handler runs in this process."""
        claim = await self._claims.claim(inbox_request.key, delivery, alone=True)
        if isinstance(claim, Claimed):
            return ActiveClaim(self._claims, inbox_request.key, claim.token, inbox_request.identity)
        return await self._without_run(inbox_request.key, delivery, slot, claim)

    async def concluded(self, delivery: Delivery, dead: Dead, slot: HandlerSlot) -> Outcome:
        """Store *dead*, the verdict about a message that does not run, in its inbox row, and return the verdict that
        counts.

        The stored verdict is final, because a policy, a cancellation or the code may judge differently the next time.
        If the inbox already has the message as done or dead, that verdict counts: clocks and policies may have changed
        since, and its outputs may not have been sent yet.
        """
        claims, message = self._claims, delivery.message
        gate = "" if isinstance(dead, Skipped) else gate_of(dead.failure.reason)
        subscription = self._plan.subscription_of(delivery)
        if gate in _UNPROVEN or message is None or subscription is None:
            return dead
        key = claims.key_of(message, subscription)
        if key is None:
            return dead
        whole = delivery if isinstance(delivery, Accepted) else None
        if isinstance(delivery, Refused):
            whole = delivery.otherwise
        repeat = claims.repeat_key(key, message)
        if gate == _LIFETIME:
            # It stays too late: no row is needed for that.
            ended = await claims.ended_before(key, delivery) or await claims.ended_before(repeat, delivery)
            if whole is None or ended is None:
                return dead
            return self._dispositions.outcome_of_claim(whole, claims.count_answer(ended))
        # Alone: where its runs have ended processes, this is none.
        claim = await claims.claim(key, delivery, alone=True)
        if isinstance(claim, Claimed):
            return await self._results.end(ActiveClaim(claims, key, claim.token), delivery, slot, dead)
        # Another message that has its key says nothing about this one: it passes every gate first.
        if isinstance(claim, AlreadyDone | AlreadyDead) and claim.message_id != message.message_id:
            claim = await claims.ended_before(repeat, delivery) or claim
        counts = isinstance(claim, ClaimedElsewhere) or (
            isinstance(claim, AlreadyDone | AlreadyDead) and claim.message_id == message.message_id
        )
        return self._dispositions.outcome_of_claim(whole, claim) if counts and whole is not None else dead

    async def _without_run(self, key: InboxKey, delivery: Accepted, slot: HandlerSlot, claim: Claim) -> Outcome:
        """Return what becomes of *delivery*, which *claim* lets not run.

        The end of a repeat under the key of another message is kept in a row of its own: when it comes again, its time
        may be over.
        """
        outcome, claims = self._dispositions.outcome_of_claim(delivery, claim), self._claims
        is_repeat = isinstance(claim, AlreadyDone | AlreadyDead) and claim.message_id != delivery.message.message_id
        if not is_repeat or (isinstance(outcome, Done) and not outcome.outputs):
            return outcome
        own = claims.repeat_key(key, delivery.message)
        row = await claims.claim(own, delivery, alone=True)
        if isinstance(row, Claimed):
            active = ActiveClaim(claims, own, row.token)
            if isinstance(outcome, Dead):
                return await self._results.end(active, delivery, slot, outcome)
            if isinstance(outcome, Done):
                return outcome if await self._results.store(active, outcome.outputs, delivery, slot) else STALE
            await self._results.release(active)
        elif isinstance(row, AlreadyDone | AlreadyDead):
            return self._dispositions.outcome_of_claim(delivery, row)
        return outcome
