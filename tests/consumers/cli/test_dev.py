"""`sealbus dev` runs an app with all that belongs to it, and ends all of it."""

from __future__ import annotations

import re
import signal
import threading
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Developing:
    """`sealbus dev` of a folder, and what it says."""

    def __init__(self, folder: Any, port: int = 0) -> None:
        self.process = folder.start("dev", "agents:app", "--port", str(port))
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


ASKS = """
from sealbus import App, Approval, Context
from sealbus.vocabulary import TaskRequest, TaskResult

app = App("desk@svc")


async def push(branch: str) -> str:
    return f"pushed {branch}"


@app.on(TaskRequest, asks=True, dedup="always")
async def work(task: TaskRequest, context: Context) -> TaskResult:
    return TaskResult(
        status="completed", summary=await context.step("push", push, task.goal, approve=Approval(by="human"))
    )
"""


def test_it_says_what_to_open_and_to_type_and_the_person_decides_in_the_console(folder: Any) -> None:
    folder.call("new", "desk", "--with", "keys")
    for name in ("policy.toml", "sealbus.toml", ".sealbus"):
        (folder.path / "desk" / name).rename(folder.path / name)
    (folder.path / "agents.py").write_text(ASKS)
    (folder.path / ".env.example").write_text("DESK_KEY=\nDESK_MODEL=gpt\nDESK_OTHER=\n")
    (folder.path / ".env").write_text("DESK_OTHER=x\n")
    port = folder.free_port()
    developing = Developing(folder, port)
    folder.wait_until(lambda: developing.said("token to change something, for this run: ") is not None, within_s=60)
    for line in (
        f"open:     http://127.0.0.1:{port}/",
        'ask:      sealbus ask desk@svc "your task in words"',
        f"decide:   http://127.0.0.1:{port}/approvals as you@local, or: sealbus approval list",
        "missing:  DESK_KEY is not set (.env.example)",
        "missing:  DESK_OTHER is in .env, which is not loaded: set -a && . ./.env && set +a",
    ):
        assert line in "".join(developing.lines)
    asking = folder.start("ask", "desk@svc", "fix", "--timeout", "1m")
    waiting: list[dict[str, Any]] = []
    folder.wait_until(lambda: bool(waiting.extend(folder.objects(approvals(folder))) or waiting))
    token = developing.said(r"for this run: (\S+)")
    assert token is not None
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, headers={"origin": url}) as site:
        decide_in_console(site, token[1], waiting[0])
    assert asking.wait(60) == 0
    assert asking.stdout.read() == "pushed fix\n"
    assert folder.end(developing.process, signal.SIGINT) == 130


def decide_in_console(site: httpx.Client, token: str, waiting: dict[str, Any]) -> None:
    assert site.post("/login", data={"token": token}).status_code == 303
    number = waiting["approval"].removeprefix("sha256:")[:12]
    csrf = re.search('name="csrf" value="([^"]+)"', site.get("/approvals/show", params={"id": number}).text)
    assert csrf is not None
    digits = waiting["action_hash"].removeprefix("sha256:")[:8]
    form = {"csrf": csrf[1], "id": number, "digits": digits, "act": "approve"}
    decided = site.post("/approvals/decide", data=form)
    assert decided.status_code == 303, decided.text


def approvals(folder: Any) -> str:
    found: str = folder.call("approval", "list", "-o", "json").stdout
    return found


def test_a_person_without_a_key_here_is_refused(folder: Any) -> None:
    refused = folder.call("dev", "agents:app", "--as", "lead@acme")
    assert (refused.exit_code, "no private key of that person" in refused.stderr) == (2, True)
