"""Keys for tests: agents with keys of their own, and the JWKS that knows them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from bus.trust.keys.private_keys import PrivateKey, new_private_key, pem_of, public_jwk

__all__ = ["key_of", "jwks_of", "write_keys"]


def key_of(name: str) -> PrivateKey:
    """The key that *name* has in every test."""
    return new_private_key(hashlib.sha256(name.encode()).digest())


def jwks_of(*agents: str, **members: Any) -> bytes:
    """A JWKS with one key for each of *agents*."""
    keys = [public_jwk(key_of(agent), **{"principals": [agent], **members}) for agent in agents]
    return json.dumps({"keys": keys}).encode()


def write_keys(folder: Path, *agents: str) -> Path:
    """Write a private key for each of *agents* and the JWKS of all into *folder*; return the JWKS."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for agent in agents:
        path = folder / f"{agent.partition('@')[0]}.pem"
        path.write_bytes(pem_of(key_of(agent)))
        path.chmod(0o600)
    jwks = folder / "jwks.json"
    jwks.write_bytes(jwks_of(*agents))
    jwks.chmod(0o600)
    return jwks
