"""`sealbus serve outbox`: what it says and its exit codes; that it relays rightly is tested with the outbox."""

from __future__ import annotations

import re
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from producers.outbox import Outbox
from tests.kit import Job


@pytest.fixture
def shop(folder: Any) -> str:
    """The URL of a database with three messages in its outbox."""
    connection = sqlite3.connect(folder.path / "shop.db")
    outbox = Outbox("shop@svc", env={})
    with connection:
        outbox.create(connection)
        for number in range(3):
            outbox.add(connection, Job(number=number))
    connection.close()
    return "sqlite:///shop.db"


def test_list_shows_what_waits(folder: Any, shop: str) -> None:
    result = folder.call("serve", "outbox", shop, "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[:2] == ["agents.job.asked", "3"]
    assert "3 pending, the oldest for" in result.stderr
    (row,) = folder.objects(folder.call("serve", "outbox", shop, "--dry-run", "-o", "json").stdout)
    assert (row["topic"], row["pending"], row["failed"], row["error"]) == ("agents.job.asked", 3, 0, None)
    assert 0 <= row["oldest_s"] < 60


def test_relay_once_sends_everything_and_says_so(folder: Any, shop: str) -> None:
    result = folder.call("serve", "outbox", shop, "--once")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "3 sent, 0 refused for good" in result.stderr
    assert "0 pending; 0 refused for good" in folder.call("serve", "outbox", shop, "--dry-run").stderr
    assert len(folder.call("tail", "agents.job.asked", "-o", "json").stdout.splitlines()) == 3


@pytest.mark.medium
def test_relay_runs_until_it_is_told_to_stop(folder: Any, shop: str) -> None:
    relay = folder.start("serve", "outbox", shop, "--every", "50ms")
    folder.wait_until(lambda: "0 pending" in folder.call("serve", "outbox", shop, "--dry-run").stderr)
    assert folder.end(relay, signal.SIGINT) == 130


def test_a_relay_waits_for_a_database_that_is_not_there_yet(folder: Any) -> None:
    relay = folder.start("serve", "outbox", "sqlite:///later.db")
    lines = [relay.stderr.readline() for _ in range(2)]
    assert lines[0] == "settings: defaults, bus: sqlite:///sealbus.db\n"
    assert re.search(r"no database at \S*later.db", lines[1])
    assert folder.end(relay) == 143


def test_once_a_database_that_is_not_there_ends_it(folder: Any) -> None:
    result = folder.call("serve", "outbox", "sqlite:///missing.db", "--once")
    assert result.exit_code == 69
    assert re.search(r"no database at \S*missing.db", result.stderr)
    assert not Path("missing.db").exists()
    listed = folder.call("serve", "outbox", "postgresql://nobody@127.0.0.1:1/none", "--dry-run")
    assert listed.exit_code == 69
    assert "hint: check DATABASE_URL" in listed.stderr


def test_once_a_bus_that_is_not_there_ends_it(folder: Any, shop: str) -> None:
    assert folder.call("serve", "outbox", shop, "--once", "--bus", "sqlite:////nowhere/log.db").exit_code == 69


def test_a_database_of_another_kind_is_a_wrong_setting(folder: Any) -> None:
    result = folder.call("serve", "outbox", "mysql://host/db", "--dry-run")
    assert result.exit_code == 78
    assert "postgresql://" in result.stderr


def test_a_database_without_an_outbox_is_a_wrong_setting(folder: Any) -> None:
    sqlite3.connect("empty.db").executescript("CREATE TABLE x (y)").connection.close()
    result = folder.call("serve", "outbox", "sqlite:///empty.db", "--dry-run")
    assert result.exit_code == 78
    assert "outbox.create(connection)" in result.stderr


def test_a_password_is_not_shown(folder: Any) -> None:
    assert (
        "s3cret" not in folder.call("serve", "outbox", "postgresql://user:s3cret@127.0.0.1:1/none", "--dry-run").stderr
    )
