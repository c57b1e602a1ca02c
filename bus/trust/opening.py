"""Open the trust of one agent: its signer, its verifier and its policy, from arguments and settings.

Arguments of the program are used unchanged; missing ones come from the sections `trust` and `policy` of the settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bus.clock import Clock
from bus.errors import ConfigurationError
from bus.protocol.signatures import Signer, Verifier
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.topics.names import agent_slug
from bus.trust.policy.policy import NO_POLICY, AllowAll, Policy

if TYPE_CHECKING:
    from bus.trust.keys.key_directory import KeyDirectory

__all__ = [
    "ALLOW_ALL",
    "Trust",
    "agent_of_file",
    "believed_keys",
    "believed_policy",
    "key_file_of",
    "keyless",
    "open_trust",
    "private_key_files",
]

ALLOW_ALL: Final = "allow-all"
_SUFFIXES: Final = (".pem", ".jwk")

_log = get_logger("trust")


class Trust(msgspec.Struct, frozen=True):
    """The signer, verifier and policy of one agent. None or `NO_POLICY` means not configured."""

    signer: Signer | None
    verifier: Verifier | None
    policy: Policy


def open_trust(
    settings: Settings,
    agent_id: str,
    *,
    clock: Clock,
    signer: Signer | None = None,
    verifier: Verifier | None = None,
    policy: Policy | None = None,
) -> Trust:
    """Return the trust of *agent_id*. Raises ConfigurationError for files that cannot be used, and another's key."""
    trust, file = settings.trust, settings.policy.file
    if verifier is None and trust.keys:
        from bus.trust.keys.trusted_keys import TrustedKeys

        with _named("trust.keys"):
            verifier = TrustedKeys(trust.keys, clock=clock, domain=trust.domain, stale_after_s=trust.stale_after_s)
    if signer is None and trust.key_file:
        with _named("trust.key_file"):
            signer = _open_signer(Path(trust.key_file), agent_id, clock)
    if (policy is None or policy is NO_POLICY) and file:
        with _named("policy.file"):
            policy = AllowAll() if file == ALLOW_ALL else _open_policy(file, clock, trust.stale_after_s)
    if agent_id and signer is not None:
        from bus.trust.keys.key_pairing import check_pair

        check_pair(signer, verifier, agent_id)
    return Trust(signer, verifier, NO_POLICY if policy is None else policy)


def keyless(settings: Settings) -> Settings:
    """Return *settings* for who reads and judges, and signs nothing: without a private key."""
    return msgspec.structs.replace(settings, trust=msgspec.structs.replace(settings.trust, key_file=""))


def believed_keys(settings: Settings, clock: Clock) -> Verifier | None:
    """Return the keys of *settings*, None without any; private keys are not looked at. Raises ConfigurationError."""
    keys_alone = msgspec.structs.replace(keyless(settings), policy=msgspec.structs.replace(settings.policy, file=""))
    return open_trust(keys_alone, "", clock=clock).verifier


def believed_policy(settings: Settings, clock: Clock) -> Policy:
    """Return the policy of *settings*; no key is looked at. Raises ConfigurationError."""
    policy_alone = msgspec.structs.replace(
        settings, trust=msgspec.structs.replace(settings.trust, keys="", key_file="")
    )
    return open_trust(policy_alone, "", clock=clock).policy


def agent_of_file(settings: Settings, named: str | None, *, otherwise: str) -> str:
    """Return the agent that acts with the private key in *settings*: *named*, else the agent of the key.

    Without a key, or with a folder of keys, it is *otherwise*. Raises ConfigurationError if the trusted keys do not
    name the key's agent, or name another one.
    """
    path = Path(settings.trust.key_file)
    if not settings.trust.key_file or path.is_dir():
        return otherwise if named is None else named
    from bus.trust.keys.key_pairing import agent_of_key, check_pair
    from bus.trust.keys.private_keys import read_private_key

    key, known = read_private_key(path), _known_keys(settings, path)
    if named is None:
        return agent_of_key(key.kid, known)
    check_pair(key, known, named)
    return named


def _known_keys(settings: Settings, private: Path) -> KeyDirectory | None:
    """Return the trusted keys of *settings*; without any, those that `sealbus key` keeps beside the key *private*."""
    from bus.trust.keys.key_folder import JWKS
    from bus.trust.keys.trusted_directory import trusted_directory

    if settings.trust.keys:
        return trusted_directory(settings, None)
    return trusted_directory(settings, private.parent) if (private.parent / JWKS).exists() else None


def key_file_of(path: Path, agent_id: str) -> Path:
    """Return the file that holds the private key of *agent_id*: *path*, or in that folder the one with its name."""
    if not path.is_dir():
        return path
    found = [path / f"{agent_slug(agent_id)}{suffix}" for suffix in _SUFFIXES]
    return next((file for file in found if file.exists()), found[0])


def private_key_files(path: Path) -> list[Path]:
    """Return the files of private keys that the setting *path* names: itself, or those in that folder. Raises
    ConfigurationError."""
    try:
        return sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES) if path.is_dir() else [path]
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error


@contextmanager
def _named(setting: str) -> Iterator[None]:
    """Put the name of *setting* before what is wrong with its file."""
    try:
        yield
    except ConfigurationError as error:
        if type(error) is not ConfigurationError or str(error).startswith(setting):
            raise
        raise ConfigurationError(f"{setting}: {error}") from error


def _open_policy(file: str, clock: Clock, stale_after_s: float) -> Policy:
    from bus.trust.policy.policy_file import PolicyFile

    return PolicyFile(file, clock=clock, stale_after_s=stale_after_s)


def _open_signer(path: Path, agent_id: str, clock: Clock) -> Signer | None:
    from bus.trust.keys.private_keys import SigningKey
    from bus.trust.keys.trusted_files import alarm_about

    file = key_file_of(path, agent_id)
    if file != path and not file.exists():
        _log.warning(
            "trust.no_private_key",
            agent=agent_id,
            file=str(file),
            detail=f"its messages leave unsigned: sealbus key new {agent_id}",
        )
        return None
    return SigningKey(file, clock=clock, alarm=alarm_about("private_key", file, "the last good key signs"))
