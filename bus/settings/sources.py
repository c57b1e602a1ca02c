"""The sources of settings: a TOML file, the environment, secret files, flags.

Owns reading each source into values with their origin, and refusing unknown names with the nearest known one. Values
given as text stay text here; `bus.settings.schema` owns types and ranges, `config/default.toml` the defaults.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from bus.errors import ConfigurationError
from bus.settings.texts import outside_name

__all__ = [
    "CONFIG_VARIABLE",
    "FIXED",
    "SettingValue",
    "from_environment",
    "from_file",
    "from_flags",
    "given_to",
    "variable",
]

CONFIG_VARIABLE: Final = "SEALBUS_CONFIG"

_TEXT: Final = "utf-8-sig"
"""Skips the byte order mark that some editors and shells write: it belongs to no password, and is not TOML."""
_PREFIX: Final = "SEALBUS_"
_FILE: Final = "_FILE"
FIXED: Final = MappingProxyType(
    {
        "acks": ("all", "an acknowledged message must survive the loss of a broker"),
        "enable_idempotence": (
            "true",
            "the client repeats requests, and a repetition must not become a second record",
        ),
        "enable_auto_commit": ("false", "an offset is committed when its message is settled, not when it was fetched"),
        "auto_offset_reset": (
            "none",
            "a committed offset that is out of range is a possible loss: the worker stops instead of jumping",
        ),
        "isolation_level": ("read_committed", "records of aborted transactions were never published"),
        "check_crcs": ("true", "a record that was damaged on its way must not be judged"),
        "group_instance_id": (
            "unset",
            "static members are not fenced: two processes with one id would both own its partitions",
        ),
        "allow_auto_create_topics": ("false", "a typo must not become a topic"),
        "partitioner": ("murmur2", "one key has one partition, whichever client publishes"),
    }
)
"""Settings of Kafka clients that sealbus fixes: the value, and the reason why it cannot be changed."""

_FLAG_NAMES: Final = {
    "bus": "bus.url",
    "log-level": "log.level",
    "log-format": "log.format",
    "jwks": "trust.keys",
    "key-file": "trust.key_file",
    "policy": "policy.file",
}


class SettingValue(NamedTuple):
    """A value and its origin.

    The origin is "default", "file PATH", a variable's name, "flag --NAME" or "the url given to connect".
    """

    value: object
    origin: str
    folder: Path | None = None
    """Relative paths in the value are relative to it; None: to the current folder."""


def variable(name: str) -> str:
    """Return the environment variable of the setting *name* ("section.name")."""
    return _PREFIX + name.replace(".", "__").upper()


def from_file(
    path: Path, known: Collection[str], *, origin: str | None = None, folder: Path | None = None
) -> dict[str, SettingValue]:
    """Read the settings in a TOML file; relative paths in it are relative to *folder*.

    Raises `ConfigurationError` if it cannot be read, is not TOML or has an unknown key.
    """
    origin = origin or f"file {path}"
    return {name: SettingValue(value, origin, folder) for name, value in _flat(_read_toml(path), known, origin)}


def from_environment(env: Mapping[str, str], known: Collection[str]) -> dict[str, SettingValue]:
    """Read `SEALBUS_SECTION__NAME`, and otherwise `SEALBUS_SECTION__NAME_FILE`: a file whose content is the value.

    Other variables are not settings, and an image or a cluster may set any: only one with `__`, or with the name of a
    setting but for that, is meant as one. Raises `ConfigurationError` for such a one that is unknown, and for an
    unreadable secret file.
    """
    direct = {variable(name): name for name in known}
    by_file = {key + _FILE: name for key, name in direct.items()}
    mistaken = {key.replace("__", "_") for key in (*direct, *by_file)}
    ours = sorted(key for key in env if key.startswith(_PREFIX) and ("__" in key or key in mistaken))
    for key in ours:
        if key not in direct and key not in by_file:
            raise _unknown(key, [*direct, *by_file], "the environment")
    values = {
        by_file[key]: SettingValue(_read_secret(key, env[key]), key)
        for key in ours
        if key in by_file and key.removesuffix(_FILE) not in env
    }
    return values | {direct[key]: SettingValue(env[key], key) for key in ours if key in direct}


def from_flags(flags: Mapping[str, object], known: Collection[str]) -> dict[str, SettingValue]:
    """Read flags by their names without leading dashes.

    For example `bus`, `concurrency`, `worker.concurrency`, `drain-timeout` or `drain_timeout_s`. A name that occurs in
    two sections needs its section. None means not given. A `SettingValue` keeps its origin. Raises `ConfigurationError`
    for an unknown flag.
    """
    names = _flag_names(known)
    values = {}
    for flag, value in flags.items():
        written = flag.lstrip("-").replace("_", "-")
        if written not in names:
            raise _unknown(f"--{written}", [f"--{name}" for name in names], "the flags")
        if value is not None:
            values[names[written]] = (
                value if isinstance(value, SettingValue) else SettingValue(value, f"flag --{written}")
            )
    return values


def given_to(call: str, *, url: str | None = None, namespace: str | None = None) -> dict[str, object]:
    """Return the arguments of the function *call* as flags, so that errors name the argument instead of a flag."""
    values = {"url": url, "namespace": namespace}
    return {
        f"bus.{name}": SettingValue(value, f"the {name} given to {call}")
        for name, value in values.items()
        if value is not None
    }


def _flag_names(known: Collection[str]) -> dict[str, str]:
    short: dict[str, list[str]] = {}
    for name in known:
        for spelling in _spellings(name.partition(".")[2]):
            short.setdefault(spelling, []).append(name)
    full = {spelling: name for name in known for spelling in _spellings(name)}
    return {flag: names[0] for flag, names in short.items() if len(names) == 1} | full | _FLAG_NAMES


def _spellings(name: str) -> set[str]:
    return {name.replace("_", "-"), name.removesuffix("_s").replace("_", "-")}


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(_TEXT))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not TOML: {error}") from error


def _flat(tables: Mapping[str, object], known: Collection[str], origin: str) -> Iterator[tuple[str, object]]:
    sections = sorted({name.partition(".")[0] for name in known})
    for section, table in tables.items():
        if section not in sections:
            raise _unknown(section, [*sections, *known], origin)
        if not isinstance(table, dict):
            raise ConfigurationError(f"{section} in {origin}: found {table!r}, expected a table [{section}]")
        for key, value in table.items():
            name = f"{section}.{key}"
            if name not in known:
                raise _unknown(name, known, origin)
            yield name, value


def _read_secret(key: str, path: str) -> str:
    try:
        return Path(outside_name(path, key)).read_text(_TEXT)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(f"{key}: {path} cannot be read: {error}") from error


def _unknown(name: str, known: Collection[str], location: str) -> ConfigurationError:
    own = name.removeprefix(f"{_PREFIX}KAFKA__").removeprefix("kafka.").lower()
    if own in FIXED and own != name:
        value, reason = FIXED[own]
        return ConfigurationError(f"{name} in {location} cannot be set: it is always {value}, because {reason}")
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0)
    return ConfigurationError(f"unknown setting {name} in {location}; the nearest known one is {nearest[0]}")
