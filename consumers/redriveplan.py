"""What a redrive would do, and what it did, in numbers. Values only.

Owns their names, which are also those in the journal and in JSON output.
"""

from __future__ import annotations

from collections import Counter

import msgspec

__all__ = ["Count", "Plan", "Result"]


class Count(msgspec.Struct, frozen=True):
    """What letters of a plan have in common: what becomes of them (`send`, `park`, `twin`, or why they are left), and what they are."""

    verdict: str
    reason: str
    message_type: str
    group: str


class Plan(msgspec.Struct, kw_only=True):
    """What a redrive would do now, in numbers."""

    counts: Counter[Count] = msgspec.field(default_factory=Counter)
    unresolved: int = 0
    """Letters that a run which was cut off was about to send: whether it did is found out when this one runs."""
    unended: list[str] = msgspec.field(default_factory=list)
    """Runs of which no end is written down."""
    unreachable: dict[str, str] = {}
    """By group, why it can't be sent anything back."""

    def total(self, *verdicts: str) -> int:
        """How many letters there are with one of *verdicts*."""
        return sum(number for count, number in self.counts.items() if count.verdict in verdicts)

    @property
    def groups(self) -> list[str]:
        """To whom letters would go."""
        return sorted({count.group for count in self.counts if count.verdict == "send"})


class Result(msgspec.Struct, kw_only=True):
    """What a redrive did.

    *outcome* is `finished`, `interrupted`, `stopped` (too many died again), `unread`, `withdrawn` (another is at work) or `failed`.
    """

    run: str
    outcome: str = "failed"
    sent: int = 0
    parked: int = 0
    twins: int = 0
    refused: int = 0
    failures: int = 0
    found: int = 0
    """Letters that an earlier run had sent without being able to say so."""
    left: int = 0
    """Letters of groups that can't be sent anything back."""
    unreachable: dict[str, str] = {}
    """By group, why."""
    rival: str = ""
    """The run for which this one withdrew."""
