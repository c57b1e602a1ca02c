"""Declaration: what an agent declares, as frozen values.

Its handlers by message type, its group, namespace and roles, and how it signs and judges messages. `App` collects a
declaration; the worker and its parts get it and never see the `App`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from bus.payloads.payload_types import PayloadType, Registry, payload_type
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message
from bus.protocol.signatures import Signer, Verifier
from bus.topics.specs import APPROVAL_TYPES, CANCEL_TYPE
from bus.trust.policy.policy import Policy
from consumers.delivery.resilience.limits import Limit
from consumers.delivery.resilience.retry import Retry

__all__ = [
    "Declaration",
    "Dedup",
    "Handler",
    "Handling",
    "Lifespan",
    "Middleware",
    "Order",
    "SemanticCheck",
    "HandlerDeclaration",
]


Order = Literal["key", "key_strict", "none"]


Dedup = Literal["key", "always", "off"]


SemanticCheck = Callable[[Any, Message], str | None]
"""A pure function of payload and message: None, or why the handler must not run."""


Handler = Callable[..., Any]
"""A handler as it is declared: a coroutine function, or an ordinary one that blocks."""


Handling = Callable[[Any, Any], Awaitable[Any]]
"""A handler as seen by middleware: takes payload and context, returns the handler's result."""


Middleware = Callable[[Handling], Handling]
"""Takes the next handling and returns the one around it."""


Lifespan = Callable[[], Any]
"""An async generator function that yields once, or a function that returns an async context manager."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class HandlerDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """One message type of an App and its handler.

    *retry* None and *timeout_s* UNSET mean the setting's value.
    """

    kind: PayloadType
    handler: Handler
    takes_context: bool
    retry: Retry | None
    timeout_s: float | msgspec.UnsetType | None
    """None: until the message expires."""
    order: Order
    dedup: Dedup = "key"
    blocking: bool = False
    """Whether the handler is an ordinary function, run in a thread."""
    must_answer: bool = False
    """Whether the handler is declared to return a message always: then None is an error."""
    provide: Mapping[str, Any] = _NOTHING
    """Further arguments by name: values, functions that make them, and lifespans."""
    middleware: tuple[Middleware, ...] = ()
    """The middleware around the handler, outermost first."""
    checks: tuple[SemanticCheck, ...] = ()
    """The checks of a message besides its type's rules."""
    instructions_from: str | None = None
    """The least trusted level from which the handler takes directives; None: none declared, so "user_request"."""
    requires: tuple[str, ...] = ()
    """Optional fields of data, as pointers, that this handler cannot do without."""
    approval: Any = None
    """The approvals needed before a run (`consumers.processes.approvals.approval.Approval`)."""
    asks: bool = False
    """Whether its runs may ask for approvals of steps: the inbox remembers each of its messages."""
    limits: tuple[Limit, ...] = ()
    """The limits within which its runs begin."""
    takes_steps: bool = False
    """Whether its messages are events of processes: then a saga handles them instead of a handler."""
    is_mailbox: bool = False
    """Whether it stands for messages to the group's mailbox, by the name of the request or wait."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker knows about an agent. *types* are payload classes that it sends."""

    agent: Agent
    group: str
    namespace: str | None
    """None: the setting's namespace."""
    roles: frozenset[str]
    """The recipient roles it answers to."""
    policy: Policy
    signer: Signer | None
    verifier: Verifier | None
    subscriptions: Mapping[str, HandlerDeclaration]
    """Subscriptions by message type."""
    types: tuple[type[Any], ...]
    lifespans: tuple[Lifespan, ...] = ()
    """The lifespans, opened in this order before the first message and closed after the last."""
    version: str = "1.0.0"
    """The version of the program: on its card, and by which checkpoints count."""
    capabilities: tuple[str, ...] = ()
    """The capabilities on its card; by default the message types that it handles."""
    sagas: tuple[Any, ...] = ()
    """The rules of its sagas (`consumers.processes.sagas.rules.SagaRules`)."""
    schedules: tuple[Any, ...] = ()
    """Its schedules (`consumers.processes.schedules.schedule.Schedule`)."""
    sends: frozenset[type[Any]] = frozenset()
    """The payload classes that its sagas may send, beside *types*: they need topics."""
    mail: Mapping[str, HandlerDeclaration] = _NOTHING
    """By message type, the subscriptions of its mailbox."""
    tasks: Callable[..., Any] | None = None
    """Makes the service of tasks that come from outside (`consumers.processes.tasks.service`): of the gateway alone.

    Its mailbox takes messages to whomever.
    """

    @property
    def has_mailbox(self) -> bool:
        """Whether its group has a mailbox, and processes in a store."""
        return bool(self.mail)

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        return self.agent.id or ""

    @property
    def registry(self) -> Registry:
        """Every payload type that is handled or sent."""
        received = [*self.subscriptions.values(), *self.mail.values()]
        return Registry([*(subscription.kind.cls for subscription in received), *self.types])

    @property
    def topic_types(self) -> frozenset[str]:
        """The message types whose topics its workers read or append to. Types that only arrive in the mailbox need no
        topic."""
        sent = {payload_type(cls).name for cls in (*self.types, *self.sends)}
        holds = APPROVAL_TYPES if "approval.decision" in self.mail else ()
        cancels = (CANCEL_TYPE,) if self.subscriptions else ()
        return frozenset((*self.subscriptions, *sent, *holds, *cancels))

    @property
    def published(self) -> Sequence[PayloadType]:
        """The types that the agent sends: those passed to the App, and those that handlers return."""
        return [payload_type(cls) for cls in self.types]
