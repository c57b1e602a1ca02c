"""Trusted keys as rows: public members and the state. Pure."""

from __future__ import annotations

import msgspec

from bus.protocol.base64url import to_base64url
from bus.protocol.timestamps import format_ms
from bus.trust.keys.key_directory import TrustedKey
from bus.trust.keys.signature_algorithms import ED25519

__all__ = ["KeyRow", "key_row", "key_state"]


class KeyRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A trusted key, public members only, as a JWK with its state."""

    kid: str
    state: str
    alg: str
    kty: str
    crv: str | None = None
    x: str | None = None
    principals: tuple[str, ...]
    """The agents it signs for."""
    types: tuple[str, ...] | None = None
    namespaces: tuple[str, ...] | None = None
    not_before: str | None = None
    not_after: str | None = None
    revoked_at: str | None = None


def key_row(each: TrustedKey, now_ms: int) -> KeyRow:
    """Return the public members of *each*; of a shared secret nothing but its name."""
    is_public = each.alg == ED25519
    times = {"not_before": each.not_before_ms, "not_after": each.not_after_ms, "revoked_at": each.revoked_at_ms}
    return KeyRow(
        kid=each.kid,
        state=key_state(each, now_ms),
        alg=each.alg,
        kty="OKP" if is_public else "oct",
        crv=ED25519 if is_public else None,
        x=to_base64url(each.material) if is_public else None,
        principals=tuple(sorted(each.principals)),
        types=None if each.types is None else tuple(each.types),
        namespaces=None if each.namespaces is None else tuple(sorted(each.namespaces)),
        **{name: None if value is None else format_ms(value) for name, value in times.items()},
    )


def key_state(key: TrustedKey, now_ms: int) -> str:
    """Return good, revoked, not yet, ended, or that it signs for no agent."""
    if key.is_revoked(now_ms):
        return "revoked"
    if key.not_before_ms is not None and now_ms < key.not_before_ms:
        return "not yet"
    if key.not_after_ms is not None and now_ms > key.not_after_ms:
        return "ended"
    return "good" if key.principals else "signs for no agent"
