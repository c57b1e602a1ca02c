"""What artifacts cost: many of 5 MB by reference through a handler, each opened with its hash checked.

    python -m tests.benchmarks.artifacts [--count 1000] [--megabytes 5]

In a folder of its own, which needs that much room and is deleted. Prints seconds, rates and the largest memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import tempfile
import time

import msgspec

from sealbus import App, Context, payload
from sealbus.vocabulary import Ref


@payload("bench.make", version="1.0.0", performative="request")
class Make(msgspec.Struct, frozen=True, kw_only=True):
    megabytes: int


@payload("bench.made", version="1.0.0", performative="inform")
class Made(msgspec.Struct, frozen=True, kw_only=True):
    report: Ref


app = App("maker@svc")


@app.on(Make)
async def make(request: Make, context: Context) -> Made:
    return Made(report=await context.artifacts.put(os.urandom(request.megabytes * 1_000_000)))


async def measure(count: int, megabytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with app.running(f"sqlite:///{folder}/log.db") as bus:
            turn, begun_s, size = asyncio.Semaphore(8), time.perf_counter(), 0

            async def one() -> None:
                nonlocal size
                async with turn:
                    made = await bus.request(Make(megabytes=megabytes), Made, timeout_s=300)
                    found = await bus.artifacts.open(made.report)
                    size += len(found)

            await asyncio.gather(*(one() for _ in range(count)))
            took_s = time.perf_counter() - begun_s
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count} artifacts, {size / 1e6:.0f} MB in {took_s:.1f} s: {size / 1e6 / took_s:.0f} MB/s, {memory_mb:.0f} MB"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=5)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.count, arguments.megabytes))
