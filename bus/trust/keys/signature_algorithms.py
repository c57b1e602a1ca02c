"""Signature algorithms: Ed25519 (RFC 8032, RFC 9864) and HS256 (RFC 7518), with one rule for every edge case. Pure.

Implementations of Ed25519 differ on points of small order and on encodings that are not canonical. A public key is
accepted only if it is a canonical point of the prime-order subgroup, and a signature only if its point R is not of
small order; then all implementations agree. Needs the extra `sealbus[trust]` (cryptography).
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from bus.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "ED25519",
    "HS256",
    "SECRET_BYTES",
    "ed25519_checker",
    "ed25519_private_key",
    "hs256_checker",
    "hs256_signature",
    "is_strong_point",
    "require_library",
]

ED25519: Final = "Ed25519"
HS256: Final = "HS256"
SECRET_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_POINT_BYTES: Final = 32

_P: Final = 2**255 - 19
_L: Final = 2**252 + 27742317777372353535851937790883648493
_D: Final = -121665 * pow(121666, -1, _P) % _P
_ROOT: Final = pow(2, (_P - 1) // 4, _P)

_Point = tuple[int, int, int, int]
_IDENTITY: Final[_Point] = (0, 1, 1, 0)


def ed25519_private_key(seed: bytes) -> Ed25519PrivateKey:
    """Return the private key of *seed*, 32 bytes. Raises ConfigurationError without the extra."""
    key: Ed25519PrivateKey = _library().Ed25519PrivateKey.from_private_bytes(seed)
    return key


def ed25519_checker(public: bytes) -> Callable[[bytes, bytes], bool]:
    """Return a function that tells whether a signature, its first argument, over its second is good for *public*.

    *public* is a strong point. Raises ConfigurationError without the extra.
    """
    key = _library().Ed25519PublicKey.from_public_bytes(public)
    verify, weak = key.verify, _small_order_encodings()
    from cryptography.exceptions import InvalidSignature

    def check(signature: bytes, signed: bytes) -> bool:
        if len(signature) != _SIGNATURE_BYTES or signature[:_POINT_BYTES] in weak:
            return False
        try:
            verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return check


def hs256_signature(secret: bytes, signed: bytes) -> bytes:
    """Return the HMAC-SHA-256 of *signed*."""
    return hmac.digest(secret, signed, hashlib.sha256)


def hs256_checker(secret: bytes) -> Callable[[bytes, bytes], bool]:
    """Return a function that checks whether its first argument is the signature of its second one with *secret*."""
    return lambda signature, signed: hmac.compare_digest(hs256_signature(secret, signed), signature)


@functools.lru_cache(maxsize=4096)
def is_strong_point(encoded: bytes) -> bool:
    """Tell whether *encoded* is the canonical encoding of a point of order L (RFC 8032 section 5.1.3). Milliseconds."""
    point = _decode(encoded)
    return point is not None and not _is_identity(point) and _is_identity(_multiply(point, _L))


@functools.cache
def _small_order_encodings() -> frozenset[bytes]:
    """Return the encodings of the eight points whose order divides 8."""
    found: set[bytes] = {_encode(_IDENTITY)}
    number = 2
    while len(found) < 8:  # noqa: PLR2004 - the cofactor
        # L times any point is one of small order.
        point = _decode(number.to_bytes(_POINT_BYTES, "little"))
        number += 1
        if point is not None:
            torsion, multiple = _multiply(point, _L), _IDENTITY
            for _ in range(8):
                multiple = _add(multiple, torsion)
                found.add(_encode(multiple))
    return frozenset(found)


def require_library() -> None:
    """Raise ConfigurationError without the extra: found out at start, and not by each message that dies of it."""
    _library()


def _library() -> Any:
    """Return the module of the optional dependency."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigurationError("signatures need the package cryptography: pip install 'sealbus[trust]'") from error
    return ed25519


# Points in extended coordinates (X, Y, Z, T), RFC 8032 section 5.1.4.


def _decode(encoded: bytes) -> _Point | None:
    """Return the point of *encoded*; None unless it is the canonical encoding of a point."""
    if len(encoded) != _POINT_BYTES:
        return None
    number = int.from_bytes(encoded, "little")
    sign, y = number >> 255, number & (2**255 - 1)
    if y >= _P:
        return None
    squared = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(squared, (_P + 3) // 8, _P)
    if (x * x - squared) % _P:
        x = x * _ROOT % _P
    if (x * x - squared) % _P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _encode(point: _Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(_POINT_BYTES, "little")


def _add(left: _Point, right: _Point) -> _Point:
    a = (left[1] - left[0]) * (right[1] - right[0]) % _P
    b = (left[1] + left[0]) * (right[1] + right[0]) % _P
    c = 2 * left[3] * right[3] * _D % _P
    d = 2 * left[2] * right[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _multiply(point: _Point, factor: int) -> _Point:
    product = _IDENTITY
    while factor:
        if factor & 1:
            product = _add(product, point)
        point = _add(point, point)
        factor >>= 1
    return product


def _is_identity(point: _Point) -> bool:
    return point[0] % _P == 0 and (point[1] - point[2]) % _P == 0
