"""An app whose handlers will not stop: one blocks the event loop, one ignores being cancelled."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec

from sealbus import App, payload


@payload("stubborn.block", version="1.0.0")
class Block(msgspec.Struct, frozen=True):
    seconds: float


@payload("stubborn.ignore", version="1.0.0")
class Ignore(msgspec.Struct, frozen=True):
    seconds: float


app = App("stubborn@tests")


@app.on(Block)
async def block(order: Block) -> None:
    Path("started").touch()
    time.sleep(order.seconds)  # noqa: ASYNC251 - the point of it


@app.on(Ignore)
async def ignore(order: Ignore) -> None:
    Path("started").touch()
    until_s = time.monotonic() + order.seconds
    while time.monotonic() < until_s:
        try:
            await asyncio.sleep(order.seconds)
        except asyncio.CancelledError:
            continue
