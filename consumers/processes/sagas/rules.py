"""Saga: a class whose methods handle the events of one kind of long-running work.

Owns reading these rules from the class, and refusing at import a class whose processes could wait without end.
`consumers.processes.sagas.context` has the operations of a method, `consumers.processes.sagas.steps` runs it.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar, get_args

import msgspec

from bus.errors import ConfigurationError, ContractError, text_of
from bus.payloads.kept_values import KeptType, kept_type
from bus.payloads.payload_types import PayloadType, payload_type
from bus.protocol.envelope import PROGRESS_TYPES
from bus.protocol.identifiers import is_pointer, is_schema_version, is_text_id

__all__ = [
    "AnswerRule",
    "CANCEL_WAIT",
    "EVERY_NAME",
    "EventRule",
    "MAX_SAGA_STEPS",
    "MissingProcess",
    "Saga",
    "SagaRules",
    "on_answer",
    "on_cancel",
    "on_timer",
    "on_failure",
    "on_message",
    "on_progress",
    "on_start",
    "upgrade_state",
]

StateT = TypeVar("StateT")
_Method = TypeVar("_Method", bound=Callable[..., Any])
MissingProcess: TypeAlias = Literal["wait", "skip", "dead"]
Admits: TypeAlias = Literal["parties", "anyone"]

MAX_SAGA_STEPS: Final = 10_000
_Mark: TypeAlias = tuple[str, PayloadType | None, dict[str, Any]]
_MARK: Final = "__sealbus_saga__"
CANCEL_WAIT: Final = "sealbus!cancel"
"""The wait by which an operator ends a process: it is due at once, and no saga can name one so."""
EVERY_NAME: Final = "*"
"""In `@on_answer`, `@on_timer` and `@on_failure`: any name of a wait. The context has the name."""
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MAX_NAME: Final = 64


class EventRule(msgspec.Struct, frozen=True, kw_only=True):
    """A message type whose messages open a process, or reach an open one, and the method they go to."""

    kind: PayloadType
    method: str
    key: str | None
    """Pointer into the envelope to the process's key; None: the message id."""
    missing: MissingProcess = "wait"
    """The treatment of a message whose process does not exist yet."""
    at: tuple[str, ...] = ()
    """The phases in which it is legal; empty: in all."""
    admits: Admits = "parties"
    every: bool = False
    """Whether it reaches every open process of the saga, instead of the one that a key names."""
    shared_key: bool = False
    """Whether all senders mean one process by a key; by default each has its own."""


class AnswerRule(msgspec.Struct, frozen=True, kw_only=True):
    """A type that may come as the answer to an ask; *ends* False: it is progress, and the ask goes on."""

    kind: PayloadType
    method: str
    ends: bool


class SagaRules(msgspec.Struct, frozen=True, kw_only=True):
    """The declarations of one saga class."""

    cls: type[Any]
    name: str
    version: str
    state: type[Any]
    starters: Mapping[str, EventRule]
    events: Mapping[str, EventRule]
    answers: Mapping[tuple[str, str], AnswerRule]
    """By the name of the ask and the message type."""
    due: Mapping[str, str]
    failed: Mapping[str, str]
    cancelled: str | None
    upcasts: Mapping[str, tuple[str, str]]
    """Version -> the next version, and the method that makes it."""
    phases: Mapping[str, tuple[str, ...]]
    """Phase -> the phases that may follow; empty where the state has no phase."""
    max_steps: int

    @property
    def shares_keys(self) -> bool:
        """Whether all senders mean one process by a key."""
        return any(rule.shared_key for rule in self.starters.values())

    def knows_wait(self, name: str) -> bool:
        """Whether this code has any method about a wait that is called *name*."""
        requested = any(known in (name, EVERY_NAME) for known, _ in self.answers)
        return requested or self.due_method(name) is not None or self.failed_method(name) is not None

    def knows_phase(self, phase: str) -> bool:
        """Whether this code knows *phase*; always true if the saga declares no phases."""
        return not self.phases or not phase or phase in self.phases or any(phase in to for to in self.phases.values())

    @property
    def kept_state(self) -> KeptType:
        """The stored form of its states. Raises ContractError if an annotation is not defined yet."""
        return kept_type(self.state)

    def answer_to(self, name: str, message_type: str) -> AnswerRule | None:
        """Return the rule for an answer of *message_type* to the request *name*; `*` matches every name."""
        return self.answers.get((name, message_type)) or self.answers.get((EVERY_NAME, message_type))

    def takes_progress_of(self, name: str) -> bool:
        """Return whether a method is about progress of the ask *name*."""
        return any(known in (name, EVERY_NAME) and not rule.ends for (known, _), rule in self.answers.items())

    def due_method(self, name: str) -> str | None:
        """Return the method for the end of the wait *name*."""
        return self.due.get(name) or self.due.get(EVERY_NAME)

    def failed_method(self, name: str) -> str | None:
        """Return the method for the failure of the ask *name*."""
        return self.failed.get(name) or self.failed.get(EVERY_NAME)

    @property
    def sends(self) -> frozenset[type[Any]]:
        """The payload classes that it lists as sent, its own and those of its bases."""
        return frozenset(each for base in self.cls.__mro__ for each in vars(base).get("sends", ()))

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """The functions of the class and its bases."""
        return _functions(self.cls)

    @property
    def topics(self) -> frozenset[str]:
        """The message types that reach it by their topics."""
        return frozenset((*self.starters, *self.events))

    def can_reach(self, phase: str, wanted: Sequence[str]) -> bool:
        """Tell whether a process in *phase* may still come into one of *wanted*, by any number of moves."""
        seen, waiting = {phase}, [phase]
        while waiting:
            for following in self.phases.get(waiting.pop(), ()):
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return not seen.isdisjoint(wanted)


class Saga(Generic[StateT]):
    """The rules of one kind of long-running work. Each run of it, a process, is a row that survives its workers.

        class BuyingState(msgspec.Struct):
            bids: list[str] = []

        class Buying(Saga[BuyingState], version="1.0.0"):
            @on_start(OrderPlaced)
            async def placed(self, order, context):
                context.ask("price", QuoteRequest(sku=order.sku), to="prices@svc", answer_by_s=30)

            @on_answer("price", Quote)
            async def priced(self, quote, context):
                context.answer(Offer(cents=quote.cents))
                context.finish()

            @on_failure("price")            # said no, died, or stayed silent: context.failure says which
            async def unpriced(self, context):
                context.finish()

        app.add(Buying)

    A method may run several times, on a copy of the state: only the operations on its context count, and they become
    durable together. It has five seconds. To use a model, a tool or a database, send a request to an agent.

    *version* is that of the state. *name* must not change while there are processes (by default the class's name,
    `order-flow` for OrderFlow). *max_steps* ends a process that runs in circles. A state with a field `phase` may have
    `phases`, a map of each phase to those that may follow; then `@on_message(..., at=("called",))` limits an event to
    some phases. `sealbus topic apply` creates the topics of the payload classes that the methods name, and of those in
    *sends*.
    """

    state: StateT
    phases: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    sends: ClassVar[Sequence[type[Any]]] = ()
    keeps: ClassVar[Sequence[str]] = ()
    rules: ClassVar[SagaRules]

    def __init_subclass__(
        cls,
        *,
        version: str = "1.0.0",
        name: str | None = None,
        max_steps: int = MAX_SAGA_STEPS,
        state: type[Any] | None = None,
        abstract: bool = False,
        **options: Any,
    ) -> None:
        super().__init_subclass__(**options)
        if not abstract:
            cls.rules = _read(cls, version, name or _WORDS.sub("-", cls.__name__).lower(), max_steps, state)


# What stands above the methods.


def on_start(payload: type[Any], *, key: str | None = None, shared_key: bool = False) -> Callable[[_Method], _Method]:
    """Open a process with a message of *payload*; *key* points to the field that identifies the process.

        @on_start(OrderPlaced, key="/data/order_id")
        async def placed(self, order, context): ...

    Without *key* every message opens a process of its own. A key belongs to its sender (verified, if there are keys):
    two senders with one key have two processes. With *shared_key* all senders of a key share one process, which the
    first message opens.
    """
    return _marking("on_start", payload, key=key, shared_key=shared_key)


def on_message(
    payload: type[Any],
    *,
    key: str | None = None,
    missing: MissingProcess = "wait",
    at: Sequence[str] = (),
    admits: Admits = "parties",
    every: bool = False,
) -> Callable[[_Method], _Method]:
    """Give a message of *payload* to the process that *key* points to.

        @on_message(OrderCancelled, key="/data/order_id", missing="skip")
        async def cancelled(self, event, context): ...

    *missing*: where there is no such process yet, the message waits until it expires ("wait"), is passed over ("skip"),
    or is dead ("dead"). *at*: the phases in which it is legal. *admits*: only the opener's sender and those whom the
    process has asked or answered ("parties"), or "anyone" whom the policy lets in. A sender's own process with that key
    comes first; else it is the only open one that admits it. *every*: it reaches every open
    process of the saga, at most a thousand, in one step of each; then there is no *key*.
    """
    return _marking("on_message", payload, key=key, missing=missing, at=tuple(at), admits=admits, every=every)


def on_answer(name: str, *payloads: type[Any]) -> Callable[[_Method], _Method]:
    """Handle an answer to the request *name*, of one of *payloads*; it ends the request, unless that takes many.

        @on_answer("price", Quote)
        async def priced(self, quote, context): ...

    Every request name also needs `@on_failure(name)`, or `@on_timer(name)` if it takes many, so that no process waits
    without end.
    """
    return _marking_each("on_answer", name, payloads)


def on_progress(name: str, *payloads: type[Any]) -> Callable[[_Method], _Method]:
    """Take a message about the ask *name* that does not end it: an acceptance, a status, a part of the result.

        @on_progress("work", TaskAccepted, StatusUpdate)
        async def heard(self, message, context): ...

    The ask goes on until its answer or its end. Progress without such a method is passed over. Each takes a step: when
    half of `max_steps` are used up, progress takes none any more, and the rest is for answers.
    """
    return _marking_each("on_progress", name, payloads)


def on_timer(name: str) -> Callable[[_Method], _Method]:
    """Run when the timer *name* is due, or when an ask that takes many is over.

        @on_timer("reminder")
        async def remind(self, context): ...

    It is never early by the store's clock, and late by a second and the mailbox's lag.
    """
    return _marking("on_timer", None, name=name)


def on_failure(name: str) -> Callable[[_Method], _Method]:
    """Run when the ask *name* was refused, died or was not answered in time; `context.failure` says which.

        @on_failure("work")
        async def next_best(self, context): ...

    An ask of several agents fails when the last of them has.
    """
    return _marking("on_failure", None, name=name)


def on_cancel(method: _Method) -> _Method:
    """Run when the requester cancels the process; without such a method it just ends.

        @on_cancel
        async def stopped(self, context): ...

    The process's own requests are cancelled, too.
    """
    return _marking("on_cancel", None)(method)


def upgrade_state(before: str, after: str) -> Callable[[_Method], _Method]:
    """Turn the state of version *before* into that of *after*: a function of a dict that returns one.

        @upgrade_state("1.0.0", "2.0.0")
        def with_currency(state): return {**state, "currency": "EUR"}

    A field that is only added needs none: it gets its default.
    """
    return _marking("upgrade_state", None, before=before, after=after)


def _marking(what: str, payload: type[Any] | None, **options: Any) -> Callable[[_Method], _Method]:
    kind = None if payload is None else payload_type(payload)

    def mark(method: _Method) -> _Method:
        vars(_function(method)).setdefault(_MARK, []).append((what, kind, options))
        return method

    return mark


def _marking_each(what: str, name: str, payloads: Sequence[type[Any]]) -> Callable[[_Method], _Method]:
    if not payloads:
        raise ConfigurationError(f"@{what}({name!r}) names no payload class: write @{what}({name!r}, Quote)")
    marks = [_marking(what, payload, name=name) for payload in payloads]

    def mark(method: _Method) -> _Method:
        for each in marks:
            method = each(method)
        return method

    return mark


# Reading a class.


class _Found:
    """The rules of a class while they are collected."""

    def __init__(self) -> None:
        self.starters: dict[str, EventRule] = {}
        self.events: dict[str, EventRule] = {}
        self.answers: dict[tuple[str, str], AnswerRule] = {}
        self.due: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.cancelled: str | None = None
        self.upcasts: dict[str, tuple[str, str]] = {}


def _read(cls: type[Any], version: str, name: str, max_steps: int, state: type[Any] | None) -> SagaRules:
    if not isinstance(version, str) or not is_schema_version(version):
        raise ConfigurationError(f"{cls.__name__}: version {version!r} is not of the form 1.0.0")
    if not is_text_id(name) or len(name) > _MAX_NAME:
        raise ConfigurationError(f"{cls.__name__}: illegal name {name!r:.80}, which has at most {_MAX_NAME} characters")
    if max_steps < 1:
        raise ConfigurationError(f"{cls.__name__}: max_steps {max_steps} is not more than 0")
    found = _Found()
    for member in _functions(cls):
        for mark in vars(member).get(_MARK, ()):
            _collect(cls, found, member, mark)
    _check_endings(cls, found)
    phases = {phase: tuple(following) for phase, following in cls.phases.items()}
    _check_phases(cls, found, phases)
    if len({rule.shared_key for rule in found.starters.values() if rule.key is not None}) > 1:
        raise ConfigurationError(
            f"{cls.__name__}: one @on_start shares its key and another does not: give both the same"
        )
    return SagaRules(
        cls=cls,
        name=name,
        version=version,
        state=_state_of(cls) if state is None else _checked_state(cls, state),
        starters=MappingProxyType(found.starters),
        events=MappingProxyType(found.events),
        answers=MappingProxyType(found.answers),
        due=MappingProxyType(found.due),
        failed=MappingProxyType(found.failed),
        cancelled=found.cancelled,
        upcasts=MappingProxyType(found.upcasts),
        phases=MappingProxyType(phases),
        max_steps=max_steps,
    )


def _collect(cls: type[Any], found: _Found, member: Callable[..., Any], mark: _Mark) -> None:
    what, kind, options = mark
    method = member.__name__
    if what == "upgrade_state":
        _once(cls, found.upcasts, options["before"], (options["after"], method), "@upgrade_state from")
        return
    if not inspect.iscoroutinefunction(member):
        raise ConfigurationError(
            f"{cls.__name__}.{method} is not a coroutine function: write `async def {method}(...)`"
        )
    takes = 2 if kind is None else 3
    count = len(inspect.signature(member).parameters)
    if count != takes:
        form = "self, context" if kind is None else "self, payload, context"
        raise ConfigurationError(f"{cls.__name__}.{method} takes {count} arguments: write `async def {method}({form})`")
    if what == "on_cancel":
        if found.cancelled is not None:
            raise ConfigurationError(f"{cls.__name__} has two @on_cancel methods: {found.cancelled} and {method}")
        found.cancelled = method
    elif kind is None:
        names = found.due if what == "on_timer" else found.failed
        _once(cls, names, _wait_name(cls, options["name"]), method, f"@{what}")
    elif what in ("on_answer", "on_progress"):
        location = (_wait_name(cls, options["name"]), kind.name)
        if what == "on_answer" and kind.name in PROGRESS_TYPES:
            raise ConfigurationError(
                f"{cls.__name__}.{method}: {kind.name} is progress and ends no ask: write "
                f"@on_progress({options['name']!r}, {kind.cls.__name__})"
            )
        _once(cls, found.answers, location, AnswerRule(kind=kind, method=method, ends=what == "on_answer"), f"@{what}")
    else:
        _check_event(cls, method, what, options)
        rules = found.starters if what == "on_start" else found.events
        _once(cls, rules, kind.name, EventRule(kind=kind, method=method, **options), f"@{what}")


def _check_event(cls: type[Any], method: str, what: str, options: Mapping[str, Any]) -> None:
    key = options["key"]
    if options.get("shared_key") and key is None:
        raise ConfigurationError(f"{cls.__name__}.{method}: shared_key=True needs key='/data/...', which all share")
    if what == "on_message" and options["every"] != (key is None):
        raise ConfigurationError(
            f"{cls.__name__}.{method}: @on_message needs key='/data/...', or every=True, and not both"
        )
    if key is not None and not (isinstance(key, str) and key and is_pointer(key)):
        raise ConfigurationError(
            f"{cls.__name__}.{method}: key {key!r} is not a JSON pointer into the envelope: write key='/data/order_id'"
        )
    for name, choices in (("missing", get_args(MissingProcess)), ("admits", get_args(Admits))):
        if options.get(name, choices[0]) not in choices:
            raise ConfigurationError(f"{cls.__name__}.{method}: {name} is none of {', '.join(choices)}")


def _check_endings(cls: type[Any], found: _Found) -> None:
    """Refuse a request whose failure no method handles."""
    if not found.starters:
        raise ConfigurationError(f"{cls.__name__} has no start: mark a method with @on_start(Type)")
    for name, _ in found.answers:
        if name not in found.failed and name not in found.due:
            raise ConfigurationError(
                f"{cls.__name__}: no method handles a missing answer to {name!r}. Write @on_failure({name!r}), or "
                f"@on_timer({name!r}) where it takes many answers"
            )
    requested = {name for name, _ in found.answers}
    if lonely := sorted(set(found.failed) - requested):
        raise ConfigurationError(f"{cls.__name__}: @on_failure({lonely[0]!r}) without @on_answer({lonely[0]!r}, ...)")


def _check_phases(cls: type[Any], found: _Found, phases: Mapping[str, tuple[str, ...]]) -> None:
    known = {*phases, *(phase for following in phases.values() for phase in following)}
    for rule in found.events.values():
        if unknown := [phase for phase in rule.at if phase not in known]:
            raise ConfigurationError(f"{cls.__name__}.{rule.method}: at names {unknown[0]!r}, which phases does not")


def _wait_name(cls: type[Any], name: object) -> str:
    if not isinstance(name, str) or not is_text_id(name) or len(name) > _MAX_NAME:
        raise ConfigurationError(f"{cls.__name__}: illegal name of a wait {name!r:.80}")
    if name == CANCEL_WAIT:
        raise ConfigurationError(f"{cls.__name__}: {name!r} is the name of a wait of the bus: choose another")
    return name


def _once(cls: type[Any], rules: dict[Any, Any], location: Any, rule: Any, what: str) -> None:
    if location in rules:
        raise ConfigurationError(f"{cls.__name__} has two methods for {what} {location}")
    rules[location] = rule


def _functions(cls: type[Any]) -> list[Any]:
    """Return the functions of *cls* and its bases, each name once."""
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        members |= {name: _function(member) for name, member in vars(base).items()}
    return [member for member in members.values() if inspect.isfunction(member)]


def _function(member: Any) -> Any:
    return member.__func__ if isinstance(member, staticmethod) else member


def _state_of(cls: type[Any]) -> type[Any]:
    for base in cls.__mro__:
        for generic in vars(base).get("__orig_bases__", ()):
            if typing.get_origin(generic) is Saga and isinstance(state := typing.get_args(generic)[0], type):
                return _checked_state(cls, state)
    raise ConfigurationError(f"{cls.__name__} names no state: write `class {cls.__name__}(Saga[MyState], version=...)`")


def _checked_state(cls: type[Any], state: type[Any]) -> type[Any]:
    """Return *state*. Raises ConfigurationError if no process could begin with it, or continue from a stored state."""
    try:
        first = state()
    except Exception as error:
        # A model's own code may raise anything.
        raise ConfigurationError(
            f"{cls.__name__}: a process begins with {state.__name__}(), so every field needs a default "
            f"({text_of(error)})"
        ) from error
    try:
        stored_form = kept_type(state)
        plain = stored_form.plain(first)
        stored_form.read(plain)
    except ContractError as error:
        if isinstance(error.__cause__, NameError):
            # A class further down, perhaps: App.add sees it.
            return state
        raise ConfigurationError(f"{cls.__name__}: {state.__name__}() cannot be stored: {error}") from error
    if not isinstance(plain, dict):
        raise ConfigurationError(
            f"{cls.__name__}: the state {state.__name__} is not an object with fields: write a Struct, a dataclass, a "
            "TypedDict or a Pydantic model"
        )
    return state
