"""The facts that a policy uses: about a request, and about an agent. Pure.

Owns their form, and the defaults for an agent that the policy does not list. Every fact is verified or local; an
unknown fact is None. The values of scales are in `bus.trust.labels`.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from bus.protocol.envelope import Authority

__all__ = ["ACTIONS", "INTERPRETERS", "RISKS", "SENDING_ACTIONS", "UNUSED_ACTIONS", "AgentFacts", "Request"]

ACTIONS: Final = (
    "publish",
    "handle",
    "read",
    "approve",
    "redrive",
    "lift",
    "declassify",
    "detach",
    "erase",
    "cancel",
    "use",
)
"""The actions that a policy decides about."""
UNUSED_ACTIONS: Final = frozenset({"declassify", "erase", "cancel"})
"""Actions that nothing in sealbus asks a policy about yet."""
SENDING_ACTIONS: Final = ("publish", "lift", "declassify", "detach", "cancel")
"""Actions of a sender: no group takes part in them, so the fact `group` is absent."""

INTERPRETERS: Final = (
    "workflow@sealbus",
    "supervisor@sealbus",
    "gateway@sealbus",
    "registry@sealbus",
    "mcp@sealbus",
    "console@sealbus",
)
"""The workflow engine, the supervisor, the gateway, the registry, the MCP door and the console of the bus."""

RISKS: Final = ("low", "medium", "high")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One question to a policy: may *actor* do *action* with this message?

        Request(action="publish", actor="planner@svc", message_type="task.request", major=1, ...)

    *actor* is the verified agent, or None if it is not verified. *via* are the earlier senders of the chain, and for
    `handle` also the sender of the message; *via_complete* is whether that list is complete. *level* and
    *classification* are the effective ones. *first*: the message begins its conversation. *risk* is that of its type;
    None counts as high. *tool* is that of the action `use`: may the actor use it while it handles this message?
    """

    action: str
    actor: str | None
    message_type: str
    major: int
    namespace: str
    group: str | None
    resource: str = ""
    side_effect: str | None
    level: str
    classification: str
    tags: frozenset[str]
    signed: bool
    algorithm: Literal["asymmetric", "shared"] | None
    via: tuple[str, ...]
    via_complete: bool
    first: bool
    performative: str | None
    lift_to: str | None
    now_ms: int
    risk: str | None = None
    tool: str | None = None


class AgentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about an agent in the policy file; the defaults are for an agent that it does not list.

    *id* is the id or glob of the row. *owner* None means unknown. *model*: a language model decides what the agent
    sends.
    """

    id: str = "**"
    kind: Literal["human", "agent", "service"] = "agent"
    owner: str | None = None
    capabilities: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    trust_ceiling: str = "model_generated"
    classification_floor: str = "public"
    clearance: str = "internal"
    model: bool = True
    interpreter: bool = False
    authority: Authority | None = None
    listed: bool = False
