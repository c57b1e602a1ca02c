"""StepCall: one call of a step: its function, its arguments, and what guards it. Pure.

Owns the arguments of a guarded call as they are stored and shown, and putting stored arguments in the place of the ones
that were given: what runs is what was agreed to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from bus.errors import ContractError
from bus.payloads.kept_values import is_plain, kept_type, plain_from, plain_of
from bus.trust.effective_labels import PLAIN, EffectiveLabels
from consumers.delivery.inbox.step_identity import bound_arguments

__all__ = ["OperatorAnswer", "StepCall", "given_again", "stored_arguments"]

_NOTHING_NAMED: Final[Mapping[str, Any]] = MappingProxyType({})


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of *function* as the step *name*."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = _NOTHING_NAMED
    key: object = None
    """Its identity, instead of function and arguments."""
    kind: Any = None
    """The class of its result."""
    approve: Any = None
    """The approval that it needs (`consumers.processes.approvals.approval.Approval`)."""
    is_tool: bool = False
    """Whether the policy decides about it by its name, without an approval of its own, too."""
    once: bool = False
    """Whether it must not be called again where it has begun and has no result."""
    reconcile: Callable[..., Any] | None = None
    """Looks up whether a call that has begun had its effect."""

    @property
    def is_guarded(self) -> bool:
        """Whether it is written as begun before the call."""
        return self.once or self.approve is not None

    def check(self) -> None:
        """Raise ContractError for guards that contradict each other."""
        if self.reconcile is not None and not self.once:
            raise ContractError(
                "reconcile= answers what a step did that must not run twice: write once=True beside it", "reconcile"
            )
        if self.reconcile is not None and not callable(self.reconcile):
            raise ContractError(
                f"reconcile is {type(self.reconcile).__name__}: give a function of the same arguments", "reconcile"
            )


class OperatorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator says about the step in doubt of a message that was sent back."""

    order: str
    """The id of the order: it counts once."""
    step: str | None = None
    had_effect: bool = False
    result: Any = None
    """What the step returned, where it had its effect."""
    labels: EffectiveLabels = PLAIN
    """Of the order."""
    refused: str = ""
    """Why the order is not believed; then it says nothing."""


def stored_arguments(call: StepCall) -> dict[str, Any]:
    """Return the arguments of *call* by parameter name, as plain JSON values.

    Raises ContractError for arguments without a JSON form.
    """
    bound = bound_arguments(call.name, call.function, call.arguments, call.named)
    try:
        return {name: plain_of(value) for name, value in bound.arguments.items()}
    except ContractError as error:
        raise ContractError(
            f"an argument of the step {call.name!r} has no JSON form ({error}): it is stored and shown before the call",
            "arguments",
        ) from error


def given_again(call: StepCall, function: Callable[..., Any], stored: bytes) -> Callable[[], Any]:
    """Return a call of *function* with the arguments *stored* for *call*.

    Where an argument was given as an object, it is made again of the same class. So nothing that changes the object
    meanwhile changes what runs. Raises ContractError where the present code has other parameters.
    """
    values = plain_from(stored)
    bound = bound_arguments(call.name, call.function, call.arguments, call.named)
    if {*values} != {*bound.arguments}:
        raise ContractError(
            f"the step {call.name!r} has begun with the arguments {', '.join(sorted(values))}, and its function takes "
            "others now",
            "arguments",
        )
    for name, value in values.items():
        bound.arguments[name] = _made_again(bound.arguments[name], value)
    return functools.partial(function, *bound.args, **bound.kwargs)


def _made_again(given: Any, stored: Any) -> Any:
    if isinstance(given, tuple) and isinstance(stored, list):
        if len(given) == len(stored):
            return tuple(_made_again(one, plain) for one, plain in zip(given, stored, strict=True))
        return tuple(stored)
    if isinstance(given, dict) and isinstance(stored, dict) and not is_plain(given):
        return {name: _made_again(given.get(name), plain) for name, plain in stored.items()}
    if isinstance(given, list) and isinstance(stored, list) and not is_plain(given):
        return [_made_again(given[at] if at < len(given) else None, plain) for at, plain in enumerate(stored)]
    if given is None or is_plain(given):
        return stored
    return kept_type(type(given)).read(stored)
