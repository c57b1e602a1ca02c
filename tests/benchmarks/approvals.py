"""How fast messages are held, approved and run, and whether that grows with what was done before:
`python tests/benchmarks/approvals.py [--kit]`.

Publishes messages that need an approval to an embedded log, waits until all of a batch are held, sends the decisions of
one approver, and waits until the results of all are stored; then the next batch. Prints figures by hundreds: rates,
processor time of the whole process for each, and how long a list of what is open takes. With --kit the same in
`app.test()`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from bus.clock import SystemClock
from bus.protocol.sealing import Message
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.trust.keys.generated_keys import GeneratedKeys
from bus.vocabulary.approval import ApprovalRequest
from bus.vocabulary.bus import ApprovalClosed
from consumers.processes.approvals.deciding import decision_about, seal_decision
from consumers.processes.approvals.open_requests import open_requests
from sealbus import App, Approval, Context, connect, payload

_APPROVER, _REQUESTER = "lead@bench", "requester@bench"


@payload("bench.deploy", version="1.0.0")
class Deploy(msgspec.Struct, frozen=True, kw_only=True):
    number: int


class Stretch(msgspec.Struct):
    """A hundred approvals, or so."""

    held_s: float = 0.0
    run_s: float = 0.0
    cpu_s: float = 0.0
    list_s: float = 0.0


class Seen:
    """What was held and run so far."""

    def __init__(self) -> None:
        self.requests: list[Message] = []
        self.runs = self.consumed = 0
        self._changed = asyncio.Event()

    def held(self, request: Message) -> None:
        self.requests.append(request)
        self._changed.set()

    def closed(self, state: str) -> None:
        self.consumed += state == "consumed"
        self._changed.set()

    async def until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 60)


def apps(seen: Seen) -> tuple[App, App]:
    """The app whose messages wait, and the desk that sees what waits."""
    deployer, desk = App("deployer@bench", types=[Deploy]), App(_APPROVER)

    @deployer.on(Deploy, approval=Approval())
    async def deploy(order: Deploy) -> None:
        seen.runs += 1

    @desk.on(ApprovalRequest)
    async def look(_: ApprovalRequest, context: Context) -> None:
        seen.held(context.message)

    @desk.on(ApprovalClosed)
    async def closed(closing: ApprovalClosed) -> None:
        seen.closed(closing.state)

    return deployer, desk


async def in_batches(
    total: int, batch: int, hold: Callable[[range], Awaitable[object]], approve: Callable[[], Awaitable[object]]
) -> list[Stretch]:
    """Hold and approve *total* messages; return the figures of each hundred."""
    stretches: list[Stretch] = []
    for first in range(0, total, batch):
        if first % 100 == 0:
            stretches.append(Stretch())
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        await hold(range(first, first + batch))
        held_s = time.perf_counter()
        await approve()
        stretches[-1].held_s += held_s - begun_s
        stretches[-1].run_s += time.perf_counter() - held_s
        stretches[-1].cpu_s += time.process_time() - cpu_s
    return stretches


def settings_of(folder: str) -> Settings:
    return load(flags={"bus.url": f"sqlite:///{folder}/log.db"}, env={}, file=None).settings


async def on_the_log(total: int, batch: int) -> list[Stretch]:
    """Everything on an embedded log, with a key for each agent."""
    keys, seen = GeneratedKeys(SystemClock().now_ms, b"bench"), Seen()
    deployer, desk = apps(seen)
    for app in (deployer, desk):
        app.signer, app.verifier = keys.signer(app.agent.id or ""), keys
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(folder)
        requester = connect(settings=settings, agent=_REQUESTER, signer=keys.signer(_REQUESTER), verifier=keys)
        approving = desk.running(settings=settings)
        async with approving as approver, deployer.running(settings=settings), requester as bus:

            async def hold(numbers: range) -> None:
                before = len(seen.requests)
                async for _ in bus.publish_many(Deploy(number=number) for number in numbers):
                    pass
                await seen.until(lambda: len(seen.requests) >= before + len(numbers))

            async def approve() -> None:
                before, waiting = seen.consumed, seen.requests[-batch:]
                publisher = approver.publisher
                decisions = (decision_about(request, "approve", by=_APPROVER) for request in waiting)
                sealed = [
                    seal_decision(publisher.sealer, decision, request)
                    for decision, request in zip(decisions, waiting, strict=True)
                ]
                await asyncio.gather(*map(publisher.send, sealed))
                await seen.until(lambda: seen.consumed >= before + batch)

            stretches: list[Stretch] = []
            for first in range(0, total, 100):
                stretches += await in_batches(min(100, total - first), batch, hold, approve)
                begun_s = time.perf_counter()
                await open_requests(bus.transport, bus.namespace, verifier=keys, clock=SystemClock())
                stretches[-1].list_s = time.perf_counter() - begun_s
            return stretches


async def in_the_kit(total: int, batch: int) -> list[Stretch]:
    """The same in `app.test()`, as a test of an application would."""
    seen = Seen()
    deployer, _ = apps(seen)
    async with deployer.test(keys=True) as bus:

        async def hold(numbers: range) -> None:
            for number in numbers:
                await bus.publish(Deploy(number=number))
            await bus.settle()

        async def approve() -> None:
            for held in await bus.held():
                await bus.approve(held, by=_APPROVER)
            await bus.settle()

        stretches = await in_batches(total, batch, hold, approve)
        bus.assert_all_handled()
        assert seen.runs == total, seen.runs
        return stretches


def table(stretches: list[Stretch]) -> str:
    lines = [
        "| after | held per second | approved and run per second | CPU ms each | list ms |",
        "|---|---|---|---|---|",
    ]
    for at, each in enumerate(stretches):
        rates = f"{100 / each.held_s:,.0f} | {100 / each.run_s:,.0f}"
        lines.append(f"| {at * 100:,} | {rates} | {each.cpu_s * 10:.2f} | {each.list_s * 1000:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--approvals", type=int, default=1_000, help="how many, in hundreds")
    parser.add_argument("--batch", type=int, default=20, choices=(1, 2, 4, 5, 10, 20), help="open at a time")
    parser.add_argument("--kit", action="store_true", help="in app.test() instead of on an embedded log")
    given = parser.parse_args()
    measure = in_the_kit if given.kit else on_the_log
    print(table(asyncio.run(measure(given.approvals, given.batch))))


if __name__ == "__main__":
    main()
