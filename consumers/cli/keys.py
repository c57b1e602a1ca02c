"""`sealbus keys new|list|show|rotate|revoke|export|check`: who signs, and whom receivers believe.

Owns the verbs and their output. Files are changed by `bus.trust.keys.key_folder`, read by
`bus.trust.keys.key_directory`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from bus.clock import SystemClock
from bus.errors import ConfigurationError
from bus.nearest import nearest
from bus.protocol.base64url import to_base64url
from bus.protocol.timestamps import format_ms
from bus.settings.schema import Settings
from bus.trust.keys.key_directory import KeyDirectory, TrustedKey, parse_keys
from bus.trust.keys.key_folder import JWKS, KeyFolder
from bus.trust.keys.key_pairing import ending_keys
from bus.trust.keys.private_keys import public_jwk, read_private_key
from bus.trust.keys.signature_algorithms import ED25519
from bus.trust.keys.trusted_files import check_secret_file, check_trusted_file, files_of, read_files
from consumers.cli.exit_codes import FAILED
from consumers.cli.io.parameter_types import DURATION_TYPE, MOMENT, TEXT_ID
from consumers.cli.io.printing import print_json, print_table
from consumers.cli.session import CommandSession, with_session
from consumers.cli.shell import VerbGroup

__all__ = ["keys"]

_OVERLAP_S: Final = 15.0
"""Longer than the second within which a receiver reads a changed file, and the ten that are promised."""
_LAST_SIGNED_MS: Final = 60_000

_dir_option = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of jwks.json and the private keys.  [default: that of trust.keys, else keys]",
)


@click.group(cls=VerbGroup)
def keys() -> None:
    """Make signing keys for agents, and manage the trusted keys.

    A folder has a jwks.json, which every worker and requester needs (trust.keys), and a private key for each agent,
    which only that agent may have (trust.key_file). Running processes pick up a change within a second.

    \b
    Examples:
      sealbus keys new planner@svc worker@svc
      SEALBUS_TRUST__KEYS=keys SEALBUS_TRUST__KEY_FILE=keys sealbus worker agents:app
      sealbus keys rotate planner@svc
      sealbus keys revoke planner@svc
    """


@keys.command()
@click.argument("agents", metavar="AGENT...", nargs=-1, required=True, type=TEXT_ID)
@_dir_option
@click.option("--types", "types", multiple=True, metavar="PATTERN", help="Message types it may sign, such as task.*.")
@with_session
def new(session: CommandSession, agents: tuple[str, ...], folder: Path | None, types: tuple[str, ...]) -> int:
    """Make a key (Ed25519) for each AGENT: its private half in a file of its own, its public half in jwks.json.

    \b
    Examples:
      sealbus keys new planner@svc
      sealbus keys new reviewer@svc --types 'review.*' --dir /etc/sealbus/keys
    """
    store = _store(session.settings(), folder)
    # The clocks of other machines may be behind.
    since_ms = SystemClock().now_ms() - _LAST_SIGNED_MS
    for agent in agents:
        key = store.add(agent, principals=[agent], types=types, not_before_ms=since_ms)
        file = store.private_file(agent)
        if session.as_json:
            print_json({"agent": agent, "kid": key.kid, "private": str(file), "jwks": str(store.jwks)})
        else:
            click.echo(f"{agent}: {file} (private), kid {key.kid}")
    if not session.as_json:
        click.echo(
            f"trust.keys = {str(store.jwks)!r} for who reads, trust.key_file = {str(store.folder)!r} for who signs"
        )
    return 0


@keys.command("list")
@_dir_option
@with_session
def list_(session: CommandSession, folder: Path | None) -> int:
    """List the keys that are believed, whose they are, and until when.

    \b
    Examples:
      sealbus keys list
      sealbus keys list --dir /etc/sealbus/keys --output json
    """
    settings = session.settings()
    directory, now_ms = _directory(settings, folder), SystemClock().now_ms()
    found = sorted(directory.keys.values(), key=lambda key: (sorted(key.principals), key.not_before_ms or 0))
    if session.as_json:
        for key in found:
            print_json({**_described(key), "state": _state(key, now_ms)})
    else:
        print_table(
            ("KID", "ALG", "AGENTS", "TYPES", "UNTIL", "STATE"),
            [
                (
                    key.kid,
                    key.alg,
                    ", ".join(sorted(key.principals)) or "-",
                    ", ".join(key.types) if key.types is not None else "every",
                    format_ms(key.not_after_ms) if key.not_after_ms is not None else "-",
                    _state(key, now_ms),
                )
                for key in found
            ],
        )
    return 0


@keys.command()
@click.argument("which", metavar="KID|AGENT")
@_dir_option
@with_session
def show(session: CommandSession, which: str, folder: Path | None) -> int:
    """Show one key, public members only.

    \b
    Examples:
      sealbus keys show planner@svc
    """
    directory = _directory(session.settings(), folder)
    for key in _chosen(directory, which):
        print_json({**_described(key), "state": _state(key, SystemClock().now_ms())})
    return 0


@keys.command()
@click.argument("agent", metavar="AGENT", type=TEXT_ID)
@_dir_option
@click.option(
    "--overlap",
    type=DURATION_TYPE,
    default=_OVERLAP_S,
    show_default="15s",
    help="How long the successor is published before it signs: longer than receivers take to get jwks.json.",
)
@with_session
def rotate(session: CommandSession, agent: str, folder: Path | None, overlap: float) -> int:
    """Replace the key of AGENT, while everything runs: no message is lost, and none is refused.

    The new public key is published first. After --overlap the private key file is replaced, and the old key expires a
    minute later. Messages that it signed before stay valid.

    \b
    Examples:
      sealbus keys rotate planner@svc
      sealbus keys rotate planner@svc --overlap 10m
    """
    store, clock = _store(session.settings(), folder), SystemClock()
    old, new_key = store.announce(agent, not_before_ms=clock.now_ms() - _LAST_SIGNED_MS)
    click.echo(f"published {new_key.kid}; it signs in {overlap:g} s", err=True)
    time.sleep(overlap)
    store.switch(agent, old, new_key, not_after_ms=clock.now_ms() + _LAST_SIGNED_MS)
    if session.as_json:
        print_json({"agent": agent, "kid": new_key.kid, "replaces": old.kid})
    else:
        click.echo(f"{agent} signs with {new_key.kid}; {old.kid} ends in a minute")
    return 0


@keys.command()
@click.argument("which", metavar="KID|AGENT")
@_dir_option
@click.option("--at", type=MOMENT, help="From when on.  [default: now]")
@with_session
def revoke(session: CommandSession, which: str, folder: Path | None, at: int | None) -> int:
    """Refuse everything a key has signed or will sign, and every message whose chain rests on it.

    Running workers follow within a second. A revocation is not taken back: make a new key.

    \b
    Examples:
      sealbus keys revoke planner@svc
      sealbus keys revoke 7f3k... --at 2026-01-31T12:00:00Z
    """
    store, now_ms = _store(session.settings(), folder), SystemClock().now_ms()
    for key in _chosen(store.directory(), which):
        revoked = store.revoke(key.kid, at_ms=now_ms if at is None else at)
        if session.as_json:
            print_json({**_described(revoked), "state": _state(revoked, now_ms)})
        else:
            click.echo(f"{key.kid} of {', '.join(sorted(key.principals)) or 'nobody'} is {_state(revoked, now_ms)}")
    return 0


@keys.command()
@click.argument("file", metavar="[PRIVATE-KEY]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@_dir_option
@click.option("--agent", "principals", multiple=True, type=TEXT_ID, help="With PRIVATE-KEY: whom the key speaks for.")
@with_session
def export(session: CommandSession, file: Path | None, folder: Path | None, principals: tuple[str, ...]) -> int:
    """Write the public keys as one JWKS to standard output: what other teams need to believe yours.

    With PRIVATE-KEY, a PEM or JWK file, the public half of that one.

    \b
    Examples:
      sealbus keys export > ours.jwks
      sealbus keys export planner.pem --agent planner@svc
    """
    if file is not None:
        key = read_private_key(file)
        if key.alg != ED25519:
            raise ConfigurationError(f"{file} is a shared secret, which has no public half")
        click.echo(json.dumps({"keys": [public_jwk(key, principals=list(principals))]}, indent=2))
        return 0
    directory = _directory(session.settings(), folder)
    public = [_described(key) for key in directory.keys.values() if key.alg == ED25519]
    click.echo(json.dumps({"keys": public}, indent=2))
    return 0


@keys.command()
@_dir_option
@with_session
def check(session: CommandSession, folder: Path | None) -> int:
    """Check files, rights and dates of the keys.

    \b
    Examples:
      sealbus keys check --dir /etc/sealbus/keys

    \b
    Exit codes: 0 all right, 1 something needs to be done, 78 the files cannot be used.
    """
    settings, now_ms = session.settings(), SystemClock().now_ms()
    directory = _directory(settings, folder)
    faults = list(_faults(directory, now_ms))
    early = {key.kid: has_other for key, has_other in _not_yet_valid(directory, now_ms)}
    location = folder if folder is not None else Path(settings.trust.key_file or "keys")
    for file in sorted(location.glob("*.pem")) if location.is_dir() else ():
        try:
            check_secret_file(file)
            key = read_private_key(file)
        except ConfigurationError as error:
            faults.append(str(error))
            continue
        known = directory.keys.get(key.kid)
        if known is None:
            faults.append(f"{file}: its public half is not among the keys, so its signatures are refused")
        elif known.is_revoked(now_ms):
            faults.append(f"{file}: its key is revoked: `sealbus keys rotate {' '.join(known.principals)}`")
        elif early.get(known.kid):
            faults.append(
                f"{file}: its key is valid from {format_ms(known.not_before_ms or 0)} on, and signs nothing yet"
            )
    for fault in faults:
        if session.as_json:
            print_json({"fault": fault})
        else:
            click.echo(fault)
    for kid in (kid for kid, has_other in early.items() if has_other):
        start = format_ms(directory.keys[kid].not_before_ms or 0)
        click.echo(f"hint: {kid} is valid from {start} on; until then its agents have another key", err=True)
    click.echo(f"{len(directory.keys)} keys, {len(faults)} faults", err=True)
    return FAILED if faults else 0


def _faults(directory: KeyDirectory, now_ms: int) -> Iterator[str]:
    for key in directory.keys.values():
        if not key.principals:
            yield f"{key.kid}: signs for no agent (principals is empty)"
    for key, has_ended in ending_keys(directory, now_ms):
        whom, end = ", ".join(sorted(key.principals)), format_ms(key.not_after_ms or 0)
        if has_ended:
            yield f"{key.kid}: ended at {end}, and {whom} has no other key"
        else:
            yield f"{key.kid}: ends at {end}: `sealbus keys rotate {whom}`"
    for key, has_other in _not_yet_valid(directory, now_ms):
        if not has_other:
            whom, start = ", ".join(sorted(key.principals)), format_ms(key.not_before_ms or 0)
            yield f"{key.kid}: valid from {start} on, and {whom} has no other key until then: its messages are refused"


def _not_yet_valid(directory: KeyDirectory, now_ms: int) -> Iterator[tuple[TrustedKey, bool]]:
    """Yield each key that is not valid yet, and whether its agents have another that is."""
    good = [key for key in directory.keys.values() if _state(key, now_ms) == "good"]
    for key in directory.keys.values():
        if key.principals and _state(key, now_ms) == "not yet":
            yield key, any(key.principals <= other.principals for other in good)


def _store(settings: Settings, folder: Path | None) -> KeyFolder:
    if folder is None:
        configured = Path(settings.trust.keys) if settings.trust.keys else Path("keys")
        folder = configured.parent if configured.suffix in (".json", ".jwks") else configured
    return KeyFolder(folder, domain=settings.trust.domain)


def _directory(settings: Settings, folder: Path | None) -> KeyDirectory:
    """Return the keys of *folder*, else of the settings, as a worker reads them."""
    path = folder / JWKS if folder is not None else Path(settings.trust.keys or f"keys/{JWKS}")
    return parse_keys(read_files(files_of(path, (".json", ".jwks")), check_trusted_file), domain=settings.trust.domain)


def _chosen(directory: KeyDirectory, which: str) -> list[TrustedKey]:
    found = [key for key in directory.keys.values() if which == key.kid or which in key.principals]
    if not found:
        known = [*directory.keys, *(name for key in directory.keys.values() for name in key.principals)]
        raise click.BadParameter(f"there is no key {which[:80]!r}{nearest(which, known)}", param_hint="KID|AGENT")
    return found


def _state(key: TrustedKey, now_ms: int) -> str:
    if key.is_revoked(now_ms):
        return "revoked"
    if key.not_before_ms is not None and now_ms < key.not_before_ms:
        return "not yet"
    if key.not_after_ms is not None and now_ms > key.not_after_ms:
        return "ended"
    return "good" if key.principals else "signs for no agent"


def _described(key: TrustedKey) -> dict[str, Any]:
    """Return the public members of *key*, as a JWK; of a shared secret nothing but its name."""
    material = {"kty": "OKP", "crv": ED25519, "x": to_base64url(key.material)} if key.alg == ED25519 else {"kty": "oct"}
    times = {"not_before": key.not_before_ms, "not_after": key.not_after_ms, "revoked_at": key.revoked_at_ms}
    return {
        **material,
        "alg": key.alg,
        "kid": key.kid,
        "principals": sorted(key.principals),
        **({} if key.types is None else {"types": list(key.types)}),
        **({} if key.namespaces is None else {"namespaces": sorted(key.namespaces)}),
        **{name: format_ms(value) for name, value in times.items() if value is not None},
    }
