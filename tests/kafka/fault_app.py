"""An app whose handler notes each number it has handled, with the time, in a file that survives the process."""

import os
import time

import msgspec

from sealbus import App, payload

_JOURNAL = os.open(os.environ["FAULT_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@payload("fault.item", version="1.0.0")
class Item(msgspec.Struct, frozen=True, kw_only=True):
    number: int


app = App("fault@test", group="fault-test")


@app.on(Item)
async def handle(item: Item) -> None:
    os.write(_JOURNAL, b"%d %.6f\n" % (item.number, time.time()))
