"""Generated keys: a key for each agent that is named, in memory. For tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from bus.protocol.envelope import Statement
from bus.protocol.signatures import Signature
from bus.trust.keys.key_directory import KeyDirectory, TrustedKey
from bus.trust.keys.private_keys import PrivateKey, new_private_key

__all__ = ["GeneratedKeys"]


class GeneratedKeys:
    """Makes keys on demand, and believes them. It is a `DatedVerifier`."""

    counts_as_human = True
    """In a test without a policy everybody may approve."""

    def __init__(self, now_ms: Callable[[], int], secret: bytes) -> None:
        self._now_ms = now_ms
        self._secret = secret
        self._private: dict[str, PrivateKey] = {}
        self._directory = KeyDirectory(())

    def signer(self, agent_id: str) -> PrivateKey:
        """Return the key of *agent_id*."""
        key = self._private.get(agent_id)
        if key is None:
            key = new_private_key(hashlib.sha256(self._secret + agent_id.encode()).digest())
            self._private[agent_id] = key
            self._directory = KeyDirectory(
                TrustedKey(kid=key.kid, alg=key.alg, material=key.public, principals=frozenset({name}))
                for name, key in self._private.items()
            )
        return key

    def judge(self, signature: Signature, statement: Statement, payload: bytes) -> str | None:
        """Return the reason why *signature* fails, or None if it is good."""
        return self.judge_at(signature, statement, payload, append_ms=None, is_link=False)

    def judge_at(
        self, signature: Signature, statement: Statement, payload: bytes, *, append_ms: int | None, is_link: bool
    ) -> str | None:
        """Return the reason why *signature* fails, or None if it is good."""
        return self._directory.judge(
            signature, statement, payload, now_ms=self._now_ms(), append_ms=append_ms, is_link=is_link
        )

    def key_named(self, kid: str) -> TrustedKey | None:
        """Return the key *kid*, None where it is not among these."""
        return self._directory.key_named(kid)

    def may_sign(self, kid: str, message_type: str) -> bool:
        """Tell whether the key *kid* may sign messages of *message_type*."""
        return self._directory.may_sign(kid, message_type)
