"""What the bus itself and its operators say: keys, orders, checkpoints, waits, workflows."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from bus.payloads.payload_types import payload
from bus.payloads.rules import Every, Has, Is, Rule, Size, exactly_one, when
from bus.vocabulary.forms import Code, Count, Flag, Hash, Instant, Name, Object, Positive, Text, Value
from bus.vocabulary.parts import Ref


@payload("key.published", version="1.0.0", risk="high", performative="inform", ttl_s=604800)
class KeyPublished(Value, frozen=True, kw_only=True):
    """Key administrator to `_keys`; record key: the kid."""

    jwk: Object
    """Public members only, with principals, kind, types, not_before, not_after."""
    serial: Positive
    """Grows per kid; a receiver keeps the highest it has ever seen, on disk."""


@payload("key.revoked", version="1.0.0", risk="high", performative="inform", ttl_s=604800)
class KeyRevoked(Value, frozen=True, kw_only=True):
    """Key administrator to `_keys`; nothing undoes it."""

    kid: Text
    revoked_at: Instant
    serial: Positive
    reason_code: Code
    """Known: COMPROMISED, SUPERSEDED, LEFT."""


@payload(
    "redrive.ordered",
    version="1.1.0",
    risk="high",
    performative="request",
    ttl_s=3600,
    side_effect="write",
    resource="/group",
)
class RedriveOrdered(Value, frozen=True, kw_only=True):
    """Operator: what a forced redrive and `sb-extend-until` rest on, for types of high risk where there are keys."""

    group: Text
    seals: Annotated[tuple[Hash, ...], Meta(min_length=1, max_length=1000)]
    extend_until: Instant | None = None
    force: Flag = False
    reason: Text
    step: Name | None = None
    """1.1.0. The id of the step in doubt that *answer* is about; without it, the only one."""
    answer: Literal["done", "again"] | None = None
    """1.1.0. Whether the step had its effect. The first answer counts, for one call."""
    result: Object | None = None
    """1.1.0. With done: what the step returned, as `value`."""


@payload("schedule.due", version="1.0.0", performative="inform", ttl_s=3600, side_effect="none")
class ScheduleDue(Value, frozen=True, kw_only=True):
    """A group to its own agent: a schedule has become due. Its message id comes from name and due time."""

    name: Name
    due_at: Instant
    missed: Count = 0
    """Due times before it that were left out."""


@payload(
    "approval.closed",
    version="1.0.0",
    performative="inform",
    ttl_s=604800,
    side_effect="none",
    rules=(Rule("differing goes with void", "/differing", when(Size("differing"), Is("state", ("void",)))),),
)
class ApprovalClosed(Value, frozen=True, kw_only=True):
    """The group that asked; cause: the approval.request.

    For lists and people; it proves nothing.
    """

    approval_id: Name
    state: Literal["approved", "rejected", "changes_requested", "timed_out", "consumed", "expired", "void"]
    decided_by: tuple[Name, ...] = ()
    differing: tuple[Text, ...] = ()
    """Pointers of what changed, with void."""


@payload("wait.due", version="1.0.0", risk="low", performative="inform", ttl_s=3600, side_effect="none")
class WaitDue(Value, frozen=True, kw_only=True):
    """An agent to itself; the row in its store decides whether it means anything."""

    wait: Name
    name: Name
    due_at: Instant


@payload(
    "workflow.start",
    version="1.0.0",
    performative="request",
    required_options=("idempotency_key",),
    ttl_s=3600,
    rules=(
        Rule("has exactly one of definition, ref", "/definition", exactly_one("definition", "ref")),
        Rule("ref needs its sha256", "/ref/sha256", Every("ref", Has("sha256"))),
    ),
)
class WorkflowStart(Value, frozen=True, kw_only=True):
    """A person or agent to the workflow engine; it runs within this message's authority and level, not the engine's."""

    definition: Object | None = None
    """The workflow JSON; exactly one of definition, ref."""
    ref: Ref | None = None
    """With sha256."""
    variables: Object = {}
    """Over those of the definition."""


@payload("audit.checkpoint", version="1.0.0", risk="high", performative="inform", ttl_s=604800, side_effect="none")
class AuditCheckpoint(Value, frozen=True, kw_only=True):
    """Audit worker, every 10,000 rows or 10 minutes."""

    partition: Text
    """`<topic>/<partition>`."""
    rows: Count
    """In the chain so far."""
    chain_hash: Hash
    through: Count
    """Offset."""
