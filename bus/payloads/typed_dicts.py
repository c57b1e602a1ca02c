"""TypedDicts as payload classes: dicts with a message type.

A TypedDict makes plain dicts, which cannot carry the mark. So `@payload` replaces it by a subclass of dict with the
same fields: `Order(sku="tea")` is a dict that can be published, and handlers receive one. msgspec treats the subclass
as a TypedDict, also inside other types, because it has the same attributes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import new_class
from typing import Any, Self, TypedDict, cast

import msgspec

from bus.errors import ContractError
from bus.payloads.reading import Reader
from bus.protocol.canonical import escape_pointer_token

__all__ = ["TypedDictForm"]

_OWN = ("__total__", "__required_keys__", "__optional_keys__", "__doc__")
"""The attributes by which msgspec, and people, recognise a TypedDict."""
_FREE = "x_"
"""Members that begin so are the user's own, in every type."""


class _PayloadDict(dict[str, Any]):
    """The base class of marked TypedDicts. It has no annotations, because msgspec would read them as fields."""

    def __init_subclass__(cls, *, total: bool = True) -> None:
        """Give a class that inherits from a marked TypedDict the fields of both, as a TypedDict would."""
        if "__required_keys__" in cls.__dict__:
            return
        whole, base = cast("Any", cls), cast("Any", cls.__mro__[1])
        content = {"__annotations__": _annotations(cls), "__module__": cls.__module__}
        own: Any = new_class(cls.__name__, (TypedDict,), {"total": total}, lambda space: space.update(content))
        whole.__annotations__ = {**base.__annotations__, **own.__annotations__}
        whole.__required_keys__ = (base.__required_keys__ - own.__optional_keys__) | own.__required_keys__
        whole.__optional_keys__ = (base.__optional_keys__ - own.__required_keys__) | own.__optional_keys__

    def copy(self) -> Self:
        """Return a payload of the same class."""
        return type(self)(self)

    def __or__(self, other: Any) -> Any:
        return type(self)({**self, **other}) if isinstance(other, Mapping) else NotImplemented


class TypedDictForm:
    """A TypedDict that is marked, or a class that inherits from a marked one."""

    def __init__(self, cls: Any) -> None:
        self.cls = cls if issubclass(cls, _PayloadDict) else _as_class(cls)
        self._names = self.cls.__required_keys__ | self.cls.__optional_keys__

    def describe(self) -> type[Any]:
        return self.cls

    def reader(self, described: type[Any]) -> _DictReader:
        return _DictReader(self.cls, Reader(described))

    def plain(self, subject: Any, *, str_keys: bool = False) -> object:
        for name in subject:
            # What the constructor of a Struct refuses. Receivers would ignore it, and nobody would know.
            if name not in self._names and not str(name).startswith(_FREE):
                raise ContractError(
                    f"{self.cls.__qualname__} has no field {name!r:.80}", f"/{escape_pointer_token(str(name))}"
                )
        try:
            return msgspec.to_builtins(subject, str_keys=str_keys, order="sorted")
        except TypeError:
            return msgspec.to_builtins(subject, str_keys=str_keys)

    def check_again(self, subject: Any, again: Any) -> None:
        """Accept it: one annotation tells the class of each part."""


class _DictReader:
    """Reads what msgspec reads, as an instance of the marked class."""

    def __init__(self, cls: type[Any], reader: Reader) -> None:
        read, read_long = reader.read, reader.read_long
        self.read: Callable[[bytes], Any] = lambda data: cls(read(data))
        self.read_long: Callable[[bytes], Any] = lambda data: cls(read_long(data))


def _annotations(cls: Any) -> dict[str, Any]:
    """Return the annotations of *cls* itself, in which names may not be known yet."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(cls, format=Format.FORWARDREF)
    return inspect.get_annotations(cls)


def _as_class(cls: Any) -> type[Any]:
    content = {name: getattr(cls, name) for name in _OWN} | {"__annotations__": _annotations(cls)}
    location = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (_PayloadDict,), {**content, **location})
