"""Any JSON value as a field of a payload, and the mark by which a type that JSON cannot tell apart is carried as one.

Owns both. A value is checked as all data are: names are strings and occur once, integers are within 2^53-1, numbers are
finite, and depth and size are bounded. Its own fields are not described, so no schema has them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta

__all__ = ["JSON_MARK", "CheckedJson", "Json", "is_checked_json"]


class CheckedJson:
    """The mark of a field of a Pydantic model whose data are any JSON: `Annotated[Cat | Dog, CheckedJson()]`.

    The model alone decides what the data become.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CheckedJson)

    def __hash__(self) -> int:
        return hash(CheckedJson)

    def __repr__(self) -> str:
        return "CheckedJson()"


JSON_MARK: Final = "sealbus_json"
"""The member of `extra` in msgspec's description of a field of `Json`."""
Json: TypeAlias = Annotated[Any, Meta(description="Any JSON value.", extra={JSON_MARK: True}), CheckedJson()]
"""Any JSON value, in all forms of classes."""


def is_checked_json(mark: object) -> bool:
    """Return whether *mark*, in an annotation, is `CheckedJson`, or the class itself."""
    return isinstance(mark, CheckedJson) or mark is CheckedJson
