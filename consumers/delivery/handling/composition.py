"""Composition of handlers: a handler with its middleware and provided arguments, as one coroutine function for the
worker.

Owns the order (middleware outermost first, then provided arguments, then the thread of a blocking handler) and opening
lifespans. A handler without any of these is used unchanged.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Any, Final

import msgspec

from bus.errors import ConfigurationError, text_of
from consumers.delivery.context import Context
from consumers.delivery.declaration import Declaration, HandlerDeclaration, Handling, Lifespan
from consumers.delivery.handler_errors import LifespanError
from consumers.delivery.handling.threads import in_thread

__all__ = ["NO_RESOURCES", "Resources", "compose_handlers", "name_of", "opened_lifespans"]

Resources = Mapping[Lifespan, Any]
"""The value that each lifespan has yielded."""

NO_RESOURCES: Final[Resources] = MappingProxyType({})
_Provider = Callable[[Context, AsyncExitStack], Awaitable[Any]]


@asynccontextmanager
async def opened_lifespans(app: Declaration, provided: Resources = NO_RESOURCES) -> AsyncGenerator[Resources]:
    """Open the lifespans of *app* in their order, but those *provided*, and close them backwards."""
    resources = dict(provided)
    async with AsyncExitStack() as stack:
        for lifespan in app.lifespans:
            if lifespan not in resources:
                manager = _manager(lifespan)
                try:
                    resources[lifespan] = await stack.enter_async_context(manager)
                except Exception as error:
                    raise _failed(lifespan, error) from error
        yield resources


def compose_handlers(app: Declaration, resources: Resources) -> Declaration:
    """Return *app* with handlers that a worker calls with the payload, or with payload and context."""
    subscriptions = {name: _composed(subscription, resources) for name, subscription in app.subscriptions.items()}
    return msgspec.structs.replace(app, subscriptions=MappingProxyType(subscriptions))


def name_of(function: object) -> str:
    """Return the name of *function* for a message."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", function))


def _manager(lifespan: Lifespan) -> Any:
    manager = asynccontextmanager(lifespan)() if inspect.isasyncgenfunction(lifespan) else lifespan()
    if not hasattr(manager, "__aenter__"):
        raise ConfigurationError(
            f"the lifespan {name_of(lifespan)} returns {type(manager).__name__}, not an async context manager: "
            "write an `async def` with one `yield`"
        )
    return manager


def _failed(lifespan: Lifespan, error: Exception) -> LifespanError:
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(inspect.unwrap(lifespan), "__code__", None)
    # The line in the lifespan itself, not deep in a library.
    frame = next((frame for frame in reversed(frames) if code and frame.filename == code.co_filename), frames[-1])
    location = f"{frame.filename}:{frame.lineno}"
    return LifespanError(
        f"the lifespan {name_of(lifespan)} failed: {type(error).__name__}: {text_of(error)} ({location})"
    )


def _composed(subscription: HandlerDeclaration, resources: Resources) -> HandlerDeclaration:
    if subscription.takes_steps:
        return subscription
    function, takes_context = subscription.handler, subscription.takes_context
    handler = in_thread(function) if subscription.blocking else function
    if not subscription.provide and not subscription.middleware:
        return msgspec.structs.replace(subscription, handler=handler, blocking=False)
    run = _provided(handler, takes_context, subscription.provide, resources)
    for around in reversed(subscription.middleware):
        run = around(run)
        if not callable(run):
            raise ConfigurationError(
                f"the middleware {name_of(around)} returns {type(run).__name__}: it takes the next handler and returns "
                "`async def handler(payload, context)`"
            )

    @functools.wraps(function)
    async def composed(payload: Any, context: Context) -> Any:
        return await run(payload, context)

    return msgspec.structs.replace(
        subscription, handler=composed, takes_context=True, blocking=False, provide={}, middleware=()
    )


def _provided(handler: Handling, takes_context: bool, provide: Mapping[str, Any], resources: Resources) -> Handling:
    """Return *handler* as a function of two arguments, with those of *provide* passed by name."""
    providers = {name: _provider(name, provided, resources) for name, provided in provide.items()}

    async def run(payload: Any, context: Context) -> Any:
        arguments = (payload, context) if takes_context else (payload,)
        if not providers:
            return await handler(*arguments)
        async with AsyncExitStack() as stack:
            named = {name: await make(context, stack) for name, make in providers.items()}
            return await handler(*arguments, **named)

    return run


def _provider(name: str, provided: Any, resources: Resources) -> _Provider:
    """Return what makes the argument *name*: by a lifespan, a function, or a value as it is."""
    is_function = inspect.isroutine(provided) or isinstance(provided, functools.partial)
    if is_function and provided in resources:
        provided = resources[provided]
        is_function = False
    if not is_function:

        async def constant(context: Context, stack: AsyncExitStack) -> Any:  # noqa: ARG001 - the form of a provider
            return provided

        return constant
    count = _count_arguments(provided)
    if count > 1:
        raise ConfigurationError(
            f"provide[{name!r}]: {name_of(provided)} takes {count} arguments; it takes none, or the context"
        )
    manager = asynccontextmanager(provided) if inspect.isasyncgenfunction(provided) else None

    async def made(context: Context, stack: AsyncExitStack) -> Any:
        arguments = (context,) if count else ()
        if manager is not None:
            return await stack.enter_async_context(manager(*arguments))
        value = provided(*arguments)
        return await value if inspect.isawaitable(value) else value

    return made


def _count_arguments(function: Callable[..., Any]) -> int:
    try:
        return len(inspect.signature(function).parameters)
    except ValueError:
        # Some of C have no signature.
        return 0
