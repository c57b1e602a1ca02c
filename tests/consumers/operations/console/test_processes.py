"""Processes: what failed and what is overdue is found among thousands of others."""

from __future__ import annotations

import asyncio
import re
import secrets
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.clock import SystemClock
from consumers.delivery.inbox.base import Write
from consumers.delivery.inbox.open import open_inbox
from consumers.processes.sagas.process import Process
from consumers.processes.sagas.store import NewWait, ProcessChange, ProcessStore
from tests.consumers.operations.console.test_console import Served

pytestmark = [pytest.mark.medium, pytest.mark.timeout(180)]


def process(key: str, **more: Any) -> Process:
    plain: dict[str, Any] = {"version": 1, "status": "open", "shape": "1.0.0", "state": b"{}", "opener": b"{}"}
    names = {"namespace": "agents", "group": "shop", "saga": "buying", "trust": "user_request"}
    return Process(id=secrets.token_bytes(32), key=key, **(plain | names | more))


def ended(key: str, outcome: str) -> Process:
    state = msgspec.json.encode({"ending": {"outcome": outcome, "reason": "the shop was closed", "where": "paying"}})
    return process(key, state=state)


async def fill(path: Path) -> None:
    """Write 450 processes: the first is overdue, the second failed, all others are fine."""
    inbox = open_inbox(f"sqlite:///{path}", owner="test", clock=SystemClock(), shared_files=False)
    await inbox.open()
    store = ProcessStore(inbox, namespace="agents", group="shop", clock=SystemClock())
    await store.open()
    late = (NewWait(id="w-1", name="payment", after_ms=0, addressee="bank@corp"),)
    await store.change(ProcessChange(before=None, after=process("late-one"), armed=late))
    for number in range(449):
        key, wait = f"order-{number}", (NewWait(id=f"w-{number + 2}", name="payment", after_ms=9_000_000),)
        if number % 2:
            await store.change(ProcessChange(before=None, after=process(key), armed=wait))
        else:
            await store.change(ProcessChange(before=None, after=ended(key, "completed" if number else "failed")))
    await store.write_whole(
        [
            Write(
                "UPDATE sealbus_processes SET status = 'finished' WHERE id NOT IN (SELECT process FROM sealbus_waits)",
                (),
            ),
            Write("UPDATE sealbus_waits SET due_ms = due_ms - 600000 WHERE id = 'w-1'", ()),
        ]
    )
    await inbox.close()


def keys(page: str) -> list[str]:
    return re.findall(r'clamp" href="/processes\?id=[0-9a-f]+">([^<]+)<', page)


def test_what_failed_and_what_is_overdue_is_found_among_many(folder: Any) -> None:
    (folder.path / "sealbus.toml").write_text(f'[inbox]\nurl = "sqlite:///{folder.path}/inbox.db"\n')
    asyncio.run(fill(folder.path / "inbox.db"))
    assert folder.apart("publish", "task.request", stdin='{"goal": "a log to look at"}').returncode == 0
    served = Served(folder, "--read-only")
    assert keys(served.get("/processes?status=failed")[2]) == ["order-0"]
    overdue = served.get("/processes?status=overdue")[2]
    assert keys(overdue) == ["late-one"]
    assert "payment of bank@corp" in overdue
    seen, address, pages = list[str](), "/processes?status=", 0
    while True:
        page = served.get(address)[2]
        seen, pages = seen + keys(page), pages + 1
        # What waits is said of every row, not of the first ones alone.
        assert "at work" not in page
        older = re.search(r'href="([^"]*before=[^"]*)">Older', page)
        if older is None:
            break
        address = older[1].replace("&amp;", "&")
    assert pages == 3
    assert sorted(seen) == sorted(["late-one", *(f"order-{number}" for number in range(449))])
    assert "Nothing is overdue" in served.get("/processes?status=overdue&saga=selling")[2]
    # The key of a process leads to it, in the search and on the command line: a task is known by its id.
    status, headers, _ = served.get("/search?q=late-one")
    assert (status, "late-one" in served.get(headers["location"])[2]) == (303, True)
    assert "payment" in folder.apart("workflow", "show", "late-one").stdout
    assert served.get("/search?q=order-9999")[1]["location"] == "/conversations?q=order-9999"
    assert served.get("/search?q=agents.a.b.dlq/0/7")[1]["location"] == "/letters/show?place=agents.a.b.dlq%2F0%2F7"
    # The check leads to the list that has what it tells of.
    folder.wait_until(lambda: "/processes?status=overdue" in served.get("/")[2])
    for wrong in ("x", "1.zz", "1.", "9" * 40 + ".00", "%00"):
        assert served.get(f"/processes?before={wrong}")[0] == 200
