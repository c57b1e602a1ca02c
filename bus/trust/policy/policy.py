"""The interface of the policy gate: may this group handle this message?

Owns the Protocol and the default without a configured policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from bus.protocol.sealing import Message

if TYPE_CHECKING:
    from bus.trust.policy.rules import PolicyRules

__all__ = ["NO_POLICY", "AllowAll", "Policy", "rules_source"]


class Policy(Protocol):
    """Decides about one message; pure."""

    def refusal(self, message: Message, group: str) -> str | None:
        """Return why *group* may not handle *message* (reason `unauthorized`), or None."""


class AllowAll:
    """The policy without rules: every message that passed the earlier gates may be handled.

        app = App("worker@svc", verifier=TrustedKeys("keys/jwks.json"), policy=AllowAll())      # it is meant

    The setting `policy.file = "allow-all"` says the same.
    """

    def refusal(self, message: Message, group: str) -> str | None:  # noqa: ARG002 - the Protocol's signature
        return None


NO_POLICY: Final = AllowAll()
"""The default of an App or a connection without a policy argument; the settings may name a policy."""


def rules_source(policy: Policy) -> Callable[[], PolicyRules | None]:
    """Return what gives the rules of *policy* now: None for a policy of the program's own, which has no rules."""
    source: Callable[[], PolicyRules | None] = getattr(policy, "rules", lambda: None)
    return source
