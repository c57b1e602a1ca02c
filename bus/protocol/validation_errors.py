"""Translate msgspec's validation errors into our text and JSON pointer.

The caller chooses the reason of the failure.
"""

from __future__ import annotations

import re

import msgspec

from bus.errors import ContractError
from bus.protocol.canonical import escape_pointer_token

__all__ = ["translate"]

_AT = re.compile(r" - at `(?:key in )?\$(?P<path>[^`]*)`\Z")
_MEMBER = re.compile(r"(?:missing required|contains unknown) field `(?P<name>.*)`\Z", re.DOTALL)
_TOKEN = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


def translate(error: msgspec.ValidationError, *, base: str = "", reason: str = "malformed") -> ContractError:
    """Return the ContractError for *error*; *base* is the pointer of the validated value."""
    sentence = str(error)
    pointer = base
    found = _AT.search(sentence)
    if found:
        pointer += "".join(f"/{name or index}" for name, index in _TOKEN.findall(found["path"]))
        sentence = sentence[: found.start()]
    member = _MEMBER.search(sentence)
    if member:
        pointer += f"/{escape_pointer_token(member['name'])}"
    return ContractError(sentence[:1].lower() + sentence[1:], pointer, reason)
