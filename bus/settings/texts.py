"""Texts that name something outside of the program: URLs, paths, hosts, modules.

Owns what nobody sees in them: a line break that a shell, an editor or a secret store has added, a byte order mark, a
space of no width. Taken literally they name a file or a host that nobody means.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from bus.errors import ConfigurationError
from bus.telemetry.terminal import printable

__all__ = ["outside_name", "stripped", "without_passwords"]

_URL_PASSWORD: Final = re.compile(r"(://[^:@/]*:).*@")
_QUERY_SECRET: Final = re.compile(r"(?i)([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*")

_UNSEEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})
"""Unicode categories: control and format characters, ends of lines and paragraphs."""


def without_passwords(text: str) -> str:
    """Return *text* without the passwords of URLs."""
    return _QUERY_SECRET.sub(r"\1***", _URL_PASSWORD.sub(r"\1***@", text))


def stripped(text: str) -> str:
    """Return *text* without spaces and invisible characters around it."""
    if text.isascii() and text.isprintable():
        return text.strip()
    return text.strip("".join({char for char in text if char.isspace() or unicodedata.category(char) in _UNSEEN}))


def outside_name(text: str, what: str) -> str:
    """Return *text* without spaces and invisible characters around it.

    Raises ConfigurationError, which begins with *what*, for invisible characters inside.
    """
    name = stripped(text)
    if name.isprintable():
        return name
    unseen = next((char for char in name if unicodedata.category(char) in _UNSEEN), None)
    if unseen is not None:
        # Escaped first: a line break would end what is masked.
        raise ConfigurationError(f"{what}: found '{without_passwords(printable(name))}', expected no {unseen!r} inside")
    return name
