"""Upcasters: convert data of an older major version to the next one.

Owns their two forms. An `Upcaster` names the class of the version that it reads: this class validates the data, with
its rules and its terms of the envelope, before they are upcast. A function alone gets unvalidated data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

__all__ = ["AnyUpcaster", "Converting", "Upcaster", "converting"]

_Older = TypeVar("_Older")
Converting: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes the data of one version into those of the next."""


class Upcaster(Generic[_Older]):
    """An upcaster of data that the class *older* has judged.

        @payload("order.placed", version="2.0.0", upcasters={1: Upcaster(OrderV1, from_v1)})
        class Order(msgspec.Struct, frozen=True): ...

    *older* is marked with `@payload` as the older version. *convert* gets the members that this class knows, as a dict,
    and returns those of the next major version. It must convert every payload that the older class accepts.
    """

    def __init__(self, older: type[_Older], convert: Converting) -> None:
        self.older = older
        self.convert = convert


AnyUpcaster: TypeAlias = Upcaster[Any] | Converting


def converting(upcaster: AnyUpcaster) -> Converting:
    """Return the function of *upcaster*."""
    return upcaster.convert if isinstance(upcaster, Upcaster) else upcaster
