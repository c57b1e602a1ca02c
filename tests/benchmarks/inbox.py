"""How many messages an inbox claims and finishes in a second: `python tests/benchmarks/inbox.py [URL] [--callers 64] [--seconds 5]`.

Each caller claims a message, and finishes it with one output of about 700 bytes, again and again. Without a URL: SQLite in a temporary file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bus.clock import SystemClock
from bus.transports.base import NewRecord
from consumers.inbox.base import Claimed, Key
from consumers.inbox.opening import open_inbox

OUTPUTS = (NewRecord("agents.x", b"k" * 36, b"v" * 600, (("content-type", b"a" * 30), ("sb-id", b"i" * 36))),)
LATER_MS = 4_102_444_800_000


async def measure(url: str, callers: int, seconds: float) -> float:
    inbox = open_inbox(url, owner="benchmark", clock=SystemClock())
    await inbox.open()
    numbers = itertools.count()
    run = os.urandom(4).hex()
    end_s = time.perf_counter() + seconds

    async def work() -> int:
        count = 0
        while time.perf_counter() < end_s:
            key = Key("agents", "planner@svc", "research.request", "researchers", f"{run}-{next(numbers):09d}")
            claim = await inbox.claim(key, "0" * 64, keep_until_ms=LATER_MS)
            assert isinstance(claim, Claimed)
            assert await inbox.finish(key, claim.token, OUTPUTS)
            count += 1
        return count

    started_s = time.perf_counter()
    total = sum(await asyncio.gather(*(work() for _ in range(callers))))
    rate = total / (time.perf_counter() - started_s)
    await inbox.close()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{folder}/inbox.db"
        rate = asyncio.run(measure(url, given.callers, given.seconds))
    print(f"{url.partition(':')[0]}, {given.callers} callers: {rate:.0f} messages claimed and finished a second")


if __name__ == "__main__":
    main()
