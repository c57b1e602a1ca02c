"""The interface for signatures: Protocols that sign and verify statements, and the one form of a signature.

Owns the `Signer` and `Verifier` Protocols and the detached JWS (RFC 7515 App. F, RFC 7797 `b64:false`) as text.
Implementations own keys, algorithms and key lifetimes; without a signer, messages are sealed but not signed.
"""

from __future__ import annotations

import functools
from typing import Protocol

import msgspec

from bus.errors import ContractError, SigningError, text_of
from bus.protocol import canonical
from bus.protocol.base64url import from_base64url, to_base64url
from bus.protocol.envelope import Statement
from bus.protocol.reasons import GATE_NAMES

__all__ = [
    "DatedVerifier",
    "MAX_SIGNATURE_CHARS",
    "Signature",
    "Signer",
    "Verifier",
    "check_signature",
    "parse_signature",
    "sign",
    "signer_named",
    "signing_input",
]

MAX_SIGNATURE_CHARS = 1024
"""A longer signature is `signature_invalid`, unread."""

_REASONS = GATE_NAMES["authenticity"]
_MEMBERS = {"alg", "b64", "crit", "kid"}


class Signer(Protocol):
    """A private key that signs only statements."""

    @property
    def kid(self) -> str:
        """The key's name in messages."""

    @property
    def alg(self) -> str:
        """The algorithm's name in messages."""

    def sign(self, signing_input: bytes) -> bytes:
        """Return the raw signature of *signing_input*."""


class Verifier(Protocol):
    """The keys that a receiver trusts."""

    def judge(self, signature: Signature, statement: Statement, payload: bytes) -> str | None:
        """Return the authenticity reason why *signature* over *payload* fails, or None if it is good.

        *payload* is the JCS of *statement*.
        """


class DatedVerifier(Verifier, Protocol):
    """A verifier that judges a key at its time, and limits the types that a key signs."""

    def judge_at(
        self, signature: Signature, statement: Statement, payload: bytes, *, append_ms: int | None, is_link: bool
    ) -> str | None:
        """Return the reason as `judge`; asked in its place.

        *append_ms* is the record's append time, None where it is unknown. A link is judged at its sealed time, and
        `unauthorized` says that its key may not sign its type.
        """

    def may_sign(self, kid: str, message_type: str) -> bool:
        """Tell whether the key *kid* may sign messages of *message_type*; asked by the policy gate."""


class Signature(msgspec.Struct, frozen=True):
    """A signature in the right form; its bytes are not verified yet.

    *header* is the protected header as in the text.
    """

    alg: str
    kid: str
    header: str
    raw: bytes


def signing_input(header: str, payload: bytes) -> bytes:
    """Return the bytes that a JWS with `b64:false` signs."""
    return header.encode("ascii") + b"." + payload


def sign(payload: bytes, signer: Signer) -> str:
    """Return the compact detached JWS `header..signature` over *payload*. Raises SigningError."""
    try:
        # One whose key is replaced meanwhile gives the present one: a header must name the key that signs.
        snapshot = getattr(signer, "snapshot", None)
        signer = signer if snapshot is None else snapshot()
        # These attributes may run foreign code too.
        alg, kid = signer.alg, signer.kid
        header = _header(alg, kid)
        raw = signer.sign(signing_input(header, payload))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise SigningError(f"the signer failed: {type(error).__name__}: {text_of(error)}") from error
    if not isinstance(alg, str) or not isinstance(kid, str):
        raise SigningError(
            f"the signer's alg and kid are of {type(alg).__name__} and {type(kid).__name__}: receivers read texts only"
        )
    if not isinstance(raw, bytes) or not raw:
        raise SigningError("the signer made no bytes")
    return f"{header}..{to_base64url(raw)}"


def parse_signature(text: str) -> Signature | None:
    """Parse *text*; return None for anything but the one form (reason `signature_invalid`)."""
    if len(text) > MAX_SIGNATURE_CHARS:
        return None
    header, dots, tail = text.partition("..")
    named, raw = _parse_header(header), from_base64url(tail)
    if not dots or named is None or not raw:
        return None
    return Signature(alg=named[0], kid=named[1], header=header, raw=raw)


def signer_named(text: str) -> tuple[str, str] | None:
    """Return alg and kid of the signature *text*, which has been parsed before; None for another form."""
    return _parse_header(text.partition("..")[0])


def check_signature(
    verifier: Verifier,
    signature: Signature,
    statement: Statement,
    payload: bytes,
    *,
    append_ms: int | None = None,
    is_link: bool = False,
) -> None:
    """Raise ContractError unless *verifier* accepts *signature*.

    A verifier that raises, or returns an unknown reason, refuses it too.
    """
    try:
        # A Protocol's isinstance costs more than the check of a remembered signature.
        judge_at = getattr(verifier, "judge_at", None)
        if judge_at is not None:
            reason = judge_at(signature, statement, payload, append_ms=append_ms, is_link=is_link)
        else:
            reason = verifier.judge(signature, statement, payload)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ContractError(
            f"the verifier failed: {type(error).__name__}", "/verification/signature", "signature_invalid"
        ) from error
    if reason is None:
        return
    if reason not in _REASONS and not (is_link and reason == "unauthorized"):
        raise ContractError("the verifier gave no answer that there is", "/verification/signature", "signature_invalid")
    raise ContractError("does not hold", "/verification/signature", reason)


@functools.lru_cache(maxsize=1024)
def _parse_header(header: str) -> tuple[str, str] | None:
    """Return alg and kid of a protected header; None for another form. The same few keys sign most messages."""
    protected = from_base64url(header)
    if not protected:
        return None
    try:
        fields = canonical.parse_canonical(protected)
    except ContractError:
        return None
    if not canonical.is_canonical(protected, fields) or not isinstance(fields, dict) or not _is_header(fields):
        return None
    return fields["alg"], fields["kid"]


@functools.lru_cache(maxsize=1024)
def _header(alg: str, kid: str) -> str:
    return to_base64url(canonical.encode({"alg": alg, "b64": False, "crit": ["b64"], "kid": kid}))


def _is_header(fields: dict[str, object]) -> bool:
    return (
        fields.keys() == _MEMBERS
        and isinstance(fields["alg"], str)
        and isinstance(fields["kid"], str)
        and fields["b64"] is False
        and fields["crit"] == ["b64"]
    )
