"""What to write instead of something that is no payload type: the texts of errors, without any value in them.

Owns these texts. `bus.payloads.payload_types` decides what is one.
"""

from __future__ import annotations

import dataclasses
import re
from types import FunctionType
from typing import Any, is_typeddict

import msgspec

__all__ = ["name_missing", "not_marked", "not_markable"]

_MOST_FIELDS = 6
_WORDS = re.compile("[A-Z]?[a-z0-9]+|[A-Z]+")


def name_missing(given: object) -> str:
    """Text for `@payload` without brackets, or with *given*, no text, in them."""
    if not isinstance(given, type):
        return f"@payload needs the name of a message type as text, not {_named(given)}"
    name = ".".join(word.lower() for word in _WORDS.findall(given.__name__)) or "my.type"
    return f'@payload needs the name of a message type: write @payload("{name}") above {given.__qualname__}'


def not_markable(given: object, name: str) -> str:
    """Text for `@payload(name)` above *given*, which is no Struct."""
    return f"@payload({name!r}) marks msgspec.Struct classes, not {_named(given)}{_as_struct(given)}"


def not_marked(given: object, mark: str) -> str:
    """Text for *given*, a class, a payload or anything else, whose class has no *mark* of its own."""
    cls = given if isinstance(given, type) else type(given)
    if issubclass(cls, msgspec.Struct):
        above = next((base.__qualname__ for base in cls.__mro__ if mark in base.__dict__), None)
        own = f", for that of {above} is not inherited" if above else ""
        return f'{cls.__qualname__} is no payload type: write @payload("my.type") above it{own}'
    if isinstance(given, FunctionType):
        return f"{_named(given)} is no payload type: give the class in brackets, such as @app.on(MyPayload)"
    return (
        f"{_named(given)} is no payload: give an instance of a msgspec.Struct marked with @payload{_as_struct(given)}"
    )


def _named(given: object) -> str:
    if given is None:
        return "None"
    if isinstance(given, FunctionType):
        return f"the function {given.__qualname__}"
    cls = given if isinstance(given, type) else type(given)
    return f"{_kind(cls)} {cls.__qualname__}".lstrip()


def _kind(cls: Any) -> str:
    """Return what sort of class *cls* is, if it is one that users take for a payload."""
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if hasattr(cls, "__pydantic_fields__") or hasattr(cls, "model_fields"):
        return "pydantic model"
    return "TypedDict" if is_typeddict(cls) else ""


def _as_struct(given: object) -> str:
    """Write the fields of *given* as a Struct; empty where it has none."""
    cls = given if isinstance(given, type) else type(given)
    if isinstance(given, dict):
        name, fields = "MyPayload", {str(key): type(value).__name__ for key, value in given.items()}
    elif _kind(cls):
        hints = getattr(cls, "__annotations__", {})
        name, fields = cls.__name__, {key: getattr(hint, "__name__", str(hint)) for key, hint in hints.items()}
    else:
        return ""
    shown = [f"{key}: {kind}" for key, kind in fields.items() if key.isidentifier()]
    body = "; ".join(shown[:_MOST_FIELDS] + (["..."] if len(shown) > _MOST_FIELDS or not shown else []))
    return f"; write `class {name}(msgspec.Struct, frozen=True): {body}`"
