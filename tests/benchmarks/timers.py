"""How late the timers of processes fall due, never early: `python tests/benchmarks/timers.py [--bus URL] [--svg FILE]`.

Owns one worker whose processes each wait for one time, all of them open at once and falling due evenly over a minute.
Prints how late they were, and draws that against the time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from curves.plot import drawn

from bus.settings.loading import load
from sealbus import App, Receipt, payload
from sealbus.sagas import Saga, SagaContext, on_start, on_timer


@payload("timers.wanted", version="1.0.0")
class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    due_s: float


class WaitingState(msgspec.Struct):
    due_s: float = 0.0


rung: list[tuple[float, float]] = []
"""When each timer was due, and how late it came."""
awaited: dict[int, asyncio.Event] = {}


def all_rung(count: int) -> asyncio.Event:
    """What is set when *count* timers have come."""
    return awaited.setdefault(count, asyncio.Event())


class Waiting(Saga[WaitingState], version="1.0.0"):
    @on_start(Wanted, key="/data/number")
    async def wanted(self, wanted: Wanted, context: SagaContext) -> None:
        after_s = max(0.0, wanted.due_s - time.time())
        self.state.due_s = time.time() + after_s
        context.timer("bell", after_s)

    @on_timer("bell")
    async def bell(self, context: SagaContext) -> None:
        rung.append((self.state.due_s, time.time() - self.state.due_s))
        all_rung(len(rung)).set()
        context.finish()


async def measure(url: str, count: int, opening_s: float, spread_s: float, seed: int) -> float:
    """Open *count* processes within *opening_s*, and wait for their timers, due within *spread_s*; return how long
    opening took.
    """
    flags = {"bus.url": url, "bus.namespace": f"t{uuid.uuid4().hex[:8]}", "topics.create": True}
    settings = load(flags=flags, env={}, file=None).settings
    app = App("timers@bench", types=[Wanted])
    app.add(Waiting)
    chance, began_s = random.Random(seed), time.time()
    dues = (began_s + opening_s + spread_s * chance.random() for _ in range(count))
    async with app.running(settings=settings) as bus:
        wanted = (Wanted(number=number, due_s=due_s) for number, due_s in enumerate(dues))
        assert all([isinstance(result, Receipt) async for result in bus.publish_many(wanted)])
        took_s = time.time() - began_s
        await all_rung(count).wait()
    return took_s


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--bus", help="default: a new embedded log")
    options.add_argument("--waits", type=int, default=10_000)
    options.add_argument("--opening", type=float, default=60.0, help="seconds before the first timer is due")
    options.add_argument("--spread", type=float, default=60.0, help="seconds from the first timer to the last one")
    options.add_argument("--svg", type=Path, help="draw here how late timers were, by the second they were due in")
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.bus or f"sqlite:///{folder}/log.db"
        took_s = asyncio.run(measure(url, given.waits, given.opening, given.spread, given.seed))
    late = sorted(each for _, each in rung)
    shares = {share: late[min(len(late) - 1, int(len(late) * share))] for share in (0.5, 0.99, 1.0)}
    early = sum(each < -0.001 for each in late)
    print(
        f"{given.waits:,} waits open at once, published in {took_s:.1f} s, due over {given.spread:.0f} s; "
        f"seed {given.seed}"
    )
    print(f"early {early}; late: " + ", ".join(f"p{share * 100:g} {each:.2f} s" for share, each in shares.items()))
    if given.svg:
        first_s = min(due_s for due_s, _ in rung)
        seconds: dict[int, list[float]] = {}
        for due_s, each in rung:
            seconds.setdefault(int(due_s - first_s), []).append(each)
        lines = {
            "median": [(float(at), sorted(each)[len(each) // 2]) for at, each in sorted(seconds.items())],
            "latest": [(float(at), max(each)) for at, each in sorted(seconds.items())],
        }
        title = f"{given.waits:,} waits of processes, by the second they are due in"
        given.svg.write_text(drawn(title, "s", "seconds late", lines, log_x=False), "utf-8")


if __name__ == "__main__":
    main()
