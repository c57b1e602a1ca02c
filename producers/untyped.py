"""Payloads whose class is not at hand: a type known by its name and version.

Owns nothing of their contents: what is sealed under such a type is judged by its receivers.
"""

from __future__ import annotations

import msgspec

from bus.payloads import PayloadType

__all__ = ["untyped"]


def untyped(name: str, version: str) -> PayloadType:
    """A type known by name only: its data is sealed as it is and judged by its receivers."""
    return PayloadType(_Untyped, name, version, "medium", sign=True, upcasters={})


class _Untyped(msgspec.Struct):
    """Stands in for a payload class that is not at hand."""
