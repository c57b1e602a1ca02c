"""Access to the console: tokens, sessions, and which requests are answered at all.

Reading on this machine needs no token; whatever changes something does. A token is compared by its hash, and is in no
URL. A page elsewhere can neither read nor post: Host, Origin and Sec-Fetch-Site must be the console's own (S48).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from bus.errors import ConfigurationError, text_of

__all__ = ["SCOPES", "BrowserSession", "BrowserSessions", "Token", "read_tokens", "access_refusal", "token_of"]

SCOPES: Final = ("read", "redrive", "approve")
"""read: see the pages if the console is reachable from other machines; redrive: redrive dead letters; approve: decide
as the person whose key the console has."""

_SESSION_S: Final = 12 * 3_600.0
_MAX_SESSIONS: Final = 1_000


class Token(msgspec.Struct, frozen=True):
    """The rights of one token; *sha256* is its hash."""

    name: str
    sha256: str
    scopes: frozenset[str]


class BrowserSession(msgspec.Struct, frozen=True):
    """One browser that has shown a token."""

    name: str
    scopes: frozenset[str]
    csrf: str
    ends_s: float


class BrowserSessions:
    """Open sessions, in memory: they end with the console."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._tokens = tuple(tokens)
        self._open: dict[str, BrowserSession] = {}

    def begin(self, text: str, now_s: float) -> str | None:
        """Return the id of a new session for the holder of the token *text*; None for an unknown token."""
        digest = hashlib.sha256(text.strip().encode()).hexdigest()
        found = [token for token in self._tokens if hmac.compare_digest(token.sha256, digest)]
        if not found:
            return None
        self._open = {key: each for key, each in self._open.items() if each.ends_s > now_s}
        while len(self._open) >= _MAX_SESSIONS:
            self._open.pop(next(iter(self._open)))
        identity = secrets.token_urlsafe(32)
        token = found[0]
        self._open[identity] = BrowserSession(token.name, token.scopes, secrets.token_urlsafe(32), now_s + _SESSION_S)
        return identity

    def find(self, identity: str | None, now_s: float) -> BrowserSession | None:
        """Return the session, unless it is over."""
        session = self._open.get(identity or "")
        return session if session is not None and session.ends_s > now_s else None

    def end(self, identity: str | None) -> None:
        """Forget a session."""
        self._open.pop(identity or "", None)


def token_of(name: str, text: str, scopes: Iterable[str]) -> Token:
    """Return the token whose holder pastes *text*."""
    return Token(name, hashlib.sha256(text.encode()).hexdigest(), frozenset(scopes))


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    scopes: tuple[str, ...]


def read_tokens(path: Path) -> list[Token]:
    """Read a TOML file with a table for each holder: `[alice]`, `sha256 = "..."`, `scopes = ["redrive"]`.

    Raises ConfigurationError.
    """
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text("utf-8-sig")), dict[str, _Entry])
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"the tokens in {path} cannot be read: {text_of(error)}") from error
    for name, entry in entries.items():
        if unknown := set(entry.scopes) - set(SCOPES):
            raise ConfigurationError(f"{path}: {name} has scopes {sorted(unknown)}; there are {', '.join(SCOPES)}")
        if len(entry.sha256) != hashlib.sha256().digest_size * 2:
            raise ConfigurationError(
                f"{path}: sha256 of {name} is not a hash: sealbus serve console --new-token {name}"
            )
    return [Token(name, entry.sha256.lower(), frozenset(entry.scopes)) for name, entry in entries.items()]


def access_refusal(method: str, headers: Mapping[str, str], hosts: frozenset[str], scheme: str) -> str:
    """Return why a request is not answered, or "".

    *hosts* are the names under which the console is reached: a name of somebody else's that resolves to this machine is
    refused (DNS rebinding).
    """
    host = headers.get("host", "").lower()
    if host not in hosts:
        return f"the console is not reached as {host[:80]!r}: sealbus serve console --allow-host"
    site = headers.get("sec-fetch-site", "same-origin")
    is_navigation = headers.get("sec-fetch-mode") == "navigate" and method == "GET"
    if site not in ("same-origin", "none") and not is_navigation:
        return "a page elsewhere has sent this request"
    if method not in ("GET", "HEAD") and headers.get("origin") != f"{scheme}://{host}":
        return "this request does not come from a page of the console"
    return ""
