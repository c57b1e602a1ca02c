"""An agent that changes its mind: what it rejected once it would do the next time. For `end_deaths.py`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec

from sealbus import App, Context, Reject, Retry, RetryLater, payload


@payload("ends.order", version="1.0.0", performative="request")
class Order(msgspec.Struct, frozen=True, kw_only=True):
    number: int


@payload("ends.done", version="1.0.0", performative="inform")
class Done(msgspec.Struct, frozen=True, kw_only=True):
    number: int


class Fickle:
    """A policy that refuses one in eight of all looks at a message."""

    def refusal(self, *_: object) -> str | None:
        return "not now" if random.random() < 1 / 8 else None


ledger = Path(os.environ.get("LEDGER", "ledger.txt"))
app = App("ends@tests", types=[Done], policy=Fickle())


def note(what: str, number: int) -> None:
    """Write one line of the ledger, which survives the process."""
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{what} {number}\n".encode())
    os.close(descriptor)


@app.on(Order, dedup="always", retry=Retry(attempts=3, base_s=0.01, backoff="constant"))
async def handle(order: Order, context: Context) -> Done:
    chance = random.random()
    if chance < 0.4:
        raise Reject("not this time")
    if chance < 0.6:
        raise RetryLater("perhaps the next time")
    transaction = await context.transaction()
    await transaction.execute("INSERT INTO ends_effects VALUES ($1)", order.number)
    note("done", order.number)
    return Done(number=order.number)
