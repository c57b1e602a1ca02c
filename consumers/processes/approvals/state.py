"""ApprovalState: what the process of one approval remembers, and how it is stored. Pure.

The row is an index, not a proof: the decisions in it are judged again before the run (security S28).
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from bus.protocol import canonical
from consumers.processes.sagas.process import Ending, Process, unpack_plain

__all__ = [
    "APPROVAL_SAGA",
    "ApprovalPhase",
    "ApprovalState",
    "EXPIRY_NAME",
    "Decided",
    "MESSAGE_SHAPE",
    "SHAPE",
    "STEP_WAIT_NAME",
    "WAIT_NAME",
    "pack_approval",
    "unpack_approval",
]

APPROVAL_SAGA: Final = "approval"
WAIT_NAME: Final = "decision"
"""How the waits for a decision begin."""
EXPIRY_NAME: Final = "expiry"
STEP_WAIT_NAME: Final = "decision.step"
"""How the waits for a decision about a step begin."""
MESSAGE_SHAPE: Final = "1.0.0"
"""Of the approval of a whole message."""
SHAPE: Final = "1.1.0"
"""Of the approval of a step; what reads it knows both."""

ApprovalPhase: TypeAlias = Literal[
    "open", "approved", "rejected", "changes_requested", "timed_out", "consumed", "expired", "void"
]


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """One approval that counts so far; *value* is the sealed decision."""

    by: str
    owner: str
    value: bytes
    conditions: tuple[str, ...] = ()


class ApprovalState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One approval."""

    phase: ApprovalPhase = "open"
    approval_id: str = ""
    action: dict[str, Any] = {}
    action_hash: str = ""
    rule: str = ""
    by: Literal["human", "agent"] = "human"
    quorum: int = 1
    same_owner: bool = False
    approvers: tuple[tuple[str, ...], ...] = ()
    reason: str = ""
    request: bytes = b""
    """The sealed `approval.request`."""
    expires_ms: int = 0
    """When the waiting message expires."""
    due_ms: int = 0
    """When silence becomes a rejection, by the worker's clock: for people."""
    decided: tuple[Decided, ...] = ()
    ended_by: str = ""
    """The agent that rejected it."""
    said: str = ""
    """Why it was rejected, or which changes are asked for."""
    differing: tuple[str, ...] = ()
    ending: Ending | None = None
    """How its process has ended, where it has."""


def pack_approval(state: ApprovalState) -> bytes:
    """Return the canonical bytes of *state*."""
    return canonical.encode(msgspec.to_builtins(state))


def unpack_approval(process: Process) -> ApprovalState:
    """Return the state of *process*.

    Raises NewerCode where a later version has written it, or it is in a phase that is not known here.
    """
    return unpack_plain(process, SHAPE, ApprovalState)
