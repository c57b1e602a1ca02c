"""A crash in the middle, and no token is spent twice: each model call is a step, kept as soon as it has returned.

A task takes ten model calls. The worker dies in the middle, as a machine does, and another one goes on with the next
call.

    sealbus run crash_without_waste:app
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sealbus import App, Context, Retry, connect
from sealbus.vocabulary import TaskRequest, TaskResult

CALLS = 10
TOKENS = 120
app = App("writer@svc")


async def model(prompt: str) -> str:
    """Stand in for a language model that is paid by the token: its bill is a file."""
    with Path(os.environ.get("BILL", "bill.txt")).open("a") as bill:  # noqa: ASYNC230 - a few bytes
        bill.write(f"{TOKENS} {prompt}\n")
    return f"({prompt})"


@app.on(TaskRequest, dedup="always", retry=Retry(attempts=5, base_s=0.1), timeout_s=120)
async def write(task: TaskRequest, context: Context) -> TaskResult:
    parts = []
    for number in range(1, CALLS + 1):
        parts.append(await context.step("model", model, f"{task.goal}: part {number}"))
        if number == CALLS // 2 and context.attempt == 1 and "DIES" in os.environ:
            os._exit(9)
        if number == CALLS // 2 and context.attempt == 1:
            raise ConnectionError("the network is down")
    return TaskResult(status="completed", summary=" ".join(parts))


def billed(bill: Path) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in bill.read_text().splitlines()]


def expected(goal: str) -> list[str]:
    return [f"{goal}: part {number}" for number in range(1, CALLS + 1)]


async def test_a_failure_in_the_middle_pays_for_each_call_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILL", str(tmp_path / "bill.txt"))
    async with app.test() as bus:
        await bus.publish(TaskRequest(goal="tea"), to="writer@svc", task_id="t-1")
        await bus.advance(60)
        bus.assert_all_handled()
        assert len(bus.sent(TaskResult)) == 1
    assert billed(tmp_path / "bill.txt") == expected("tea")


@pytest.mark.slow  # two processes, one of which dies
async def test_the_death_of_a_worker_pays_for_each_call_once(tmp_path: Path) -> None:
    log, bill = f"sqlite:///{tmp_path}/log.db", tmp_path / "bill.txt"
    path = f"{Path(__file__).parent}:{Path(__file__).parents[2]}"
    settings = os.environ | {
        "PYTHONPATH": path,
        "BILL": str(bill),
        "SEALBUS_BUS__URL": log,
        "SEALBUS_INBOX__URL": f"sqlite:///{tmp_path}/inbox.db",
    }
    worker = [sys.executable, "-m", "consumers.cli", "run", f"{Path(__file__).stem}:app"]

    def started(**more: str) -> subprocess.Popen[bytes]:
        with (tmp_path / "worker.log").open("ab") as out:
            return subprocess.Popen(worker, cwd=tmp_path, env=settings | more, stdout=out, stderr=out)

    async with connect(log, agent="ann@people") as bus:
        task = await bus.submit(TaskRequest(goal="tea"), to="writer@svc", ttl_s=600)
        assert started(DIES="yes").wait(30) == 9
        assert len(billed(bill)) == CALLS // 2
        second = started()
        try:
            answer = await task.result(TaskResult)
        finally:
            second.terminate()
            second.wait(30)
    assert (answer.summary or "").count("part") == CALLS
    assert billed(bill) == expected("tea")
