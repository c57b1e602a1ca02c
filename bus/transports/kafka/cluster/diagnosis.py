"""Find out why a connection fails: wrong password, certificate or port, or no broker at all.

Owns trying the bootstrap addresses and reading the true cause, which the client library only logs. Callers decide when
to probe.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from aiokafka import errors
from aiokafka.conn import create_conn

from bus.errors import BusError, ConfigurationError, UnreachableError
from bus.transports.kafka.errors import error_text
from bus.transports.kafka.options import KafkaOptions

__all__ = ["probe"]

_ADDRESS_S = 4.0


async def probe(options: KafkaOptions, *, has_answered: bool = False) -> BusError | None:
    """Return None if one of the addresses answers, otherwise the cause.

    A wrong setting is reported before an unreachable broker. *has_answered* means that this cluster has already
    answered with these settings: an ambiguous failure is then not blamed on a setting.
    """
    arguments = options.common()
    for name in ("bootstrap_servers", "retry_backoff_ms", "metadata_max_age_ms"):
        arguments.pop(name)
    answers = await asyncio.gather(*(_try(address, arguments, options, has_answered) for address in options.bootstrap))
    found = [error for error in answers if error is not None]
    if len(found) < len(answers):
        return None
    return next((error for error in found if isinstance(error, ConfigurationError)), found[0])


async def _try(address: str, arguments: dict[str, Any], options: KafkaOptions, has_answered: bool) -> BusError | None:
    host, _, port = address.rpartition(":")
    try:
        connection = await asyncio.wait_for(create_conn(host.strip("[]"), int(port), **arguments), _ADDRESS_S)
    except Exception as error:  # noqa: BLE001 - any error is the cause that is asked for
        return _cause(error, address, options) or _shown_out(address, options, has_answered)
    connection.close()
    return None


def _cause(error: Exception, address: str, options: KafkaOptions) -> BusError | None:
    user, mechanism = options.security.username, options.security.mechanism
    match error:
        case ssl.SSLCertVerificationError():
            return ConfigurationError(
                f"{address}: its certificate is not accepted ({error.verify_message}); set kafka.ca_file to the "
                "authority that signed it"
            )
        case ssl.SSLError():
            hint = "is this port TLS, and does it ask for a client certificate (kafka.cert_file)?"
            return ConfigurationError(f"{address}: TLS failed ({error.reason or error_text(error)}); {hint}")
        case errors.SaslAuthenticationFailed() | errors.AuthenticationFailedError():
            return ConfigurationError(
                f"{address}: Kafka refused user {user!r}: wrong user name or password (kafka.username, kafka.password)"
            )
        case errors.UnsupportedSaslMechanismError():
            return ConfigurationError(
                f"{address}: {mechanism} is not offered there; set kafka.sasl_mechanism ({error_text(error)})"
            )
        case ConnectionRefusedError():
            return UnreachableError(
                f"nothing listens at {address} (connection refused): is Kafka running there, is the port right?"
            )
        case socket.gaierror():
            return UnreachableError(f"the host name in {address} is not known: check the URL given with --bus")
        case asyncio.TimeoutError():
            return UnreachableError(
                f"{address} did not answer within {_ADDRESS_S:g} s: is it Kafka, and does kafka.security_protocol fit "
                "it?"
            )
        case errors.IncompatibleBrokerVersion():
            return UnreachableError(f"{address}: this Kafka is too old or too new ({error_text(error)})")
        case OSError() if error.errno is not None:
            return UnreachableError(f"{address} cannot be reached: {error.strerror or error_text(error)}")
        case _:
            return None


def _shown_out(address: str, options: KafkaOptions, has_answered: bool) -> BusError:
    """Return the error for a connection that was closed without an answer.

    A load balancer whose brokers are away does the same.
    """
    if has_answered:
        return UnreachableError(
            f"{address} closed the connection during the greeting: there may be no broker behind it just now"
        )
    return ConfigurationError(
        f"{address} closed the connection during the handshake: it is not a Kafka broker, or kafka.security_protocol "
        f"({options.security.protocol.lower()}) is not what this port speaks, or it stands before brokers that are away"
    )
