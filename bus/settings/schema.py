"""Settings: what can be set, and within which limits.

Owns the frozen Structs with their ranges. `bus.settings.sources` reads the sources; `bus.settings.loading` applies
their precedence and the rules between fields. Every default is in `config/default.toml`, none here.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from bus.settings import durations

__all__ = [
    "ArtifactSettings",
    "AuditSettings",
    "BusSettings",
    "DeadLetterSettings",
    "DialectSettings",
    "GatewaySettings",
    "InboxSettings",
    "KafkaSettings",
    "LogSettings",
    "PolicySettings",
    "ProjectSettings",
    "PublishSettings",
    "RetrySettings",
    "Settings",
    "TaskSettings",
    "TopicSettings",
    "TrustSettings",
    "WorkerSettings",
]

_MIB = 1_048_576
# Field markers in Meta(extra=...): "duration" is converted to seconds, "secret" is never shown, "path" is relative to
# the file that says it.
DURATION_MARK = {"duration": True}
_PATH = Meta(extra={"path": True})

DAY_S = 86_400
# The limit keeps times in milliseconds within the calendar and within 64 bits.
Duration: TypeAlias = Annotated[float, Meta(ge=0.001, le=36_500 * DAY_S, extra=DURATION_MARK)]
Pause: TypeAlias = Annotated[float, Meta(ge=0, le=36_500 * DAY_S, extra=DURATION_MARK)]
# Kafka's protocol has 31 bits for these, in milliseconds.
Timeout: TypeAlias = Annotated[float, Meta(ge=0.001, le=7 * DAY_S, extra=DURATION_MARK)]
# Less than the 224 days that a proof-chain link may be old: a handler at the end of a message's life can still answer.
Lifetime: TypeAlias = Annotated[float, Meta(ge=0.001, le=200 * DAY_S, extra=DURATION_MARK)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ProjectSettings(_Section, frozen=True):
    """The apps of a project, MODULE:APP: what commands take that name none. Modules are looked for beside the file,
    and in `src` there."""

    apps: Annotated[tuple[str, ...], Meta(max_length=1000, extra={"names": True})]


class BusSettings(_Section, frozen=True):
    """The log, the namespace, and whether other users of this machine may share its files."""

    url: Annotated[
        str,
        Meta(pattern=r"^(sqlite|memory|kafka)://", extra={"expected": "sqlite://..., memory:// or kafka://host:port"}),
        _PATH,
    ]
    namespace: Annotated[str, Meta(max_length=63)]
    shared_files: bool


class TopicSettings(_Section, frozen=True):
    """How topics are created.

    `create` "auto" means yes on the embedded log and no on Kafka; `retention_bytes` 0 means no limit by size.
    """

    partitions: Annotated[int, Meta(ge=1, le=1000)]
    create: bool | Literal["auto"]
    retention_s: Duration
    deadletter_retention_s: Annotated[float, Meta(ge=1, le=36_500 * DAY_S, extra=DURATION_MARK)]
    retention_bytes: Annotated[int, Meta(ge=0, le=2**62)]


class PublishSettings(_Section, frozen=True):
    """Lifetimes, deadlines, and the limits of sizes and of unacknowledged bytes."""

    ttl_s: Lifetime
    max_ttl_s: Lifetime
    max_hops: Annotated[int, Meta(ge=0, le=10_000)]
    timeout_s: Timeout
    max_message_bytes: Annotated[int, Meta(ge=1024, le=_MIB)]
    buffer_bytes: Annotated[int, Meta(ge=1024, le=2**40)]
    cancel_grace_s: Annotated[float, Meta(ge=0, le=DAY_S, extra=DURATION_MARK)]


class WorkerSettings(_Section, frozen=True):
    """A worker's load limits and time limits."""

    concurrency: Annotated[int, Meta(ge=1, le=10_000)]
    max_waiting: Annotated[int, Meta(ge=1, le=1_000_000)]
    max_in_flight: Annotated[int, Meta(ge=1, le=1_000_000)]
    max_in_flight_bytes: Annotated[int, Meta(ge=1024, le=2**40)]
    timeout_s: Duration
    drain_timeout_s: Annotated[float, Meta(ge=0, le=7 * DAY_S, extra=DURATION_MARK)]
    commit_interval_s: Annotated[float, Meta(ge=0.01, le=DAY_S, extra=DURATION_MARK)]
    max_hops: Annotated[int, Meta(ge=0, le=10_000)]
    early_s: Duration
    max_early: Annotated[int, Meta(ge=1, le=1_000_000)]
    max_processes: Annotated[int, Meta(ge=1, le=100_000_000)]
    state_dir: Annotated[str, Meta(min_length=1, extra={"expected": "auto, off or a directory"}), _PATH]


class RetrySettings(_Section, frozen=True):
    """A group's retry limits, and the tiers that name its retry topics (`5s`, shortest form, ascending)."""

    attempts: Annotated[int, Meta(ge=1, le=100)]
    backoff: Literal["constant", "linear", "exponential"]
    base_s: Pause
    cap_s: Pause
    tiers: Annotated[tuple[str, ...], Meta(min_length=1, max_length=32, extra={"tiers": True})]

    @property
    def tiers_s(self) -> tuple[float, ...]:
        """The tiers in seconds."""
        return tuple(map(durations.seconds, self.tiers))


class DeadLetterSettings(_Section, frozen=True):
    """Whether dead letters include error texts and traces, which may contain secrets; and when deaths pause a type."""

    details: bool
    brake_share: Annotated[float, Meta(gt=0, le=1)]
    brake_window: Annotated[int, Meta(ge=2, le=100_000)]
    brake_pause_s: Duration


class InboxSettings(_Section, frozen=True):
    """The database in which finished messages are recorded.

    `local`: with Kafka, accept a database that only the workers of this machine can reach.
    """

    url: Annotated[
        str,
        Meta(
            pattern=r"^(auto|off|(sqlite|memory|postgres|postgresql)://.*)$",
            extra={"expected": "auto, off, sqlite:///..., memory:// or postgresql://..."},
        ),
        _PATH,
    ]
    lease_s: Annotated[float, Meta(ge=1, le=7 * DAY_S, extra=DURATION_MARK)]
    keep_s: Duration
    local: bool


class ArtifactSettings(_Section, frozen=True):
    """Where large content lies beside the messages that refer to it, and how large one may be."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^(auto|off|[a-z][a-z0-9+.-]*://.*)$",
            extra={"expected": "auto, off, file:///folder or a bucket such as s3://bucket/prefix"},
        ),
        _PATH,
    ]
    max_bytes: Annotated[int, Meta(ge=1024, le=2**40)]


class TrustSettings(_Section, frozen=True):
    """The trusted keys, and the key with which this process signs.

    `keys` is a JWKS file or a folder of them, `key_file` a private key or a folder with one per agent; empty means
    none. With `domain` "closed", shared secrets (HS256) may sign for every agent. `high_risk` names types whose risk is
    raised.
    """

    keys: Annotated[str, _PATH]
    key_file: Annotated[str, _PATH]
    domain: Literal["open", "closed"]
    high_risk: Annotated[tuple[str, ...], Meta(max_length=1000, extra={"names": True})]
    stale_after_s: Duration


class PolicySettings(_Section, frozen=True):
    """The policy file. Empty: none is set; `allow-all`: deliberately none."""

    file: Annotated[str, _PATH]


class DirectorySettings(_Section, frozen=True):
    """The heartbeats of workers: whether and how often they are sent, and how long an agent may be silent before it
    counts as gone."""

    enabled: bool
    beat_s: Duration
    healthy_s: Duration
    max_agents: Annotated[int, Meta(ge=1, le=1_000_000)]


class DialectSettings(_Section, frozen=True):
    """What foreign systems call our types, in CloudEvents.

    `type_prefixes` are removed from the names of events that are read. `type_names` maps whole names, FOREIGN=TYPE, for
    reading and writing.
    """

    type_prefixes: Annotated[tuple[str, ...], Meta(max_length=1000, extra={"names": True})]
    type_names: Annotated[tuple[str, ...], Meta(max_length=10_000, extra={"names": True})]


class AuditSettings(_Section, frozen=True):
    """The database of `sealbus audit`, its checkpoints, how long content is stored, and what agents may spend."""

    url: Annotated[
        str,
        Meta(
            pattern=r"^(auto|(sqlite|postgres|postgresql)://.*)$",
            extra={"expected": "auto, sqlite:///... or postgresql://..."},
        ),
        _PATH,
    ]
    checkpoint_s: Duration
    anchor: Annotated[str, _PATH]
    keep_s: Pause
    keep_sensitive_s: Pause
    daily_budget: Annotated[float, Meta(ge=0)]


class TaskSettings(_Section, frozen=True):
    """How long the gateway keeps tasks that have ended, and how much of each."""

    keep_s: Annotated[float, Meta(ge=60, le=200 * DAY_S, extra=DURATION_MARK)]
    artifact_bytes: Annotated[int, Meta(ge=0, le=1024 * _MIB)]


class GatewaySettings(_Section, frozen=True):
    """What one process of the gateway takes at a time."""

    wait_s: Annotated[float, Meta(ge=0, le=3600, extra=DURATION_MARK)]
    streams: Annotated[int, Meta(ge=1, le=1_000_000)]
    body_bytes: Annotated[int, Meta(ge=1024, le=64 * _MIB)]
    header_bytes: Annotated[int, Meta(ge=1024, le=_MIB)]


class KafkaSettings(_Section, frozen=True):
    """How to reach Kafka's brokers.

    Client options that sealbus forces have no setting (`bus.transports.kafka.options`).
    """

    security_protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]
    sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"]
    username: str
    password: Annotated[str, Meta(extra={"secret": True})]
    token: Annotated[str, Meta(pattern=r"^([\w.]+:\w+)?$", extra={"expected": "MODULE:FUNCTION"})]
    ca_file: Annotated[str, _PATH]
    cert_file: Annotated[str, _PATH]
    key_file: Annotated[str, _PATH]
    key_password: Annotated[str, Meta(extra={"secret": True})]
    compression: Literal["none", "zstd", "lz4", "snappy", "gzip"]
    request_timeout_s: Timeout
    session_timeout_s: Timeout
    heartbeat_s: Annotated[float, Meta(ge=0.01, le=DAY_S, extra=DURATION_MARK)]
    poll_timeout_s: Timeout


class LogSettings(_Section, frozen=True):
    """The log level and format."""

    level: Literal["debug", "info", "warning", "error"]
    format: Literal["auto", "console", "json"]


class Settings(_Section, frozen=True):
    """All settings, section by section. Durations are seconds."""

    project: ProjectSettings
    bus: BusSettings
    topics: TopicSettings
    publish: PublishSettings
    worker: WorkerSettings
    retry: RetrySettings
    inbox: InboxSettings
    artifacts: ArtifactSettings
    deadletter: DeadLetterSettings
    trust: TrustSettings
    policy: PolicySettings
    directory: DirectorySettings
    dialects: DialectSettings
    audit: AuditSettings
    tasks: TaskSettings
    gateway: GatewaySettings
    kafka: KafkaSettings
    log: LogSettings
