"""The console while its databases are away: every page answers, and says what it has not looked at."""

from __future__ import annotations

import asyncio
import http.client
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.databases import Postgres, postgres_server

pytestmark = [pytest.mark.medium, pytest.mark.timeout(180)]

AWAY = "postgresql://nobody@127.0.0.1:1/none"
AGENTS = """
import msgspec
from sealbus import App, payload

@payload("shop.stock", version="1.0.0")
class Stock(msgspec.Struct, frozen=True, kw_only=True):
    quantity: int

app = App("shop@svc")

@app.on(Stock)
async def stock(stock: Stock) -> None: ...
"""
PAGES = (
    "/",
    "/letters",
    "/conversations",
    "/conversations?q=word",
    "/conversations?state=open",
    "/agents",
    "/agents/show?id=shop%40svc",
    "/groups",
    "/processes",
    "/processes?status=failed",
    "/processes?status=overdue",
    "/processes?id=ab12",
    "/approvals",
    "/costs",
    "/audit",
    "/audit?conversation=c&question=decisions",
    "/search?q=word",
    "/tail",
)


@pytest.fixture
def server() -> Iterator[Postgres]:
    opened = postgres_server()
    yield opened
    opened.thaw()
    opened.end()


def set_for_all(folder: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    environment = folder.environment() | settings
    monkeypatch.setattr(folder, "environment", lambda: environment)


class Console:
    """A served console, asked over HTTP."""

    def __init__(self, folder: Any) -> None:
        self._log = folder.path / "log"
        with self._log.open("w") as out:
            folder.start("serve", "console", "--port", "0", stderr=out)
        folder.wait_until(lambda: "http://" in self._log.read_text())
        self._port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", self._log.read_text())[1])
        folder.wait_until(lambda: "Looking" not in self.get("/")[1], within_s=120)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        told = answer.status, answer.read().decode()
        connection.close()
        return told


def test_every_page_answers_without_the_databases_and_the_overview_is_whole(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / "agents.py").write_text(AGENTS)
    folder.worker()
    published = folder.apart(
        "publish", "shop.stock", "--app", "agents:app", "--as", "buyer@svc", stdin='{"quantity": 1}'
    )
    assert published.returncode == 0, published.stderr
    set_for_all(folder, monkeypatch, {"SEALBUS_INBOX__URL": AWAY, "SEALBUS_AUDIT__URL": AWAY})
    console = Console(folder)
    answers = {path: console.get(path) for path in PAGES}
    assert {path: status for path, (status, _) in answers.items() if status not in (200, 303, 404, 503)} == {}
    assert {path for path, (status, _) in answers.items() if status == 503} <= {
        "/costs",
        "/audit",
        "/audit?conversation=c&question=decisions",
    }
    status, text = answers["/"]
    assert status == 200
    assert "wrong" in text
    assert "Not looked at" in text
    assert "none runs" not in text
    assert "shop.stock" in answers["/conversations"][1]
    assert "cannot be read" in answers["/conversations"][1]
    for path in ("/processes", "/processes?status=failed", "/processes?status=overdue"):
        assert "Not looked at" in answers[path][1]


def test_while_the_databases_hang_the_overview_is_there_and_the_doctor_needs_no_half_minute(
    folder: Any, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = asyncio.run(server.create_database())
    (folder.path / "agents.py").write_text(AGENTS)
    set_for_all(folder, monkeypatch, {"SEALBUS_INBOX__URL": url, "SEALBUS_AUDIT__URL": url})
    folder.worker()
    assert folder.apart("serve", "audit", "--once").returncode == 0
    console = Console(folder)
    server.freeze()
    begun_s = time.monotonic()
    assert console.get("/")[0] == 200
    assert time.monotonic() - begun_s < 8
    folder.wait_until(lambda: "hang" in console.get("/")[1] or "did not answer" in console.get("/")[1], within_s=60)
    begun_s = time.monotonic()
    result = folder.apart("doctor", "-o", "json")
    assert time.monotonic() - begun_s < 25
    found = {each["area"]: each for each in folder.objects(result.stdout) if each["state"] != "ok"}
    assert found["inbox"]["state"] == "fault"
    assert found["audit"]["state"] == "fault"
