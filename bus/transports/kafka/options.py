"""What a Kafka client is told: the settings a user has, and those that sealbus forces.

Owns the one place where constructor arguments of the client library are made. Does not own reading settings, or the
reasons why some of them cannot be changed (`bus.settings.sources.FIXED`).
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import msgspec
from aiokafka.abc import AbstractTokenProvider

from bus.errors import ConfigurationError

__all__ = ["Compression", "KafkaOptions", "KafkaSecurity", "TIMEOUT_S", "TokenSource", "as_bus_records", "token_source"]

TokenSource: TypeAlias = Callable[[], Awaitable[str]]
Compression: TypeAlias = str

TIMEOUT_S: Final = 10.0
"""One request to one broker. A frozen leader costs one of these before its partitions move on."""

_METADATA_MAX_AGE_S = 5.0
_RETRY_BACKOFF_MS = 200
# A broker's answer is in memory some four times while it is read. Half of this made uncompressed messages a tenth
# slower.
_FETCH_MAX_BYTES = 1_048_576
_READ_MAX_BYTES = 65_536
_FETCH_MAX_WAIT_MS = 250
_ROOM = 65_536
_JOIN_MARGIN_S = 5.0
_BATCH_BYTES = 256 * 1024


class KafkaSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the brokers. *protocol* and *mechanism* have Kafka's own names."""

    protocol: str = "PLAINTEXT"
    mechanism: str = "SCRAM-SHA-512"
    username: str | None = None
    password: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = None
    token: TokenSource | None = None
    """Answers with a bearer token, for OAUTHBEARER."""

    def ssl_context(self) -> ssl.SSLContext | None:
        """Raises ConfigurationError for a file that is missing or no certificate."""
        if not self.protocol.endswith("SSL"):
            return None
        for name in (self.ca_file, self.cert_file, self.key_file):
            if name is not None and not Path(name).is_file():
                raise ConfigurationError(f"no such file: {name} (kafka.ca_file, kafka.cert_file, kafka.key_file)")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                # None would have OpenSSL ask a terminal for the password of a key that has one, and wait.
                context.load_cert_chain(self.cert_file, self.key_file, self.key_password or "")
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"kafka.ca_file, kafka.cert_file or kafka.key_file cannot be used: {error}"
            ) from error
        return context


def token_source(name: str) -> TokenSource:
    """The async function behind MODULE:FUNCTION. Raises ConfigurationError."""
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"kafka.token: {name} cannot be loaded: {error}") from error
    return cast("TokenSource", found)


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
    def __init__(self, source: TokenSource) -> None:
        self._source = source

    async def token(self) -> str:
        return await self._source()


class KafkaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is decided about the clients of one transport. Durations are seconds."""

    bootstrap: tuple[str, ...]
    client_id: str = "sealbus"
    security: KafkaSecurity = KafkaSecurity()
    compression: Compression = "zstd"
    request_timeout_s: float = TIMEOUT_S
    heartbeat_s: float = 1.0
    session_timeout_s: float = 20.0
    rebalance_timeout_s: float = 40.0
    """Longer than the longest drain: what a group waits for a member that has still to let go."""
    poll_timeout_s: float = 300.0
    """A member that does not poll for so long gives its partitions away."""
    max_record_bytes: int = 1_048_576 + 128 * 1024
    """Key, value and headers of one record."""
    batch_bytes: int = _BATCH_BYTES
    """Records of one partition that travel together, before compression."""

    def common(self) -> dict[str, Any]:
        """Arguments of every client."""
        security = self.security
        arguments: dict[str, Any] = {
            "bootstrap_servers": list(self.bootstrap),
            "client_id": self.client_id,
            "request_timeout_ms": round(self.request_timeout_s * 1000),
            "retry_backoff_ms": _RETRY_BACKOFF_MS,
            "metadata_max_age_ms": round(_METADATA_MAX_AGE_S * 1000),
            "security_protocol": security.protocol,
            "ssl_context": security.ssl_context(),
        }
        if security.protocol.startswith("SASL"):
            arguments |= {
                "sasl_mechanism": security.mechanism,
                "sasl_plain_username": security.username,
                "sasl_plain_password": security.password,
                "sasl_oauth_token_provider": _Tokens(security.token) if security.token is not None else None,
            }
        return arguments

    def producer(self) -> dict[str, Any]:
        """Arguments of the producer."""
        return self.common() | {
            "acks": "all",
            "enable_idempotence": True,
            "compression_type": None if self.compression == "none" else self.compression,
            # Batches are cut by the bus (`batching`); the library's own limits only have to be out of the way.
            "max_batch_size": self.max_record_bytes + self.batch_bytes + _ROOM,
            "max_request_size": self.max_record_bytes + self.batch_bytes + _ROOM,
            "linger_ms": 0,
        }

    def reader(self) -> dict[str, Any]:
        """Arguments of a consumer without a group."""
        return self.common() | {
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "check_crcs": True,
            "fetch_max_bytes": _FETCH_MAX_BYTES,
            # At least one batch comes in any case: whoever looks at one record does not fetch a megabyte for it.
            "max_partition_fetch_bytes": _READ_MAX_BYTES,
            "fetch_max_wait_ms": _FETCH_MAX_WAIT_MS,
            "key_deserializer": as_bus_records,
        }

    def member(self, group: str) -> dict[str, Any]:
        """Arguments of a consumer that is a member of *group*."""
        return self.reader() | {
            "group_id": group,
            "max_partition_fetch_bytes": max(1_048_576, self.max_record_bytes),
            # Joining waits for the slowest member's drain, and the library has one timeout for every request.
            "request_timeout_ms": round(max(self.request_timeout_s, self.rebalance_timeout_s + _JOIN_MARGIN_S) * 1000),
            "heartbeat_interval_ms": round(self.heartbeat_s * 1000),
            "session_timeout_ms": round(self.session_timeout_s * 1000),
            "rebalance_timeout_ms": round(self.rebalance_timeout_s * 1000),
            # Its watchdog is switched off by one raising or cancelled fetch, so the bus has its own and this one must
            # not interfere.
            "max_poll_interval_ms": 2**31 - 1,
        }


def as_bus_records(key: bytes | None) -> bytes | None:
    """Given to a consumer as its `key_deserializer`: what it reads are records of the bus. Never called."""
    return key
