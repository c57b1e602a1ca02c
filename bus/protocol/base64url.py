"""Base64url without padding (RFC 7515 section 2), in its one form. Pure."""

from __future__ import annotations

import binascii
from typing import Final

__all__ = ["from_base64url", "to_base64url"]

_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/=", b"+/!!!")
"""Maps base64url to base64; characters outside base64url become characters outside base64."""


def to_base64url(data: bytes) -> str:
    """Return *data* as base64url without padding."""
    return _encoded(data).decode("ascii")


def from_base64url(text: object) -> bytes | None:
    """Decode *text*; return None for no text, padding, a foreign character or non-zero spare bits."""
    if not isinstance(text, str):
        return None
    try:
        encoded = text.encode("ascii")
        data = binascii.a2b_base64(encoded.translate(_FROM_URL) + b"=" * (-len(encoded) % 4), strict_mode=True)
    except (binascii.Error, ValueError):
        return None
    return data if _encoded(data) == encoded else None


def _encoded(data: bytes) -> bytes:
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL).rstrip(b"=")
