"""Handlers: the declarations of an App or a router: which payload goes to which function, with middleware and
lifespans.

This module runs no handlers. `consumers.app.app` adds the agent; `consumers.delivery.handling.composition` composes
them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

import msgspec

from bus.errors import ConfigurationError, ContractError, UnknownTypeError
from bus.nearest import nearest
from bus.payloads.class_forms import Payload
from bus.payloads.directives import always_informs, said_by_type
from bus.payloads.payload_types import PayloadType, is_payload, payload_type
from bus.trust.labels import INSTRUCTING, LEVELS, rank_of_level
from consumers.app.handler_signature import check_handler, must_answer
from consumers.delivery.blocking_context import BlockingContext
from consumers.delivery.context import Context
from consumers.delivery.declaration import Dedup, HandlerDeclaration, Lifespan, Middleware, Order, SemanticCheck
from consumers.delivery.handling.composition import name_of
from consumers.delivery.receiving.subscription_checks import checks_of, requirements_of
from consumers.delivery.resilience.limits import Limit, checked_limits
from consumers.delivery.resilience.retry import Retry
from consumers.processes.approvals.approval import Approval
from consumers.processes.sagas.rules import Saga

if TYPE_CHECKING:
    from consumers.tools.handoff_tool import HandoffTool
    from consumers.tools.registry import Tools
    from consumers.tools.tool import Tool, ToolEffect

if TYPE_CHECKING:
    from consumers.processes.schedules.schedule import Missed, Schedule

__all__ = ["Router", "declared_type"]

_Payload = TypeVar("_Payload", bound=Payload)
_Result = TypeVar("_Result", bound=Payload | Sequence[Payload] | None)
_Rest = ParamSpec("_Rest")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Lifespan = TypeVar("_Lifespan", bound=Lifespan)
_Scheduled = TypeVar("_Scheduled", bound=Callable[..., Any])


class _Options(TypedDict, total=False):
    """The options of `on` that do not concern the form of a handler."""

    retry: Retry | None
    timeout_s: float | msgspec.UnsetType | None
    order: Order
    dedup: Dedup
    checks: Sequence[SemanticCheck]
    requires: Sequence[str]
    instructions_from: str | None
    approval: Approval | None
    asks: bool
    limits: Sequence[Limit]


class _On(Protocol[_Payload]):
    """Declares a coroutine function."""

    @overload
    def __call__(
        self, function: Callable[[_Payload], Coroutine[Any, Any, _Result]], /
    ) -> Callable[[_Payload], Coroutine[Any, Any, _Result]]: ...
    @overload
    def __call__(
        self, function: Callable[[_Payload, Context], Coroutine[Any, Any, _Result]], /
    ) -> Callable[[_Payload, Context], Coroutine[Any, Any, _Result]]: ...


class _OnBlocking(Protocol[_Payload]):
    """Declares an ordinary function."""

    @overload
    def __call__(self, function: Callable[[_Payload], _Result], /) -> Callable[[_Payload], _Result]: ...
    @overload
    def __call__(
        self, function: Callable[[_Payload, BlockingContext], _Result], /
    ) -> Callable[[_Payload, BlockingContext], _Result]: ...


class _OnProvided(Protocol[_Payload]):
    """Declares a coroutine function with further arguments."""

    def __call__(
        self, function: Callable[Concatenate[_Payload, _Rest], Coroutine[Any, Any, _Result]], /
    ) -> Callable[Concatenate[_Payload, _Rest], Coroutine[Any, Any, _Result]]: ...


class _OnProvidedBlocking(Protocol[_Payload]):
    """Declares an ordinary function with further arguments."""

    def __call__(
        self, function: Callable[Concatenate[_Payload, _Rest], _Result], /
    ) -> Callable[Concatenate[_Payload, _Rest], _Result]: ...


class Router:
    """Handlers in a file of their own, for an App to include.

        router = Router()

        @router.on(Order)
        async def book(order: Order) -> Booked: ...

        app.include(router)      # in another file

    *middleware* is put around these handlers, inside the App's own. *types* are further payload classes that they
    publish.
    """

    def __init__(self, *, middleware: Iterable[Middleware] = (), types: Iterable[type[Any]] = ()) -> None:
        if not isinstance(middleware, Iterable):
            raise ConfigurationError(f"middleware is a list of functions: write middleware=[{name_of(middleware)}]")
        self.middleware: list[Middleware] = list(middleware)
        """The middleware around every handler, outermost first."""
        self._subscriptions: dict[str, HandlerDeclaration] = {}
        self._lifespans: list[Lifespan] = []
        self._sagas: list[type[Saga[Any]]] = []
        self._schedules: list[Schedule] = []
        self._included: list[Router] = []
        self._tools: dict[str, Tool] = {}
        self._types = payload_classes(types)
        for around in self.middleware:
            if not callable(around):
                raise ConfigurationError(f"middleware is a list of functions (next) -> handler, and holds {around!r}")

    @property
    def subscriptions(self) -> Mapping[str, HandlerDeclaration]:
        """Message type -> subscription, of included handlers too. Raises ConfigurationError for a type given twice."""
        return MappingProxyType(self._merged(self._included))

    def _merged(self, included: Iterable[Router]) -> dict[str, HandlerDeclaration]:
        """Return the own subscriptions and those of *included*, inside the own middleware."""
        found: dict[str, HandlerDeclaration] = {}
        for subscriptions in (self._subscriptions, *(handlers.subscriptions for handlers in included)):
            for name, subscription in subscriptions.items():
                if name in found:
                    raise _second(name, found[name], name_of(subscription.handler))
                found[name] = msgspec.structs.replace(
                    subscription, middleware=(*self.middleware, *subscription.middleware)
                )
        return found

    def add(self, saga: type[Saga[Any]]) -> type[Saga[Any]]:
        """Take part with the processes of *saga*; sagas may share a message type, a saga and a handler may not.

            app.add(Buying)

        An app with a saga needs an inbox that all workers of its group see.
        """
        if not (isinstance(saga, type) and issubclass(saga, Saga) and hasattr(saga, "rules")):
            raise ConfigurationError(
                f"add takes a Saga class, not {getattr(saga, '__name__', type(saga).__name__)}: write "
                "`class Buying(Saga[BuyingState], version='1.0.0')` with @on_start, and app.add(Buying)"
            )
        try:
            _ = saga.rules.kept_state
        except ContractError as error:
            raise ConfigurationError(f"{saga.__name__}: {error}") from error
        for known in self.sagas:
            if known.rules.name == saga.rules.name:
                raise ConfigurationError(f"there is a saga named {saga.rules.name!r} already: {known.__name__}")
        handled = self.subscriptions
        for name in sorted(saga.rules.topics):
            if name in handled:
                raise ConfigurationError(
                    f"{name} has a handler, {name_of(handled[name].handler)}, and goes to the saga {saga.__name__}: "
                    "sagas may share a type, a saga and a handler may not"
                )
        self._sagas.append(saga)
        return saga

    def _check_sagas(self, name: str) -> None:
        for saga in self.sagas:
            if name in saga.rules.topics:
                raise ConfigurationError(
                    f"{name} goes to the saga {saga.__name__}: a saga and a handler cannot share a type"
                )

    @property
    def sagas(self) -> tuple[type[Saga[Any]], ...]:
        """The sagas, of included handlers too, each once."""
        own = [*self._sagas, *(saga for handlers in self._included for saga in handlers.sagas)]
        return tuple(dict.fromkeys(own))

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The schedules, of included handlers too. Raises ConfigurationError for a name given twice."""
        found: dict[str, Schedule] = {}
        for each in [*self._schedules, *(deeper for handlers in self._included for deeper in handlers.schedules)]:
            if found.setdefault(each.name, each) is not each:
                raise ConfigurationError(f"two schedules are named {each.name!r}: give one of them name=")
        return tuple(found.values())

    def every(
        self,
        cron: str = "",
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        timezone: str = "UTC",
        missed: Missed = "once",
        name: str = "",
        ttl_s: float = 3600.0,
    ) -> Callable[[_Scheduled], _Scheduled]:
        """Run the decorated coroutine function of one argument (due) or two (due, context) at times.

            @app.every("0 8 * * *", timezone="Europe/Berlin")
            async def report(due: ScheduleDue, context: Context) -> None: ...

            @app.every(minutes=5, missed="skip")
            async def look(due: ScheduleDue) -> None: ...

        *cron* has five fields (the extra `schedules`); intervals are counted from midnight UTC of 1970. Each due time
        is one message, `schedule.due`, to one worker of the group; its run is retried and dead-lettered as any other.
        Times that no worker met for a minute were missed: with "once" the last of them runs for all, with "skip" none;
        the next run tells how many (`due.missed`). *name*: by default the function's; another name is another schedule.
        *ttl_s*: how many seconds a due run may wait for a worker.

        Raises ConfigurationError.
        """

        from bus.vocabulary.bus import ScheduleDue
        from consumers.processes.schedules.schedule import Schedule

        _check_parentheses(cron, "@app.every", "@app.every(minutes=5)")
        parts = {"seconds": seconds, "minutes": minutes, "hours": hours}
        for part, value in parts.items():
            if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
                raise ConfigurationError(f"{part}={value!r:.80} is no length of time: give a number of {part}")

        def register(function: _Scheduled) -> _Scheduled:
            schedule = Schedule(
                name=name or getattr(function, "__name__", ""),
                every_ms=round(1000 * (seconds + 60 * minutes + 3600 * hours)),
                cron=cron,
                timezone=timezone,
                missed=missed,
                ttl_s=ttl_s,
                function=function,
                takes_context=check_handler(function, payload_type(ScheduleDue), {}, blocking=False),
            )
            schedule.check()
            self._schedules.append(schedule)
            _ = self.schedules
            return function

        return register

    @property
    def lifespans(self) -> tuple[Lifespan, ...]:
        """The lifespans, of included handlers too, each once."""
        own = [*self._lifespans, *(lifespan for handlers in self._included for lifespan in handlers.lifespans)]
        return tuple(dict.fromkeys(own))

    def include(self, router: Router) -> None:
        """Handle what *router* handles, also what is added to it later.

        Raises ConfigurationError for a message type that has a handler already.
        """
        if not isinstance(router, Router) or hasattr(router, "agent"):
            raise ConfigurationError(
                f"include takes a Router, not {type(router).__name__}: write `router = Router()` and "
                "`@router.on(...)`; several apps run together with `sealbus run a:app b:app`"
            )
        if router is self or self in router.everything():
            raise ConfigurationError("a Router can't include itself")
        self._merged([*self._included, router])
        self._merged_tools([*self._included, router])
        self._included.append(router)

    @property
    def tools(self) -> Tools:
        """The tools that a model may call, of included handlers too."""
        # Only now, as below: most programs have no tools.
        from consumers.tools.registry import Tools

        return Tools(self._merged_tools(self._included))

    def _sent_types(self) -> list[type[Any]]:
        """The classes that handlers and tools publish beside what they return."""
        stated = [cls for handlers in self.everything() for cls in handlers._types]  # noqa: SLF001 - of this class
        return [*stated, *(cls for tool in self._merged_tools(self._included).values() for cls in tool.sends)]

    def _merged_tools(self, included: Iterable[Router]) -> dict[str, Tool]:
        found: dict[str, Tool] = {}
        deeper = (router._merged_tools(router._included) for router in included)  # noqa: SLF001 - of this class
        for tools in (self._tools, *deeper):
            for name, tool in tools.items():
                if name in found:
                    raise ConfigurationError(f"there is a tool {name!r} already")
                found[name] = tool
        return found

    def _add_tool(self, tool: Tool) -> None:
        if tool.name in self._merged_tools(self._included):
            raise ConfigurationError(f"there is a tool {tool.name!r} already")
        self._tools[tool.name] = tool

    def tool(
        self,
        function: None = None,
        /,
        *,
        name: str = "",
        description: str = "",
        side_effect: ToolEffect = "read",
        approval: Approval | None = None,
        can_execute: str = "",
        output: str = "untrusted_content",
        once: bool = False,
        reconcile: Callable[..., Any] | None = None,
    ) -> Callable[[_Function], _Function]:
        """Declare the decorated function as a tool that a model may call through `app.tools`.

            @app.tool(side_effect="write", approval=Approval(by="human"), can_execute="git push", once=True)
            async def push(branch: str, context: Context) -> str:
                "Push a branch to the server."

        Its parameters are the arguments, except one of type `Context` (`BlockingContext` in an ordinary function, which
        runs in a thread). Each needs an annotation with a JSON form; the docstring is the description. The function
        itself stays as it is.

        *side_effect*: "none", "read", "write", "external" or "irreversible". A message whose authority allows less
        cannot use the tool, nor one whose `can_execute` does not cover *can_execute*.

        *approval*: the approvals that are needed before each call, with exactly its arguments. *once*: it is never
        called twice for one step, even if a worker died in it; *reconcile* then looks whether it had its effect.

        *output*: the trust level of what it returns. A tool that answers from the agent's own data says
        "trusted_tool_result". Texts below that level are `Untrusted`, and framed for the model.

        Raises ConfigurationError for a tool that OpenAI or Anthropic would refuse.
        """
        from consumers.tools.function_tool import FunctionTool
        from consumers.tools.tool import ToolTerms

        _check_parentheses(function, "@app.tool", "@app.tool()")
        terms = ToolTerms(
            side_effect=side_effect,
            approval=approval,
            can_execute=can_execute,
            output=output,
            once=once,
            reconcile=reconcile,
        )

        def register(function: _Function) -> _Function:
            self._add_tool(FunctionTool(function, terms, name=name, description=description))
            return function

        return register

    def handoff_tool(
        self,
        name: str,
        request: type[Payload],
        reply: type[Payload],
        *,
        to: str,
        description: str = "",
        timeout_s: float = 30.0,
    ) -> HandoffTool:
        """Declare a request to agent *to* as a tool that a model may call through `app.tools`.

            app.handoff_tool("ask_the_reviewer", SecurityReview, SecurityVerdict, to="reviewer@svc")

        The arguments are the members of *request*; *description* is by default the first line of its docstring. It
        waits *timeout_s* seconds for the *reply*, whose trust level is that of the answer.

        Raises ConfigurationError for a tool that OpenAI or Anthropic would refuse.
        """
        from consumers.tools.handoff_tool import HandoffTool

        tool = HandoffTool(name, request, reply, to=to, description=description, timeout_s=timeout_s)
        self._add_tool(tool)
        return tool

    def everything(self) -> list[Router]:
        """These handlers and all they include."""
        return [self, *(deeper for router in self._included for deeper in router.everything())]

    def lifespan(self, function: _Lifespan) -> _Lifespan:
        """Open a resource with *function* before the first message is handled, and close it after the last one is
        settled.

        @app.lifespan
        async def database() -> AsyncIterator[Pool]:
            async with create_pool() as pool:
                yield pool

        @app.on(Order, provide={"pool": database})
        async def book(order: Order, *, pool: Pool) -> Booked: ...
        """
        if not callable(function) or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(
                f"the lifespan {name_of(function)} is not an async generator function: write `async def` with one "
                "`yield`"
            )
        if inspect.signature(function).parameters:
            raise ConfigurationError(f"the lifespan {name_of(function)} takes arguments; it takes none")
        self._lifespans.append(function)
        return function

    @overload
    def on(
        self,
        payload: type[_Payload],
        *,
        blocking: Literal[False] = False,
        provide: None = None,
        **options: Unpack[_Options],
    ) -> _On[_Payload]: ...
    @overload
    def on(
        self,
        payload: type[_Payload],
        *,
        blocking: Literal[True],
        provide: None = None,
        **options: Unpack[_Options],
    ) -> _OnBlocking[_Payload]: ...
    @overload
    def on(
        self,
        payload: type[_Payload],
        *,
        blocking: Literal[False] = False,
        provide: Mapping[str, Any],
        **options: Unpack[_Options],
    ) -> _OnProvided[_Payload]: ...
    @overload
    def on(
        self,
        payload: type[_Payload],
        *,
        blocking: Literal[True],
        provide: Mapping[str, Any],
        **options: Unpack[_Options],
    ) -> _OnProvidedBlocking[_Payload]: ...
    def on(
        self,
        payload: type[Any],
        *,
        retry: Retry | None = None,
        timeout_s: float | msgspec.UnsetType | None = msgspec.UNSET,
        order: Order = "key",
        dedup: Dedup = "key",
        blocking: bool = False,
        provide: Mapping[str, Any] | None = None,
        checks: Sequence[SemanticCheck] = (),
        requires: Sequence[str] = (),
        instructions_from: str | None = None,
        approval: Approval | None = None,
        asks: bool = False,
        limits: Sequence[Limit] = (),
    ) -> Any:
        """Handle *payload* with the decorated coroutine function of one argument (payload) or two (payload, context).

            @app.on(Order, retry=Retry(attempts=5), timeout_s=30)
            async def book(order: Order, context: Context) -> Booked: ...

        *retry*: number and delay of repetitions of a failed run; by default the settings `retry.*`.

        *timeout_s*: maximum seconds of a run; None: until its message expires; by default `worker.timeout_s`.

        *order*: "key": the messages of a key run one after another; "key_strict": the next one also waits while an
        earlier one waits for its retry; "none": any order.

        *dedup*: the messages that the inbox records: those with an idempotency key, all of high risk, and all within
        *limits* ("key"), all by their ids ("always"), none ("off").

        *blocking*: the handler is an ordinary function that runs in a thread of its own. It takes a `BlockingContext`,
        and cannot be cancelled.

        *provide*: further arguments by name. A lifespan provides the value it yields. A function is called before each
        run, without arguments or with the context, and provides its result; if it yields, the rest runs after the
        handler. Any other value is passed unchanged.

        *checks*: pure functions of payload and message that return None, or why the message is invalid. Such a message
        is dead-lettered with `semantic_violation`, and the handler does not run.

        *requires*: optional fields that this handler needs, such as ("note", "/customer/email"). A message without one
        is dead-lettered with `schema_violation`.

        *instructions_from*: the least trusted level from which a message may give instructions, by default
        "user_request". A message caused by a tool's text or a model's output is dead-lettered with
        `untrusted_instruction`. Only stricter levels can be set here; a rule of the policy can set a milder one. With
        this option every message counts as an instruction, except one whose type gives it a performative that informs.
        A type whose messages all inform refuses the option.

        *approval*: the approvals that are needed before a run. Other messages do not wait: this one is stored until the
        decision, and its sender is notified.

        *asks*: its runs may ask for approvals of single steps (`context.step(..., approve=)`). Each message is recorded
        by the inbox, and what a run sends at once keeps its ids in later runs of the message.

        *limits*: `Rate` and `Concurrency` limits of named resources, shared by all workers of the group through the
        inbox's database. A run over a limit waits without an attempt.

        Raises ConfigurationError for a second handler of one type or an unusable function, UnknownTypeError for an
        unmarked class.
        """
        kind = declared_type(payload, "@app.on", "@app.on({})")
        if kind.name in (known := self.subscriptions):
            raise _second(kind.name, known[kind.name])
        self._check_sagas(kind.name)
        for name, value, choices in (("order", order, get_args(Order)), ("dedup", dedup, get_args(Dedup))):
            if value not in choices:
                near = nearest(str(value), choices)
                raise ConfigurationError(f"{name} {value!r} is none of {', '.join(choices)}{near}")
        if provide is not None and not isinstance(provide, Mapping):
            raise ConfigurationError(
                f"provide is {type(provide).__name__}: map names to values, as in provide={{'pool': database}}"
            )
        if retry is not None and not isinstance(retry, Retry):
            raise ConfigurationError(
                f"retry is {type(retry).__name__} {retry!r}, not a Retry: write retry=Retry(attempts=5)"
            )
        if timeout_s is not None and timeout_s is not msgspec.UNSET:
            if isinstance(timeout_s, bool) or not isinstance(timeout_s, float | int):
                raise ConfigurationError(f"timeout_s is {type(timeout_s).__name__} {timeout_s!r}, not seconds")
            if not timeout_s > 0:
                raise ConfigurationError(f"timeout_s {timeout_s} is not more than 0")

        check_threshold(instructions_from, kind)
        _check_approval(approval, order)
        _check_asks(asks, order, dedup, payload)
        within = checked_limits(limits)
        checked, required = checks_of(checks), requirements_of(kind, requires)

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self._subscriptions[kind.name] = HandlerDeclaration(
                kind=kind,
                handler=function,
                takes_context=check_handler(function, kind, provide or {}, blocking=blocking),
                retry=retry,
                timeout_s=timeout_s,
                order=order,
                dedup=dedup,
                blocking=blocking,
                must_answer=must_answer(function),
                provide=MappingProxyType(dict(provide or {})),
                checks=checked,
                requires=required,
                instructions_from=instructions_from,
                approval=approval,
                asks=asks,
                limits=within,
            )
            return function

        return register


def payload_classes(types: Iterable[type[Any]]) -> list[type[Any]]:
    """Return *types* as a list. Raises UnknownTypeError for a class without a mark."""
    if isinstance(types, type) or not isinstance(types, Iterable):
        raise ConfigurationError(f"types is a list of payload classes: write types=[{getattr(types, '__name__', '')}]")
    found = list(types)
    for cls in found:
        declared_type(cls, "types", "types=[{}]")
    return found


def declared_type(cls: object, taker: str, example: str) -> PayloadType:
    """Return the mark of *cls*, which *taker* is given. Raises UnknownTypeError with the *example*, where `{}` is."""
    if isinstance(cls, type) or not (isinstance(cls, str) or is_payload(cls)):
        return payload_type(cls)
    what, name = ("its name", "YourClass") if isinstance(cls, str) else ("an instance of it", type(cls).__name__)
    raise UnknownTypeError(f"{taker} takes the class of the type, not {what}: {example.format(name)}")


def _check_parentheses(first: object, decorator: str, example: str) -> None:
    """Raise ConfigurationError where *first*, an argument of *decorator*, is what it was written before."""
    if callable(first):
        raise ConfigurationError(f"{decorator} stands before {name_of(first)} without parentheses: write {example}")


def check_threshold(level: str | None, kind: PayloadType) -> None:
    """Raise ConfigurationError for a level from which a handler of *kind* may not take instructions."""
    if level is None:
        return
    if level not in LEVELS:
        raise ConfigurationError(f"instructions_from {level!r} is none of {', '.join(LEVELS)}{nearest(level, LEVELS)}")
    if rank_of_level(level) > rank_of_level(INSTRUCTING):
        raise ConfigurationError(
            f"instructions_from {level!r} is less trusted than {INSTRUCTING}: a rule of the policy that names type and "
            "group may set it (instructions_from), a handler may not"
        )
    if always_informs(kind.terms):
        raise ConfigurationError(
            f"{kind.name} says performative={said_by_type(kind.terms)!r}: it only informs, at every level, and "
            f"instructions_from={level!r} would guard nothing. Write @payload(..., performative='request') where the "
            "handler acts on it, or leave instructions_from out"
        )


def _check_approval(approval: object, order: Order) -> None:
    if approval is None:
        return
    if not isinstance(approval, Approval):
        raise ConfigurationError(f"approval is {type(approval).__name__}: write approval=Approval(by='human')")
    if order == "key_strict":
        raise ConfigurationError(
            "order='key_strict' and approval= together: all messages of a key would wait for a person; use order='key'"
        )


def _check_asks(asks: bool, order: Order, dedup: Dedup, payload: object) -> None:
    if not asks:
        return
    if order == "key_strict":
        raise ConfigurationError(
            "order='key_strict' and asks=True together: all messages of a key would wait for a person; use order='key'"
        )
    if dedup == "off":
        name = getattr(payload, "__name__", payload)
        raise ConfigurationError(f"asks=True keeps the steps of each {name} in the inbox: leave dedup='off' out")


def _second(name: str, known: HandlerDeclaration, other: str = "") -> ConfigurationError:
    also = f" and {other}" if other else ""
    return ConfigurationError(f"{name} has a handler already: {name_of(known.handler)}{also}")
