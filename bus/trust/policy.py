"""The policy gate's seam: whether this group may handle this message.

Owns the Protocol and the rule that stands until policies are configured. The rules themselves come with the trust work
(design section 10).
"""

from __future__ import annotations

from typing import Protocol

from bus.protocol.sealing import Message

__all__ = ["AllowAll", "Policy"]


class Policy(Protocol):
    """Decides about one message; pure."""

    def refusal(self, message: Message, group: str) -> str | None:
        """Why *group* may not handle *message* (reason `unauthorized`), or None."""


class AllowAll:
    """No policy is configured: whatever passed the gates before this one may be handled."""

    def refusal(self, message: Message, group: str) -> str | None:  # noqa: ARG002 - the Protocol's signature
        return None
