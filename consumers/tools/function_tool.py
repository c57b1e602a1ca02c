"""FunctionTool: a function of the app as a tool: its arguments are its parameters.

Owns reading a signature: each parameter is an argument, except the one that takes the context.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Final

import msgspec

from bus.errors import ConfigurationError, ContractError
from bus.payloads.kept_values import plain_of
from consumers.delivery.blocking_context import BlockingContext
from consumers.delivery.context import Context
from consumers.tools.tool import Tool, ToolTerms

__all__ = ["FunctionTool"]

_CONTEXTS: Final = (Context, BlockingContext)


class FunctionTool(Tool):
    """The function *function* as a tool."""

    def __init__(
        self, function: Callable[..., Any], terms: ToolTerms, *, name: str = "", description: str = ""
    ) -> None:
        if not callable(function) or isinstance(function, type):
            raise ConfigurationError(
                f"@app.tool is given {type(function).__name__}: write it before a function, as `@app.tool()`"
            )
        name = name or getattr(function, "__name__", "")
        self._function = function
        self._is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(f"the tool {name!r:.80} yields: a tool returns its result")
        hints = _hints(function, name)
        self._context = self._context_parameter(name, hints)
        fields = [_field(name, each, hints) for each in _parameters(function) if each.name != self._context]
        arguments = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, module=function.__module__)
        super().__init__(name, description or inspect.getdoc(function) or "", arguments, terms)

    def _context_parameter(self, name: str, hints: Mapping[str, Any]) -> str | None:
        found = [each for each, hint in hints.items() if hint in _CONTEXTS and each != "return"]
        if len(found) > 1:
            raise ConfigurationError(f"the tool {name!r:.80} takes two contexts: {', '.join(found)}")
        if not found:
            return None
        wanted = Context if self._is_async else BlockingContext
        if hints[found[0]] is not wanted:
            raise ConfigurationError(
                f"the tool {name!r:.80} is {'a coroutine' if self._is_async else 'an ordinary'} function: write "
                f"`{found[0]}: {wanted.__name__}`"
            )
        return found[0]

    def function(self, context: Context) -> Callable[..., Any]:
        async def call(**plain: Any) -> Any:
            # What was agreed to is what is called, so it is read again here.
            given = self._named(self._arguments.read(plain))
            if self._context is not None:
                loop = asyncio.get_running_loop()
                given[self._context] = context if self._is_async else BlockingContext(context, loop)
            if self._is_async:
                return plain_of(await self._function(**given))
            result = await _in_thread(self._function, given)
            return plain_of(await result if inspect.isawaitable(result) else result)

        return call

    async def reconciled(self, plain: dict[str, Any]) -> Any:
        look = self.terms.reconcile
        assert look is not None  # noqa: S101 - it is declared, or nobody asks
        given = self._named(self._arguments.read(plain))
        if inspect.iscoroutinefunction(inspect.unwrap(look)):
            return plain_of(await look(**given))
        return plain_of(await asyncio.to_thread(look, **given))

    @staticmethod
    def _named(values: Any) -> dict[str, Any]:
        found = {name: getattr(values, name) for name in values.__struct_fields__}
        return {name: value for name, value in found.items() if value is not msgspec.UNSET}


async def _in_thread(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Return what *function* returns in a thread. No cancellation stops it, so a run that is cut keeps what it did."""
    call = functools.partial(contextvars.copy_context().run, function, **given)
    # No task: the loop would pass on the exit of one.
    ended, task = asyncio.get_running_loop().run_in_executor(None, call), asyncio.current_task()
    while not ended.done():
        try:
            await asyncio.wait((ended,))
        except asyncio.CancelledError:
            # Cut a second time, the run stops waiting.
            if task is None or task.cancelling() > 1:
                ended.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise
    return ended.result()


def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    if sys.version_info >= (3, 14):
        # Annotations are evaluated when they are asked for, and one may name what only type checkers import.
        from annotationlib import Format

        return list(inspect.signature(function, annotation_format=Format.FORWARDREF).parameters.values())
    return list(inspect.signature(function).parameters.values())


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    inner = inspect.unwrap(function)
    cells = zip(getattr(getattr(inner, "__code__", None), "co_freevars", ()), inner.__closure__ or (), strict=False)
    local = {cell: content.cell_contents for cell, content in cells if content != type(content)()}
    try:
        return typing.get_type_hints(inner, localns=local, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"the tool {name!r:.80}: {error}: its annotations must be known where it is declared"
        ) from error
    except Exception as error:
        raise ConfigurationError(f"the tool {name!r:.80}: its annotations cannot be read: {error}") from error


def _field(name: str, parameter: Parameter, hints: Mapping[str, Any]) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD, Parameter.POSITIONAL_ONLY):
        raise ConfigurationError(f"the tool {name!r:.80} takes {parameter}: each argument of a tool has a name")
    if parameter.name not in hints:
        raise ConfigurationError(f"the tool {name!r:.80}: annotate the parameter {parameter.name!r}")
    hint = hints[parameter.name]
    if parameter.default is Parameter.empty:
        return parameter.name, hint
    try:
        shown = plain_of(parameter.default)
    except ContractError as error:
        raise ConfigurationError(
            f"the tool {name!r:.80}: the default of {parameter.name!r} has no JSON form: {error}"
        ) from error
    told: Any = typing.Annotated[hint, msgspec.Meta(extra_json_schema={"default": shown})]
    return parameter.name, told | msgspec.UnsetType, msgspec.UNSET
