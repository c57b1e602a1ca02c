"""`sealbus door add|list|remove`: who may use the gateway, as which agent. `consumers.gateway.doors` judges."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import click
import msgspec

from bus.clock import SystemClock
from bus.errors import BusError, ConfigurationError
from bus.nearest import nearest
from bus.settings.schema import Settings
from bus.telemetry.terminal import printable
from bus.trust.keys.key_folder import JWKS, KeyFolder, key_folder_of
from bus.trust.labels import INSTRUCTING, LEVELS
from bus.trust.opening import ALLOW_ALL
from bus.trust.policy.reading import read_policy
from consumers.cli.io.output import Listing, VerbResult
from consumers.cli.io.parameter_types import DURATION_TYPE, TEXT_ID, OneOf
from consumers.cli.session import CommandSession, changing, gathered, verb
from consumers.cli.shell import VerbGroup
from consumers.gateway.agents import GATEWAY_AGENT
from consumers.gateway.credentials import DOORS, MODEL_DOORS, Credential, Credentials, Door, DoorsFile, make_token
from consumers.gateway.doors import (
    CredentialLine,
    credential_line,
    default_ceiling,
    doors_file,
    key_types,
    policy_lines,
    sign_for,
)

__all__ = ["door"]

_LAST_SIGNED_MS: Final = 60_000
_OPEN_DOORS: Final = tuple(each for each in DOORS if each != "a2a")
"""Those that a gateway has."""
_COLUMNS: Final[dict[str, Any]] = {
    "NAME": "name",
    "AGENT": "agent",
    "MAY ASK": "to",
    "TYPES": "types",
    "DOORS": "doors",
    "TRUSTED AS": "trusted_as",
    "UNTIL": "until",
}

_doors_option = click.option(
    "--doors",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file of the credentials.  [default: doors.toml beside sealbus.toml]",
)


@click.group(cls=VerbGroup)
def door() -> None:
    """Say who may use the gateway: each credential is a token, an agent whose name it has, and whom it may ask.

    The file has no token, only hashes. A running gateway uses a changed file within seconds. `sealbus check --only
    doors` finds what is wrong with it.

    \b
    Examples:
      sealbus door add ci --agent ci@acme --to researcher@svc
      sealbus door list
      sealbus door remove ci
    """


class _AddOptions(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    agent: str
    to: tuple[str, ...]
    types: tuple[str, ...]
    doors: tuple[str, ...]
    trusted_as: str | None
    rate: float
    open_tasks: int
    streams: int
    expires: float | None
    rotate: bool
    file: Path | None
    token_file: Path | None


def _doors(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    kind = OneOf(_OPEN_DOORS)
    return tuple(kind.convert(name, parameter, ctx) for text in value for name in text.split(",") if name)


@door.command()
@click.argument("name", metavar="NAME", type=TEXT_ID)
@click.option("--agent", type=TEXT_ID, metavar="AGENT", help="The agent whose name its messages have.")
@click.option("--to", multiple=True, metavar="AGENT", help="An agent that it may ask, or a glob; repeatable.")
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="A message type that it sends; repeatable.  [default: task.request]",
)
@click.option(
    "--door", "doors", multiple=True, metavar="DOOR,...", callback=_doors, help="http, mcp, hook.  [default: http]"
)
@click.option(
    "--trusted-as",
    type=OneOf(LEVELS),
    help="How far its content is trusted at most.  [default: user_request; by mcp and hook model_generated]",
)
@click.option("--rate", type=click.FloatRange(min=0.01), default=10.0, show_default=True, help="Requests a second.")
@click.option("--open-tasks", type=click.IntRange(1), default=100, show_default=True, help="Open tasks at a time.")
@click.option("--streams", type=click.IntRange(0), default=20, show_default=True, help="Streams and waiting calls.")
@click.option("--expires", type=DURATION_TYPE, metavar="TIME", help="When the token ends, such as 90d.")
@click.option(
    "--rotate", is_flag=True, help="A second token for a credential that is there; its older ones end in a day."
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the token there, for its owner alone, instead of printing it.",
)
@_doors_option
@verb(CredentialLine)
@gathered(_AddOptions)
def add(session: CommandSession, options: _AddOptions) -> VerbResult:
    """Let the holder of a new token use the gateway. The token is shown once, and stored nowhere.

    Where keys are configured, the gateway's key may sign for the agent from now on; where a policy is, the lines that
    it lacks are added to its end. What comes by mcp or hook was written by a model: it is trusted less than a user, and
    what such a run asks of others needs a person.

    \b
    Examples:
      sealbus door add ci --agent ci@acme --to researcher@svc
      sealbus door add shop --agent shop@acme --to 'orders@*' --type order.placed --type task.request --expires 90d
      sealbus door add claude --agent claude@laptop --to researcher@svc --door mcp --token-file ~/.sealbus-token
      sealbus door add ci --rotate
    """
    settings = session.settings()
    file = DoorsFile(doors_file(options.file, session.project_folder))
    now = datetime.now(UTC)
    until = None if options.expires is None else now + timedelta(seconds=options.expires)
    token, known = make_token(not_after=until)
    made: list[Credential] = []

    def change(before: Credentials) -> list[Credential]:
        if options.rotate:
            made[:] = [_rotated(before, options, known, now)]
        else:
            made[:] = [_new(before, options, known, has_policy=_has_policy(settings))]
        others = [each for each in before.all if each.name != options.name]
        key_types([*others, *made])
        return [*others, *made]

    after = file.change(change)
    notes = [*_also_sign(settings, after), *_also_allow(settings, made[0])]
    if options.token_file is not None:
        _write_token(options.token_file, token)
        notes.append(f"the token is in {options.token_file}, for you alone")
    notes.append(f"written to {file.path}; a running gateway uses it within seconds")
    shown = None if options.token_file is not None else token
    if shown is not None and not session.as_json:
        notes.insert(0, f"token (shown once, stored nowhere): {token}")
    line = credential_line(made[0], shown if session.as_json else None)
    return Listing([line], _COLUMNS, notes=notes)


@door.command("list")
@_doors_option
@verb(CredentialLine)
def list_(session: CommandSession, *, file: Path | None) -> VerbResult:
    """List who may use the gateway, and for what.

    \b
    Examples:
      sealbus door list
      sealbus door list -o json
    """
    path = doors_file(file, session.project_folder)
    found = DoorsFile(path).read().all
    return Listing(
        [credential_line(each) for each in found],
        _COLUMNS,
        empty=f"{path} has no credential. `sealbus door add NAME --agent AGENT --to AGENT` makes one",
    )


@door.command()
@click.argument("name", metavar="NAME")
@_doors_option
@changing
@verb(CredentialLine)
def remove(session: CommandSession, *, name: str, file: Path | None, why: str, dry_run: bool, yes: bool) -> VerbResult:
    """Let a credential use the gateway no longer: its streams end within half a minute, its tasks stay unread.

    Its open tasks are cancelled once no gateway has had it for 30 seconds.

    \b
    Examples:
      sealbus door remove ci --why "moved to the new pipeline"
      sealbus door remove ci --dry-run
    """
    settings = session.settings()
    doors = DoorsFile(doors_file(file, session.project_folder))
    before = doors.read()
    if name not in before.by_name:
        raise BusError(f"no credential {printable(name[:80])!r}{nearest(name, before.by_name)}: `sealbus door list`")
    line = credential_line(before.by_name[name])
    if dry_run:
        return Listing([line], _COLUMNS, notes=["it would be removed"])
    session.confirm(f"Remove {printable(name)} ({line.agent}) from the gateway?", yes=yes)
    after = doors.change(lambda known: [each for each in known.all if each.name != name])
    notes = [*_also_sign(settings, after), *([f"why: {why}"] if why else [])]
    if _has_policy(settings):
        notes.append(
            f"its rules in {settings.policy.file} stay: door-{name}, door-{name}-answers, and its [[agents]] row"
        )
    return Listing([line], _COLUMNS, notes=[*notes, "removed"])


def _has_policy(settings: Settings) -> bool:
    return settings.policy.file not in ("", ALLOW_ALL)


def _new(before: Credentials, options: _AddOptions, token: Any, *, has_policy: bool) -> Credential:
    if options.name in before.by_name:
        raise click.UsageError(f"there is a credential {options.name}: `--rotate` gives it another token")
    if options.agent is None or not options.to:
        raise click.UsageError("name its agent and whom it may ask: --agent AGENT --to AGENT")
    if options.agent == GATEWAY_AGENT:
        raise click.UsageError(f"{GATEWAY_AGENT} is the gateway itself: name the agent that its holder is")
    doors = cast("tuple[Door, ...]", options.doors or ("http",))
    return Credential(
        name=options.name,
        agent=options.agent,
        to=options.to,
        tokens=(token,),
        types=options.types or ("task.request",),
        doors=doors,
        trust_at_most=options.trusted_as or default_ceiling(doors, has_policy=has_policy),
        rate=options.rate,
        burst=max(1, round(options.rate * 2)),
        streams=options.streams,
        open_tasks=options.open_tasks,
    )


def _rotated(before: Credentials, options: _AddOptions, token: Any, now: datetime) -> Credential:
    if options.name not in before.by_name:
        raise BusError(f"no credential {printable(options.name)!r}{nearest(options.name, before.by_name)} to rotate")
    known = before.by_name[options.name]
    end = now + timedelta(days=1)
    older = [
        msgspec.structs.replace(each, not_after=end if each.not_after is None else min(each.not_after, end))
        for each in known.tokens
        if each.not_after is None or each.not_after > now
    ]
    return msgspec.structs.replace(known, tokens=(*older[-1:], token))


def _also_sign(settings: Settings, credentials: Credentials) -> list[str]:
    """Bring the gateway's key up to the credentials, where there are keys; return what to say of it."""
    if not settings.trust.keys:
        return ["no keys are configured (trust.keys): whoever reaches the log may use any name"]
    folder = key_folder_of(settings.trust.keys)
    if not os.access(folder, os.W_OK) or not (folder / JWKS).exists():
        agents = ", ".join(sorted({each.agent for each in credentials.all}))
        return [f"{folder} cannot be changed here: let the key of {GATEWAY_AGENT} sign for {agents}"]
    kid = sign_for(
        KeyFolder(folder, domain=settings.trust.domain),
        credentials.all,
        not_before_ms=SystemClock().now_ms() - _LAST_SIGNED_MS,
    )
    return [f"the gateway's key {kid} signs for its agents; it counts when the last worker has read the keys again"]


def _also_allow(settings: Settings, credential: Credential) -> list[str]:
    """Add the lines that the policy lacks; return what to say of it."""
    if not _has_policy(settings):
        if set(credential.doors) & MODEL_DOORS and credential.trust_at_most == INSTRUCTING:
            return ["without a policy (policy.file) what a model asks by this door counts as a user's request"]
        return []
    path = Path(settings.policy.file)
    try:
        lines = policy_lines(read_policy(path), credential)
        if not lines:
            return []
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
    except ConfigurationError as error:
        return [str(error)]
    except OSError as error:
        return [f"{path} cannot be changed here ({error.strerror}); add:{lines}"]
    return [f"added to {path}:{lines}"]


def _write_token(path: Path, token: str) -> None:
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(token + "\n")
        path.chmod(0o600)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
