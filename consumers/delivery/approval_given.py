"""The approval under which a run takes place. A value."""

from __future__ import annotations

import msgspec

__all__ = ["ApprovalGiven"]


class ApprovalGiven(msgspec.Struct, frozen=True, kw_only=True):
    """The approvers of a run, their conditions, and their signed decisions as evidence for the owner of the effect."""

    approval_id: str
    decided_by: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    decisions: tuple[bytes, ...] = ()
    """The sealed `approval.decision` messages."""
