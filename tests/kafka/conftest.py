"""What the tests of Kafka's own ways share: a transport, and names nobody else uses."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bus.transports import open_transport
from bus.transports.kafka import KafkaTransport

Opener = Callable[..., KafkaTransport]


@pytest.fixture
async def opened(kafka: str) -> AsyncIterator[Opener]:
    """Opens transports on the cluster, and closes them."""
    transports: list[KafkaTransport] = []

    def opener(**options: object) -> KafkaTransport:
        options = {"heartbeat_s": 0.2, "session_timeout_s": 2.0, **options}
        transport = open_transport(f"kafka://{kafka}", **options)
        assert isinstance(transport, KafkaTransport)
        transports.append(transport)
        return transport

    yield opener
    for transport in transports:
        await transport.close()


@pytest.fixture
def topic() -> str:
    """The name of a topic that does not exist yet."""
    return f"t{uuid.uuid4().hex[:12]}.a"


@pytest.fixture
def admin(kafka: str) -> AdminClient:
    """The cluster's own admin, from another library."""
    return AdminClient({"bootstrap.servers": kafka})


@pytest.fixture
def foreign(kafka: str) -> Producer:
    """A producer from another library."""
    return Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random", "message.max.bytes": 20_000_000})
