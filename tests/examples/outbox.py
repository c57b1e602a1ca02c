"""The outbox: an order and the message about it are committed together, by a program without an event loop.

sealbus serve outbox sqlite:///shop.db
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sealbus import App, payload
from sealbus.outbox import Outbox


@payload("order.placed")
class OrderPlaced(msgspec.Struct, frozen=True, kw_only=True):
    number: int


outbox = Outbox("shop@svc")
app = App("mail@svc")


@app.on(OrderPlaced)
async def tell(order: OrderPlaced) -> None:
    """Send a mail about *order*."""


def place_order(connection: sqlite3.Connection, number: int, *, stock: int = 1) -> None:
    """Write an order and its message: both, or neither."""
    with connection:
        connection.execute("insert into orders values (?)", (number,))
        outbox.add(connection, OrderPlaced(number=number), key=f"order-{number}")
        if stock < 1:
            raise LookupError("out of stock")


@pytest.mark.medium
def test_a_rolled_back_order_is_not_published(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    connection = sqlite3.connect(database)
    connection.execute("create table orders (number integer primary key)")
    outbox.create(connection)
    place_order(connection, 1)
    with contextlib.suppress(LookupError):
        place_order(connection, 2, stock=0)
    place_order(connection, 3)
    connection.close()
    sealbus(tmp_path, "serve", "outbox", f"sqlite:///{database}", "--once")
    told = sealbus(tmp_path, "tail", "order.placed", "--from", "start", "-o", "json")
    numbers = [msgspec.json.decode(line)["value"]["data"]["number"] for line in told.splitlines()]
    assert sorted(numbers) == [1, 3]


def sealbus(folder: Path, *arguments: str) -> str:
    """Run the command line in *folder*."""
    command = [sys.executable, "-m", "consumers.cli", *arguments]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
