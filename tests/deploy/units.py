"""deploy/systemd as systemd reads it: a unit with its specifiers, and the process that it starts."""

from __future__ import annotations

import os
import re
import shlex
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.deploy.machines import ROOT, Mounted, Started, start

__all__ = ["FOLDER", "Machine", "Unit", "unit_of"]

FOLDER = ROOT / "deploy" / "systemd"
_CREDENTIALS = "/run/credentials"
_NOBODY = 0xFFFFFFFF


class Unit(NamedTuple):
    """A unit and its instance: each setting with all its values, specifiers replaced."""

    name: str
    settings: Mapping[str, list[str]]

    def one(self, name: str) -> str:
        return self.settings[name][-1]

    @property
    def credentials(self) -> str:
        return f"{_CREDENTIALS}/{self.name}"


def unit_of(file: str, instance: str = "") -> Unit:
    """The unit in *file*, as that *instance* of a template."""
    name = file.replace("@.", f"@{instance}.")
    specifiers = {"%i": instance, "%I": instance, "%d": f"{_CREDENTIALS}/{name}", "%n": name}
    settings: dict[str, list[str]] = {}
    for line in (FOLDER / file).read_text().splitlines():
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            settings.setdefault(key, []).append(re.sub("%.", lambda found: specifiers[found[0]], value))
    return Unit(name, settings)


class Machine:
    """A machine with /etc/sealbus in *etc* and /var/lib in *state*, and one user for the units."""

    def __init__(self, folder: Path, *, user: int) -> None:
        self.etc, self.state, self.library = folder / "etc", folder / "state", folder / "library"
        for each in (self.etc, self.state, self.library):
            each.mkdir()
        self._folder = folder
        self._user = user
        self.running: dict[str, Started] = {}

    def start(self, unit: Unit, *instead: str, stdin: bytes = b"") -> Started:
        """Start what the unit starts; with *instead*, another command of `sealbus` as the same user."""
        program, sealbus, *words = shlex.split(unit.one("ExecStart"))
        assert (program, sealbus) == ("/usr/bin/env", "sealbus")
        assert (unit.one("User"), unit.one("Group")) == ("sealbus", "sealbus")
        assert unit.one("ProtectSystem") == "strict"
        environment = self._environment(unit)
        arguments = [re.sub(r"\$\{(\w+)\}", lambda found: environment[found[1]], word) for word in words]
        begun = start(
            list(instead) or arguments,
            user=self._user,
            group=self._user,
            groups=[],
            environment=environment,
            mounts=self._mounts(unit),
            log=self._folder / f"{unit.name}{'-exec' if instead else ''}.log",
            cwd=unit.one("WorkingDirectory"),
            stdin=stdin,
        )
        if not instead:
            self.running[unit.name] = begun
        return begun

    def _environment(self, unit: Unit) -> dict[str, str]:
        found = dict(each.split("=", 1) for each in unit.settings.get("Environment", ()))
        for file in unit.settings["EnvironmentFile"]:
            path = self.etc / Path(file.removeprefix("-")).relative_to("/etc/sealbus")
            if path.exists() or not file.startswith("-"):
                found |= dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
        return found | {
            "HOME": "/var/lib/sealbus",
            "STATE_DIRECTORY": "/var/lib/sealbus",
            "CREDENTIALS_DIRECTORY": unit.credentials,
        }

    def _mounts(self, unit: Unit) -> list[Mounted]:
        assert unit.one("StateDirectory") == "sealbus"
        state = self.state / "sealbus"
        state.mkdir(exist_ok=True)
        # At each start systemd gives the folder to the unit's user.
        os.chown(state, self._user, self._user)
        state.chmod(int(unit.one("StateDirectoryMode"), 8))
        return [
            Mounted("/tmp", None, mode=0o1777),  # noqa: S108 - PrivateTmp
            Mounted("/etc/sealbus", self.etc),
            Mounted("/usr/local/lib/sealbus", self.library),
            Mounted("/var/lib/sealbus", state, is_read_only=False),
            Mounted(unit.credentials, self._credentials(unit)),
        ]

    def _credentials(self, unit: Unit) -> Path:
        """The unit's credentials, as systemd 250 and later lay them out: of root, and its user on an access list."""
        folder = self._folder / "credentials" / unit.name
        folder.mkdir(parents=True, exist_ok=True)
        for each in unit.settings.get("LoadCredential", ()):
            name, _, source = each.partition(":")
            path = folder / name
            path.unlink(missing_ok=True)
            path.write_bytes((self.etc / Path(source).relative_to("/etc/sealbus")).read_bytes())
            path.chmod(0o400)
            _let(path, self._user, 4)
        folder.chmod(0o500)
        _let(folder, self._user, 5)
        return folder

    def close(self) -> None:
        for each in self.running.values():
            if each.process.poll() is None:
                each.process.kill()
            each.process.wait()


def _let(path: Path, user: int, rights: int) -> None:
    entries = [(1, rights, _NOBODY), (2, rights, user), (4, 0, _NOBODY), (16, rights, _NOBODY), (32, 0, _NOBODY)]
    text = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", text)
