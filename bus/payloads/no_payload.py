"""Error texts for objects that are not payloads: what to write instead, without any value in them.

Owns these texts, and recognising the kind of class that was mistaken for a payload. `bus.payloads.class_forms` decides
which classes can be marked, `bus.payloads.payload_types` which are.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from types import FunctionType
from typing import Any, Final, get_args, get_origin

import msgspec

__all__ = ["could_be_marked", "is_base", "is_model", "is_typed_dict", "name_missing", "not_marked", "not_markable"]

_MAX_FIELDS = 6
_WORDS = re.compile("[A-Z]?[a-z0-9]+|[A-Z]+")
_FORMS: Final = "msgspec Structs, dataclasses, TypedDicts and Pydantic models"
_OTHERS: Final = ("Pydantic 1 model", "Pydantic dataclass", "NamedTuple", "attrs class")
"""The sorts of classes that have fields and cannot be marked."""


def is_model(cls: Any) -> bool:
    """Return whether *cls* is a model of pydantic 2. Imports nothing: a program with a model has already imported
    pydantic."""
    pydantic = sys.modules.get("pydantic.main")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel) and hasattr(cls, "__pydantic_validator__")


def is_typed_dict(cls: Any) -> bool:
    """Return whether *cls* is a TypedDict, of typing or of typing_extensions, or what `@payload` made of one."""
    return isinstance(cls, type) and issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def is_base(cls: type[Any]) -> bool:
    """Return whether *cls* is what payload classes of one form are derived from, such as msgspec.Struct."""
    return cls is msgspec.Struct or (is_model(cls) and cls.__module__ == "pydantic.main")


def could_be_marked(cls: type[Any]) -> bool:
    """Return whether *cls* is of a form that `@payload` marks."""
    return (sort := _sort(cls)) != "" and sort not in _OTHERS


def name_missing(subject: object) -> str:
    """Text for `@payload` without brackets, or with *subject*, no text, in them."""
    if not isinstance(subject, type):
        return f"@payload needs the name of a message type as text, not {_named(subject)}"
    name = ".".join(word.lower() for word in _WORDS.findall(subject.__name__)) or "my.type"
    return f'@payload needs the name of a message type: write @payload("{name}") above {subject.__qualname__}'


def not_markable(subject: object, name: str) -> str:
    """Text for `@payload(name)` above *subject*, which is of no form that can be marked."""
    what = f"@payload({name!r}) marks {_FORMS}, not {_named(subject)}"
    origin = get_origin(subject)
    if isinstance(origin, type) and could_be_marked(origin):
        arguments = ", ".join(_hinted(each) for each in get_args(subject))
        generic = f"{origin.__qualname__}[{arguments}]"
        return f"@payload({name!r}) marks a class, not {generic}: write `class {origin.__name__}Of...({generic}): ...`"
    sort = _sort(subject) if isinstance(subject, type) else ""
    if sort.startswith("Pydantic"):
        return f"{what}; derive it from the BaseModel of Pydantic 2"
    if isinstance(subject, type) and not sort and getattr(subject, "__annotations__", None):
        return f"{what}; write `@dataclass` between @payload(...) and the class{_as_struct(subject, ', or ')}"
    return f"{what}{_as_struct(subject)}"


def not_marked(subject: object, mark: str) -> str:
    """Text for *subject*, a class, a payload or anything else, whose class has no *mark* of its own."""
    cls = subject if isinstance(subject, type) else type(subject)
    if could_be_marked(cls) or any(mark in base.__dict__ for base in cls.__mro__):
        above = next((base.__qualname__ for base in cls.__mro__ if mark in base.__dict__), None)
        own = f", for that of {above} is not inherited" if above else ""
        return f'{_named(cls)} is not a payload type: write @payload("my.type") above it{own}'
    if isinstance(subject, FunctionType):
        return f"{_named(subject)} is not a payload type: pass the class itself, such as @app.on(MyPayload)"
    if isinstance(subject, dict):
        return (
            f"{_named(subject)} is not a payload, because it has no message type: of a TypedDict marked with @payload "
            f"write MyPayload(...), or MyPayload(the_dict){_as_struct(subject, '; else ')}"
        )
    return f"{_named(subject)} is not a payload: pass an instance of a class marked with @payload{_as_struct(subject)}"


def _named(subject: object) -> str:
    if subject is None:
        return "None"
    if isinstance(subject, FunctionType):
        return f"the function {subject.__qualname__}"
    cls = subject if isinstance(subject, type) else type(subject)
    sort = _sort(cls)
    return f"{sort} {cls.__qualname__}" if sort and sort != "Struct" else cls.__qualname__


def _sort(cls: Any) -> str:
    """Return what sort of class *cls* is, if it is one that users take for a payload."""
    if issubclass(cls, msgspec.Struct):
        return "Struct"
    if hasattr(cls, "__pydantic_fields__") or hasattr(cls, "model_fields"):
        return "Pydantic dataclass" if dataclasses.is_dataclass(cls) else "Pydantic model"
    if any(base.__name__ == "BaseModel" and base.__module__.startswith("pydantic.") for base in cls.__mro__):
        return "Pydantic 1 model"
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if hasattr(cls, "__attrs_attrs__"):
        return "attrs class"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "NamedTuple"
    return "TypedDict" if is_typed_dict(cls) else ""


def _hinted(hint: Any) -> str:
    return str(getattr(hint, "__forward_arg__", None) or getattr(hint, "__name__", None) or hint)


def _as_struct(subject: object, before: str = "; ") -> str:
    """Write the fields of *subject* as a Struct, after *before*; return an empty string if it has none."""
    cls = subject if isinstance(subject, type) else type(subject)
    if isinstance(subject, dict):
        name, fields = "MyPayload", {str(key): type(value).__name__ for key, value in subject.items()}
    elif _sort(cls) or (isinstance(subject, type) and getattr(cls, "__annotations__", None)):
        hints = getattr(cls, "__annotations__", {})
        name, fields = cls.__name__, {key: _hinted(hint) for key, hint in hints.items()}
    else:
        return ""
    shown = [f"{key}: {kind}" for key, kind in fields.items() if key.isidentifier()]
    body = "; ".join(shown[:_MAX_FIELDS] + (["..."] if len(shown) > _MAX_FIELDS or not shown else []))
    return f"{before}write `class {name}(msgspec.Struct, frozen=True): {body}`"
