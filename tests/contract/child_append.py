"""A process that appends for ever and prints each acknowledged offset; or once, with a count as its second argument."""

import asyncio
import itertools
import sys

from bus.transports import open_transport
from bus.transports.base import Appended, NewRecord


async def main(url: str, limit: str = "") -> None:
    transport = open_transport(url)
    for number in range(int(limit)) if limit else itertools.count():
        outcomes = await transport.append(
            [NewRecord("a.b", None, b"%d-%d" % (number, i), partition=0) for i in range(20)], timeout_s=20
        )
        acknowledged = [outcome.offset for outcome in outcomes if isinstance(outcome, Appended)]
        print(f"{acknowledged[0]} {acknowledged[-1]} {number}", flush=True)
    await transport.close()


asyncio.run(main(*sys.argv[1:]))
