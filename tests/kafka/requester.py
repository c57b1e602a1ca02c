"""A process that asks at a steady rate and notes how each request ended: `requester.py URL NAMESPACE COUNT RATE
TIMEOUT_S`.

One JSON line per request on stdout: its number, how it ended, and after how many seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from request_app import Sum, Total

from bus.settings.loading import load
from bus.telemetry.logs import configure_unless_done
from sealbus import Bus, BusError, connect


async def ask(bus: Bus, number: int, timeout_s: float) -> None:
    started_s = time.monotonic()
    try:
        total = await bus.request(Sum(number=number), Total, timeout_s=timeout_s)
        ended = "answered" if total.number == number + 1 else "wrong"
    except BusError as error:
        ended = type(error).__name__
    except Exception as error:  # noqa: BLE001 - the test shall see it
        ended = f"untyped {error!r}"
    print(json.dumps([number, ended, round(time.monotonic() - started_s, 3)]), flush=True)


async def main(url: str, namespace: str, count: int, rate: float, timeout_s: float) -> None:
    configure_unless_done("info")
    settings = load(flags={"bus.url": url, "bus.namespace": namespace}, env={}, file=None).settings
    async with connect(settings=settings, agent="asker@test") as bus:
        started_s = time.monotonic()
        asking: list[asyncio.Task[None]] = []
        while len(asking) < count:
            due = min(count, int((time.monotonic() - started_s) * rate) + 1)
            asking += [asyncio.create_task(ask(bus, number, timeout_s)) for number in range(len(asking), due)]
            await asyncio.sleep(0.01)
        await asyncio.wait(asking)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])))
