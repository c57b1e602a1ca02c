"""An agent within a limit, and one that runs at times: every run is one line of a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from sealbus import App, payload
from sealbus.limits import Rate
from sealbus.vocabulary import ScheduleDue

FOLDER = Path(os.environ.get("PACED_FOLDER", "."))


@payload("paced.call", version="1.0.0", performative="request")
class Call(msgspec.Struct, frozen=True, kw_only=True):
    number: int


paced = App("paced@svc")


def note(what: str, text: str) -> None:
    descriptor = os.open(FOLDER / f"{what}.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{time.time():.3f} {text}\n".encode())
    os.close(descriptor)


@paced.on(Call, limits=[Rate("api", 120, per_s=12)], order="none")
async def call(request: Call) -> None:
    note("calls", str(request.number))


@paced.every(seconds=1, name="tick")
async def tick(due: ScheduleDue) -> None:
    note("ticks", f"{due.due_at.timestamp():.0f} {due.missed}")
