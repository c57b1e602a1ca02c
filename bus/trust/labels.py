"""Trust levels, data classifications and side effects: three ordered scales. Pure.

Owns their orders and what an unknown or absent word counts as (PROTOCOL.md section 1, design part two section 14).
Words are compared exactly: "User_Request" is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = [
    "CLASSIFICATIONS",
    "DEFAULT_CLASSIFICATION",
    "GRAVE",
    "INSTRUCTING",
    "LEAST_TRUSTED",
    "LEVELS",
    "SIDE_EFFECTS",
    "highest_classification",
    "least_trusted",
    "rank_of_classification",
    "rank_of_level",
]

LEVELS: Final = (
    "platform_policy",
    "org_policy",
    "runtime_instruction",
    "task_instruction",
    "user_request",
    "trusted_tool_result",
    "model_generated",
    "untrusted_content",
)
"""Trust levels, most trusted first."""
LEAST_TRUSTED: Final = LEVELS[-1]
INSTRUCTING: Final = "user_request"
"""The least level from which a directive message is handled, unless a policy rule names type and group."""

GRAVE: Final = (
    "approval.decision",
    "auction.award",
    "branch.create.request",
    "command.request",
    "pr.create.request",
    "redrive.ordered",
    "tool.call",
    "workflow.start",
)
"""Types with high risk for every reader that has keys, whatever they declare (security S10)."""

CLASSIFICATIONS: Final = ("public", "internal", "confidential", "restricted")
"""Data classifications, least sensitive first."""
DEFAULT_CLASSIFICATION: Final = "internal"

SIDE_EFFECTS: Final = ("none", "read", "write", "external", "irreversible")
"""Side effects of a message type, the mildest first."""

_LEVEL_RANKS: Final = {level: rank for rank, level in enumerate(LEVELS)}
_CLASSIFICATION_RANKS: Final = {name: rank for rank, name in enumerate(CLASSIFICATIONS)}


def rank_of_level(level: str) -> int:
    """Return the rank of *level*: 0 is most trusted; an unknown word counts as the least trusted."""
    return _LEVEL_RANKS.get(level, len(LEVELS) - 1)


def least_trusted(levels: Iterable[str]) -> str:
    """Return the least trusted of *levels*, of which there is at least one."""
    return LEVELS[max(rank_of_level(level) for level in levels)]


def rank_of_classification(classification: str) -> int:
    """Return the rank of *classification*: 0 is public; an unknown word counts as the most sensitive."""
    return _CLASSIFICATION_RANKS.get(classification, len(CLASSIFICATIONS) - 1)


def highest_classification(classifications: Iterable[str]) -> str:
    """Return the most sensitive of *classifications*, of which there is at least one."""
    return CLASSIFICATIONS[max(rank_of_classification(name) for name in classifications)]
