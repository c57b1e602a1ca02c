"""The state machines of conversations, as data (`VOCABULARY.md` section 2).

Owns which message moves which conversation from where to where, and who may send it. A move that is not here is
`invalid_transition`. What judges messages by them comes with conversations; lint and pages read them already.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

__all__ = ["MACHINES", "Machine", "Move", "MachineRole", "machines_of"]

MachineRole: TypeAlias = Literal["R", "W", "S", "any"]
"""R requester, W the one who was asked, S the saga or bus."""


class Move(msgspec.Struct, frozen=True):
    """*party* moves from each of *sources* to *target* by one of *types*; without types by what *on* says.

    *conditions* are values of data that the message must have, `same` as target keeps the state.
    """

    sources: tuple[str, ...]
    party: MachineRole
    types: tuple[str, ...]
    target: str
    conditions: tuple[tuple[str, str], ...] = ()
    on: str = ""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """States and moves of one kind of conversation; *key* says what one conversation is."""

    name: str
    key: str
    moves: tuple[Move, ...]
    terminal: frozenset[str] = frozenset()

    @property
    def states(self) -> frozenset[str]:
        """Every state that occurs."""
        named = {state for move in self.moves for state in (*move.sources, move.target)}
        return frozenset(named - {"same", "none", "any", "before"}) | self.terminal

    @property
    def types(self) -> frozenset[str]:
        """Every message type that moves it."""
        return frozenset(name for move in self.moves for name in move.types)


def _by_status(
    sources: tuple[str, ...], party: MachineRole, message_type: str, field: str, statuses: tuple[str, ...]
) -> tuple[Move, ...]:
    return tuple(Move(sources, party, (message_type,), status, ((field, status),)) for status in statuses)


_ENDS = ("completed", "failed", "cancelled", "timed_out")
_WAITS = ("waiting_for_approval", "waiting_for_tool")

_MACHINES: Final = (
    Machine(
        name="task",
        key="conversation, task_id",
        moves=(
            Move(("none",), "R", ("task.request", "task.handoff"), "pending"),
            Move(("pending",), "W", ("task.accepted",), "running"),
            Move(("pending",), "W", ("task.rejected",), "rejected"),
            Move(("pending", "running"), "W", ("task.clarification",), "needs_clarification"),
            Move(("needs_clarification",), "R", ("task.clarified", "task.request"), "before"),
            *_by_status(("running", *_WAITS), "W", "status.update", "new_status", _WAITS),
            Move(("pending", "running", *_WAITS), "W", ("status.update",), "running", (("new_status", "running"),)),
            *_by_status(("any",), "W", "task.result", "status", _ENDS[:3]),
            *_by_status(("any",), "W", "status.update", "new_status", _ENDS),
            Move(("any",), "W", ("error.reported",), "timed_out", (("error_class", "error.timeout"),)),
            Move(("any",), "W", ("error.reported",), "failed"),
            Move(("any",), "R", ("task.cancel",), "same"),
            Move(("any",), "S", (), "timed_out", on="obligation"),
            Move(("any",), "S", (), "cancelled", on="grace over"),
        ),
        terminal=frozenset({"rejected", *_ENDS}),
    ),
    Machine(
        name="handoff",
        key="handoff_id",
        moves=(
            Move(("none",), "R", ("handoff.request",), "requested"),
            Move(("requested",), "W", ("handoff.accepted",), "accepted"),
            Move(("requested",), "W", ("handoff.rejected",), "rejected"),
            *_by_status(("accepted",), "W", "handoff.completed", "status", ("completed", "failed")),
            Move(("requested", "accepted"), "R", ("task.cancel",), "cancelled"),
            Move(("requested", "accepted"), "S", (), "expired", on="deadline"),
        ),
        terminal=frozenset({"rejected", "completed", "failed", "cancelled", "expired"}),
    ),
    Machine(
        name="approval",
        key="approval_id",
        moves=(
            Move(("none",), "S", ("approval.request",), "open"),
            Move(("open",), "W", ("approval.decision",), "approved", (("decision", "approve"),), on="quorum reached"),
            Move(("open",), "W", ("approval.decision",), "rejected", (("decision", "reject"),)),
            Move(("open",), "W", ("approval.decision",), "changes_requested", (("decision", "request_changes"),)),
            Move(("open",), "S", (), "timed_out", on="deadline"),
            Move(("approved",), "S", (), "consumed", on="run committed"),
            Move(("approved",), "S", (), "expired", on="expiry"),
            Move(
                ("approved",),
                "S",
                (),
                "void",
                on="the request no longer matches its message, the rule denies, or a key is revoked",
            ),
        ),
        terminal=frozenset({"rejected", "changes_requested", "timed_out", "consumed", "expired", "void"}),
    ),
    Machine(
        name="request",
        key="message id",
        moves=(
            Move(("none",), "R", ("method.request", "act.request", "act.query"), "asked"),
            Move(("asked",), "W", ("method.response", "act.inform", "act.confirm"), "answered"),
            Move(("asked",), "W", ("error.reported", "act.error"), "failed"),
            Move(("asked",), "W", ("act.reject",), "rejected"),
            Move(("asked",), "S", (), "timed_out", on="deadline"),
        ),
        terminal=frozenset({"answered", "failed", "rejected", "timed_out"}),
    ),
    Machine(
        name="auction",
        key="conversation",
        moves=(
            Move(("none",), "R", ("auction.call",), "called"),
            Move(("called",), "W", ("auction.bid", "auction.refusal"), "called", on="before bid_by"),
            Move(("called",), "S", (), "unsold", on="no bid"),
            Move(("called",), "R", ("auction.award",), "awarded"),
            Move(("called", "awarded"), "R", ("auction.loss",), "same"),
            Move(("awarded",), "W", ("auction.result",), "done"),
            Move(("awarded",), "W", ("auction.failure", "auction.refusal"), "awarded", on="to the runner-up"),
            Move(("awarded",), "S", (), "awarded", on="silence, to the runner-up"),
            Move(("awarded",), "S", (), "unsold", on="no runner-up"),
        ),
        terminal=frozenset({"unsold", "done"}),
    ),
    Machine(
        name="subscription",
        key="subscription_id",
        moves=(
            Move(("none",), "R", ("subscription.open",), "opening"),
            Move(("opening",), "W", ("subscription.opened",), "open"),
            Move(("open",), "W", ("subscription.notice",), "open"),
            Move(("open",), "R", ("subscription.open",), "open", on="renews the lease"),
            Move(("opening", "open"), "R", ("subscription.cancel",), "cancelled"),
            Move(("opening", "open"), "W", ("subscription.ended",), "ended"),
            Move(("opening", "open"), "S", (), "ended", on="lease over"),
        ),
        terminal=frozenset({"cancelled", "ended"}),
    ),
    Machine(
        name="review",
        key="conversation",
        moves=(
            Move(("none", "drafting"), "W", ("draft.output", "patch.proposal"), "drafted"),
            Move(("drafted",), "R", ("review.output", "review.result"), "approved", (("verdict", "approved"),)),
            Move(("drafted",), "R", ("review.output", "review.result"), "drafting", on="round < n"),
            Move(("drafted",), "R", ("review.output", "review.result"), "abandoned", on="round = n"),
        ),
        terminal=frozenset({"approved", "abandoned"}),
    ),
    Machine(
        name="blackboard",
        key="key",
        moves=(
            Move(("version",), "R", ("blackboard.write",), "version", on="expected version: version + 1"),
            Move(("version",), "W", ("blackboard.conflict",), "same"),
        ),
    ),
    Machine(
        name="presence",
        key="agent id",
        moves=(
            Move(("unknown", "gone"), "any", ("agent.handshake",), "healthy"),
            Move(("healthy",), "S", (), "unhealthy", on="35 s without heartbeat"),
            Move(("unhealthy", "healthy"), "any", ("agent.heartbeat",), "healthy"),
            Move(("any",), "any", ("agent.goodbye",), "gone"),
        ),
    ),
)

MACHINES: Final = MappingProxyType({machine.name: machine for machine in _MACHINES})
"""Name -> machine."""


def machines_of(message_type: str) -> tuple[str, ...]:
    """Return the names of the machines that *message_type* moves."""
    return tuple(name for name, machine in MACHINES.items() if message_type in machine.types)
