"""Load settings: flags over environment over file over defaults.

Owns precedence, conversion, the rules between fields, and describing values with their origins and without secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, get_args, get_origin
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta

from bus.errors import ConfigurationError
from bus.protocol.identifiers import is_namespace
from bus.settings import durations, sources
from bus.settings.project import find_settings_file
from bus.settings.schema import DAY_S, DURATION_MARK, Settings
from bus.settings.texts import outside_name, stripped, without_passwords

__all__ = ["SETTING_NAMES", "Loaded", "describe", "load", "load_project"]


class Loaded(msgspec.Struct, frozen=True):
    """Settings and their origins.

    *origins* maps "section.name" to "default", "file PATH", a variable's name or "flag --NAME". *file* is the TOML file
    that was read.
    """

    settings: Settings
    origins: dict[str, str]
    file: Path | None = None


_SECTIONS: Final = {field.name: field.type for field in msgspec.structs.fields(Settings)}


_TYPES: Final[Mapping[str, Any]] = {
    f"{section}.{field.name}": field.type
    for section, struct in _SECTIONS.items()
    for field in msgspec.structs.fields(struct)
}


SETTING_NAMES: Final = tuple(_TYPES)
"""The name of every setting, "section.name"."""


_NO_FLAGS: Final[Mapping[str, object]] = MappingProxyType({})


_SQLITE: Final = "sqlite:///"


_BOOLEANS: Final[Mapping[str, bool]] = MappingProxyType(
    {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
)


_WORDS: Final = frozenset({"auto", "off", "allow-all"})
"""What a setting may say in place of a path."""


def load(*, flags: Mapping[str, object] = _NO_FLAGS, env: Mapping[str, str], file: Path | None) -> Loaded:
    """Load the settings: flags over environment over file over defaults.

    That is: flags, `SEALBUS_SECTION__NAME`, `SEALBUS_SECTION__NAME_FILE`, the TOML *file* (else `SEALBUS_CONFIG`), and
    the defaults. Relative paths in a file are relative to it. Raises `ConfigurationError` for unknown names (with the
    nearest known one), unreadable files, and wrong types and ranges.
    """
    return _load(flags, env, _named(env, file), project=None)


def load_project(
    *, flags: Mapping[str, object] = _NO_FLAGS, env: Mapping[str, str], file: Path | None = None
) -> Loaded:
    """Load the settings of a program: as `load`, and where no file is named, from the `sealbus.toml` of its project.

    Raises ConfigurationError also for a `sealbus.toml` that belongs to another user.
    """
    named = _named(env, file)
    if named is not None or (found := find_settings_file()) is None:
        return _load(flags, env, named, project=None)
    return _load(flags, env, found, project=found.parent)


def _load(flags: Mapping[str, object], env: Mapping[str, str], file: Path | None, *, project: Path | None) -> Loaded:
    """Load the settings; relative paths among the defaults are relative to *project*."""
    raw_values = sources.from_file(_default_file(), _TYPES, origin="default", folder=project)
    if file is not None:
        raw_values |= sources.from_file(file, _TYPES, folder=file.parent.resolve())
    raw_values |= sources.from_environment(env, _TYPES) | sources.from_flags(flags, _TYPES)
    sections: dict[str, dict[str, object]] = {section: {} for section in _SECTIONS}
    for name in _TYPES:
        section, _, key = name.partition(".")
        sections[section][key] = _convert(name, raw_values[name])
    settings = Settings(**{section: struct(**sections[section]) for section, struct in _SECTIONS.items()})
    for name, expected in _broken_rules(settings):
        raise _wrong(name, raw_values[name], expected)
    return Loaded(settings, {name: raw_values[name].origin for name in _TYPES}, file)


def _named(env: Mapping[str, str], file: Path | None) -> Path | None:
    """Return *file*, else the one that the environment names."""
    variable = sources.CONFIG_VARIABLE
    name = outside_name(env.get(variable, ""), variable) if file is None else outside_name(str(file), "--config")
    return Path(name) if name else None


def describe(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Return each setting's name, its value as text (which `load` reads back, except secrets) and its origin."""
    shown = []
    for name, kind in _TYPES.items():
        section, _, key = name.partition(".")
        shown.append((name, _shown(getattr(getattr(loaded.settings, section), key), kind), loaded.origins[name]))
    return shown


def _default_file() -> Path:
    """Return the file of defaults: beside the package in a wheel, beside the packages in a checkout."""
    shipped = (here := Path(__file__).parent.parent) / "config" / "default.toml"
    return shipped if shipped.is_file() else here.parent / "config" / "default.toml"


def _extra(kind: Any, key: str) -> bool:
    return any(isinstance(meta, Meta) and key in (meta.extra or {}) for meta in get_args(kind))


def _convert(name: str, raw_values: sources.SettingValue) -> object:
    kind = _TYPES[name]
    value = _read(kind, raw_values.value, f"{name} ({raw_values.origin})")
    try:
        if _extra(kind, "duration"):
            value = durations.seconds(value)
        if _extra(kind, "tiers"):
            value = _tiers(value)
        if raw_values.folder is not None and isinstance(value, str) and _extra(kind, "path"):
            value = _placed(value, raw_values.folder)
        return msgspec.convert(value, type=kind, strict=not isinstance(value, str))
    except (msgspec.ValidationError, ValueError) as error:
        raise _wrong(
            name, raw_values, (_range(kind) if isinstance(value, float) else "") or _in_words(str(error))
        ) from error


def _read(kind: Any, value: object, what: str) -> object:
    """Return what the *value* of a setting means: people write cases, booleans, lists and ends of lines as they like.

    Raises ConfigurationError, which begins with *what*, for invisible characters inside a text.
    """
    if _extra(kind, "secret"):
        return stripped(value) if isinstance(value, str) else value
    if isinstance(value, list):
        return [_read(None, item, what) for item in value]
    if not isinstance(value, str):
        return value
    if _extra(kind, "names") or _extra(kind, "tiers"):
        return [item for part in value.split(",") if (item := outside_name(part, what)) or _extra(kind, "tiers")]
    text = outside_name(value, what)
    if kind is bool or bool in get_args(kind):
        return _BOOLEANS.get(text.lower(), text.lower())
    if _extra(kind, "path"):
        scheme, mark, rest = text.partition("://")
        return scheme.lower() + mark + rest if mark or text.lower() in _WORDS else text
    return {choice.lower(): choice for choice in _choices(kind)}.get(text.lower(), text)


def _placed(value: str, folder: Path) -> str:
    """Return the path or URL *value* of a setting, relative to *folder* where it is relative."""
    if not value.startswith(_SQLITE):
        return value if not value or "://" in value or value in _WORDS else str(folder / value)
    path, mark, query = value.removeprefix(_SQLITE).partition("?")
    if not path or path.startswith("/") or path == ":memory:":
        return value
    return f"{_SQLITE}{quote(str(folder / unquote(path)))}{mark}{query}"


def _in_words(expected: str) -> str:
    """Return what msgspec expected, for people who write no Python."""
    words = {"`int`, got `str`": "a whole number", "`float`, got `str`": "a number"}
    expected = expected.removeprefix("Expected ")
    return words.get(expected, expected)


def _tiers(value: object) -> list[str]:
    """Return tiers in their shortest form.

    They become part of topic names: "300s" and "5m" must not be two tiers.
    """
    if not isinstance(value, list | tuple):
        raise ValueError("a list of durations")  # noqa: TRY004 - one error for every wrong value
    return [durations.duration_words(durations.seconds(item)) for item in value]


def _wrong(name: str, raw_values: sources.SettingValue, expected: str) -> ConfigurationError:
    kind = _TYPES[name]
    # A secret of the wrong type (a number, a list) is still a secret.
    found = repr(
        _shown(raw_values.value, kind)
        if isinstance(raw_values.value, str) or _extra(kind, "secret")
        else raw_values.value
    )
    return ConfigurationError(f"{name} ({raw_values.origin}): found {found}, expected {_expectation(kind) or expected}")


def _expectation(kind: Any) -> str:
    """Describe the values that the type of a setting allows: its choices, or the meaning of a pattern."""
    for meta in get_args(kind):
        if isinstance(meta, Meta) and meta.extra and "expected" in meta.extra:
            return str(meta.extra["expected"])
    if kind is bool or bool in get_args(kind):
        return "true or false" if kind is bool else "true, false or auto"
    choices = _choices(kind)
    return ", ".join(choices[:-1]) + f" or {choices[-1]}" if len(choices) > 1 else ""


def _choices(kind: Any) -> list[str]:
    """Return the words that the type of a setting allows, if it allows only some."""
    return [choice for part in (kind, *get_args(kind)) if get_origin(part) is Literal for choice in get_args(part)]


def _range(kind: Any) -> str:
    """Return the allowed range of durations."""
    limits = next((meta for meta in get_args(kind) if isinstance(meta, Meta) and meta.extra == DURATION_MARK), None)
    return (
        ""
        if limits is None
        else f"{durations.duration_words(limits.ge or 0)} to {durations.duration_words(limits.le or 0)}"
    )


def _shown(value: object, kind: Any) -> str:
    if _extra(kind, "secret"):
        return "***" if value else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.15g}s" if _extra(kind, "duration") else f"{value:.15g}"
    return without_passwords(str(value))


def _broken_rules(settings: Settings) -> Iterator[tuple[str, str]]:
    """Check the rules between fields, and forms that no range can express.

    Yields the name of each offending setting and what is expected of it.
    """
    publish, worker, retry, kafka = settings.publish, settings.worker, settings.retry, settings.kafka
    needs_user = kafka.security_protocol.startswith("sasl") and kafka.sasl_mechanism != "OAUTHBEARER"
    needs_token = kafka.security_protocol.startswith("sasl") and kafka.sasl_mechanism == "OAUTHBEARER"
    rules = (
        (
            "bus.namespace",
            is_namespace(settings.bus.namespace),
            "lower-case letters and digits, in parts joined by single hyphens",
        ),
        ("publish.ttl_s", publish.ttl_s <= publish.max_ttl_s, "at most publish.max_ttl_s"),
        (
            "publish.buffer_bytes",
            publish.buffer_bytes >= publish.max_message_bytes,
            "at least publish.max_message_bytes",
        ),
        (
            "worker.max_in_flight_bytes",
            worker.max_in_flight_bytes >= publish.max_message_bytes,
            "at least publish.max_message_bytes",
        ),
        ("retry.cap_s", retry.cap_s >= retry.base_s, "at least retry.base_s"),
        (
            "retry.tiers",
            retry.tiers_s[0] > 0 and _ascend(retry.tiers_s),
            "durations above 0, each longer than the one before",
        ),
        ("retry.tiers", retry.tiers_s[-1] <= 36_500 * DAY_S, "durations of at most 36500d"),
        ("kafka.username", not needs_user or bool(kafka.username), f"a user for {kafka.sasl_mechanism}"),
        ("kafka.password", not needs_user or bool(kafka.password), "the password of kafka.username"),
        ("kafka.token", not needs_token or bool(kafka.token), "MODULE:FUNCTION, where bearer tokens come from"),
        (
            "kafka.heartbeat_s",
            kafka.heartbeat_s * 3 <= kafka.session_timeout_s,
            "at most a third of kafka.session_timeout_s",
        ),
        ("topics.retention_s", settings.topics.retention_s >= publish.max_ttl_s, "at least publish.max_ttl_s"),
    )
    return ((name, expected) for name, holds, expected in rules if not holds)


def _ascend(values: tuple[float, ...]) -> bool:
    return all(left < right for left, right in pairwise(values))
