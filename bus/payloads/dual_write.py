"""Dual write: a type whose publishers send each message in two versions while its readers move from one to the other.

Owns the option `dual_write=` of `@payload`, and which of the two a reader takes. Each names the other one in
`metadata.other_version` and share an idempotency key. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeAlias, TypeVar

__all__ = ["DualWrite", "VersionChoice", "in_share", "which_version"]

_Older = TypeVar("_Older")
VersionChoice: TypeAlias = Literal["take", "skip", "refuse"]
_SCALE = 2**32


class DualWrite(Generic[_Older]):
    """The older version that publishers send as well.

        @payload(
            "order.placed",
            version="2.0.0",
            dual_write=DualWrite(OrderV1, to_v1, share=0.1),
            upcasters={1: from_v1},
        )
        class Order(msgspec.Struct, frozen=True): ...

    *convert* makes the older payload from the newer one. *share* (0 to 1) of the messages is sent in both versions, the
    rest in the older one alone; raise it as readers prove that they can read the newer one.
    """

    def __init__(self, older: type[_Older], convert: Callable[[Any], _Older], *, share: float = 1.0) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ValueError(f"share is {share!r}, not a number from 0 to 1")
        self.older = older
        self.convert = convert
        self.share = float(share)


def in_share(identity: str, share: float) -> bool:
    """Return whether the message *identity* belongs to the *share* that is sent in both versions; the answer never
    changes."""
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4]) < share * _SCALE


def which_version(*, reads_this: bool, reads_other: bool, is_newer: bool, has_inbox: bool) -> VersionChoice:
    """Return what a reader does with one of two versions of a message.

    A reader that knows only one version takes that one. A reader that knows both takes the first to arrive if an inbox
    remembers the shared key. Without an inbox it takes the older version, which every reader of a rolling change can
    read. So no message is lost when a partition moves between an old and a new reader.
    """
    if not reads_this:
        return "skip" if reads_other else "refuse"
    if not reads_other or has_inbox:
        return "take"
    return "skip" if is_newer else "take"
