"""Key directory: the public keys that a receiver trusts, with the agents and times that each is valid for. Pure.

Owns the form of a JWKS file (RFC 7517) with the members that sealbus adds, and the verdict about one signature, in the
order of PROTOCOL.md section 7. `bus.trust.keys.trusted_keys` reads the files, and reloads them.

    {"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "Ed25519", "x": "...", "kid": "<RFC 7638 thumbprint>",
               "principals": ["planner@svc"], "types": ["task.*"], "namespaces": ["agents"],
               "not_before": "2026-01-01T00:00:00.000Z", "not_after": "...", "revoked_at": "..."}]}
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from bus.errors import ConfigurationError, ContractError
from bus.nearest import nearest
from bus.protocol import canonical
from bus.protocol.base64url import from_base64url, to_base64url
from bus.protocol.envelope import Statement
from bus.protocol.identifiers import is_text_id
from bus.protocol.signatures import Signature, signing_input
from bus.protocol.timestamps import parse_ms
from bus.trust.keys.signature_algorithms import (
    ED25519,
    HS256,
    SECRET_BYTES,
    ed25519_checker,
    hs256_checker,
    is_strong_point,
)

__all__ = [
    "HS256_NEVER_SIGNS",
    "KEPT_AFTER_END_MS",
    "Domain",
    "KeyDirectory",
    "TrustedKey",
    "parse_keys",
    "thumbprint",
]

Domain = Literal["open", "closed"]

KEPT_AFTER_END_MS: Final = 14 * 86_400_000
"""Largest ttl (7 days) + retry horizon (7 days): so long after `not_after` its last messages may still be appended."""

HS256_NEVER_SIGNS: Final = frozenset({"approval.decision", "redrive.ordered", "trust.lifted"})
"""HS256 proves the domain and not the sender, so it carries no right of a person or of the bus."""

_MEMBERS: Final = (
    "kty",
    "crv",
    "x",
    "k",
    "alg",
    "kid",
    "use",
    "key_ops",
    "ext",
    "principals",
    "types",
    "namespaces",
    "not_before",
    "not_after",
    "revoked_at",
)
_SECONDS_FORM: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
_TYPE_PATTERN: Final = re.compile(r"[a-z0-9.*-]{1,120}", re.ASCII)
_MAX_STARS: Final = 4
_MAX_REMEMBERED: Final = 4096


class TrustedKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key: its verifier, its agents and its times. Times are milliseconds; None is without limit."""

    kid: str
    alg: str
    material: bytes
    """The public point of Ed25519, the secret of HS256."""
    principals: frozenset[str]
    """Agent ids; empty: it signs for no agent."""
    types: tuple[str, ...] | None = None
    """Patterns of message types, in which `*` crosses dots. None: every type."""
    namespaces: frozenset[str] | None = None
    not_before_ms: int | None = None
    not_after_ms: int | None = None
    revoked_at_ms: int | None = None

    def is_revoked(self, now_ms: int) -> bool:
        """Tell whether the key is revoked at *now_ms*."""
        return self.revoked_at_ms is not None and now_ms >= self.revoked_at_ms

    def is_in_time(self, sealed_ms: int, append_ms: int | None) -> bool:
        """Return whether the key was valid for a message sealed at *sealed_ms* and appended at *append_ms*; ends
        included."""
        if self.not_before_ms is not None and sealed_ms < self.not_before_ms:
            return False
        if self.not_after_ms is None:
            return True
        in_time = append_ms is None or append_ms <= self.not_after_ms + KEPT_AFTER_END_MS
        return sealed_ms <= self.not_after_ms and in_time

    def may_sign(self, message_type: str) -> bool:
        """Tell whether the key may sign messages of *message_type*."""
        if self.alg == HS256 and message_type in HS256_NEVER_SIGNS:
            return False
        return self.types is None or any(_pattern(text).fullmatch(message_type) for text in self.types)

    def speaks_for(self, agent_id: str, namespace: str) -> bool:
        """Tell whether the key signs for *agent_id* in *namespace*."""
        return agent_id in self.principals and (self.namespaces is None or namespace in self.namespaces)


class KeyDirectory:
    """Keys by kid. Verified signatures are remembered, at most 4,096 of them; a reloaded directory begins empty."""

    def __init__(self, keys: Iterable[TrustedKey]) -> None:
        self.keys: Mapping[str, TrustedKey] = {key.kid: key for key in keys}
        self._checkers: dict[str, Callable[[bytes, bytes], bool]] = {}
        # The newer half and the older half: one that is full takes the other's place, without looking for its oldest.
        self._verified: dict[bytes, bytes] = {}
        self._verified_before: dict[bytes, bytes] = {}

    def judge(
        self,
        signature: Signature,
        statement: Statement,
        payload: bytes,
        *,
        now_ms: int,
        append_ms: int | None = None,
        is_link: bool = False,
    ) -> str | None:
        """Return the reason why *signature* fails over *payload*, the JCS of *statement*; None if it is good.

        *append_ms* is the record's append time, None where it is unknown. A link is judged at its sealed time, and its
        key must be allowed its type; for a message the policy gate asks `may_sign`.
        """
        if signature.alg not in (ED25519, HS256):
            return "signature_invalid"
        key = self.keys.get(signature.kid)
        if key is None:
            return "key_unknown"
        if signature.alg != key.alg:
            return "signature_invalid"
        if key.is_revoked(now_ms):
            return "key_revoked"
        if not key.is_in_time(parse_ms(statement.timestamp) or 0, None if is_link else append_ms):
            return "key_expired"
        if not self._verifies(key, signature, payload):
            return "signature_invalid"
        if not key.speaks_for(statement.sender, statement.namespace):
            return "sender_mismatch"
        if is_link and not key.may_sign(statement.message_type):
            return "unauthorized"
        return None

    def key_named(self, kid: str) -> TrustedKey | None:
        """Return the key *kid*, None where it is not among these."""
        return self.keys.get(kid)

    def may_sign(self, kid: str, message_type: str) -> bool:
        """Tell whether the key *kid* may sign messages of *message_type*."""
        key = self.keys.get(kid)
        return key is not None and key.may_sign(message_type)

    def _verifies(self, key: TrustedKey, signature: Signature, payload: bytes) -> bool:
        # No kid holds a zero, so the two are told apart: what one key has signed is not taken for another's.
        location, digest = key.kid.encode() + b"\0" + signature.raw, hashlib.sha256(payload).digest()
        if self._verified.get(location) == digest or self._verified_before.get(location) == digest:
            return True
        checker = self._checkers.get(key.kid)
        if checker is None:
            checker = self._checkers[key.kid] = (ed25519_checker if key.alg == ED25519 else hs256_checker)(key.material)
        if not checker(signature.raw, signing_input(signature.header, payload)):
            return False
        if len(self._verified) >= _MAX_REMEMBERED // 2:
            self._verified_before, self._verified = self._verified, {}
        self._verified[location] = digest
        return True


def parse_keys(texts: Mapping[str, bytes], *, domain: Domain = "open") -> KeyDirectory:
    """Return the directory of the JWKS files *texts*, by name. Raises ConfigurationError, which names file and key.

    A kid that stands twice, in one file or in two, refuses all of them.
    """
    keys: dict[str, TrustedKey] = {}
    for name, text in texts.items():
        for number, jwk in enumerate(_listed(name, text)):
            where = f"{name}: key {number}"
            key = _parse_key(jwk, where, domain)
            if key.kid in keys:
                raise ConfigurationError(f"{where}: kid {key.kid!r:.80} occurs twice: keep one of them")
            keys[key.kid] = key
    return KeyDirectory(keys.values())


def thumbprint(public: bytes) -> str:
    """Return the RFC 7638 thumbprint of the Ed25519 key *public*, as base64url."""
    members = {"crv": ED25519, "kty": "OKP", "x": to_base64url(public)}
    return to_base64url(hashlib.sha256(canonical.encode(members)).digest())


def _listed(name: str, text: bytes) -> list[object]:
    text = text.removeprefix(BOM_UTF8)
    try:
        tree = canonical.parse_canonical(text)
    except ContractError as error:
        raise ConfigurationError(f"{name} is not JSON: {error.text}") from error
    # RFC 7517 section 4: of a member that stands twice, two readers might believe different ones.
    json.loads(text, object_pairs_hook=functools.partial(_without_repeats, name))
    keys = tree.get("keys") if isinstance(tree, dict) else None
    if not isinstance(keys, list):
        raise ConfigurationError(f'{name} is not a JWKS, which is {{"keys": [...]}}, as `sealbus key new` writes it')
    return keys


def _without_repeats(name: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ConfigurationError(f"{name}: an object has a duplicate member: {', '.join(members):.200}")
    return members


def _parse_key(jwk: object, where: str, domain: Domain) -> TrustedKey:
    if not isinstance(jwk, dict):
        raise ConfigurationError(f"{where} must be a JSON object")
    _check_members(jwk, where)
    alg, material = _material(jwk, where, domain)
    kid = jwk.get("kid")
    if alg == ED25519 and kid != (expected := thumbprint(material)):
        raise ConfigurationError(f"{where}: kid is {kid!r:.80}, and the thumbprint (RFC 7638) of this key {expected}")
    if not isinstance(kid, str) or not is_text_id(kid):
        raise ConfigurationError(f"{where}: kid is {kid!r:.80}, no text of 1 to 256 characters")
    return TrustedKey(
        kid=kid,
        alg=alg,
        material=material,
        principals=frozenset(_texts(jwk, "principals", where) or ()),
        types=_types(jwk, where),
        namespaces=None if (spaces := _texts(jwk, "namespaces", where)) is None else frozenset(spaces),
        not_before_ms=_instant(jwk, "not_before", where),
        not_after_ms=_instant(jwk, "not_after", where),
        revoked_at_ms=_instant(jwk, "revoked_at", where),
    )


def _check_members(jwk: dict[str, Any], where: str) -> None:
    if "d" in jwk:
        raise ConfigurationError(f"{where} holds a private key (d): `sealbus key export` writes its public half")
    for member in jwk:
        if member not in _MEMBERS:
            raise ConfigurationError(f"{where}: no member {member!r:.80}{nearest(member, _MEMBERS)}")
    operations = jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise ConfigurationError(f"{where} is not for signatures (use, key_ops)")


def _material(jwk: dict[str, Any], where: str, domain: Domain) -> tuple[str, bytes]:
    kind, alg = jwk.get("kty"), jwk.get("alg")
    if kind == "OKP" and jwk.get("crv") == ED25519 and alg == ED25519:
        public = from_base64url(jwk.get("x"))
        if public is None or not is_strong_point(public):
            raise ConfigurationError(f"{where}: x is not a public key of Ed25519")
        return alg, public
    if kind == "oct" and alg == HS256:
        if domain != "closed":
            raise ConfigurationError(
                f"{where} is a shared secret (HS256), with which every receiver could sign: use Ed25519, or say "
                'trust.domain = "closed" where all of them are one'
            )
        secret = from_base64url(jwk.get("k"))
        if secret is None or len(secret) != SECRET_BYTES:
            raise ConfigurationError(f"{where}: k is not base64url of {SECRET_BYTES} bytes")
        return alg, secret
    raise ConfigurationError(
        f"{where}: kty {kind!r:.40} with alg {alg!r:.40} is none of OKP with Ed25519, oct with HS256 (alg is required; "
        "EdDSA is refused, as RFC 9864 asks)"
    )


def _texts(jwk: dict[str, Any], name: str, where: str) -> list[str] | None:
    value = jwk.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(text, str) and is_text_id(text) for text in value):
        raise ConfigurationError(f"{where}: {name} must be a list of strings")
    return value


def _types(jwk: dict[str, Any], where: str) -> tuple[str, ...] | None:
    patterns = _texts(jwk, "types", where)
    for text in patterns or ():
        if not _TYPE_PATTERN.fullmatch(text) or text.count("*") > _MAX_STARS:
            raise ConfigurationError(
                f"{where}: types has {text!r:.80}, which is not a pattern such as task.* (at most 4 stars)"
            )
    return None if patterns is None else tuple(patterns)


def _instant(jwk: dict[str, Any], name: str, where: str) -> int | None:
    value = jwk.get(name)
    if value is None:
        return None
    if isinstance(value, str) and _SECONDS_FORM.fullmatch(value):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    raise ConfigurationError(f"{where}: {name} is {value!r:.40}, no time such as 2026-01-31T12:00:00.000Z")


@functools.lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
