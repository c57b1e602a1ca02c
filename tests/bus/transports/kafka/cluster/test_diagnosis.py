"""What is said of an address that lets everybody in and shows them out: a wrong setting at first, a broker that is away
later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bus.errors import ConfigurationError, UnreachableError
from bus.transports.kafka.cluster.diagnosis import probe
from bus.transports.kafka.options import KafkaOptions


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_before_the_first_answer_the_settings_may_be_wrong(address: str) -> None:
    error = await probe(KafkaOptions(bootstrap=(address,)))
    assert isinstance(error, ConfigurationError)
    assert "kafka.security_protocol" in str(error)


async def test_when_the_cluster_has_answered_before_it_is_away(address: str) -> None:
    error = await probe(KafkaOptions(bootstrap=(address,)), has_answered=True)
    assert isinstance(error, UnreachableError)
    assert error.retriable
