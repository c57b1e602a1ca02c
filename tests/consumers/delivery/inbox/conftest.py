"""The stores that every inbox test runs on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bus.clock import ManualClock
from tests.consumers.delivery.inbox.stores import Store


async def made(kind: str, request: pytest.FixtureRequest, folder: Path) -> Store:
    if kind == "postgresql":
        return Store(await request.getfixturevalue("postgres").create_database(), 0.8, None)
    return Store("memory://" if kind == "memory" else f"sqlite:///{folder}/inbox.db", 20.0, ManualClock())


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened = await made(request.param, request, tmp_path)
    yield opened
    await opened.close()


@pytest.fixture(params=["sqlite", "postgresql"])
async def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store that more than one owner can open."""
    opened = await made(request.param, request, tmp_path)
    yield opened
    await opened.close()
