"""Who agreed to a run. A value."""

from __future__ import annotations

import msgspec

__all__ = ["ApprovalGiven"]


class ApprovalGiven(msgspec.Struct, frozen=True, kw_only=True):
    """Who agreed to a run, on which conditions, and their signed decisions for those who own the effect."""

    approval_id: str
    decided_by: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    decisions: tuple[bytes, ...] = ()
    """The sealed `approval.decision` messages."""
