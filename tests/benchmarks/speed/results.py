"""What a measurement came to: an answer, or a failure. Pure."""

from __future__ import annotations

import msgspec
from speed.measurement import Answer

__all__ = ["Failure", "Measured"]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, and where it belongs."""

    variant: str
    round: int
    answer: Answer


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement that came to nothing."""

    variant: str
    round: int
    text: str
