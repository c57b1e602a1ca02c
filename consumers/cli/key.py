"""`sealbus key new|list|rotate|revoke|export`: signing keys, and the trusted ones.

`bus.trust.keys.key_folder` changes files, `bus.trust.keys.key_directory` reads them.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError, ConfigurationError
from bus.nearest import nearest
from bus.settings.schema import Settings
from bus.trust.keys.key_directory import KeyDirectory, TrustedKey
from bus.trust.keys.key_folder import KeyFolder, key_folder_of
from bus.trust.keys.key_rows import KeyRow, key_row
from bus.trust.keys.private_keys import public_jwk, read_private_key
from bus.trust.keys.signature_algorithms import ED25519
from bus.trust.keys.trusted_directory import trusted_directory
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.io.parameter_types import DURATION_TYPE, MOMENT, TEXT_ID
from consumers.cli.session import CommandSession, changing, verb
from consumers.cli.shell import VerbGroup

__all__ = ["key"]

_OVERLAP_S: Final = 15.0
"""Longer than the second within which a receiver reads a changed file, and the ten that are promised."""
_LAST_SIGNED_MS: Final = 60_000

_dir_option = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of jwks.json and the private keys.  [default: that of trust.keys, else keys]",
)


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was made: its private half in *private*, its public half in *jwks*."""

    agent: str
    kid: str
    private: str
    jwks: str
    replaces: str | None = None


@click.group(cls=VerbGroup)
def key() -> None:
    """Make signing keys for agents, and manage the trusted keys.

    A folder has a jwks.json, which every worker and requester needs (trust.keys), and a private key for each agent,
    which only that agent may have (trust.key_file). Running processes use a changed file within a second. `sealbus
    check --only keys` finds what is wrong with them.

    \b
    Examples:
      sealbus key new planner@svc worker@svc
      sealbus key list planner@svc
      sealbus key rotate planner@svc
      sealbus key revoke planner@svc --why "laptop lost"
    """


@key.command()
@click.argument("agents", metavar="AGENT...", nargs=-1, required=True, type=TEXT_ID)
@_dir_option
@click.option("--types", "types", multiple=True, metavar="PATTERN", help="Message types it may sign, such as task.*.")
@verb(NewKey)
def new(session: CommandSession, *, agents: tuple[str, ...], folder: Path | None, types: tuple[str, ...]) -> VerbResult:
    """Make a key (Ed25519) for each AGENT: its private half in a file of its own, its public half in jwks.json.

    \b
    Examples:
      sealbus key new planner@svc
      sealbus key new reviewer@svc --types 'review.*' --dir /etc/sealbus/keys
    """
    store = _store(session.settings(), folder)
    # The clocks of other machines may be behind.
    since_ms = SystemClock().now_ms() - _LAST_SIGNED_MS
    made = []
    for agent in agents:
        added = store.add(agent, principals=[agent], types=types, not_before_ms=since_ms)
        file = store.private_file(agent)
        made.append(NewKey(agent=agent, kid=added.kid, private=str(file), jwks=str(store.jwks)))
    return Listing(
        made,
        {"AGENT": "agent", "KID": "kid", "PRIVATE KEY": "private"},
        notes=[f"readers need trust.keys = {str(store.jwks)!r}, signers trust.key_file = {str(store.folder)!r}"],
    )


@key.command("list")
@click.argument("which", metavar="[AGENT|KID]", required=False)
@_dir_option
@verb(KeyRow)
def list_(session: CommandSession, *, which: str | None, folder: Path | None) -> VerbResult:
    """List the trusted keys, whose they are, and until when they are valid.

    \b
    Examples:
      sealbus key list
      sealbus key list planner@svc -o json
    """
    directory, now_ms = trusted_directory(session.settings(), folder), SystemClock().now_ms()
    found = list(directory.keys.values()) if which is None else _chosen(directory, which)
    found.sort(key=lambda each: (sorted(each.principals), each.not_before_ms or 0))
    return Listing(
        [key_row(each, now_ms) for each in found],
        {
            "KID": "kid",
            "ALG": "alg",
            "AGENTS": "principals",
            "TYPES": lambda row: "all" if row.types is None else row.types,
            "UNTIL": "not_after",
            "STATE": "state",
        },
        empty="no trusted keys. `sealbus key new AGENT` makes one",
    )


@key.command()
@click.argument("agent", metavar="AGENT", type=TEXT_ID)
@_dir_option
@click.option(
    "--overlap",
    type=DURATION_TYPE,
    default=_OVERLAP_S,
    show_default="15s",
    help="How long the new key is published before it signs: longer than receivers take to get jwks.json.",
)
@verb(NewKey)
async def rotate(session: CommandSession, *, agent: str, folder: Path | None, overlap: float) -> VerbResult:
    """Replace the key of AGENT, while everything runs: no message is lost, and none is refused.

    The new public key is published first. After --overlap the private key file is replaced, and the old key expires a
    minute later. Messages that it signed before stay valid.

    \b
    Examples:
      sealbus key rotate planner@svc
      sealbus key rotate planner@svc --overlap 10m
    """
    store, clock = _store(session.settings(), folder), SystemClock()
    old, successor = store.announce(agent, not_before_ms=clock.now_ms() - _LAST_SIGNED_MS)
    session.note(f"published {successor.kid}; it signs in {overlap:g} s")
    await asyncio.sleep(overlap)
    store.switch(agent, old, successor, not_after_ms=clock.now_ms() + _LAST_SIGNED_MS)
    made = NewKey(
        agent=agent, kid=successor.kid, private=str(store.private_file(agent)), jwks=str(store.jwks), replaces=old.kid
    )
    return Listing([made], {"AGENT": "agent", "SIGNS WITH": "kid", "ENDS IN A MINUTE": "replaces"})


@key.command()
@click.argument("which", metavar="AGENT|KID")
@_dir_option
@click.option("--at", type=MOMENT, help="From when on.  [default: now]")
@changing
@verb(KeyRow)
def revoke(
    session: CommandSession, *, which: str, folder: Path | None, at: int | None, why: str, dry_run: bool, yes: bool
) -> VerbResult:
    """Refuse everything a key has signed or will sign, and every message that one of its messages caused.

    Running workers follow within a second. A revocation cannot be undone: make a new key.

    \b
    Examples:
      sealbus key revoke planner@svc --why "laptop lost"
      sealbus key revoke 7f3k... --at 2026-01-31T12:00:00Z --yes
    """
    store, now_ms = _store(session.settings(), folder), SystemClock().now_ms()
    found = _chosen(store.directory(), which)
    columns = {"KID": "kid", "AGENTS": "principals", "STATE": "state"}
    if dry_run:
        return Listing(
            [key_row(each, now_ms) for each in found], columns, notes=[f"{len(found)} keys would be revoked"]
        )
    session.confirm(f"Revoke {len(found)} keys of {which}?", yes=yes)
    revoked = [store.revoke(each.kid, at_ms=now_ms if at is None else at) for each in found]
    return Listing([key_row(each, now_ms) for each in revoked], columns, notes=[f"why: {why}"] if why else [])


@key.command()
@click.argument("file", metavar="[PRIVATE-KEY]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@_dir_option
@click.option("--agent", "principals", multiple=True, type=TEXT_ID, help="With PRIVATE-KEY: whom the key speaks for.")
@verb(forms=("jwks",))
def export(session: CommandSession, *, file: Path | None, folder: Path | None, principals: tuple[str, ...]) -> int:
    """Write the public keys as one JWKS to standard output: what other teams need to trust yours.

    With PRIVATE-KEY, a PEM or JWK file, the public half of that one.

    \b
    Examples:
      sealbus key export > ours.jwks
      sealbus key export planner.pem --agent planner@svc
    """
    if file is not None:
        private = read_private_key(file)
        if private.alg != ED25519:
            raise ConfigurationError(f"{file} is a shared secret, which has no public half")
        click.echo(json.dumps({"keys": [public_jwk(private, principals=list(principals))]}, indent=2))
        return 0
    directory, now_ms = trusted_directory(session.settings(), folder), SystemClock().now_ms()
    public = [msgspec.to_builtins(key_row(each, now_ms)) for each in directory.keys.values() if each.alg == ED25519]
    for each in public:
        del each["state"]
    click.echo(json.dumps({"keys": public}, indent=2))
    return 0


def _store(settings: Settings, folder: Path | None) -> KeyFolder:
    if folder is None:
        folder = key_folder_of(settings.trust.keys or "keys")
    return KeyFolder(folder, domain=settings.trust.domain)


def _chosen(directory: KeyDirectory, which: str) -> list[TrustedKey]:
    found = [each for each in directory.keys.values() if which == each.kid or which in each.principals]
    if not found:
        known = [*directory.keys, *(name for each in directory.keys.values() for name in each.principals)]
        raise BusError(f"no key {which[:80]!r}{nearest(which, known)}; `sealbus key list` shows them")
    return found
