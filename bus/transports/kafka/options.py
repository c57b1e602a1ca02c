"""The arguments of Kafka clients: the settings a user has, and those that sealbus forces.

Owns the constructor arguments of the client library. `bus.settings.sources.FIXED` holds the reasons why some of them
cannot be changed.
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

__all__ = [
    "Compression",
    "KafkaOptions",
    "KafkaSecurity",
    "KAFKA_TIMEOUT_S",
    "TokenSource",
    "as_bus_records",
    "token_source",
]

TokenSource: TypeAlias = Callable[[], Awaitable[str]]
Compression: TypeAlias = str

KAFKA_TIMEOUT_S: Final = 10.0
"""Timeout of one request to one broker, in seconds. A frozen leader costs one before its partitions move on."""

_METADATA_MAX_AGE_S = 5.0
_RETRY_BACKOFF_MS = 200
# While a broker's answer is read, memory holds about four copies of it. Half this size made uncompressed messages a
# tenth slower.
_FETCH_MAX_BYTES = 1_048_576
_READ_MAX_BYTES = 65_536
_FETCH_MAX_WAIT_MS = 250
_ROOM = 65_536
_JOIN_MARGIN_S = 5.0
_BATCH_BYTES = 256 * 1024


class KafkaSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the brokers. *protocol* and *mechanism* are Kafka's own names."""

    protocol: str = "PLAINTEXT"
    mechanism: str = "SCRAM-SHA-512"
    username: str | None = None
    password: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = None
    token: TokenSource | None = None
    """Returns a bearer token, for OAUTHBEARER."""

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None without TLS.

        Raises ConfigurationError for a file that is missing or holds no certificate.
        """
        if not self.protocol.endswith("SSL"):
            return None
        for name in (self.ca_file, self.cert_file, self.key_file):
            if name is not None and not Path(name).is_file():
                raise ConfigurationError(f"no such file: {name} (kafka.ca_file, kafka.cert_file, kafka.key_file)")
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                # With None, OpenSSL would ask for the key's password at the terminal, and wait.
                context.load_cert_chain(self.cert_file, self.key_file, self.key_password or "")
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"kafka.ca_file, kafka.cert_file or kafka.key_file cannot be used: {error}"
            ) from error
        return context


def token_source(name: str) -> TokenSource:
    """Import the async function named MODULE:FUNCTION. Raises ConfigurationError."""
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
    """The options of all clients of one transport. Durations are in seconds."""

    bootstrap: tuple[str, ...]
    client_id: str = "sealbus"
    security: KafkaSecurity = KafkaSecurity()
    compression: Compression = "zstd"
    request_timeout_s: float = KAFKA_TIMEOUT_S
    heartbeat_s: float = 1.0
    session_timeout_s: float = 20.0
    rebalance_timeout_s: float = 40.0
    """How long a group waits for a member that still drains; must exceed the longest drain."""
    poll_timeout_s: float = 300.0
    """A member that does not poll for this long gives its partitions up."""
    max_record_bytes: int = 1_048_576 + 128 * 1024
    """The most bytes of key, value and headers of one record."""
    batch_bytes: int = _BATCH_BYTES
    """The most bytes of one partition's records in one batch, before compression."""

    def common(self) -> dict[str, Any]:
        """Return the arguments that every client takes."""
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
        """Return the arguments of the producer."""
        return self.common() | {
            "acks": "all",
            "enable_idempotence": True,
            "compression_type": None if self.compression == "none" else self.compression,
            # `bus.transports.kafka.producer.batches` cuts the batches; the library's own limits only have to be larger.
            "max_batch_size": self.max_record_bytes + self.batch_bytes + _ROOM,
            "max_request_size": self.max_record_bytes + self.batch_bytes + _ROOM,
            "linger_ms": 0,
        }

    def reader(self) -> dict[str, Any]:
        """Return the arguments of a consumer without a group."""
        return self.common() | {
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "check_crcs": True,
            "fetch_max_bytes": _FETCH_MAX_BYTES,
            # At least one batch comes in any case, so that reading one record does not fetch a megabyte.
            "max_partition_fetch_bytes": _READ_MAX_BYTES,
            "fetch_max_wait_ms": _FETCH_MAX_WAIT_MS,
            "key_deserializer": as_bus_records,
        }

    def member(self, group: str) -> dict[str, Any]:
        """Return the arguments of a consumer that is a member of *group*."""
        return self.reader() | {
            "group_id": group,
            "max_partition_fetch_bytes": max(1_048_576, self.max_record_bytes),
            # Joining waits for the slowest member's drain, and the library has one timeout for all requests.
            "request_timeout_ms": round(max(self.request_timeout_s, self.rebalance_timeout_s + _JOIN_MARGIN_S) * 1000),
            "heartbeat_interval_ms": round(self.heartbeat_s * 1000),
            "session_timeout_ms": round(self.session_timeout_s * 1000),
            "rebalance_timeout_ms": round(self.rebalance_timeout_s * 1000),
            # A fetch that raises or is cancelled switches the library's poll watchdog off. The bus has its own, and the
            # library's must not interfere.
            "max_poll_interval_ms": 2**31 - 1,
        }


def as_bus_records(key: bytes | None) -> bytes | None:
    """Mark a consumer, as its `key_deserializer`, as one that reads records of the bus. Never called."""
    return key
