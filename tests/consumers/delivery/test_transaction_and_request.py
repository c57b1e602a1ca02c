"""A run that has opened its transaction may not wait for another agent's answer, on any database."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus.settings.loading import load
from sealbus import App, Context, connect
from tests.databases import Postgres
from tests.kit import Answered, Asked, Job


def app_that_asks(outcome: asyncio.Future[str]) -> App:
    app = App("asker@svc")

    @app.on(Job, dedup="always")
    async def handle(_: Job, context: Context) -> None:
        await context.transaction()
        try:
            await context.request(Asked(), Answered, timeout_s=1)
        except Exception as error:  # noqa: BLE001 - what it says is tested
            outcome.set_result(str(error))

    return app


@pytest.mark.medium
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_request_in_an_open_transaction_is_refused(
    database: str, tmp_path: Any, request: pytest.FixtureRequest
) -> None:
    log = f"sqlite:///{tmp_path}/log.db"
    url = f"sqlite:///{tmp_path}/inbox.db"
    if database == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = await postgres.create_database()
    settings = load(flags={"bus.url": log, "inbox.url": url}, env={}, file=None).settings
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with app_that_asks(outcome).running(settings=settings), connect(settings=settings, agent="a@svc") as bus:
        await bus.publish(Job(number=1))
        told = await asyncio.wait_for(outcome, 60)
    assert "Call request first, and open the transaction last" in told
