"""An estimate of the memory that a decoded payload takes, computed from its text before decoding.

Owns the estimate, per type: two bytes of text may become a Struct of thirty fields. It covers objects and lists, the
largest part, and is not exact. `bus.payloads.payload_types` refuses payloads that are too large, and a worker counts
the others against its in-flight limit. Pure.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import msgspec
from msgspec import inspect

from bus import native
from bus.payloads.described_types import NAMED, walk

__all__ = ["MAX_COMPARISONS", "MAX_DECODED_BYTES", "Weight", "weight_of"]

MAX_DECODED_BYTES: Final = 32 * 1_048_576
"""More than that no payload may take."""
MAX_COMPARISONS: Final = 20_000_000
"""Maximum comparisons of member names with fields: msgspec searches the fields one by one, at 3 ns each."""

_SMALL: Final = 131_072
_MEMBER: Final = 64
"""A number or text, and its place."""
_LIST: Final = 88
_SET: Final = 300
_OBJECT: Final = 240
"""A dict with a member or few."""
_MODEL: Final = 560
"""A Pydantic model, its dict, its set of given fields and its shadow; measured with pydantic 2.14."""
_FACTORIES: Final[dict[Any, int]] = {list: 56, dict: 64, set: 216, tuple: 0, bytes: 0, str: 0}
_OTHER_FACTORY: Final = 512


class Weight(msgspec.Struct, frozen=True):
    """Bytes that each object and each list of one type's text become."""

    object_bytes: int = _OBJECT
    list_bytes: int = _LIST
    fields: int = 0
    """The number of fields of the class that has most."""

    def of(self, text: bytes, start: int = 0, end: int = sys.maxsize) -> int:
        """Return the estimate for the JSON in *text* from *start* to before *end*."""
        objects, lists, members = native.count_marks(text, start, end)
        length = min(end, len(text)) - start
        return 2 * length + objects * self.object_bytes + lists * self.list_bytes + members * _MEMBER

    def comparisons(self, data: bytes) -> int:
        """How many names may be compared with how many fields, at the most."""
        # The shortest member is `"":0,`.
        return data.count(b'":') * self.fields if len(data) // 5 * self.fields > MAX_COMPARISONS else 0

    @property
    def per_byte(self) -> int:
        """The most that a byte of text can become: the shortest item is `{},`."""
        return 2 + -(-(max(self.object_bytes, self.list_bytes) + _MEMBER) // 3)

    @property
    def light_bytes(self) -> int:
        """Text of at most that length is never too heavy."""
        return MAX_DECODED_BYTES // self.per_byte

    @property
    def small_bytes(self) -> int:
        """Text of at most that length becomes less than 128 KiB."""
        return _SMALL // self.per_byte


def weight_of(cls: type[Any], *, as_models: bool = False) -> Weight:
    """The weight of payloads of *cls*: that of the heaviest object and list its annotations allow.

    *as_models*: they become Pydantic models with the fields of *cls*.
    """
    objects, lists, fields = [_MEMBER], [_LIST], [0]
    for _, kind in walk(inspect.type_info(cls)):
        if isinstance(kind, (*NAMED, inspect.NamedTupleType)):
            (lists if getattr(kind, "array_like", False) else objects).append(_of_fields(kind, as_models=as_models))
            if isinstance(kind, NAMED):
                fields.append(len(kind.fields))
        elif isinstance(kind, inspect.AnyType | inspect.DictType | inspect.RawType):
            objects.append(_OBJECT)
            lists.append(_LIST)
        elif isinstance(kind, inspect.SetType | inspect.FrozenSetType):
            lists.append(_SET)
    return Weight(max(objects), max(lists), max(fields))


def _of_fields(kind: Any, *, as_models: bool) -> int:
    if as_models:
        own = _MODEL + 56 * len(kind.fields)
    elif isinstance(kind, inspect.StructType):
        own = 48 + 8 * len(kind.fields)
    else:
        own = _OBJECT + 48 * len(kind.fields)
    factories = (getattr(field, "default_factory", msgspec.NODEFAULT) for field in kind.fields)
    return own + sum(
        _FACTORIES.get(factory, _OTHER_FACTORY) for factory in factories if factory is not msgspec.NODEFAULT
    )
