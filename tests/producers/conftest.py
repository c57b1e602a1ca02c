"""The databases that an outbox is tested on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.databases import Postgres, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server = postgres_server()
    yield server
    server.end()
