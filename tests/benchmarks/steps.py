"""What steps cost: ten turns of a model that costs nothing, bare, with steps, replayed, and with an approved tool.

    python -m tests.benchmarks.steps [--runs 20]

On an embedded log and inbox in a folder of their own. Prints milliseconds, the median of the runs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bus.clock import SystemClock
from bus.trust.keys.generated_keys import GeneratedKeys
from consumers.processes.approvals.deciding import decision_about, seal_decision
from consumers.processes.approvals.open_requests import open_requests
from sealbus import App, Approval, Bus, Context, connect, payload

TURNS = 10


@payload("bench.ask", version="1.0.0", performative="request")
class Ask(msgspec.Struct, frozen=True, kw_only=True):
    kind: str


@payload("bench.answer", version="1.0.0", performative="inform")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    first_ms: float
    again_ms: float


async def model(turn: int) -> dict[str, Any]:
    return {"turn": turn, "text": "x" * 500}


def app_of(keys: GeneratedKeys) -> App:
    app = App("bench@svc", signer=keys.signer("bench@svc"), verifier=keys)

    @app.on(Ask, asks=True)
    async def work(ask: Ask, context: Context) -> Answer:
        started_s = time.perf_counter()
        for turn in range(TURNS):
            if ask.kind == "bare":
                await model(turn)
            else:
                await context.step("model", model, turn)
        took_ms = 1000 * (time.perf_counter() - started_s)
        if ask.kind == "approved":
            started_s = time.perf_counter()
            await context.step("tool", model, TURNS, approve=Approval(by="human"))
            return Answer(first_ms=took_ms, again_ms=1000 * (time.perf_counter() - started_s))
        if ask.kind == "replayed":
            again_s = time.perf_counter()
            context.remembered = None
            for turn in range(TURNS):
                await context.step("model", model, turn)
            return Answer(first_ms=took_ms, again_ms=1000 * (time.perf_counter() - again_s))
        return Answer(first_ms=took_ms, again_ms=0.0)

    return app


async def measure(runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys = GeneratedKeys(lambda: int(time.time() * 1000), b"bench")
        settings = {"SEALBUS_BUS__URL": f"sqlite:///{Path(folder)}/log.db"}
        app = app_of(keys)
        url, trust = settings["SEALBUS_BUS__URL"], {"verifier": keys}
        async with (
            app.running(url),
            connect(url, agent="client@svc", signer=keys.signer("client@svc"), **trust) as bus,
            connect(url, agent="lead@acme", signer=keys.signer("lead@acme"), **trust) as lead,
        ):
            for kind in ("bare", "steps", "replayed", "approved"):
                found, whole = [], []
                for _ in range(runs):
                    begun_s = time.perf_counter()
                    asked = asyncio.create_task(bus.request(Ask(kind=kind), Answer, timeout_s=120))
                    if kind == "approved":
                        await decide(lead, keys)
                    found.append(await asked)
                    whole.append(1000 * (time.perf_counter() - begun_s))
                first = statistics.median(each.first_ms for each in found)
                again = statistics.median(each.again_ms for each in found)
                more = {
                    "replayed": f", replayed {again / TURNS:5.2f} ms a turn",
                    "approved": f" replayed, the approved tool {again:5.2f} ms",
                }.get(kind, "")
                took = statistics.median(whole)
                print(f"{kind:>9}: {first / TURNS:6.2f} ms a turn{more}; request to answer {took:6.1f} ms")


async def decide(lead: Bus, keys: GeneratedKeys) -> None:
    """Approve what waits."""
    while True:
        opened = await open_requests(lead.transport, lead.namespace, verifier=keys, clock=SystemClock())
        for each in opened:
            decision = decision_about(each.message, "approve", by="lead@acme")
            await lead.publisher.send(seal_decision(lead.publisher.sealer, decision, each.message))
        if opened:
            return
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    asyncio.run(measure(parser.parse_args().runs))
