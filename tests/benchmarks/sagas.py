"""What a step of a saga costs: `python tests/benchmarks/sagas.py [--postgres]`.

One process of the machine runs a saga, the agent that it asks, and a publisher, on an embedded log. Each saga process
takes two steps: its start sends a request, and the answer ends it. Prints steps per second, and the processor time of
all three for each step: a step comes with one record published and one request handled for every two.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec

from bus.settings.loading import load
from sealbus import App, Receipt, payload
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_start
from tests.databases import postgres_server


@payload("bench.trip", version="1.0.0")
class Trip(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("bench.seat.wanted", version="1.0.0")
class SeatWanted(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("bench.seat.given", version="1.0.0")
class Seat(msgspec.Struct, frozen=True, kw_only=True):
    number: int


class TripState(msgspec.Struct):
    seat: int = 0


class Ends:
    """How many processes have ended."""

    def __init__(self) -> None:
        self.count = 0
        self.all = asyncio.Event()
        self.wanted = 0

    def one(self) -> None:
        self.count += 1
        if self.count >= self.wanted:
            self.all.set()


runs: list[Ends] = []
"""The last one is under way."""


class Travel(Saga[TripState], version="1.0.0"):
    @on_start(Trip, key="/data/number")
    async def begun(self, trip: Trip, context: SagaContext) -> None:
        context.ask("seat", SeatWanted(number=trip.number), to="seats@bench", answer_by_s=3600)

    @on_answer("seat", Seat)
    async def seated(self, seat: Seat, context: SagaContext) -> None:
        self.state.seat = seat.number
        context.finish()
        runs[-1].one()

    @on_failure("seat")
    async def unseated(self, context: SagaContext) -> None:
        raise AssertionError("every request is answered")


def apps() -> tuple[App, App]:
    """The saga, and the agent that it asks."""
    travel, seats = App("travel@bench", types=[Trip, SeatWanted, Seat]), App("seats@bench", types=[SeatWanted, Seat])
    travel.add(Travel)

    @seats.on(SeatWanted)
    async def seat(wanted: SeatWanted) -> Seat:
        return Seat(number=wanted.number)

    return travel, seats


async def measured(store: str, count: int) -> tuple[float, float]:
    """Return the steps per second, and the seconds of processor time for each."""
    travel, seats = apps()
    ends = Ends()
    runs.append(ends)
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "bus.url": f"sqlite:///{folder}/log.db",
            "bus.namespace": f"s{uuid.uuid4().hex[:8]}",
            "inbox.url": store or f"sqlite:///{folder}/store.db",
        }
        settings = load(flags=flags, env={}, file=None).settings
        async with travel.running(None, seats, settings=settings) as bus:
            for first, numbers in ((0, 50), (50, count)):
                ends.wanted, started_s, cpu_s = first + numbers, time.perf_counter(), time.process_time()
                ends.all.clear()
                trips = (Trip(number=number) for number in range(first, first + numbers))
                assert all([isinstance(result, Receipt) async for result in bus.publish_many(trips)])
                await ends.all.wait()
                steps = 2 * numbers
                found = steps / (time.perf_counter() - started_s), (time.process_time() - cpu_s) / steps
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--postgres", action="store_true", help="measure the store on PostgreSQL, too")
    given = parser.parse_args()
    print("| store | steps per second | CPU us a step, each round |\n|---|---|---|")

    def report(name: str, store: str = "") -> None:
        rounds = [asyncio.run(measured(store, given.processes)) for _ in range(given.rounds)]
        costs = ", ".join(f"{cost_s * 1e6:,.0f}" for _, cost_s in rounds)
        print(f"| {name} | {max(rate for rate, _ in rounds):,.0f} | {costs} |")

    report("SQLite")
    if given.postgres:
        server = postgres_server()
        try:
            report("PostgreSQL", asyncio.run(server.create_database()))
        finally:
            server.end()


if __name__ == "__main__":
    main()
