"""A store that several owners open, and time that passes in it.

Tests see the Protocol only. SQLite's time is moved; PostgreSQL decides by its own clock, so its leases are short and
real time passes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from bus.clock import ManualClock, SystemClock
from bus.transports.base import NewRecord
from consumers.delivery.inbox.base import Claim, Claimed, Inbox, InboxKey, Suspect
from consumers.delivery.inbox.open import open_inbox

__all__ = ["LATER_MS", "OUTPUTS", "Store", "claim", "claimed", "key"]

ROOT = Path(__file__).resolve().parents[4]
LATER_MS = 4_102_444_800_000  # 2100
OUTPUTS = (
    NewRecord(
        "agents.note.added", b"key", b'{"text":"x"}', (("content-type", b"application/json"), ("sb-id", b"\x00\xff")), 3
    ),
    NewRecord("agents.note.removed", None, None),
)


def key(name: str = "task-1") -> InboxKey:
    return InboxKey("agents", "planner@svc", "research.request", "researchers", name)


class Store:
    """One store, any number of owners."""

    def __init__(self, url: str, lease_s: float, clock: ManualClock | None) -> None:
        self.url = url
        self.lease_s = lease_s
        self.clock = clock
        self._opened: list[Inbox] = []

    async def open(self, owner: str = "a") -> Inbox:
        inbox = open_inbox(self.url, owner=owner, clock=self.clock or SystemClock(), lease_s=self.lease_s)
        await inbox.open()
        self._opened.append(inbox)
        return inbox

    async def die(self, inbox: Inbox) -> None:
        """What a kill leaves behind: a lease that nobody renews."""
        inbox._renewal.cancel()  # type: ignore[attr-defined]
        # Nor on the way, where it is used after its death.
        inbox._lease.renewed(float("inf"))  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    async def run_out(self) -> None:
        """Let so much time pass that the leases of the dead run out; the living renew theirs."""
        await self.pass_time(self.lease_s * 1.3)

    async def pass_time(self, seconds: float) -> None:
        if self.clock is None:
            await asyncio.sleep(seconds)
            return
        for _ in range(16):
            self.clock.advance(seconds / 16)
            # The renewal that is due by now is a job of another thread.
            for inbox in self._opened:
                if not inbox._renewal.done():  # type: ignore[attr-defined]
                    await asyncio.sleep(0)
                    await inbox.release(key("nobody's"), 1)

    def now_ms(self) -> int:
        return (self.clock or SystemClock()).now_ms()

    async def child(self, *arguments: str) -> asyncio.subprocess.Process:
        """Run the script beside this file as another process on the same store."""
        return await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("child.py")),
            self.url,
            str(self.lease_s),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    async def close(self) -> None:
        for inbox in self._opened:
            await inbox.close()


async def claim(
    inbox: Inbox, name: str = "task-1", content_hash: str = "hash-1", *, until_ms: int = LATER_MS, reopen: int = 0
) -> Claim:
    """As a worker asks that runs nothing else."""
    answer = await inbox.claim(key(name), content_hash, keep_until_ms=until_ms, reopen=reopen)
    return (
        await inbox.claim(key(name), content_hash, keep_until_ms=until_ms, reopen=reopen, alone=True)
        if answer == Suspect()
        else answer
    )


async def claimed(inbox: Inbox, name: str = "task-1") -> Claimed:
    answer = await claim(inbox, name)
    assert isinstance(answer, Claimed), answer
    return answer
