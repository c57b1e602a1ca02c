"""The app of the end-to-end tests: writes one line per handled message, durably enough to survive its own death."""

from __future__ import annotations

import asyncio
import os

import msgspec

from sealbus import App, Context, Reject, payload


@payload("ledger.entry", version="1.0.0")
class Entry(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    note: str = ""


app = App("ledger@tests")
_ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.on(Entry)
async def write(entry: Entry, context: Context) -> None:
    if entry.note == "refuse":
        raise Reject("as asked")
    if entry.number % 50 == 0:
        await asyncio.sleep(0.01)
    # One write call is whole or not there: the kernel has it before anything is settled.
    os.write(_ledger, f"{entry.number} {os.getpid()}\n".encode())
