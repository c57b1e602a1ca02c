"""`sealbus dev` runs an app with all that belongs to it, and ends all of it."""

from __future__ import annotations

import re
import signal
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Developing:
    """`sealbus dev` of a folder, and what it says."""

    def __init__(self, folder: Any) -> None:
        self.process = folder.start("dev", "agents:app", "--port", "0")
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        self.lines.extend(self.process.stderr)

    def said(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, "".join(self.lines))


def running(folder: Any) -> list[int]:
    """The processes whose folder this is."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").resolve() == folder.path and b"sealbus" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def test_worker_audit_and_console_run_and_ctrl_c_ends_all(folder: Any) -> None:
    developing = Developing(folder)
    folder.wait_until(lambda: developing.said(r"http://[^ /]+/\n") is not None, within_s=40)
    folder.wait_until(lambda: developing.said("recording agents") is not None)
    url = developing.said(r"(http://[^ /]+)/\n")
    assert url is not None
    assert folder.call("publish", "job.run", "--app", "agents:app", stdin='{"number": 7}').exit_code == 0
    folder.wait_until(lambda: [number for number, _ in folder.handled()] == ["7"])
    with urllib.request.urlopen(url[1] + "/", timeout=10) as answer:  # noqa: S310 - of this test
        assert answer.status == 200
    assert folder.end(developing.process, signal.SIGINT) == 130
    folder.wait_until(lambda: running(folder) == [])
    assert not [line for line in developing.lines if "Traceback" in line]


def test_its_death_ends_all(folder: Any) -> None:
    developing = Developing(folder)
    folder.wait_until(lambda: developing.said(r"http://[^ /]+/\n") is not None, within_s=40)
    assert len(running(folder)) > 3
    developing.process.send_signal(signal.SIGKILL)
    folder.wait_until(lambda: running(folder) == [], within_s=30)


def test_an_app_that_cannot_be_loaded_ends_it(folder: Any) -> None:
    (folder.path / "agents.py").write_text("import nothing_of_this_name\n")
    developing = Developing(folder)
    assert developing.process.wait(30) not in (0, None)
    folder.wait_until(lambda: running(folder) == [])
