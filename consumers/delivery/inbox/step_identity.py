"""The identity of a step: which calls of a message are the same, and the id under which their result is kept. Pure.

Owns the identity of a call: `key=`, or the function's qualified name and its arguments by value. A call without either
is refused, because it could get the result of another call.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from bus.errors import ContractError
from bus.payloads.kept_values import plain_of
from bus.protocol import canonical
from bus.protocol.identifiers import is_text_id

__all__ = ["bound_arguments", "code_of", "step_id"]

_DIGITS: Final = 32
_MAX_NAME: Final = 128


def step_id(
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...] = (),
    named: Mapping[str, Any] | None = None,
    *,
    key: object = None,
    give: str = "key=...",
) -> str:
    """Return `<name>/<32 hex>`: the beginning of SHA-256 of JCS of the identity.

    The identity is *key*, or else [qualified name of *function*, arguments by parameter name]. *give* is what the
    caller can give instead. Raises ContractError for a call that has none, TypeError for arguments that *function* does
    not take.
    """
    if not isinstance(name, str) or len(name) > _MAX_NAME or not is_text_id(name) or name.startswith("~"):
        raise ContractError(f"illegal name of a step {name!r:.80}: 1 to {_MAX_NAME} characters", "name")
    if not callable(function):
        raise ContractError(
            f"the step {name!r} is given {type(function).__name__}: give the function, and its arguments after it",
            "function",
        )
    if key is not None:
        identity = _canonical(key, f"the key of the step {name!r}", "give text, numbers, or lists of them")
    else:
        cure = f"write functools.partial(f, x) with a function f of a module, or say by {give} which calls are the same"
        inner, provided, given_named = _unwrapped(function, arguments, named or {})
        if (fault := _fault(inner)) is not None:
            raise ContractError(f"the step {name!r} cannot be identified, because {fault}: {cure}", "key")
        what = f"an argument of the step {name!r}"
        identity = _canonical(
            [_qualified_name(inner), _by_name(name, inner, provided, given_named, cure)],
            what,
            f"say by {give} which calls are the same",
        )
    return f"{name}/{hashlib.sha256(identity).hexdigest()[:_DIGITS]}"


def code_of(function: Callable[..., Any]) -> CodeType | None:
    """Return the code of *function*: two functions of a function may share a name, and not their code."""
    return getattr(_unwrapped(function, (), {})[0], "__code__", None)


def bound_arguments(
    name: str, function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any], cure: str = ""
) -> inspect.BoundArguments:
    """Return the arguments of a call of *function* by parameter name, those left out by their defaults.

    Raises ContractError where the parameters are not known, TypeError for arguments that *function* does not take.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"the parameters of the step {name!r} are not known ({error}): {cure or 'write a function around it'}",
            "key",
        ) from error
    try:
        bound = signature.bind(*arguments, **named)
    except TypeError:
        # A decorator may take other arguments than the function that it is around.
        bound = inspect.signature(function, follow_wrapped=False).bind(*arguments, **named)
    bound.apply_defaults()
    return bound


def _unwrapped(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]:
    """Return the function in partials of it, with all arguments."""
    while isinstance(function, functools.partial):
        arguments, named = (*function.args, *arguments), {**function.keywords, **named}
        function = function.func
    return function, arguments, named


def _fault(function: Any) -> str | None:
    """Return why the name of *function* does not identify it; None if it does."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        return (
            None
            if _is_found(owner)
            else f"{function.__qualname__} belongs to a class that is created again in each call"
        )
    if owner is not None and not isinstance(owner, ModuleType):
        return f"{_name_of(function)} is a method of an object, which may hold anything"
    if getattr(function, "__name__", None) == "<lambda>":
        return "a lambda has no name"
    if _is_found(function):
        return None
    if not isinstance(function, FunctionType):
        return f"{_name_of(function)} is an object that can be called, and may hold anything"
    if function.__code__.co_freevars:
        return f"{function.__qualname__} uses {', '.join(function.__code__.co_freevars)} of where it is defined"
    if "<locals>" in function.__qualname__ and (function.__defaults__ or function.__kwdefaults__):
        return f"{function.__qualname__} has defaults, which may differ each time it is defined"
    return None


def _is_found(subject: Any) -> bool:
    """Tell whether *subject* is what its module has under its qualified name."""
    found: Any = sys.modules.get(_module_of(subject))
    for part in str(getattr(subject, "__qualname__", "<locals>")).split("."):
        found = getattr(found, part, None)
    return found is subject


def _module_of(subject: Any) -> str:
    # A method of a built-in class names its class alone.
    owner = getattr(subject, "__objclass__", None)
    return getattr(subject, "__module__", None) or getattr(owner, "__module__", None) or ""


def _qualified_name(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        # A class that inherits a method is another one to it.
        return f"{owner.__module__}.{owner.__qualname__}.{function.__name__}"
    return f"{_module_of(function)}.{function.__qualname__}"


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _by_name(
    name: str, function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any], cure: str
) -> Mapping[str, Any]:
    return bound_arguments(name, function, arguments, named, cure).arguments


def _canonical(identity: Any, what: str, cure: str) -> bytes:
    try:
        return canonical.encode(plain_of(identity))
    except ContractError as error:
        raise ContractError(f"{what} has no JSON form ({error}): {cure}", "key") from error
