"""Keys and policy as findings of `sealbus check`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from bus.errors import ConfigurationError
from bus.protocol.timestamps import format_ms
from bus.trust.keys.key_directory import KeyDirectory, TrustedKey
from bus.trust.keys.key_pairing import ending_keys
from bus.trust.keys.key_rows import key_state
from bus.trust.keys.private_keys import read_private_key
from bus.trust.keys.trusted_files import check_secret_file
from bus.trust.policy.check import check_policy
from bus.trust.policy.rules import PolicyRules
from consumers.delivery.declaration import Declaration
from consumers.operations.checks.findings import CheckFinding, Gravity
from consumers.operations.lint.thresholds import THRESHOLD_CURE, unguarded_types

__all__ = ["key_findings", "key_state", "policy_findings"]


def key_findings(directory: KeyDirectory, folder: Path, now_ms: int) -> Iterator[CheckFinding]:
    """Yield what is wrong with the trusted keys in *directory*, and with the private keys in *folder*."""
    for key in directory.keys.values():
        if not key.principals:
            yield _key(key.kid, "signs for no agent: principals is empty", "name its agents in the JWKS file")
    for key, has_ended in ending_keys(directory, now_ms):
        whom, end = ", ".join(sorted(key.principals)), format_ms(key.not_after_ms or 0)
        what = f"ended at {end}, and {whom} has no other key" if has_ended else f"ends at {end}"
        yield _key(key.kid, what, f"`sealbus key rotate {whom}`")
    early = {key.kid: has_other for key, has_other in _not_yet_valid(directory, now_ms)}
    for kid, has_other in early.items():
        key = directory.keys[kid]
        whom, start = ", ".join(sorted(key.principals)), format_ms(key.not_before_ms or 0)
        yield _key(
            kid,
            f"is valid from {start} on; until then {whom} has {'another' if has_other else 'no'} key",
            "wait until then" if has_other else f"`sealbus key new {whom}`: its messages are refused until then",
            "note" if has_other else "error",
        )
    for file in sorted(folder.glob("*.pem")) if folder.is_dir() else ():
        yield from _private(file, directory, early, now_ms)


def _private(file: Path, directory: KeyDirectory, early: dict[str, bool], now_ms: int) -> Iterator[CheckFinding]:
    try:
        check_secret_file(file)
        key = read_private_key(file)
    except ConfigurationError as error:
        yield _key(str(file), str(error), "repair or remove the file")
        return
    known = directory.keys.get(key.kid)
    if known is None:
        yield _key(str(file), "its public half is not trusted, so its signatures are refused", "add it to trust.keys")
    elif known.is_revoked(now_ms):
        yield _key(str(file), "its key is revoked", f"`sealbus key rotate {' '.join(known.principals)}`")
    elif early.get(known.kid):
        start = format_ms(known.not_before_ms or 0)
        yield _key(
            str(file), f"its key is valid from {start} on, and signs nothing yet", "use the other key until then"
        )


def _key(location: str, what: str, fix: str, level: Gravity = "error") -> CheckFinding:
    return CheckFinding(area="keys", check="key", level=level, location=location, what=what, fix=fix)


def _not_yet_valid(directory: KeyDirectory, now_ms: int) -> Iterator[tuple[TrustedKey, bool]]:
    """Yield each key that is not valid yet, and whether its agents have another that is."""
    good = [key for key in directory.keys.values() if key_state(key, now_ms) == "good"]
    for key in directory.keys.values():
        if key.principals and key_state(key, now_ms) == "not yet":
            yield key, any(key.principals <= other.principals for other in good)


def policy_findings(
    rules: PolicyRules, declarations: Collection[Declaration], types: Collection[str], high_risk: Collection[str]
) -> Iterator[CheckFinding]:
    """Yield rules that never decide, contradictions and unknown names in *rules*, and unguarded types of the apps."""
    for finding in check_policy(rules, types=types):
        yield CheckFinding(
            area="policy", check=finding.code, level=finding.level, location=finding.place, what=finding.text
        )
    for declaration in declarations:
        for kind in unguarded_types(declaration, high_risk=high_risk):
            yield CheckFinding(
                area="policy",
                check="no-threshold",
                level="note",
                location=f"type {kind.name}",
                what="is handled at every trust level, unless it has a reply_to",
                fix=THRESHOLD_CURE,
            )
