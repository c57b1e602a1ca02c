"""Back up and restore as the page says, under load: nothing lost, nothing twice beyond what the page says."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.documents import DOCS

PAGE = (DOCS / "how-to" / "back-up-and-upgrade.md").read_text("utf-8")
AGENTS = """
import msgspec
from sealbus import App, Context, payload


@payload("job.run", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int


app = App("worker@svc")


@app.on(Job, dedup="always")
async def run(job: Job, context: Context) -> None:
    transaction = await context.transaction()
    await transaction.execute("CREATE TABLE IF NOT EXISTS effects (number INTEGER)")
    await transaction.execute("INSERT INTO effects VALUES ($1)", job.number)
"""


def commands(section: str) -> list[str]:
    """The commands of a section's first block, that touch files."""
    block = re.search(rf"## {section}\n.*?```console\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    lines = [line.removeprefix("$ ") for line in block[1].splitlines()]
    return [line for line in lines if not line.startswith("sealbus ")]


def run(folder: Any, section: str) -> None:
    script = "\n".join(["set -e", *commands(section)]).replace("python -c", f"{sys.executable} -c")
    found = subprocess.run(["/bin/sh", "-c", script], cwd=folder.path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def effects(folder: Any) -> Counter[int]:
    with sqlite3.connect(folder.path / "sealbus-inbox.db") as found:
        return Counter(number for (number,) in found.execute("SELECT number FROM effects"))


def lag(folder: Any) -> int:
    return sum(json.loads(line)["lag"] for line in folder.apart("group", "list", "-o", "json").stdout.splitlines())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_installation_under_load_is_restored_with_every_message_handled_once(folder: Any) -> None:
    (folder.path / "agents.py").write_text(AGENTS)
    (folder.path / "sealbus.toml").write_text('[project]\napps = ["agents:app"]\n')
    worker = folder.worker()
    audit = folder.start("serve", "audit", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    publisher = folder.start(
        "publish", "job.run", "--app", "agents:app", stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    receipts: list[dict[str, Any]] = []

    def read() -> None:
        receipts.extend(map(json.loads, publisher.stdout))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    stop = threading.Event()

    def feed() -> None:
        number = 0
        while not stop.is_set():
            publisher.stdin.write(f'{{"number": {number}}}\n')
            publisher.stdin.flush()
            number += 1
            stop.wait(0.002)

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        folder.wait_until(lambda: len(receipts) > 500, within_s=90)
        acknowledged = len(receipts)
        run(folder, "Back up an embedded log")
        folder.wait_until(lambda: len(receipts) > acknowledged + 300, within_s=90)
    finally:
        stop.set()
        feeding.join()
    for process in (publisher, worker, audit):
        process.kill()
        process.wait(30)
    assert (folder.path / "backup" / "sealbus-audit.db").exists()

    run(folder, "Restore it")
    assert {path.stat().st_mode & 0o077 for path in folder.path.glob("sealbus*.db")} == {0}
    worker = folder.worker()
    audit = folder.start("serve", "audit", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder.wait_until(lambda: lag(folder) == 0, within_s=90)
    done = effects(folder)
    # Whatever was acknowledged before the backup is there, once; a few after it may be there, too.
    assert set(range(acknowledged)) <= set(done)
    assert set(done.values()) == {1}
    folder.end(worker)
    audit.kill()
    verified = folder.apart("audit", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_the_backup_page_names_the_order_in_which_nothing_runs_twice() -> None:
    (line,) = (line for line in commands("Back up an embedded log") if "for part in" in line)
    assert line.index("sealbus-audit") < line.index(" sealbus ") < line.index("sealbus-inbox")


def test_the_files_of_the_page_are_those_of_an_embedded_log(tmp_path: Path) -> None:
    from bus.settings.loading import load
    from consumers.delivery.inbox.open import inbox_url

    settings = load(env={}, file=None).settings
    assert settings.bus.url == "sqlite:///sealbus.db"
    assert inbox_url(settings) == "sqlite:///sealbus-inbox.db"
