"""Keys and agents: whether a key may sign a message now, in the name of an agent. Only this module decides that.

Owns the verdict before a message is sealed, with an error text that names the fix, in the order of gate `authenticity`
(PROTOCOL.md section 7). Also owns finding the agent of a key, where a person names only the key, and the keys that
expire soon. A key that is not among the trusted keys is not judged: an agent's own key need not be in its JWKS. Pure
except for the files of `KeyGuard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from bus.errors import ConfigurationError, KeyRefusedError
from bus.protocol.signatures import Signer, Verifier
from bus.protocol.timestamps import format_ms
from bus.trust.keys.key_directory import KeyDirectory, TrustedKey

__all__ = ["SOON_MS", "KeyFault", "KeyGuard", "agent_of_key", "check_pair", "ending_keys", "fault_of_key"]

SOON_MS: Final = 14 * 86_400_000
"""How long before its end a key without successor is reported."""


class KeyFault(msgspec.Struct, frozen=True):
    """Why receivers would refuse messages of the key: the reason, and a text with the fix."""

    reason: str
    text: str


def fault_of_key(
    key: TrustedKey, agent_id: str, *, namespace: str, now_ms: int, message_type: str | None = None
) -> KeyFault | None:
    """Return why *key* may not sign for *agent_id* in *namespace* at *now_ms*; None where it may.

    *message_type* None: whatever it signs.
    """
    name = f"the key {key.kid} of {agent_id}"
    rotate = f"`sealbus key rotate {agent_id}` makes its successor"
    if key.revoked_at_ms is not None and key.is_revoked(now_ms):
        return KeyFault("key_revoked", f"{name} was revoked at {format_ms(key.revoked_at_ms)}: {rotate}")
    if key.not_before_ms is not None and now_ms < key.not_before_ms:
        since = format_ms(key.not_before_ms)
        return KeyFault("key_expired", f"{name} is not valid before {since}: sign with the key that is, or wait")
    if key.not_after_ms is not None and now_ms > key.not_after_ms:
        return KeyFault("key_expired", f"{name} ended at {format_ms(key.not_after_ms)}: {rotate}")
    if agent_id not in key.principals:
        whom = ", ".join(sorted(key.principals)) or "nobody"
        text = f"the key {key.kid} signs for {whom}, not for {agent_id}: give the key of {agent_id}"
        return KeyFault("sender_mismatch", f"{text} (`sealbus key new {agent_id}`), or act as the key's agent")
    if not key.speaks_for(agent_id, namespace):
        where = ", ".join(sorted(key.namespaces or ()))
        return KeyFault("sender_mismatch", f"{name} signs in {where or 'no namespace'}, not in {namespace}")
    if message_type is not None and not key.may_sign(message_type):
        types = "none" if key.types is None else ", ".join(key.types)
        text = f"{name} may not sign {message_type} (its types: {types}): `sealbus key rotate` keeps these limits"
        return KeyFault("unauthorized", f"{text}; a new key has others")
    return None


class KeyGuard:
    """Judges the key of *signer* with the trusted keys of *verifier*, each time before it signs."""

    def __init__(self, signer: Signer, verifier: Verifier | None, now_ms: Callable[[], int]) -> None:
        self._signer = signer
        # One who knows no keys by name has nothing to say.
        self._key_named: Callable[[str], TrustedKey | None] | None = getattr(verifier, "key_named", None)
        self._now_ms = now_ms

    @property
    def key(self) -> TrustedKey | None:
        """The public half of the key, where it is among the trusted keys."""
        return None if self._key_named is None else self._key_named(_kid_of(self._signer))

    def fault(self, agent_id: str, namespace: str, message_type: str | None = None) -> KeyFault | None:
        """Return why the key may not sign now; None if it may, or is not among the trusted keys."""
        key = self.key
        if key is None:
            return None
        return fault_of_key(key, agent_id, namespace=namespace, now_ms=self._now_ms(), message_type=message_type)

    def check(self, agent_id: str, namespace: str, message_type: str) -> None:
        """Raise KeyRefusedError where the key may not sign."""
        if self._key_named is not None and (fault := self.fault(agent_id, namespace, message_type)) is not None:
            raise KeyRefusedError(fault.text, fault.reason)


def check_pair(signer: Signer | None, verifier: Verifier | KeyDirectory | None, agent_id: str) -> None:
    """Raise ConfigurationError where *verifier* knows that the key of *signer* is not one of *agent_id*.

    Times are not judged: a key that has ended may be replaced while its program runs.
    """
    key_named = getattr(verifier, "key_named", None)
    if signer is None or key_named is None:
        return
    key = key_named(_kid_of(signer))
    if key is not None and agent_id not in key.principals:
        fault = fault_of_key(msgspec.structs.replace(key, **_TIMELESS), agent_id, namespace="", now_ms=0)
        raise ConfigurationError(f"the agent and its key do not fit: {'' if fault is None else fault.text}")


_TIMELESS: Final[dict[str, Any]] = {"not_before_ms": None, "not_after_ms": None, "revoked_at_ms": None}


def agent_of_key(kid: str, directory: KeyDirectory | None) -> str:
    """Return the agent of the key *kid*. Raises ConfigurationError if there is not exactly one."""
    key = None if directory is None else directory.keys.get(kid)
    if key is None:
        raise ConfigurationError(
            f"the key {kid} is not among the trusted keys, so its agent is unknown: name its agent with --as, "
            "or give the keys with trust.keys"
        )
    if len(key.principals) != 1:
        whom = ", ".join(sorted(key.principals)) or "nobody"
        raise ConfigurationError(f"the key {kid} signs for {whom}: name the acting agent with --as")
    (agent_id,) = key.principals
    return agent_id


def ending_keys(directory: KeyDirectory, now_ms: int) -> Iterator[tuple[TrustedKey, bool]]:
    """Yield each key that has ended or ends within 14 days, and that no other follows; and whether it has ended."""
    for key in directory.keys.values():
        if not key.principals or key.is_revoked(now_ms) or key.not_after_ms is None:
            continue
        if key.not_after_ms < now_ms + SOON_MS and not _is_followed(directory, key, now_ms):
            yield key, key.not_after_ms < now_ms


def _is_followed(directory: KeyDirectory, key: TrustedKey, now_ms: int) -> bool:
    """Tell whether another key of the same agents is good for longer."""
    return any(
        other.kid != key.kid
        and not other.is_revoked(now_ms)
        and key.principals <= other.principals
        and (other.not_after_ms is None or other.not_after_ms > now_ms + SOON_MS)
        for other in directory.keys.values()
    )


def _kid_of(signer: Signer) -> str:
    try:
        kid = signer.kid
    except Exception:  # noqa: BLE001 - a signer of the program's own may raise anything, and says so when it signs
        return ""
    return kid if isinstance(kid, str) else ""
