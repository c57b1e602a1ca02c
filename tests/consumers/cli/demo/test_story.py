"""What the demo does to its workers must not stop the demo itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bus.transports.sqlite.schema import open_log
from consumers.cli.demo.crew import Crew
from consumers.cli.demo.story import freeze
from consumers.cli.demo.trouble import is_locked

_WRITER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
time.sleep(0.3)
connection.execute("ROLLBACK")
time.sleep(60)
"""


@pytest.mark.slow
async def test_a_worker_is_not_frozen_while_it_holds_the_log(tmp_path: Path) -> None:
    log = str(tmp_path / "log.db")
    open_log(log).close()
    crew = Crew(tmp_path, f"sqlite:///{log}", "demo")
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, log], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        crew._processes["writer"] = writer
        await freeze(crew, "writer", log)
        free = not is_locked(log)
        crew.kill("writer")
    assert free
