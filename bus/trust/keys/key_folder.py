"""Key folder: the JWKS and the private keys that `sealbus key` keeps, changed whole and one writer at a time.

Owns the layout: `jwks.json`, which every receiver gets, beside `<slug of the agent>.pem`, which only the agent has.
Every change is written to a new file that replaces the old one, so a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bus.errors import ConfigurationError
from bus.protocol.timestamps import format_ms
from bus.topics.names import agent_slug
from bus.trust.keys.key_directory import Domain, KeyDirectory, TrustedKey, parse_keys
from bus.trust.keys.private_keys import PrivateKey, new_private_key, pem_of, public_jwk, read_private_key
from bus.trust.keys.trusted_files import check_trusted_file
from bus.whole_file import one_writer, write_whole

__all__ = ["JWKS", "KeyFolder", "key_folder_of"]

JWKS: Final = "jwks.json"
_SEED_BYTES: Final = 32
_LIMITS: Final = ("principals", "types", "namespaces")


def key_folder_of(keys: str) -> Path:
    """Return the folder of the keys that the setting trust.keys names, by itself or by its file. Pure."""
    named = Path(keys)
    return named.parent if named.suffix in (".json", ".jwks") else named


class KeyFolder:
    """The keys in *folder*. Every method raises ConfigurationError for files that cannot be used."""

    def __init__(self, folder: Path, *, domain: Domain = "open") -> None:
        self.folder = folder
        self.jwks = folder / JWKS
        self._domain = domain

    def directory(self) -> KeyDirectory:
        """Return the public keys."""
        try:
            text = self.jwks.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{self.jwks} cannot be read: {error.strerror}") from error
        return parse_keys({str(self.jwks): text}, domain=self._domain)

    def private_file(self, agent_id: str) -> Path:
        """Return where the private key of *agent_id* is."""
        return self.folder / f"{agent_slug(agent_id)}.pem"

    def private_key(self, agent_id: str) -> PrivateKey:
        """Return the private key of *agent_id*."""
        return read_private_key(self.private_file(agent_id))

    def add(self, agent_id: str, *, principals: Sequence[str], types: Sequence[str], not_before_ms: int) -> PrivateKey:
        """Make the first key of *agent_id*; refuse where it has one."""
        with self._changed() as (jwks, private):
            file = self.private_file(agent_id)
            if file.exists():
                raise ConfigurationError(
                    f"{agent_id} has a key, {file}: `sealbus key rotate {agent_id}` makes its successor"
                )
            key = _new_key(jwks, {"principals": list(principals), "types": list(types) or None}, not_before_ms)
            private[file] = pem_of(key)
        return key

    def announce(self, agent_id: str, *, not_before_ms: int) -> tuple[PrivateKey, PrivateKey]:
        """Publish the successor of the key of *agent_id*; return the present key and the successor, not yet in use."""
        with self._changed() as (jwks, _):
            old = self.private_key(agent_id)
            entry = _entry(jwks, old.kid)
            # The successor has the same limits, also where they are empty.
            key = _new_key(jwks, {name: entry.get(name) for name in _LIMITS}, not_before_ms)
        return old, key

    def switch(self, agent_id: str, old: PrivateKey, new: PrivateKey, *, not_after_ms: int) -> None:
        """Sign with *new* from now on, and let *old* end at *not_after_ms*."""
        with self._changed() as (jwks, _):
            _entry(jwks, old.kid)["not_after"] = format_ms(not_after_ms)
            write_whole(self.private_file(agent_id), pem_of(new), mode=0o600)

    def limit(self, kid: str, *, principals: Sequence[str], types: Sequence[str]) -> None:
        """Let the key *kid* sign for exactly *principals*, and messages of *types*."""
        with self._changed() as (jwks, _):
            entry = _entry(jwks, kid)
            entry["principals"], entry["types"] = list(principals), list(types)

    def revoke(self, kid: str, *, at_ms: int) -> TrustedKey:
        """Refuse everything that the key *kid* signs, from *at_ms* on. An earlier revocation stands."""
        with self._changed() as (jwks, _):
            entry = _entry(jwks, kid)
            before_ms = self.directory().keys[kid].revoked_at_ms
            entry["revoked_at"] = format_ms(at_ms if before_ms is None else min(before_ms, at_ms))
        return self.directory().keys[kid]

    @contextmanager
    def _changed(self) -> Iterator[tuple[dict[str, Any], dict[Path, bytes]]]:
        """Yield the JWKS, and private key files to write after it; write them if the body succeeds.

        A JWKS that could not be read back is not written, and nothing else then.
        """
        with one_writer(self.folder, mode=0o700):
            jwks: dict[str, Any] = {"keys": []}
            private: dict[Path, bytes] = {}
            if self.jwks.exists():
                check_trusted_file(self.jwks)
                self.directory()
                jwks = json.loads(self.jwks.read_bytes())
            yield jwks, private
            text = json.dumps(jwks, indent=2, sort_keys=True).encode() + b"\n"
            parse_keys({str(self.jwks): text}, domain=self._domain)
            write_whole(self.jwks, text, mode=0o644)
            for file, pem in private.items():
                write_whole(file, pem, mode=0o600)


def _new_key(jwks: dict[str, Any], limits: dict[str, list[str] | None], not_before_ms: int) -> PrivateKey:
    key = new_private_key(os.urandom(_SEED_BYTES))
    while key.kid.startswith("-"):
        # On a command line it would be taken for an option.
        key = new_private_key(os.urandom(_SEED_BYTES))
    jwks["keys"].append(public_jwk(key, **limits, not_before=format_ms(not_before_ms)))
    return key


def _entry(jwks: dict[str, Any], kid: str) -> dict[str, Any]:
    for entry in jwks["keys"]:
        if entry.get("kid") == kid:
            found: dict[str, Any] = entry
            return found
    raise ConfigurationError(f"no key {kid[:80]!r} is published: `sealbus key list` shows which are")
