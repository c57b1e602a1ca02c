"""HoldUp: why the first unsettled record of a partition is not settled, as its worker knows it. Pure.

Owns the value and its form on an agent's card, where everybody who surveys the namespace finds it. A card is untrusted:
what is not a hold-up there is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from bus.topics.names import read_topic

__all__ = ["MAX_HOLD_UPS", "HOLD_UP_REASONS", "HoldUp", "HoldUpReason", "of_card", "on_card"]

HoldUpReason: TypeAlias = Literal[
    "handler",
    "stuck_handler",
    "crash",
    "retry",
    "breaker",
    "brake",
    "inbox",
    "append",
    "answer",
    "key",
    "limit",
    "claim",
    "busy",
]
HOLD_UP_REASONS: Final = get_args(HoldUpReason)

MAX_HOLD_UPS: Final = 10
"""Maximum on one card: a card is small, and the oldest ones matter."""
_MAX_TEXT: Final = 400


class HoldUp(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message for which others wait. Texts come from messages and handlers: they are untrusted."""

    reason: HoldUpReason
    """What it waits for itself: its running handler, one that is past its deadline, its turn after workers ended while
    they ran it, the next attempt, a dependency that is down, the failure brake, the inbox, an append, an answer, a key
    that may sign, its turn within a limit, a claim of another worker, or a free place among the handlers."""
    topic: str
    partition: int
    offset: int
    message_type: str = ""
    message_id: str = ""
    key: str = ""
    """The key of its lane; empty where it has none."""
    since_ms: int
    """Since when the partition's commit stands there, Unix time in milliseconds."""
    until_ms: int | None = None
    """When it is tried again, or its handler is or was to be cut; None: unknown."""
    behind: int = 0
    """Records of the partition that wait behind it."""
    detail: str = ""
    """The name of the handler, the dependency or the topic, or the error."""


def on_card(found: Iterable[HoldUp]) -> list[dict[str, Any]]:
    """Return the longest of *found* as members of a card."""
    oldest = sorted(found, key=lambda each: each.since_ms)[:MAX_HOLD_UPS]
    return [msgspec.to_builtins(_cut(each)) for each in oldest]


def of_card(members: object) -> tuple[HoldUp, ...]:
    """Return the hold-ups that a card lists; whatever is not one is left out."""
    found = []
    for member in members[:MAX_HOLD_UPS] if isinstance(members, list | tuple) else ():
        try:
            each = msgspec.convert(member, HoldUp)
        except (msgspec.ValidationError, TypeError):
            continue
        if read_topic(each.topic) is not None:
            found.append(_cut(each))
    return tuple(found)


def _cut(each: HoldUp) -> HoldUp:
    texts = {name: getattr(each, name)[:_MAX_TEXT] for name in ("message_type", "message_id", "key", "detail")}
    return msgspec.structs.replace(each, **texts)
