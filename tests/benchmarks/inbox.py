"""How many messages an inbox claims and finishes in a second, and for how much processor time: `python
tests/benchmarks/inbox.py [URL]`.

Each caller claims a message, and finishes it with one output of about 700 bytes (or --silent), again and again. Without
a URL: SQLite in a temporary file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bus.clock import SystemClock
from bus.transports.base import NewRecord
from consumers.delivery.inbox.base import Claimed, InboxKey
from consumers.delivery.inbox.open import open_inbox

OUTPUTS = (NewRecord("agents.x", b"k" * 36, b"v" * 600, (("content-type", b"a" * 30), ("sb-id", b"i" * 36))),)
LATER_MS = 4_102_444_800_000


async def measure(
    url: str, callers: int, seconds: float, outputs: Sequence[NewRecord] = OUTPUTS
) -> tuple[float, float]:
    """Messages in a second, and seconds of processor time for each; the callers' own part is in it."""
    inbox = open_inbox(url, owner="benchmark", clock=SystemClock())
    await inbox.open()
    numbers = itertools.count()
    run = os.urandom(4).hex()
    end_s = time.perf_counter() + seconds

    async def work() -> int:
        count = 0
        while time.perf_counter() < end_s:
            key = InboxKey("agents", "planner@svc", "research.request", "researchers", f"{run}-{next(numbers):09d}")
            claim = await inbox.claim(key, "0" * 64, keep_until_ms=LATER_MS)
            assert isinstance(claim, Claimed)
            assert await inbox.finish(key, claim.token, outputs)
            count += 1
        return count

    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    total = sum(await asyncio.gather(*(work() for _ in range(callers))))
    rate, cpu_s = total / (time.perf_counter() - started_s), (time.process_time() - started_cpu_s) / total
    await inbox.close()
    return rate, cpu_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--silent", action="store_true", help="without outputs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{folder}/inbox.db"
        rate, cpu_s = asyncio.run(measure(url, given.callers, given.seconds, () if given.silent else OUTPUTS))
    print(
        f"{url.partition(':')[0]}, {given.callers} callers: {rate:.0f} messages claimed and finished a second, "
        f"{cpu_s * 1e6:.1f} us of CPU each"
    )


if __name__ == "__main__":
    main()
