"""Private keys: make them, write them, and sign with the one in a file.

Owns the two forms of a private key file, PKCS#8 PEM and JWK (RFC 8037), and `SigningKey`, which follows the file when a
key is rotated. A file that group or others can read is refused.
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bus.clock import Clock, SystemClock
from bus.errors import ConfigurationError, ContractError
from bus.protocol import canonical
from bus.protocol.base64url import from_base64url, to_base64url
from bus.trust.keys.key_directory import thumbprint
from bus.trust.keys.signature_algorithms import ED25519, HS256, SECRET_BYTES, ed25519_private_key, hs256_signature
from bus.trust.keys.trusted_files import Reloaded, check_secret_file, files_of, read_files

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SigningKey", "PrivateKey", "new_private_key", "pem_of", "public_jwk", "read_private_key"]

_ENDINGS: Final = (".pem", ".jwk", ".json")


class PrivateKey(msgspec.Struct, frozen=True):
    """A key that signs. It is a `Signer`."""

    kid: str
    alg: str
    public: bytes
    """The public point of Ed25519; empty for HS256."""
    signing: Callable[[bytes], bytes]
    secret: bytes
    """The seed of Ed25519, or the secret of HS256."""

    def sign(self, signing_input: bytes) -> bytes:
        """Return the raw signature of *signing_input*."""
        return self.signing(signing_input)

    def __repr__(self) -> str:
        return f"PrivateKey(kid={self.kid!r}, alg={self.alg!r})"


class SigningKey:
    """Signs with the private key in the file at *path*, and with its successor within a second of its replacement.

        async with connect(url, agent="planner@svc", signer=SigningKey("keys/planner-svc-0bdca03e.pem")) as bus: ...

    Raises ConfigurationError for a file that cannot be used. Later, a file that cannot be used keeps the last key.
    """

    def __init__(
        self, path: Path | str, *, clock: Clock | None = None, alarm: Callable[[str | None], None] = lambda _: None
    ) -> None:
        clock = clock or SystemClock()
        self._key = Reloaded(Path(path), _only_key, clock=clock, endings=_ENDINGS, check=check_secret_file, alarm=alarm)

    @property
    def kid(self) -> str:
        """The kid of the key."""
        return self._key.current().kid

    @property
    def alg(self) -> str:
        """The algorithm of the key."""
        return self._key.current().alg

    def sign(self, signing_input: bytes) -> bytes:
        """Return the raw signature of *signing_input*."""
        return self._key.current().sign(signing_input)

    def snapshot(self) -> PrivateKey:
        """Return the present key, by which header and signature agree."""
        return self._key.current()


def new_private_key(seed: bytes) -> PrivateKey:
    """Return the Ed25519 key of *seed*, 32 random bytes."""
    key = ed25519_private_key(seed)
    public = key.public_key().public_bytes_raw()
    return PrivateKey(kid=thumbprint(public), alg=ED25519, public=public, signing=key.sign, secret=seed)


def new_shared_secret(secret: bytes, kid: str) -> PrivateKey:
    """Return the HS256 key of *secret*, 32 random bytes."""
    return PrivateKey(kid=kid, alg=HS256, public=b"", signing=lambda text: hs256_signature(secret, text), secret=secret)


def pem_of(key: PrivateKey) -> bytes:
    """Return *key*, of Ed25519, as unencrypted PKCS#8 PEM."""
    from cryptography.hazmat.primitives import serialization

    return ed25519_private_key(key.secret).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_jwk(key: PrivateKey, **members: object) -> dict[str, Any]:
    """Return the public half of *key*, of Ed25519, as JWK with the further *members* that are not None."""
    jwk = {"alg": ED25519, "crv": ED25519, "kid": key.kid, "kty": "OKP", "use": "sig", "x": to_base64url(key.public)}
    return jwk | {name: value for name, value in members.items() if value is not None}


def read_private_key(path: Path) -> PrivateKey:
    """Return the private key in the file at *path*. Raises ConfigurationError."""
    return _only_key(read_files(files_of(path, _ENDINGS), check_secret_file))


def _only_key(texts: Mapping[str, bytes]) -> PrivateKey:
    if len(texts) != 1:
        raise ConfigurationError(f"{os.path.commonpath(list(texts))} holds {len(texts)} private keys: name one of them")
    ((name, text),) = texts.items()
    text = text.removeprefix(BOM_UTF8)
    return _from_pem(name, text) if text.lstrip().startswith(b"-----BEGIN") else _from_jwk(name, text)


def _from_pem(name: str, text: bytes) -> PrivateKey:
    ed25519_private_key(bytes(SECRET_BYTES))  # says which package is missing
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{name} is not an unencrypted private key in PEM (PKCS#8)") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(f"{name} is not a key of Ed25519: `sealbus key new` makes one")
    return new_private_key(key.private_bytes_raw())


def _from_jwk(name: str, text: bytes) -> PrivateKey:
    try:
        jwk = canonical.parse_canonical(text)
    except ContractError as error:
        raise ConfigurationError(f"{name} is neither PEM nor a JWK") from error
    if isinstance(jwk, dict) and jwk.get("kty") == "OKP" and jwk.get("crv") == ED25519:
        seed = from_base64url(jwk.get("d"))
        if seed is not None and len(seed) == SECRET_BYTES:
            key = new_private_key(seed)
            if jwk.get("kid", key.kid) != key.kid or jwk.get("x", to_base64url(key.public)) != to_base64url(key.public):
                raise ConfigurationError(f"{name}: kid and x are not those of the private key d")
            return key
    if isinstance(jwk, dict) and jwk.get("kty") == "oct" and jwk.get("alg") == HS256:
        secret, kid = from_base64url(jwk.get("k")), jwk.get("kid")
        if secret is not None and len(secret) == SECRET_BYTES and isinstance(kid, str):
            return new_shared_secret(secret, kid)
    raise ConfigurationError(f"{name} is not a private JWK of Ed25519 (kty OKP, d) or HS256 (kty oct, k, kid)")
