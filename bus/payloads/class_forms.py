"""The forms of classes that `@payload` marks: msgspec Structs, dataclasses, TypedDicts and Pydantic models.

Owns telling them apart, and the parts that a payload type needs from each: the class of its instances, a type that
msgspec can describe, a reader, and an instance as plain JSON values. All forms give the same bytes for the same values,
and the same errors. `bus.payloads.typed_dicts` and `bus.payloads.pydantic_models` are the forms that need more than
msgspec.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from types import new_class
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, get_args, get_origin

import msgspec

from bus.payloads.no_payload import is_model, is_typed_dict, not_markable
from bus.payloads.reading import Reader
from bus.payloads.typed_dicts import TypedDictForm

__all__ = ["ClassForm", "Payload", "PayloadReader", "form_of", "struct_form"]


class _DataclassLike(Protocol):
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


class _TypedDictLike(Protocol):
    __total__: ClassVar[bool]


class _ModelLike(Protocol):
    def model_dump_json(self) -> str: ...


Payload: TypeAlias = msgspec.Struct | _DataclassLike | _TypedDictLike | _ModelLike
"""The type of a payload instance for type checkers. A plain dict is not a payload."""


class PayloadReader(Protocol):
    """Reads JSON text as one class; raises the errors of msgspec, and ContractError."""

    @property
    def read(self) -> Callable[[bytes], Any]:
        """Reads short text."""

    @property
    def read_long(self) -> Callable[[bytes], Any]:
        """Reads text of any length in a bounded time."""


class ClassForm(Protocol):
    """One class that is marked."""

    @property
    def cls(self) -> type[Any]:
        """The marked class, which every payload is an instance of."""

    def describe(self) -> type[Any]:
        """Return the type that msgspec describes instead of the class.

        Raises NameError where an annotation names nothing yet, TypeError for what msgspec cannot describe.
        """

    def reader(self, described: type[Any]) -> PayloadReader:
        """Return the reader of the class, which is *described* so."""

    def plain(self, subject: Any, *, str_keys: bool = False) -> object:
        """Return *subject* as values that JSON has. *str_keys*: keys of other types become text.

        Raises ContractError, TypeError, ValueError, RecursionError for what has no such form.
        """

    def check_again(self, subject: Any, again: Any) -> None:
        """Raise ContractError where *subject* was written and read as *again*, which is of another class somewhere."""


class _NativeForm:
    """A Struct or a dataclass: msgspec reads and writes it itself."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls

    def describe(self) -> type[Any]:
        return self.cls

    def reader(self, described: type[Any]) -> PayloadReader:
        return Reader(described)

    def plain(self, subject: Any, *, str_keys: bool = False) -> object:
        try:
            return msgspec.to_builtins(subject, str_keys=str_keys, order="sorted")
        except TypeError:
            # Sets of what can't be compared have no order of their own; any order is a list all the same.
            return msgspec.to_builtins(subject, str_keys=str_keys)

    def check_again(self, subject: Any, again: Any) -> None:
        """Accept it: one annotation tells the class of each part."""


def struct_form(cls: type[msgspec.Struct]) -> ClassForm:
    """Return the form of a Struct."""
    return _NativeForm(cls)


def form_of(cls: Any, name: str) -> ClassForm:
    """Return the form of *cls*, to be marked as *name*. Raises TypeError with the correction."""
    cls = _with_arguments(cls)
    if isinstance(cls, type):
        if issubclass(cls, msgspec.Struct):
            if cls.__struct_config__.array_like:
                raise TypeError(f"@payload({name!r}): data is an object, and {cls.__qualname__} is array_like")
            return _NativeForm(cls)
        if is_typed_dict(cls):
            return TypedDictForm(cls)
        if is_model(cls):
            return _model_form(cls, name)
        if _is_plain_dataclass(cls):
            return _NativeForm(cls)
    raise TypeError(not_markable(cls, name))


def _with_arguments(cls: Any) -> Any:
    """Return a class of its own for a generic Struct with arguments, such as `Box[int]`; anything else unchanged.

    A model of Pydantic with arguments is a class already, which has a mark of its own.
    """
    origin, arguments = get_origin(cls), get_args(cls)
    if not (isinstance(origin, type) and issubclass(origin, msgspec.Struct)):
        return cls
    if any(isinstance(argument, TypeVar) for argument in arguments):
        return cls
    words = re.sub(r"\W+", "_", "_".join(getattr(each, "__name__", str(each)) for each in arguments)).strip("_")
    content = {"__module__": origin.__module__, "__doc__": origin.__doc__}
    return new_class(f"{origin.__name__}_{words}", (cls,), {}, lambda space: space.update(content))


def _model_form(cls: type[Any], name: str) -> ClassForm:
    # Only now: a program without models need not have pydantic, nor the time that its import takes.
    from bus.payloads.pydantic_models import ModelForm

    return ModelForm(cls, name)


def _is_plain_dataclass(cls: type[Any]) -> bool:
    """Return whether msgspec writes instances of *cls* by its fields, and no other library builds them."""
    return (
        dataclasses.is_dataclass(cls)
        and "__dataclass_fields__" in cls.__dict__
        and not hasattr(cls, "__pydantic_validator__")
        and not issubclass(cls, dict | list | tuple | set | frozenset | str | bytes | int | float)
    )
