"""Whether reading a payload runs code of its type's author: a `__post_init__`, a model's validators, a factory. Pure.

A worker reads payloads of the other types without a context of their own: nothing of one record can be left for the
next.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, inspect

from bus.payloads.described_types import fields_of, walk

__all__ = ["runs_code_of_users"]

_PLAIN: Final = (
    inspect.AnyType,
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.BytesType,
    inspect.DateTimeType,
    inspect.TimeType,
    inspect.DateType,
    inspect.TimeDeltaType,
    inspect.UUIDType,
    inspect.LiteralType,
    inspect.UnionType,
    inspect.ListType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.VarTupleType,
    inspect.TupleType,
    inspect.DictType,
    inspect.Metadata,
    inspect.RawType,
)
_FACTORIES: Final = (NODEFAULT, list, dict, set, tuple, bytes, str)
_NEVER_RUN: Final = frozenset(
    {
        "__repr__",
        "__str__",
        "__rich_repr__",
        "__init_subclass__",
        "__class_getitem__",
        "__annotate__",
        "__annotate_func__",
    }
)
"""Special methods that neither reading a payload nor looking at its fields runs."""
_MSGSPEC: Final = frozenset({"msgspec", "msgspec._core", "builtins"})


def runs_code_of_users(described: type[Any]) -> bool:
    """Return whether reading a value of the *described* type may run code that msgspec did not write."""
    return any(_runs_code(kind) for _, kind in walk(inspect.type_info(described)))


def _runs_code(kind: Any) -> bool:
    if isinstance(kind, inspect.StructType):
        bases = getattr(kind.cls, "__origin__", kind.cls).__mro__
        own = [cls for cls in bases if cls.__module__ not in _MSGSPEC]
        return (
            any(map(_has_hook, own))
            or type(own[0]) is not type(msgspec.Struct)
            or any(field.default_factory not in _FACTORIES for field in fields_of(kind))
        )
    if isinstance(kind, inspect.EnumType):
        return getattr(kind.cls._missing_, "__func__", None) is not getattr(Enum._missing_, "__func__", None)
    return not isinstance(kind, _PLAIN)


def _has_hook(cls: type[Any]) -> bool:
    return any(
        name.startswith("__") and name not in _NEVER_RUN and callable(value) for name, value in vars(cls).items()
    )
