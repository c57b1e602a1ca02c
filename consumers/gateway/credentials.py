"""Credentials: who may use the gateway, as which agent, and for what: the file `doors.toml`.

Owns the form of the file and its changes. Tokens are in no file: a credential has their hashes.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import tomllib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from bus.clock import Clock
from bus.errors import ConfigurationError, text_of
from bus.nearest import nearest
from bus.protocol.identifiers import is_text_id
from bus.trust.keys.trusted_files import Reloaded, alarm_about, check_trusted_file
from bus.trust.labels import INSTRUCTING, LEVELS, least_trusted
from bus.trust.policy.globs import GlobMatcher, compile_globs
from bus.whole_file import one_writer, write_whole

__all__ = [
    "DOORS",
    "Credential",
    "CredentialFile",
    "Credentials",
    "Door",
    "DoorsFile",
    "FixedCredentials",
    "TokenHash",
    "make_token",
]

Door: TypeAlias = Literal["http", "a2a", "mcp", "hook"]
DOORS: Final[tuple[Door, ...]] = get_args(Door)
MODEL_DOORS: Final = frozenset({"mcp", "hook"})
"""What comes by these was written by a model."""

_TOKEN_BYTES: Final = 24
_DIGEST_DIGITS: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEAD: Final = (
    "# Who may use the gateway. Written by `sealbus door add`; a token is nowhere, only its hash.\n"
    "# The gateway reads a changed file within seconds, and keeps the last good one.\n"
)


class TokenHash(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One token of a credential: its SHA-256, and when it ends. Two are given while one replaces the other."""

    sha256: str
    not_after: datetime | None = None


class Credential(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One holder of a token, and what the gateway does for it."""

    name: str
    """In audit, metrics and the ids of its tasks."""
    agent: str
    """The only sender of what it sends."""
    to: tuple[str, ...]
    """Agents that it may ask, as globs."""
    tokens: tuple[TokenHash, ...]
    types: tuple[str, ...] = ("task.request",)
    """Message types that it may send, as globs."""
    doors: tuple[Door, ...] = ("http",)
    trust_at_most: str = "user_request"
    rate: float = 10
    """Requests a second, on each replica."""
    burst: int = 20
    streams: int = 20
    """Streams and waiting calls at a time, on each replica."""
    open_tasks: int = 100

    @property
    def owner(self) -> str:
        """Whose its tasks are: another agent that gets the same name later has none of them."""
        return f"{self.name}/{self.agent}"

    def may_ask(self, agent_id: str) -> bool:
        """Return whether it may ask *agent_id*."""
        return bool(_matcher(self.to).match(agent_id))

    def may_send(self, message_type: str) -> bool:
        """Return whether it may send messages of *message_type*."""
        return bool(_matcher(self.types).match(message_type))


@lru_cache(maxsize=32)
def _matcher(globs: tuple[str, ...]) -> GlobMatcher:
    """Return the matcher of *globs*, which every request asks; each remembers up to a megabyte of texts."""
    return compile_globs(globs)


class _File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    credentials: tuple[Credential, ...] = ()


class Credentials:
    """The credentials of one file, found by their tokens."""

    def __init__(self, found: Sequence[Credential] = ()) -> None:
        self.all = tuple(found)
        self.by_name: Mapping[str, Credential] = {each.name: each for each in found}
        self._by_token = {token.sha256: (each, token) for each in found for token in each.tokens}

    def of_token(self, token: str, now_ms: float) -> Credential | None:
        """Return the credential of *token*; None where it is unknown or has ended."""
        found = self._by_token.get(hash_of_token(token))
        if found is None:
            return None
        credential, known = found
        if known.not_after is not None and known.not_after.timestamp() * 1000 <= now_ms:
            return None
        # With this token alone: streams look it up again.
        return msgspec.structs.replace(credential, tokens=(known,))


def hash_of_token(token: str) -> str:
    """Return the hash by which a token is known."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def make_token(*, not_after: datetime | None = None) -> tuple[str, TokenHash]:
    """Return a new token, which is stored nowhere, and its hash."""
    token = f"sb_{secrets.token_urlsafe(_TOKEN_BYTES)}"
    return token, TokenHash(sha256=hash_of_token(token), not_after=not_after)


def parse_credentials(text: bytes, *, name: str) -> Credentials:
    """Return the credentials that *text* says; *name* is its file's. Raises ConfigurationError, with the correction."""
    try:
        document = tomllib.loads(text.decode("utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{name}: not valid TOML: {text_of(error)}") from None
    _check_names(document, name)
    try:
        found = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{name}: {text_of(error)}") from None
    seen: dict[str, str] = {}
    for credential in found.credentials:
        _check(credential, name)
        for token in credential.tokens:
            other = seen.setdefault(token.sha256, credential.name)
            if other != credential.name:
                raise ConfigurationError(f"{name}: {other} and {credential.name} have the same token")
    if len({each.name for each in found.credentials}) < len(found.credentials):
        raise ConfigurationError(f"{name}: two credentials have the same name")
    return Credentials(found.credentials)


def _check_names(document: Mapping[str, Any], file: str) -> None:
    known = Credential.__struct_fields__
    entries = document.get("credentials", ())
    for entry in entries if isinstance(entries, list) else ():
        unknown = next((key for key in entry if key not in known), None) if isinstance(entry, dict) else None
        if unknown is not None:
            where = str(entry.get("name", "a credential"))
            raise ConfigurationError(
                f"{file}: {where:.80}: no key {unknown[:80]!r}{nearest(unknown, known)}; there are {', '.join(known)}"
            )


def _check(credential: Credential, file: str) -> None:
    where = f"{file}: {credential.name[:80]!r}"
    if _NAME.fullmatch(credential.name) is None:
        raise ConfigurationError(f"{where}: name: 1 to 64 of A-Z, a-z, 0-9, dot, dash and underscore, such as ci")
    if not is_text_id(credential.agent):
        raise ConfigurationError(f"{where}: agent: an agent id, such as ci@acme")
    if not credential.to:
        raise ConfigurationError(f"{where}: to: at least one agent that it may ask, such as researcher@svc")
    if not credential.types or not credential.doors:
        raise ConfigurationError(f"{where}: types and doors: at least one each; without any it can do nothing")
    if credential.trust_at_most not in LEVELS:
        raise ConfigurationError(
            f"{where}: trust_at_most: one of {', '.join(LEVELS)}{nearest(credential.trust_at_most, LEVELS)}"
        )
    if least_trusted((credential.trust_at_most, INSTRUCTING)) != credential.trust_at_most:
        raise ConfigurationError(f"{where}: trust_at_most: user_request at most: whoever comes by a door is a user")
    if credential.rate <= 0 or credential.burst < 1 or credential.streams < 0 or credential.open_tasks < 1:
        raise ConfigurationError(f"{where}: rate, burst and open_tasks are more than 0, streams is at least 0")
    for token in credential.tokens:
        _check_token(token, where)


def _check_token(token: TokenHash, where: str) -> None:
    digits = token.sha256
    if len(digits) != _DIGEST_DIGITS or set(digits) - set("0123456789abcdef"):
        raise ConfigurationError(
            f"{where}: sha256 is 64 hex digits: `sealbus door add` writes them, and prints the token"
        )
    if token.not_after is not None and token.not_after.tzinfo is None:
        raise ConfigurationError(f"{where}: not_after: a time with an offset, such as 2027-01-31T12:00:00Z")


class CredentialFile:
    """The credentials in a file, read again when it changes. The last good ones stay. Raises ConfigurationError."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.path = path
        self.fault: str | None = None
        """Why the file as it is now cannot be used."""
        alarm = alarm_about("doors", path, "the last good credentials count")

        def told(fault: str | None) -> None:
            self.fault = fault
            alarm(fault)

        self._files = Reloaded(path, lambda texts: _parsed(texts, path), clock=clock, endings=(".toml",), alarm=told)

    def current(self) -> Credentials:
        """Return the credentials of at most a second ago."""
        return self._files.current()


class FixedCredentials:
    """Credentials that are in no file: those of `sealbus dev`."""

    fault: str | None = None

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def current(self) -> Credentials:
        """Return the credentials."""
        return self._credentials

    def replace(self, found: Sequence[Credential]) -> None:
        """Use *found* from now on."""
        self._credentials = Credentials(found)


def _parsed(texts: Mapping[str, bytes], path: Path) -> Credentials:
    ((_, text),) = texts.items()
    return parse_credentials(text, name=str(path))


class DoorsFile:
    """The file itself, for the commands that change it: whole, and by one writer at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Credentials:
        """Return what it says; nothing where it is not there. Raises ConfigurationError."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return Credentials()
        except OSError as error:
            raise ConfigurationError(f"{self.path} cannot be read: {error.strerror}") from error
        check_trusted_file(self.path)
        return parse_credentials(text, name=str(self.path))

    def change(self, make: Callable[[Credentials], Sequence[Credential]]) -> Credentials:
        """Write the credentials that *make* returns for the present ones. Raises ConfigurationError."""
        with one_writer(self.path.parent):
            written = tuple(make(self.read()))
            text = _HEAD + "".join(f"\n[[credentials]]\n{_toml_of(each)}" for each in written)
            parsed = parse_credentials(text.encode(), name=str(self.path))
            # A gateway of another user goes on reading it.
            write_whole(self.path, text.encode(), mode=0o600, keeps_rights=True)
        return parsed


def _toml_of(credential: Credential) -> str:
    lines = []
    for name, value in msgspec.to_builtins(credential, builtin_types=(datetime,)).items():
        lines.append(f"{name} = {_value(value)}\n")
    return "".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        # A JSON text is a TOML text, but for DEL, which no name may have.
        return msgspec.json.encode(value).decode()
    return str(value)
