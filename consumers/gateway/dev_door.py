"""The door of `sealbus dev`: a token for whoever develops, beside the log of the project.

It speaks for the command line's agent, whom the policy of a project knows, and counts as a user.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bus.clock import SystemClock
from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from bus.trust.keys.key_folder import KeyFolder, key_folder_of
from bus.trust.opening import ALLOW_ALL
from bus.trust.policy.reading import read_policy
from consumers.gateway.agents import GATEWAY_AGENT, GATEWAY_GROUP
from consumers.gateway.credentials import Credential, DoorsFile, TokenHash, hash_of_token, make_token
from consumers.gateway.doors import sign_for

__all__ = ["DEV_AGENT", "DevDoor", "prepare_dev_door"]

DEV_AGENT: Final = "cli@sealbus"
_FOLDER: Final = ".sealbus"
_LAST_SIGNED_MS: Final = 60_000


class DevDoor(NamedTuple):
    """The files of the door; *lacks* says what keeps it shut."""

    doors: Path
    token: Path
    lacks: str = ""


def prepare_dev_door(folder: Path, settings: Settings, types: Sequence[str]) -> DevDoor:
    """Make the token and the credential of the project in *folder*, for messages of *types*.

    Raises ConfigurationError for files that cannot be written.
    """
    place = folder / _FOLDER
    door = DevDoor(place / "dev-doors.toml", place / "dev.token")
    if lacks := _lacks(settings):
        return door._replace(lacks=lacks)
    token = _token(door.token)
    credential = Credential(
        name="dev",
        agent=DEV_AGENT,
        to=("**",),
        types=tuple(dict.fromkeys(("task.request", *types))),
        doors=("http", "mcp"),
        tokens=(TokenHash(sha256=hash_of_token(token)),),
        rate=1_000.0,
        burst=1_000,
        streams=100,
        open_tasks=1_000,
    )
    DoorsFile(door.doors).change(lambda _: [credential])
    if settings.trust.keys:
        keys = key_folder_of(settings.trust.keys)
        now_ms = SystemClock().now_ms()
        sign_for(KeyFolder(keys, domain=settings.trust.domain), [credential], not_before_ms=now_ms - _LAST_SIGNED_MS)
    return door


def _lacks(settings: Settings) -> str:
    if settings.policy.file in ("", ALLOW_ALL):
        return ""
    rules = read_policy(Path(settings.policy.file))
    without = [each for each in (GATEWAY_AGENT, DEV_AGENT) if GATEWAY_GROUP not in rules.agent(each).groups]
    if not without:
        return ""
    return f'groups = ["{GATEWAY_GROUP}"] in the [[agents]] rows of {" and ".join(without)} in {settings.policy.file}'


def _token(path: Path) -> str:
    """Return the token in *path*; a new one where there is none."""
    try:
        if (found := path.read_text("utf-8").strip()) and path.stat().st_mode & 0o077 == 0:
            return found
    except OSError:
        pass
    token, _ = make_token()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(token + "\n")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
    return token
