"""Handler signatures: the argument and result types of a handler, read from its annotations and checked at declaration.

Owns every reason to refuse a handler. Each error names the handler and the correction. An annotation that is not
defined yet, or known only to type checkers, is not checked here.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from types import CellType, CodeType, ModuleType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Final, TypeVar, Union

from bus.errors import ConfigurationError
from bus.nearest import nearest
from bus.payloads.no_payload import could_be_marked, is_base, is_typed_dict
from bus.payloads.payload_types import PayloadType, is_payload
from consumers.delivery.blocking_context import BlockingContext
from consumers.delivery.context import Context
from consumers.delivery.handling.composition import name_of
from producers.sealing.options import Outgoing

__all__ = ["check_handler", "must_answer", "returned_types", "sent_types"]

_UNRESOLVED: Final = object()
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_SEVERAL: Final = (list, tuple, Sequence, Iterable)
_ANYTHING: Final = (Any, object, _UNRESOLVED)


def check_handler(
    function: Callable[..., Any], kind: PayloadType, provide: Mapping[str, Any], *, blocking: bool
) -> bool:
    """Check that *function* can handle *kind*; return whether it takes the context.

    Raises ConfigurationError.
    """
    name = name_of(function)
    if not callable(function):
        raise ConfigurationError(f"{name} is not a function: write `async def handler({_example(kind)})`")
    _check_form(function, name, blocking=blocking)
    parameters = _signed(function).parameters
    _check_provided(name, parameters, provide)
    taken = [
        parameter
        for parameter in parameters.values()
        if parameter.kind in _POSITIONAL and parameter.name not in provide
    ]
    if len(taken) not in (1, 2):
        raise ConfigurationError(
            f"{name} takes {len(taken)} arguments; a handler takes (payload) or (payload, context), and what "
            f"provide={{...}} names: write `async def {_short(name)}({_example(kind)}, context: Context)`"
        )
    _check_payload(function, name, kind, taken[0])
    if len(taken) == 2:  # noqa: PLR2004 - payload and context
        _check_context(function, name, kind, taken[1], blocking=blocking)
    _check_returned(function, name)
    return len(taken) == 2  # noqa: PLR2004 - payload and context


def returned_types(function: Callable[..., Any]) -> list[type[Any]]:
    """Return the payload classes in the return annotation of *function*."""
    return [cls for cls in _flatten(_hint(function, _signed(function).return_annotation)) if _is_payload(cls)]


def sent_types(functions: Iterable[Callable[..., Any]]) -> Iterator[type[Any]]:
    """Yield the payload classes that *functions* may send: those they return, and those that their code names."""
    for function in functions:
        yield from returned_types(function)
        yield from (cls for cls in _named(inspect.unwrap(function)) if _is_payload(cls))


def _named(function: Any) -> Iterator[Any]:
    """Yield the current values of the global and enclosing names in the code of *function*."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    names = set(_names_of(code))
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    cells = function.__closure__ or ()
    # A name that has no value yet has an empty cell.
    found += [cell.cell_contents for cell in cells if cell != CellType()]
    yield from found
    yield from (getattr(each, name, None) for each in found if isinstance(each, ModuleType) for name in names)


def _names_of(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_of(constant)


def must_answer(function: Callable[..., Any]) -> bool:
    """Return whether *function* always returns a message, by its annotation."""
    returned = _flatten(_hint(function, _signed(function).return_annotation))
    return bool(returned) and all(isinstance(cls, type) and (is_base(cls) or _is_payload(cls)) for cls in returned)


def _check_form(function: Callable[..., Any], name: str, *, blocking: bool) -> None:
    inner = _unwrapped(function)
    if inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
        raise ConfigurationError(
            f"{name} yields: a handler returns its messages, or calls `context.send(...)` for each"
        )
    if inspect.iscoroutinefunction(inner) == blocking:
        wanted = (
            "a coroutine function: leave blocking=True out"
            if blocking
            else "no coroutine function: write `async def`, or blocking=True"
        )
        raise ConfigurationError(f"{name} is {wanted}")


def _check_provided(name: str, parameters: Mapping[str, Parameter], provide: Mapping[str, Any]) -> None:
    open_ended = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    for provided in provide:
        if provided not in parameters and not open_ended:
            raise ConfigurationError(
                f"provide names {provided!r}, which {name} does not take; it takes {', '.join(parameters) or 'nothing'}"
                f"{nearest(provided, parameters)}"
            )
    for parameter in parameters.values():
        if (
            parameter.kind is Parameter.KEYWORD_ONLY
            and parameter.default is Parameter.empty
            and parameter.name not in provide
        ):
            raise ConfigurationError(
                f"{name} needs {parameter.name!r}, and nothing gives it: "
                f"add provide={{{parameter.name!r}: ...}}, or bind it with functools.partial"
            )


def _check_payload(function: Callable[..., Any], name: str, kind: PayloadType, parameter: Parameter) -> None:
    if parameter.annotation is Parameter.empty:
        raise ConfigurationError(f"{name}: annotate its payload: write `{parameter.name}: {kind.cls.__name__}`")
    hint = _hint(function, parameter.annotation)
    if hint in (Context, BlockingContext):
        raise ConfigurationError(
            f"{name}: the payload comes first, then the context: write `({_example(kind)}, context: Context)`"
        )
    if not _accepts(hint, kind.cls):
        raise ConfigurationError(
            f"{name} handles {kind.cls.__name__} ({kind.name}), and {parameter.name!r} is annotated as "
            f"{_hint_text(hint)}: write `{parameter.name}: {kind.cls.__name__}`, or `@app.on({_hint_text(hint)})`"
        )


def _check_context(
    function: Callable[..., Any], name: str, kind: PayloadType, parameter: Parameter, *, blocking: bool
) -> None:
    wanted = "BlockingContext" if blocking else "Context"
    if parameter.annotation is Parameter.empty:
        raise ConfigurationError(f"{name}: annotate its context: write `{parameter.name}: {wanted}`")
    hint = _hint(function, parameter.annotation)
    if not _accepts(hint, Context) and not (blocking and _accepts(hint, BlockingContext)):
        raise ConfigurationError(
            f"{name}: its second argument is the context, and {parameter.name!r} is annotated as "
            f"{_hint_text(hint)}: write `({_example(kind)}, context: {wanted})`; give further arguments with "
            f"provide={{{parameter.name!r}: ...}}"
        )


def _check_returned(function: Callable[..., Any], name: str) -> None:
    annotation = _signed(function).return_annotation
    if annotation is Parameter.empty:
        raise ConfigurationError(
            f"{name}: annotate the return type, a payload class or None: write `-> None` if it sends no answer"
        )
    for cls in _flatten(_hint(function, annotation)):
        if cls in _ANYTHING or cls in (None, NoneType, typing.Never, typing.NoReturn) or isinstance(cls, TypeVar):
            continue
        if isinstance(cls, type) and (is_base(cls) or issubclass(cls, Outgoing) or _is_payload(cls)):
            continue
        if isinstance(cls, type) and could_be_marked(cls):
            raise ConfigurationError(f"{name} returns {_hint_text(cls)}, which is not marked with @payload(...)")
        raise ConfigurationError(
            f"{name} returns {_hint_text(cls)}: a handler returns a payload (of a class marked with @payload), "
            "an Outgoing, a list or tuple of them, or None"
        )


def _accepts(hint: Any, cls: type) -> bool:
    if hint in _ANYTHING or isinstance(hint, TypeVar):
        return True
    if typing.get_origin(hint) in (Union, UnionType):
        return any(_accepts(member, cls) for member in typing.get_args(hint))
    origin = typing.get_origin(hint) or hint
    if is_typed_dict(origin) and origin is not cls:
        # Python refuses to ask for the subclasses of a TypedDict.
        return False
    return not isinstance(origin, type) or issubclass(cls, origin) or bool(getattr(origin, "_is_protocol", False))


def _flatten(hint: Any) -> list[Any]:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _flatten(typing.get_args(hint)[0])
    if origin in (Union, UnionType, *_SEVERAL):
        return [cls for member in typing.get_args(hint) if member is not ... for cls in _flatten(member)]
    if origin is Awaitable:
        return _flatten(typing.get_args(hint)[0])
    if hint in _SEVERAL:
        return [Any]
    return [hint]


def _hint(function: Callable[..., Any], annotation: Any) -> Any:
    """Evaluate *annotation* of *function*; return _UNRESOLVED if a name in it is unknown here."""
    if annotation is None:
        return NoneType
    inner = _unwrapped(function)
    names = dict(getattr(inner, "__globals__", {}))
    cells = getattr(inner, "__closure__", None) or ()
    for name, cell in zip(getattr(getattr(inner, "__code__", None), "co_freevars", ()), cells, strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue
    try:
        return typing.get_type_hints(
            SimpleNamespace(__annotations__={"it": annotation}), names, names, include_extras=True
        )["it"]
    except Exception:  # noqa: BLE001 - whatever evaluating a foreign annotation raises, it is not checked
        return _UNRESOLVED


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    # Of an object with __call__: what it takes and returns is said there.
    is_object = not inspect.isroutine(function) and not isinstance(function, type)
    inner: Callable[..., Any] = inspect.unwrap(type(function).__call__ if is_object else function)
    return inner


def _signed(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        # Annotations are evaluated when they are asked for, and one may name what only type checkers import.
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _is_payload(cls: Any) -> bool:
    return isinstance(cls, type) and is_payload(cls)


def _hint_text(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _example(kind: PayloadType) -> str:
    return f"{kind.cls.__name__.lower()}: {kind.cls.__name__}"


def _short(name: str) -> str:
    return name.rpartition(".")[2]
