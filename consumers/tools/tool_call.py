"""One call of a tool within a run: authority and policy, then a step, then the level of what came back.

Owns this order, and which failures are answers to the model. What a run of the bus ends with stays an error: a held
run, a dependency that is down, an outage. The seam to `context.step` is `_stepped` alone.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from inspect import Parameter
from typing import Any, Final

from bus.errors import (
    ApprovalRefused,
    BusError,
    ConfigurationError,
    ContractError,
    EventLoopError,
    HandlerError,
    text_of,
)
from consumers.delivery.context import Context
from consumers.delivery.inbox.step_call import StepCall
from consumers.processes.approvals.approval import Approval
from consumers.tools.answers import ToolAnswer, ToolFault
from consumers.tools.tool import Tool, check_answer

__all__ = ["called", "ends_the_run", "kept_failure", "planned", "taking"]

_DONE: Final = "done"
_FAILED: Final = "failed"


async def called(
    tool: Tool, arguments: object, context: Context, key: object, *, taint: Callable[[str, str], None] | None = None
) -> ToolAnswer:
    """Return what the call of *tool* with a model's *arguments* came to; equal calls with one *key* are one call.

    *taint* lowers the run by the level and the name of what was read, by default at once.

    Raises what a run ends with: HandlerError, errors that a repetition can cure, and those of `context.step`.
    """
    step = planned(tool, arguments, context, key)
    if isinstance(step, ToolAnswer):
        return step
    try:
        outcome, *found = await context.take_step(step)
    except ApprovalRefused as error:
        return _refused(tool, error.reason, text_of(error))
    level = found.pop()
    # Its own result may have been read before, by another run.
    (taint or context.taint)(level, f"tool:{tool.name}")
    seed = f"{context.message.message_id}\n{key}"
    if outcome == _DONE:
        return ToolAnswer(tool.name, found[0], level=level, seed=seed)
    cls, text = found
    return ToolAnswer(tool.name, fault=ToolFault(_FAILED, f"{cls}: {text}" if text else cls), level=level, seed=seed)


def planned(tool: Tool, arguments: object, context: Context, key: object) -> StepCall | ToolAnswer:
    """Return the step that the call is, or the answer to the model why there is none."""
    try:
        plain, _ = tool.read(arguments)
    except ContractError as error:
        return _refused(tool, "wrong_arguments", error.text, error.pointer)
    granted = context.run.admission.authority(context.message)
    if (why := tool.refusal(granted)) is not None:
        return _refused(tool, "unauthorized", why)
    approval = tool.terms.approval
    if approval is None and tool.needs_person(granted):
        approval = Approval(by="human", reason="the message asks for it")
    return StepCall(
        name=tool.name,
        function=taking(plain, _kept(tool, plain, context)),
        arguments=tuple(plain.values()),
        key=[tool.name, plain, key],
        approve=approval,
        is_tool=True,
        once=tool.terms.once,
        reconcile=None if tool.terms.reconcile is None else _looked_up(tool, plain),
    )


class _AnyName(str):
    """The name of an argument, which need not be one of Python's."""

    __slots__ = ()

    def isidentifier(self) -> bool:
        return True


class _Bound(inspect.BoundArguments):
    """Arguments by names that are plain text again; none has a default."""

    def apply_defaults(self) -> None:
        self.arguments = {str(name): value for name, value in self.arguments.items()}


class _Named(inspect.Signature):
    def bind(self, *values: Any, **named: Any) -> inspect.BoundArguments:
        return _Bound(self, super().bind(*values, **named).arguments)


def taking(names: Iterable[str], function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return *function* as one whose parameters are *names*: people who approve a call see its arguments by them."""
    parameters = [Parameter(_AnyName(name), Parameter.POSITIONAL_ONLY) for name in names]
    function.__signature__ = _Named(parameters)  # type: ignore[attr-defined]
    return function


def _kept(tool: Tool, plain: dict[str, Any], context: Context) -> Callable[..., Awaitable[list[Any]]]:
    """Return the function of the step: `[outcome, result or class and text of the error, level]`."""
    function = tool.function(context)

    async def call(*values: Any) -> list[Any]:
        try:
            result = await function(**dict(zip(plain, values, strict=True)))
            check_answer(result)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if ends_the_run(error):
                raise
            return [*kept_failure(error), tool.level(context)]
        return [_DONE, result, tool.level(context)]

    return call


def _looked_up(tool: Tool, plain: dict[str, Any]) -> Callable[..., Any]:
    """Return the look-up of *tool*, whose result is kept as that of a call."""

    async def look(*values: Any) -> list[Any]:
        found = await tool.reconciled(dict(zip(plain, values, strict=True)))
        return [_DONE, found, tool.terms.output]

    return look


def kept_failure(error: BaseException) -> list[str]:
    """Return what is kept of the error of a tool: that it failed, class and text."""
    # Its text may hold what the model wrote, and a lone surrogate could not be kept.
    return [_FAILED, type(error).__name__, text_of(error).encode(errors="backslashreplace").decode()]


def ends_the_run(error: BaseException) -> bool:
    """Tell whether *error* is the bus's own, or the handler's decision, and no answer of a tool.

    A tool that exits, or awaits what was cancelled, ends itself and not the worker, nor a run that nobody cancels.
    """
    if isinstance(error, SystemExit):
        return False
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    if not isinstance(error, Exception) or isinstance(error, HandlerError | ConfigurationError | EventLoopError):
        return True
    return isinstance(error, BusError) and error.retriable


def _refused(tool: Tool, code: str, text: str, pointer: str = "") -> ToolAnswer:
    return ToolAnswer(tool.name, fault=ToolFault(code, text, pointer))
