"""`Foreign`: the common value that every dialect decodes to.

Owns `Foreign` and its parts. Sender, proofs and cause are only claims here; an ingress has to verify them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from bus.protocol.envelope import Agent, Authority, BackoffKind, Performative, Security
from bus.protocol.sealing import Message

__all__ = ["NONE", "NO_ALIASES", "Claims", "Defaults", "Foreign", "ForeignOptions", "ForeignRetry"]


class ForeignRetry(msgspec.Struct, frozen=True, kw_only=True):
    """The retry that a foreign message asks for; how long the waits are is a setting of the ingress."""

    max_attempts: int
    backoff: BackoffKind


class ForeignOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The envelope that a foreign message asks for, under the names that the options of `publish` have.

    None: the foreign message has no value, so the rules of the bus apply.
    """

    message_id: str | None = None
    to: Agent | None = None
    key: str | None = None
    expires_at_ms: int | None = None
    """The end of its life in Unix milliseconds. None: the default of its type, from the time it is sealed."""
    idempotency_key: str | None = None
    priority: int | None = None
    retry: ForeignRetry | None = None
    max_hops: int | None = None
    conversation_id: str | None = None
    correlation_id: str | None = None
    task_id: str | None = None
    parent_task_id: str | None = None
    run_id: str | None = None
    sequence: int | None = None
    intent: str | None = None
    performative: Performative | None = None
    authority: Authority | None = None
    security: Security | None = None
    critical_fields: tuple[str, ...] | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    fallback: tuple[str, ...] = ()
    """Agents that the ingress asks in turn when the recipient does not answer."""
    is_awaited: bool = False
    """The foreign sender waits for the answer."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The unverified claims of a foreign message about itself, for an ingress to judge."""

    sender: Agent | None = None
    namespace: str | None = None
    sent_at_ms: int | None = None
    cause_id: str | None = None
    """The foreign id of the message it follows from."""
    trust_level: str | None = None
    proofs: Mapping[str, Any] = {}
    """Signatures, tokens and the bytes they cover. Only the ingress uses them; they are never logged, stored or sealed.
    """

    def __repr__(self) -> str:
        """Show everything but the proofs, of which only the names."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "proofs"}
        fields = [f"{name}={value!r}" for name, value in shown.items() if value is not None]
        return f"Claims({', '.join([*fields, f'proofs=<{len(self.proofs)} hidden>'])})"


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """A foreign message, decoded: canonical *data* of *type* in schema *version*, options and claims."""

    type: str
    version: str
    data: dict[str, Any]
    options: ForeignOptions
    claims: Claims
    carried: Message | None = None
    """The sealed message that the foreign one carries whole, if it does.

    Its form and hashes are right; whether it is authentic is for the gates to say.
    """


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """Values that complete a fragment, a message without its envelope. They override no existing member."""

    message_id: str | None = None
    sent_at_ms: int | None = None
    sender: Agent | None = None
    recipient: Agent | None = None
    conversation_id: str | None = None
    task_id: str | None = None
    lifetime_ms: int | None = None


NO_ALIASES: Final[Mapping[str, str]] = MappingProxyType({})
"""Every agent has the same id there."""
NONE: Final = Defaults()
"""No defaults: every required member must be present."""
