"""`sealbus run` in real processes: everything handled once, signals, supervision, and its exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from consumers.worker.signals import ECHO_S

pytestmark = pytest.mark.medium  # real workers

COUNT = 2_000


def owners(folder: Any) -> set[str]:
    groups = folder.objects(folder.call("group", "list", "-o", "json").stdout)
    shown = [folder.call("group", "show", each["group"], "-o", "json").stdout for each in groups]
    return {row["owner"] for one in shown for row in folder.objects(one)}


def lag(folder: Any) -> int:
    rows = folder.objects(folder.call("group", "list", "-o", "json").stdout)
    return sum(row["lag"] for row in rows)


def publish(folder: Any, count: int) -> None:
    publisher = folder.start("publish", "job.run", folder.jobs(count), "--app", "agents:app")
    out, err = publisher.communicate(timeout=30)
    assert publisher.returncode == 0, err
    receipts = folder.objects(out)
    assert len(receipts) == len({receipt["message_id"] for receipt in receipts}) == count
    assert f"published {count} to agents.job.run" in err


def test_a_worker_handles_everything_once_and_drains(folder: Any) -> None:
    worker = folder.worker()
    publish(folder, COUNT)
    folder.wait_until(lambda: len(folder.handled()) >= COUNT)
    folder.wait_until(lambda: lag(folder) == 0)
    assert folder.end(worker) == 0
    assert sorted(int(number) for number, _ in folder.handled()) == list(range(COUNT))
    tail = folder.call("tail", "job.run", "--from", "start", "--verify")
    assert (tail.exit_code, tail.stderr) == (0, f"{COUNT} records, {COUNT} valid, 0 invalid\n")
    assert len(tail.stdout.splitlines()) == COUNT
    assert all("  sealed ok  {" in line for line in tail.stdout.splitlines())


def test_two_processes_share_the_work_and_end_together(folder: Any) -> None:
    worker = folder.worker("--processes", "2", ready=2)
    folder.wait_until(lambda: len(owners(folder)) == 2)
    publish(folder, COUNT)
    folder.wait_until(lambda: len(folder.handled()) >= COUNT)
    folder.wait_until(lambda: lag(folder) == 0)
    assert folder.end(worker) == 0
    assert sorted(int(number) for number, _ in folder.handled()) == list(range(COUNT))
    assert len({process for _, process in folder.handled()}) == 2


def test_a_child_that_dies_is_started_again(folder: Any) -> None:
    worker = folder.worker("--processes", "2", ready=2)
    children = [int(pid) for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()]
    os.kill(children[0], signal.SIGKILL)
    log = folder.path / "worker.log"
    folder.wait_until(lambda: log.read_text().count("working; Ctrl-C") >= 3)
    assert "supervisor.child_died" in log.read_text()
    assert folder.end(worker) == 0


def test_children_drain_when_their_supervisor_is_killed(folder: Any) -> None:
    worker = folder.worker("--processes", "2", ready=2)
    log = folder.path / "worker.log"
    assert folder.end(worker, signal.SIGKILL) == -signal.SIGKILL
    folder.wait_until(lambda: log.read_text().count("worker.stopped") == 2)


def at_work(folder: Any, *options: str, seconds: int, ready: int = 1) -> Any:
    """A worker whose handler has begun something that takes so long."""
    with (folder.path / "agents.py").open("a") as source:
        source.write("\nimport asyncio\n@payload('job.slow')\nclass Slow(msgspec.Struct): pass\n")
        source.write("@app.on(Slow)\nasync def slow(job: Slow) -> None:\n    open('started', 'w').close()\n")
        source.write(f"    await asyncio.sleep({seconds})\n")
    worker = folder.worker(*options, ready=ready)
    assert folder.call("publish", "job.slow", "--app", "agents:app", stdin="{}\n").exit_code == 0
    folder.wait_until((folder.path / "started").exists)
    return worker


def test_a_second_signal_ends_at_once(folder: Any) -> None:
    worker = at_work(folder, "--drain-timeout", "50s", seconds=60)
    worker.send_signal(signal.SIGTERM)
    folder.wait_until(lambda: "process.stopping" in (folder.path / "worker.log").read_text())
    time.sleep(ECHO_S)
    assert folder.end(worker) == 143


def test_a_service_whose_processes_all_get_the_signal_lets_handlers_finish(folder: Any) -> None:
    worker = at_work(folder, "--processes", "2", seconds=2, ready=2)
    log = folder.path / "worker.log"
    worker.send_signal(signal.SIGTERM)
    folder.wait_until(lambda: log.read_text().count("process.stopping") == 2)
    time.sleep(2 * ECHO_S)
    for pid in re.findall(r'"pid": (\d+)', log.read_text()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGTERM)
    assert worker.wait(45) == 0


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("nowhere:app", 2, "no module 'nowhere'; looked in"),
        ("agents:other", 2, "its apps: agents:app"),
        ("agents:Job", 2, "not an App; its apps: agents:app"),
        ("agents", 2, "is not MODULE:APP"),
        ("broken:app", 1, "importing broken failed: ZeroDivisionError"),
    ],
)
def test_an_app_that_cannot_be_loaded(folder: Any, target: str, code: int, said: str) -> None:
    (folder.path / "broken.py").write_text("value = 1 / 0\n")
    result = folder.call("run", target)
    assert result.exit_code == code
    assert said in result.stderr
    assert "importlib" not in result.stderr


def test_the_users_own_import_error_shows_the_users_line(folder: Any) -> None:
    (folder.path / "broken.py").write_text("import missing_dependency\n")
    result = folder.call("run", "broken:app")
    assert result.exit_code == 1
    assert "import missing_dependency" in result.stderr
    assert "No module named 'missing_dependency'" in result.stderr


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare, of util-linux")
def test_the_first_process_of_a_container_can_be_stopped_while_it_imports_an_app(folder: Any) -> None:
    # /proc, which is that of outside, knows it by its number there.
    (folder.path / "agents.py").write_text(
        "import os, time\nos.symlink(os.readlink('/proc/self'), 'importing')\ntime.sleep(60)\n"
    )
    importing = folder.path / "importing"
    command = [
        "unshare",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
        sys.executable,
        "-m",
        "consumers.cli",
        "run",
        "agents:app",
    ]
    with subprocess.Popen(
        command, cwd=folder.path, env=folder.environment(), stderr=subprocess.PIPE, text=True
    ) as outside:
        try:
            folder.wait_until(lambda: importing.is_symlink() or outside.poll() is not None)
            if not importing.is_symlink():
                assert outside.stderr is not None
                said = outside.stderr.read()
                assert said.startswith("unshare: "), said
                pytest.skip(f"no namespace for processes can be made here: {said}")
            os.kill(int(importing.readlink().name), signal.SIGTERM)
            assert outside.wait(45) == 143
        finally:
            outside.kill()


EXITING = """
import asyncio, sys
import msgspec
from sealbus import App, payload

@payload("job.run", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int

app = App("worker@svc")

async def give_up() -> None:
    sys.exit(0)

@app.on(Job)
async def run(job: Job) -> None:
    await asyncio.create_task(give_up())
"""


def test_a_task_of_a_handler_that_exits_is_no_orderly_end(folder: Any) -> None:
    (folder.path / "agents.py").write_text(EXITING)
    worker = folder.worker()
    publish(folder, 1)
    assert worker.wait(45) == 1
    assert "SystemExit" in (folder.path / "worker.log").read_text()


FULL = """
from consumers.worker import process

async def run_process(*_, **__):
    raise OSError(28, "No space left on device")

process.run_process = run_process
"""


def test_what_the_system_refuses_is_not_blamed_on_the_metrics(folder: Any) -> None:
    with (folder.path / "agents.py").open("a") as source:
        source.write(FULL)
    worker = folder.start("run", "agents:app", "--metrics-port", "0")
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 1
    assert "No space left on device" in err
    assert "metrics" not in err


def test_children_that_cannot_start_end_the_supervisor(folder: Any) -> None:
    worker = folder.start("run", "agents:app", "--processes", "2", "--bus", "sqlite:///no/such/folder/x.db")
    _, err = worker.communicate(timeout=20)
    assert worker.returncode == 69
    assert "create it or correct the URL" in err


def test_reload_starts_again_when_source_changes(folder: Any) -> None:
    worker = folder.worker("--reload")
    log = folder.path / "worker.log"
    source = folder.path / "agents.py"

    # Watching may begin a little after the worker does.
    def started_again() -> bool:
        if time.time() - source.stat().st_mtime > 2:
            source.write_text(source.read_text() + "\n")
        return log.read_text().count("working; Ctrl-C") >= 2

    os.utime(source, (1, 1))
    folder.wait_until(started_again)
    assert folder.end(worker) == 0


BLOCKING = """
import time
import urllib.request
import msgspec
from sealbus import App, payload

@payload("job.run", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int

app = App("worker@svc")

@app.on(Job)
async def blocks(job: Job) -> None:
    time.sleep(2.5)
    open("handled.txt", "a").write(f"{job.number} 0\\n")
"""


def test_a_handler_that_blocks_the_loop_is_named_with_message_and_stack(folder: Any) -> None:
    (folder.path / "agents.py").write_text(BLOCKING)
    worker = folder.worker("--metrics-port", "0")
    log = folder.path / "worker.log"
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    port = next(line["port"] for line in lines if line["event"] == "metrics.served")
    publish(folder, 1)
    folder.wait_until(lambda: "loop.blocked" in log.read_text())
    # Asked while it lasts, and computed outside the loop.
    assert loop_lag(port) > 1
    folder.wait_until(lambda: "loop.free" in log.read_text())
    folder.wait_until(folder.handled)
    loop_lag(port)
    assert loop_lag(port) < 1, "only since the last scrape"
    blocked = next(json.loads(line) for line in log.read_text().splitlines() if "loop.blocked" in line)
    assert blocked["handler"] == "agents.blocks"
    assert blocked["type"] == "job.run"
    assert len(blocked["message_id"]) == 36
    assert "time.sleep(2.5)" in blocked["stack"]
    assert "blocking=True" in blocked["detail"]
    assert log.read_text().count("loop.blocked") == 1
    assert folder.end(worker) == 0


@pytest.mark.slow  # a worker is called stuck after fifteen seconds
def test_a_worker_with_a_blocked_loop_is_not_alive_and_names_the_handler(folder: Any) -> None:
    (folder.path / "agents.py").write_text(BLOCKING.replace("2.5", "22"))
    worker = folder.worker("--metrics-port", "0")
    lines = [json.loads(line) for line in (folder.path / "worker.log").read_text().splitlines() if line[0] == "{"]
    port = next(line["port"] for line in lines if line["event"] == "metrics.served")
    assert [probe(port, name)[0] for name in ("live", "ready", "startup")] == [200, 200, 200]
    publish(folder, 1)
    folder.wait_until(lambda: probe(port, "live")[0] == 503, 30)
    failing = [check for check in probe(port, "live")[1]["checks"] if not check["ok"]]
    assert [check["check"] for check in failing] == ["poll"]
    assert "agents.blocks (job.run)" in failing[0]["detail"]
    assert "time.sleep" not in failing[0]["detail"], "stacks are for the log"
    folder.wait_until(lambda: probe(port, "ready")[0] == 200, 30)
    assert folder.end(worker) == 0


def probe(port: int, name: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz/{name}", timeout=5) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def loop_lag(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    return float(re.search(r"^sealbus_loop_lag_seconds (\S+)$", text, re.MULTILINE)[1])
