"""Auctions (contract net): call, bids, award, result."""

from __future__ import annotations

from typing import Literal

from bus.payloads.payload_types import payload
from bus.vocabulary.forms import Code, Flag, Hash, Long, Object, Positive, Share, Text, Value
from bus.vocabulary.parts import Effect, ErrorInfo, Money, Ref, ReturnContract


@payload("auction.call", version="1.0.0", performative="call_for_proposal", required_options=("task_id",), ttl_s=3600)
class AuctionCall(Value, frozen=True, kw_only=True):
    """Manager to everybody or a role.

    Bids close at `bid_by_s` after metadata.timestamp by the log's append time.
    """

    goal: Text
    inputs: Object = {}
    acceptance_criteria: tuple[Text, ...] = ()
    return_contract: ReturnContract
    """Of auction.result's output."""
    bid_by_s: Positive
    """Less than the message's lifetime."""
    answer_within_s: Positive
    """Counted from the award."""
    choice: Literal["lowest_cost", "highest_confidence", "soonest"] = "lowest_cost"
    """Ties: higher confidence, then earlier append, then smaller seal."""
    max_cost: Money | None = None
    """Bids above it are refused."""
    required_confidence: Share | None = None


@payload("auction.bid", version="1.0.0", performative="propose", ttl_s=3600, side_effect="none")
class AuctionBid(Value, frozen=True, kw_only=True):
    """Bidder to manager; cause: the call."""

    cost: Money
    """The currency of the call's max_cost where there is one."""
    confidence: Share
    duration_s: Positive
    """At most answer_within_s."""
    plan: Long | None = None
    valid_for_s: Positive | None = None
    """Absent: as long as the call lives."""


@payload("auction.refusal", version="1.0.0", performative="reject", ttl_s=3600, side_effect="none")
class AuctionRefusal(Value, frozen=True, kw_only=True):
    """Bidder to manager, to a call or to an award."""

    reason_code: Code
    """As task.rejected."""
    explanation: Text | None = None


@payload(
    "auction.award", version="1.0.0", performative="accept", required_options=("task_id", "idempotency_key"), ttl_s=3600
)
class AuctionAward(Value, frozen=True, kw_only=True):
    """Manager to the winner; parents: the bid.

    The idempotency key is the same for every award of one auction.
    """

    bid: Hash
    """Seal of the bid."""
    rank: Positive
    """1 first choice, 2 runner-up, ..."""
    goal: Text
    """As called."""
    inputs: Object = {}
    """As called."""
    return_contract: ReturnContract
    """As called."""


@payload("auction.loss", version="1.0.0", performative="reject", ttl_s=3600, side_effect="none")
class AuctionLoss(Value, frozen=True, kw_only=True):
    """Manager to the others."""

    bid: Hash
    reason_code: Code
    """Known: OUTBID, LATE, TOO_EXPENSIVE, CONFIDENCE_TOO_LOW, CALL_WITHDRAWN, REPLACED, FULL."""
    is_runner_up: Flag = False
    """May still be awarded."""


@payload(
    "auction.result",
    version="1.0.0",
    performative="inform",
    required_options=("task_id",),
    ttl_s=86400,
    side_effect="none",
)
class AuctionResult(Value, frozen=True, kw_only=True):
    """Winner to manager."""

    bid: Hash
    output: Object
    """In the form of the return contract."""
    summary: Long | None = None
    artifacts: tuple[Ref, ...] = ()
    evidence_refs: tuple[Ref, ...] = ()
    cost: Money | None = None
    """What it came to."""
    effects: tuple[Effect, ...] = ()


@payload(
    "auction.failure",
    version="1.0.0",
    performative="error",
    required_options=("task_id",),
    ttl_s=3600,
    side_effect="none",
)
class AuctionFailure(Value, frozen=True, kw_only=True):
    """Winner to manager: the runner-up is awarded."""

    bid: Hash
    error: ErrorInfo
    retryable: Flag = False
    effects: tuple[Effect, ...] = ()
    """What it did before it failed."""
