"""A process that publishes signed entries until a file says stop, and writes down which were accepted.

python signing_publisher.py URL ACCEPTED STOP
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ledger_app import Entry

from sealbus import connect

PAUSE_S = 0.004


async def publish(url: str, accepted: Path, stop: Path) -> None:
    number = 0
    with accepted.open("w") as out:
        async with connect(url, agent="planner@svc") as bus:
            while not stop.exists():
                await bus.publish(Entry(number=number))
                out.write(f"{number}\n")
                out.flush()
                number += 1
                await asyncio.sleep(PAUSE_S)


asyncio.run(publish(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
