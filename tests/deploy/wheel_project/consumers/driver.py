"""An agent in the user's own `consumers`."""

from __future__ import annotations

from pathlib import Path

import msgspec
from bus.lines import STOPS

from sealbus import App, Context, Retry, payload


@payload("ride.request", version="1.0.0")
class Ride(msgspec.Struct, frozen=True, kw_only=True):
    stop: str


@payload("ride.output", version="1.0.0")
class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    stop: str
    last: bool


app = App("driver@svc")


@app.on(Ride, retry=Retry(attempts=2))
async def drive(ride: Ride, context: Context) -> Arrived:
    note(ride.stop)
    return Arrived(stop=ride.stop, last=ride.stop == STOPS[-1])


def note(stop: str) -> None:
    with Path("driven.txt").open("a", encoding="utf-8") as file:
        file.write(f"{stop}\n")
