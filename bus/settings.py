"""Settings: what can be set, within which limits, and which source wins.

Owns the frozen Structs with their ranges, the rules between fields, and showing values without their secrets.
Does not own reading the sources (`bus.sources`). Every default stands in `config/default.toml`, none here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Meta

from bus import durations, sources
from bus.errors import ConfigurationError
from bus.names import is_namespace

__all__ = ["Bus", "DeadLetter", "Inbox", "Kafka", "Loaded", "Log", "Publish", "Retry", "Settings", "Topics", "Worker", "describe", "load"]

_MIB = 1_048_576
# What fields say of themselves in Meta(extra=...): "duration" is read into seconds, "secret" is never shown.
_DURATION = {"duration": True}

_DAY_S = 86_400
# Counted in milliseconds, and no time that is reckoned from them leaves the calendar or 64 bits.
Duration: TypeAlias = Annotated[float, Meta(ge=0.001, le=36_500 * _DAY_S, extra=_DURATION)]
Pause: TypeAlias = Annotated[float, Meta(ge=0, le=36_500 * _DAY_S, extra=_DURATION)]
# Kafka's protocol has 31 bits for their milliseconds.
Timeout: TypeAlias = Annotated[float, Meta(ge=0.001, le=7 * _DAY_S, extra=_DURATION)]
# Less than the 224 days that a link of a proof chain may be old: whoever handles a message at the end of its life may still answer.
Lifetime: TypeAlias = Annotated[float, Meta(ge=0.001, le=200 * _DAY_S, extra=_DURATION)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Bus(_Section, frozen=True):
    """Which log, which part of it, and whether other users of this machine may have a part in its files."""

    url: Annotated[str, Meta(pattern=r"^(sqlite|memory|kafka)://", extra={"expected": "sqlite://..., memory:// or kafka://host:port"})]
    namespace: Annotated[str, Meta(max_length=63)]
    shared_files: bool


class Topics(_Section, frozen=True):
    """How topics are created: `create` "auto" means yes on the embedded log and no on Kafka; `retention_bytes` 0 means no limit by size."""

    partitions: Annotated[int, Meta(ge=1, le=1000)]
    create: bool | Literal["auto"]
    retention_s: Duration
    deadletter_retention_s: Annotated[float, Meta(ge=1, le=36_500 * _DAY_S, extra=_DURATION)]
    retention_bytes: Annotated[int, Meta(ge=0, le=2**62)]


class Publish(_Section, frozen=True):
    """Lifetimes, and how much may wait unacknowledged."""

    ttl_s: Lifetime
    max_ttl_s: Lifetime
    max_hops: Annotated[int, Meta(ge=0, le=10_000)]
    timeout_s: Timeout
    max_message_bytes: Annotated[int, Meta(ge=1024, le=_MIB)]
    buffer_bytes: Annotated[int, Meta(ge=1024, le=2**40)]


class Worker(_Section, frozen=True):
    """How much a worker takes on, and how long it waits."""

    concurrency: Annotated[int, Meta(ge=1, le=10_000)]
    max_in_flight: Annotated[int, Meta(ge=1, le=1_000_000)]
    max_in_flight_bytes: Annotated[int, Meta(ge=1024, le=2**40)]
    timeout_s: Duration
    drain_timeout_s: Annotated[float, Meta(ge=0, le=7 * _DAY_S, extra=_DURATION)]
    commit_interval_s: Annotated[float, Meta(ge=0.01, le=_DAY_S, extra=_DURATION)]
    max_hops: Annotated[int, Meta(ge=0, le=10_000)]
    state_dir: Annotated[str, Meta(min_length=1, extra={"expected": "auto, off or a directory"})]


class Retry(_Section, frozen=True):
    """A group's retry limit, and the tiers its retry topics are named after (`5s`, shortest form, ascending)."""

    attempts: Annotated[int, Meta(ge=1, le=100)]
    backoff: Literal["constant", "linear", "exponential"]
    base_s: Pause
    cap_s: Pause
    tiers: Annotated[tuple[str, ...], Meta(min_length=1, max_length=32, extra={"tiers": True})]

    @property
    def tiers_s(self) -> tuple[float, ...]:
        """The tiers in seconds."""
        return tuple(map(durations.seconds, self.tiers))


class DeadLetter(_Section, frozen=True):
    """Whether dead letters carry error texts and traces, which may hold secrets; and when so many die that a type pauses."""

    details: bool
    brake_share: Annotated[float, Meta(gt=0, le=1)]
    brake_window: Annotated[int, Meta(ge=2, le=100_000)]
    brake_pause_s: Duration


class Inbox(_Section, frozen=True):
    """Where it is remembered what was done. `local`: accept on Kafka a store that only this machine's workers see."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^(auto|off|(sqlite|memory|postgres|postgresql)://.*)$",
            extra={"expected": "auto, off, sqlite:///..., memory:// or postgresql://..."},
        ),
    ]
    lease_s: Annotated[float, Meta(ge=1, le=7 * _DAY_S, extra=_DURATION)]
    keep_s: Duration
    local: bool


class Kafka(_Section, frozen=True):
    """How to reach Kafka's brokers. What sealbus forces on the client has no setting (`bus.transports.kafka.options`)."""

    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]
    sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"]
    username: str
    password: Annotated[str, Meta(extra={"secret": True})]
    token: Annotated[str, Meta(pattern=r"^([\w.]+:\w+)?$", extra={"expected": "MODULE:FUNCTION"})]
    ca_file: str
    cert_file: str
    key_file: str
    key_password: Annotated[str, Meta(extra={"secret": True})]
    compression: Literal["none", "zstd", "lz4", "snappy", "gzip"]
    request_timeout_s: Timeout
    session_timeout_s: Timeout
    heartbeat_s: Annotated[float, Meta(ge=0.01, le=_DAY_S, extra=_DURATION)]
    poll_timeout_s: Timeout


class Log(_Section, frozen=True):
    """What is logged, and in which form."""

    level: Literal["debug", "info", "warning", "error"]
    format: Literal["auto", "console", "json"]


class Settings(_Section, frozen=True):
    """All settings, section by section. Durations are seconds."""

    bus: Bus
    topics: Topics
    publish: Publish
    worker: Worker
    retry: Retry
    inbox: Inbox
    deadletter: DeadLetter
    kafka: Kafka
    log: Log


class Loaded(msgspec.Struct, frozen=True):
    """Settings, and where each came from: "section.name" to "default", "file PATH", a variable's name or "flag --NAME"."""

    settings: Settings
    origins: dict[str, str]


_SECTIONS: Final = {field.name: field.type for field in msgspec.structs.fields(Settings)}
_TYPES: Final[Mapping[str, Any]] = {
    f"{section}.{field.name}": field.type for section, struct in _SECTIONS.items() for field in msgspec.structs.fields(struct)
}
_NO_FLAGS: Final[Mapping[str, object]] = MappingProxyType({})
_URL_PASSWORD: Final = re.compile(r"(://[^:@/]*:).*@")
_QUERY_SECRET: Final = re.compile(r"(?i)([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*")


def load(*, flags: Mapping[str, object] = _NO_FLAGS, env: Mapping[str, str], file: Path | None) -> Loaded:
    """Flags over `SEALBUS_SECTION__NAME` over `SEALBUS_SECTION__NAME_FILE` over the TOML *file* (else `SEALBUS_CONFIG`) over the defaults.

    Raises `ConfigurationError` for unknown names (with the nearest known one), unreadable files, and wrong types and ranges.
    """
    given = _given(flags, env, file)
    sections: dict[str, dict[str, object]] = {section: {} for section in _SECTIONS}
    for name in _TYPES:
        section, _, key = name.partition(".")
        sections[section][key] = _convert(name, given[name])
    settings = Settings(**{section: struct(**sections[section]) for section, struct in _SECTIONS.items()})
    for name, expected in _broken_rules(settings):
        raise _wrong(name, given[name], expected)
    return Loaded(settings, {name: given[name].origin for name in _TYPES})


def describe(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Each setting's name, its value as text (which `load` reads back the same, secrets aside) and its origin."""
    shown = []
    for name, kind in _TYPES.items():
        section, _, key = name.partition(".")
        shown.append((name, _shown(getattr(getattr(loaded.settings, section), key), kind), loaded.origins[name]))
    return shown


def _given(flags: Mapping[str, object], env: Mapping[str, str], file: Path | None) -> dict[str, sources.Given]:
    given = sources.from_file(_default_file(), _TYPES, origin="default")
    if file is None and env.get(sources.CONFIG_VARIABLE):
        file = Path(env[sources.CONFIG_VARIABLE])
    if file is not None:
        given |= sources.from_file(file, _TYPES)
    return given | sources.from_environment(env, _TYPES) | sources.from_flags(flags, _TYPES)


def _default_file() -> Path:
    """Beside this module in an installed wheel, beside the packages in a checkout."""
    shipped = (here := Path(__file__).parent) / "config" / "default.toml"
    return shipped if shipped.is_file() else here.parent / "config" / "default.toml"


def _extra(kind: Any, key: str) -> bool:
    return any(isinstance(meta, Meta) and key in (meta.extra or {}) for meta in get_args(kind))


def _convert(name: str, given: sources.Given) -> object:
    kind, value = _TYPES[name], given.value
    try:
        if _extra(kind, "duration"):
            value = durations.seconds(value)
        if _extra(kind, "tiers"):
            value = _tiers(value)
        return msgspec.convert(value, type=kind, strict=not isinstance(value, str))
    except (msgspec.ValidationError, ValueError) as error:
        raise _wrong(name, given, (_range(kind) if isinstance(value, float) else "") or str(error).removeprefix("Expected ")) from error


def _tiers(value: object) -> list[str]:
    """In their shortest form, because they become part of topic names: "300s" and "5m" must not be two tiers."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError("a list of durations")  # noqa: TRY004 - one error for every wrong value
    return [durations.text(durations.seconds(item)) for item in items]


def _wrong(name: str, given: sources.Given, expected: str) -> ConfigurationError:
    kind = _TYPES[name]
    # A secret of the wrong kind (a number, a list) is one all the same.
    found = repr(_shown(given.value, kind) if isinstance(given.value, str) or _extra(kind, "secret") else given.value)
    return ConfigurationError(f"{name} ({given.origin}): found {found}, expected {_expectation(kind) or expected}")


def _expectation(kind: Any) -> str:
    """What only the type can say well: its choices, or what a pattern means."""
    for meta in get_args(kind):
        if isinstance(meta, Meta) and meta.extra and "expected" in meta.extra:
            return str(meta.extra["expected"])
    if bool in get_args(kind):
        return "true, false or auto"
    choices = [choice for part in (kind, *get_args(kind)) if get_origin(part) is Literal for choice in get_args(part)]
    return ", ".join(choices[:-1]) + f" or {choices[-1]}" if len(choices) > 1 else ""


def _range(kind: Any) -> str:
    """The durations that are allowed."""
    limits = next((meta for meta in get_args(kind) if isinstance(meta, Meta) and meta.extra == _DURATION), None)
    return "" if limits is None else f"{durations.text(limits.ge or 0)} to {durations.text(limits.le or 0)}"


def _shown(value: object, kind: Any) -> str:
    if _extra(kind, "secret"):
        return "***" if value else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.15g}s" if _extra(kind, "duration") else f"{value:.15g}"
    return _QUERY_SECRET.sub(r"\1***", _URL_PASSWORD.sub(r"\1***@", str(value)))


def _broken_rules(settings: Settings) -> Iterator[tuple[str, str]]:
    """Rules between fields, and forms no range can say: the name of the offending setting and what is expected of it."""
    publish, worker, retry, kafka = settings.publish, settings.worker, settings.retry, settings.kafka
    needs_user = kafka.security_protocol.startswith("sasl") and kafka.sasl_mechanism != "OAUTHBEARER"
    needs_token = kafka.security_protocol.startswith("sasl") and kafka.sasl_mechanism == "OAUTHBEARER"
    rules = (
        ("bus.namespace", is_namespace(settings.bus.namespace), "lower-case letters and digits, in parts joined by single hyphens"),
        ("publish.ttl_s", publish.ttl_s <= publish.max_ttl_s, "at most publish.max_ttl_s"),
        ("publish.buffer_bytes", publish.buffer_bytes >= publish.max_message_bytes, "at least publish.max_message_bytes"),
        ("worker.max_in_flight_bytes", worker.max_in_flight_bytes >= publish.max_message_bytes, "at least publish.max_message_bytes"),
        ("retry.cap_s", retry.cap_s >= retry.base_s, "at least retry.base_s"),
        ("retry.tiers", retry.tiers_s[0] > 0 and _ascend(retry.tiers_s), "durations above 0, each longer than the one before"),
        ("retry.tiers", retry.tiers_s[-1] <= 36_500 * _DAY_S, "durations of at most 36500d"),
        ("kafka.username", not needs_user or bool(kafka.username), f"a user for {kafka.sasl_mechanism}"),
        ("kafka.password", not needs_user or bool(kafka.password), "the password of kafka.username"),
        ("kafka.token", not needs_token or bool(kafka.token), "MODULE:FUNCTION, where bearer tokens come from"),
        ("kafka.heartbeat_s", kafka.heartbeat_s * 3 <= kafka.session_timeout_s, "at most a third of kafka.session_timeout_s"),
        ("topics.retention_s", settings.topics.retention_s >= publish.max_ttl_s, "at least publish.max_ttl_s"),
    )
    return ((name, expected) for name, holds, expected in rules if not holds)


def _ascend(values: tuple[float, ...]) -> bool:
    return all(left < right for left, right in pairwise(values))
