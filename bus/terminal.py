"""Foreign text on its way to a terminal, which might obey it.

Owns escaping, for logs and for the command line alike. Does not own what is shown.
"""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str, *, keep: str = "") -> str:
    r"""*text* with everything a terminal might obey escaped (`\x1b`, `\u202e`), except the characters in *keep*."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else char.encode("unicode_escape").decode("ascii") for char in text)
