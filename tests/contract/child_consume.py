"""A process that consumes `a.b`, prints each offset, and commits up to the offset given as its second argument, no
further.

Its third argument is the session timeout in seconds."""

import asyncio
import sys

from bus.transports import open_transport


class Listener:
    def assigned(self, assignments):
        print("assigned", *(assignment.partition for assignment in assignments), flush=True)

    async def revoked(self, assignments):
        pass

    def lost(self, assignments):
        print("lost", flush=True)


async def main(url: str, limit: str, session_timeout_s: str = "2") -> None:
    transport = open_transport(url, heartbeat_s=0.2, session_timeout_s=float(session_timeout_s))
    subscription = await transport.subscribe("g", ["a.b"], Listener(), member="child")
    while True:
        for record in await subscription.poll(timeout_s=1, max_records=1, max_bytes=1 << 20):
            if record.offset < int(limit):
                await subscription.commit(dict.fromkeys(subscription.assignments(), record.offset + 1))
            print(record.offset, flush=True)


asyncio.run(main(*sys.argv[1:]))
