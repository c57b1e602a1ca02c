"""Causes: the common features of dead letters, so that three hundred of them are three things to fix. Pure."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from bus.protocol import canonical
from bus.redaction import cut, redacted
from consumers.deadletters.letters import DeadLetter

__all__ = ["Cause", "cause_of"]

_NUMBER: Final = re.compile(r"\d+")
_MAX_TEXT: Final = 160
_DIGITS: Final = 8


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of a dead letter: the features that all dead letters with the same fix have in common."""

    reason: str
    message_type: str
    group: str
    sender: str
    pointer: str
    error: str

    @property
    def name(self) -> str:
        """A short id of this cause: the same on every machine."""
        return canonical.digest(canonical.encode(msgspec.to_builtins(self))).removeprefix("sha256:")[:_DIGITS]


def cause_of(letter: DeadLetter) -> Cause:
    """Return the cause of *letter*. The text of its error counts by its first line, without numbers."""
    first = redacted(letter.error.partition("\n")[0])
    return Cause(
        reason=letter.reason,
        message_type=letter.message_type,
        group=letter.group,
        sender=letter.sender,
        pointer=letter.pointer,
        # Two orders with different numbers fail for one cause.
        error=cut(_NUMBER.sub("#", first), _MAX_TEXT),
    )
