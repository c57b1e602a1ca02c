"""App: an agent's handlers, declared.

Owns the declaration: which payload goes to which function, under which retry policy, timeout and order. Nothing runs
here; `consumers.worker.worker` runs an App on a log, `App.test` in memory.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args

import msgspec

from bus.errors import ConfigurationError, UnknownTypeError
from bus.payloads.payload_types import Registry, payload_type
from bus.protocol.envelope import Agent
from bus.protocol.identifiers import is_text_id
from bus.protocol.signatures import Signer, Verifier
from bus.topics.names import check_group, check_namespace, group_of_agent
from bus.trust.policy import AllowAll, Policy
from consumers.declaration import Declaration, Dedup, Handler, Order, Subscription
from consumers.handling.threads import in_thread
from consumers.resilience.retry import Retry

if TYPE_CHECKING:
    from bus.settings.schema import Settings
    from consumers.testing import AppBus

__all__ = ["App"]

_Function = TypeVar("_Function", bound=Handler)


class App:
    """Declares one agent's handlers.

    The group is derived from the agent unless given; all instances of a group share its messages.

    *roles* are the recipient roles it answers to, *types* further payload classes it publishes. Those that handlers
    return are found from their annotations.
    """

    def __init__(
        self,
        agent: str | Agent,
        *,
        group: str | None = None,
        namespace: str | None = None,
        roles: Iterable[str] = (),
        types: Iterable[type[msgspec.Struct]] = (),
        policy: Policy | None = None,
        signer: Signer | None = None,
        verifier: Verifier | None = None,
    ) -> None:
        self.agent = Agent(id=agent, type="agent") if isinstance(agent, str) else agent
        if self.agent.id is None or not is_text_id(self.agent.id):
            raise ConfigurationError(
                f"illegal agent id {self.agent.id!r}: 1 to 256 characters without control characters"
            )
        self.group = group or group_of_agent(self.agent.id)
        check_group(self.group)
        if namespace is not None:
            check_namespace(namespace)
        self.namespace = namespace
        if isinstance(roles, str):
            raise ConfigurationError(f"roles are a collection of texts: write roles=[{roles!r}]")
        self.roles = frozenset(roles) | ({self.agent.role} if self.agent.role else frozenset())
        self.policy: Policy = policy or AllowAll()
        self.signer = signer
        self.verifier = verifier
        self._types: list[type[msgspec.Struct]] = list(types)
        self._subscriptions: dict[str, Subscription] = {}

    @property
    def declaration(self) -> Declaration:
        """What this app declares so far, as a value for workers."""
        return Declaration(
            agent=self.agent,
            group=self.group,
            namespace=self.namespace,
            roles=self.roles,
            policy=self.policy,
            signer=self.signer,
            verifier=self.verifier,
            subscriptions=MappingProxyType(dict(self._subscriptions)),
            types=tuple(self._types),
        )

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        return self.agent.id or ""

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """Message type -> subscription."""
        return MappingProxyType(self._subscriptions)

    @property
    def registry(self) -> Registry:
        """Every payload type that this app handles or sends."""
        return self.declaration.registry

    def on(
        self,
        payload: type[msgspec.Struct],
        *,
        retry: Retry | None = None,
        timeout_s: float | msgspec.UnsetType | None = msgspec.UNSET,
        order: Order = "key",
        dedup: Dedup = "key",
        blocking: bool = False,
    ) -> Callable[[_Function], _Function]:
        """Handle *payload* with the decorated coroutine function of one argument (payload) or two (payload, context).

        *timeout_s*: seconds that a run may take; None: until its message expires; by default `worker.timeout_s`.

        *order*: one message of a key after the other ("key"), also while one of them waits for its retry
        ("key_strict"), or any order ("none").

        *dedup*: what the inbox remembers: messages with an idempotency key and all of high risk ("key"), all by their
        ids ("always"), nothing ("off").

        *blocking*: an ordinary function, each call in a thread of its own; it may `context.send`, and cannot be cut
        short.

        Raises ConfigurationError for a second handler of one type or an unusable function, UnknownTypeError for an
        unmarked class.
        """
        kind = payload_type(payload)
        if kind.name in self._subscriptions:
            raise ConfigurationError(
                f"{kind.name} has a handler already: {_name_of(self._subscriptions[kind.name].handler)}"
            )
        for name, value, known in (("order", order, get_args(Order)), ("dedup", dedup, get_args(Dedup))):
            if value not in known:
                raise ConfigurationError(f"{name} {value!r} is none of {', '.join(known)}")
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigurationError(f"retry is a {type(retry).__name__}, not a Retry")
        if isinstance(timeout_s, float | int) and not timeout_s > 0:
            raise ConfigurationError(f"timeout_s {timeout_s} is not more than 0")

        def register(function: _Function) -> _Function:
            self._subscriptions[kind.name] = Subscription(
                kind=kind,
                handler=in_thread(function) if blocking else function,
                takes_context=_takes_context(function, blocking=blocking),
                retry=retry,
                timeout_s=timeout_s,
                order=order,
                dedup=dedup,
            )
            self._types += _returned_types(function)
            return function

        return register

    def test(self, settings: Settings | None = None) -> AbstractAsyncContextManager[AppBus]:
        """Run this app on a log in memory, with a clock that only the test moves: `async with app.test() as bus`."""
        from consumers.testing import run_in_memory

        return run_in_memory(self.declaration, settings)


def _takes_context(function: Handler, *, blocking: bool) -> bool:
    if inspect.iscoroutinefunction(function) == blocking:
        wanted = (
            "a coroutine function: leave blocking=True out"
            if blocking
            else "no coroutine function: write `async def`, or blocking=True"
        )
        raise ConfigurationError(f"{_name_of(function)} is {wanted}")
    accepted = inspect.signature(function).parameters.values()
    for parameter in accepted:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise ConfigurationError(
                f"{_name_of(function)} needs {parameter.name!r}, which nobody gives: bind it with functools.partial"
            )
    parameters = [
        parameter
        for parameter in accepted
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(parameters) not in (1, 2):
        raise ConfigurationError(
            f"{_name_of(function)} takes {len(parameters)} arguments; a handler takes (payload) or (payload, context)"
        )
    return len(parameters) == 2  # noqa: PLR2004 - payload and context


def _name_of(function: Handler) -> str:
    return str(getattr(function, "__qualname__", function))


def _returned_types(function: Handler) -> list[type[msgspec.Struct]]:
    while isinstance(function, functools.partial):
        function = function.func
    try:
        hint = typing.get_type_hints(function).get("return")
    except NameError:
        return []
    return [cls for cls in _flatten(hint) if _is_payload(cls)]


def _flatten(hint: Any) -> list[Any]:
    if typing.get_origin(hint) in (Union, UnionType, list, tuple):
        return [cls for member in typing.get_args(hint) for cls in _flatten(member)]
    return [hint]


def _is_payload(cls: Any) -> bool:
    try:
        payload_type(cls)
    except UnknownTypeError:
        return False
    return isinstance(cls, type)
