"""Keys, policy and labels: who may send what, and how far a text may give instructions.

    from sealbus.trust import Authority, PolicyFile, Security, SigningKey, TrustedKeys, Untrusted

Page: `docs/how-to/keys-and-policy.md`.
"""

from __future__ import annotations

from bus.protocol.envelope import Authority, Security
from bus.trust.keys.private_keys import SigningKey
from bus.trust.keys.trusted_keys import TrustedKeys
from bus.trust.policy.policy import AllowAll
from bus.trust.policy.policy_file import PolicyFile
from bus.trust.untrusted import Untrusted

__all__ = [
    "AllowAll",
    "Authority",
    "PolicyFile",
    "Security",
    "SigningKey",
    "TrustedKeys",
    "Untrusted",
]
