"""Another process on a store: `claim NAME` holds one message until it is killed; `race COUNT` runs as many of COUNT
messages as it gets."""

from __future__ import annotations

import asyncio
import sys

from bus.clock import SystemClock
from consumers.delivery.inbox.base import AlreadyDone, Claimed, Inbox, InboxKey
from consumers.delivery.inbox.open import open_inbox

LATER_MS = 4_102_444_800_000


def key(name: str) -> InboxKey:
    return InboxKey("agents", "planner@svc", "research.request", "researchers", name)


async def hold(inbox: Inbox, name: str) -> None:
    print(await inbox.claim(key(name), "hash-1", keep_until_ms=LATER_MS), flush=True)
    await asyncio.Event().wait()


async def race(inbox: Inbox, count: int) -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    ran: list[int] = []
    free = asyncio.Semaphore(64)

    async def one(number: int) -> None:
        async with free:
            while True:
                claim = await inbox.claim(key(f"task-{number}"), "hash-1", keep_until_ms=LATER_MS)
                if isinstance(claim, AlreadyDone):
                    return
                if isinstance(claim, Claimed):
                    ran.append(number)
                    assert await inbox.finish(key(f"task-{number}"), claim.token, ())
                    return
                await asyncio.sleep(0.02)

    await asyncio.gather(*(one(number) for number in range(count)))
    print(",".join(map(str, ran)), flush=True)


async def main(url: str, lease_s: str, verb: str, argument: str) -> None:
    inbox = open_inbox(url, owner=f"child {verb}", clock=SystemClock(), lease_s=float(lease_s))
    await inbox.open()
    await (hold(inbox, argument) if verb == "claim" else race(inbox, int(argument)))
    await inbox.close()


asyncio.run(main(*sys.argv[1:]))
