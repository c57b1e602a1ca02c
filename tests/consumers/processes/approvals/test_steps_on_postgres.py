"""Several approvals of one message that are decided at the same time, on a store with many writers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.trust.keys.generated_keys import GeneratedKeys
from consumers.delivery.inbox.step_call import StepCall
from consumers.processes.approvals.deciding import decision_about, seal_decision
from consumers.processes.approvals.open_requests import open_requests
from sealbus import App, Approval, Context, connect, payload
from tests.databases import Postgres

MESSAGES, APPROVALS = 8, 4


@payload("pg.work", version="1.0.0", performative="request")
class Work(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("pg.worked", version="1.0.0", performative="inform")
class Worked(msgspec.Struct, frozen=True, kw_only=True):
    runs: int


@pytest.mark.medium
async def test_decisions_that_race_wake_each_message_once(postgres: Postgres, tmp_path: Path) -> None:
    keys = GeneratedKeys(lambda: int(time.time() * 1000), b"race")
    url = f"sqlite:///{tmp_path}/log.db"
    settings = load(flags={"bus.url": url, "inbox.url": await postgres.create_database()}, env={}, file=None).settings
    runs, paid = Counter[int](), Counter[tuple[int, int]]()
    app = App("desk@svc", signer=keys.signer("desk@svc"), verifier=keys)

    async def pay(number: int, part: int) -> str:
        paid[number, part] += 1
        return "paid"

    @app.on(Work, asks=True)
    async def work(request: Work, context: Context) -> Worked:
        runs[request.number] += 1
        calls = [
            StepCall(
                name="pay", function=pay, arguments=(request.number, part), key=part, approve=Approval(), once=True
            )
            for part in range(APPROVALS)
        ]
        await context.ask_for(calls)
        for call in calls:
            await context.take_step(call)
        return Worked(runs=runs[request.number])

    async def decide(name: str, until: asyncio.Event) -> None:
        async with connect(settings=settings, agent=name, signer=keys.signer(name), verifier=keys) as bus:
            while not until.is_set():
                opened = await open_requests(bus.transport, bus.namespace, verifier=keys, clock=SystemClock())
                if len(opened) == MESSAGES * APPROVALS or runs.total() > MESSAGES:
                    sealed = [
                        seal_decision(
                            bus.publisher.sealer, decision_about(each.message, "approve", by=name), each.message
                        )
                        for each in opened
                    ]
                    await asyncio.gather(*map(bus.publisher.send, sealed))
                await asyncio.sleep(0.05)

    async with (
        app.running(settings=settings),
        connect(settings=settings, agent="client@svc", signer=keys.signer("client@svc"), verifier=keys) as bus,
        asyncio.TaskGroup() as group,
    ):
        until = asyncio.Event()
        for name in ("lead@acme", "boss@acme"):
            group.create_task(decide(name, until))
        answers = await asyncio.gather(
            *(bus.request(Work(number=number), Worked, timeout_s=120) for number in range(MESSAGES))
        )
        until.set()
    assert [each.runs for each in answers] == [2] * MESSAGES
    assert set(paid.values()) == {1}
    assert len(paid) == MESSAGES * APPROVALS
