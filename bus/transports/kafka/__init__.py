"""Apache Kafka, 4.0 or newer: the log for production.

Owns the URL, `kafka://host:port,host:port`. All other connection settings (TLS, users, timeouts) are in the section
`[kafka]`. Only this folder imports the client library, aiokafka.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from bus.clock import Clock
from bus.errors import ConfigurationError
from bus.settings.schema import Settings
from bus.settings.sources import FIXED
from bus.transports.kafka.cluster.client_log import limit_noise
from bus.transports.kafka.consumer import record_parsing
from bus.transports.kafka.options import KafkaOptions, KafkaSecurity, token_source
from bus.transports.kafka.transport import KafkaTransport

__all__ = ["KafkaTransport", "open_url", "options_of"]

_REBALANCE_MARGIN_S = 15.0
_RECORD_ROOM = 127 * 1024
_PORT = 9092
_MAX_PORT = 65_535


def open_url(url: str, *, clock: Clock, **options: Any) -> KafkaTransport:
    """Create the transport for *url*; *options* are fields of `KafkaOptions`.

    Raises ConfigurationError; connects at first use.
    """
    rest, _, query = url.removeprefix("kafka://").partition("?")
    for name, _ in parse_qsl(query, keep_blank_values=True):
        raise ConfigurationError(refused_option(name))
    bootstrap = tuple(_address(part.strip()) for part in rest.rstrip("/").split(",") if part.strip())
    if not bootstrap:
        raise ConfigurationError(f"{url!r} names no broker: write kafka://host:port,host:port")
    limit_noise()
    record_parsing.install()
    return KafkaTransport(KafkaOptions(bootstrap=bootstrap, **options), clock=clock)


def options_of(settings: Settings) -> dict[str, Any]:
    """Return the fields of `KafkaOptions` that *settings* decide."""
    kafka = settings.kafka
    return {
        "security": KafkaSecurity(
            protocol=kafka.security_protocol.upper(),
            mechanism=kafka.sasl_mechanism,
            username=kafka.username or None,
            password=kafka.password or None,
            ca_file=kafka.ca_file or None,
            cert_file=kafka.cert_file or None,
            key_file=kafka.key_file or None,
            key_password=kafka.key_password or None,
            token=token_source(kafka.token) if kafka.token else None,
        ),
        "compression": kafka.compression,
        "request_timeout_s": kafka.request_timeout_s,
        "session_timeout_s": kafka.session_timeout_s,
        "heartbeat_s": kafka.heartbeat_s,
        "poll_timeout_s": kafka.poll_timeout_s,
        # Room for a drain, the forced end after it, and the last commit.
        "rebalance_timeout_s": settings.worker.drain_timeout_s + _REBALANCE_MARGIN_S,
        "max_record_bytes": settings.publish.max_message_bytes + _RECORD_ROOM,
    }


def refused_option(name: str) -> str:
    """Explain why the client setting *name* cannot be set in a URL, or at all."""
    if name in FIXED:
        value, reason = FIXED[name]
        return f"{name} is always {value}, because {reason}"
    return (
        f"{name!r} does not belong into the URL: "
        "settings of Kafka belong in the section [kafka], or in SEALBUS_KAFKA__NAME"
    )


def _address(text: str) -> str:
    host, separator, port = text.rpartition(":")
    if not separator or text.endswith("]"):
        host, port = text, str(_PORT)
    if "@" in text:
        raise ConfigurationError(
            "a user and password do not belong into the URL: set kafka.username, and kafka.password by a file or "
            "variable"
        )
    if not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        raise ConfigurationError(
            f"{text!r} is not the address of a broker: write host:port, as in kafka://localhost:9092"
        )
    return f"{host}:{port}"
