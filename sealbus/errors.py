"""The errors that a program meets now and then; those that most programs handle are in `sealbus` itself.

    from sealbus.errors import ConfigurationError, UnreachableError

Page: `docs/how-to/ask-agents.md`.
"""

from __future__ import annotations

from bus.errors import (
    ApprovalRefused,
    ClarificationMissing,
    ClosedError,
    ConfigurationError,
    ContractError,
    DialectError,
    EventLoopError,
    InboxError,
    MissingSetting,
    NotDone,
    StepInDoubt,
    UnreachableError,
)
from consumers.delivery.handler_errors import TaskCancelled
from producers.outcomes import UnexpectedReply

__all__ = [
    "ApprovalRefused",
    "ClarificationMissing",
    "ClosedError",
    "ConfigurationError",
    "ContractError",
    "DialectError",
    "EventLoopError",
    "InboxError",
    "MissingSetting",
    "NotDone",
    "StepInDoubt",
    "TaskCancelled",
    "UnexpectedReply",
    "UnreachableError",
]
