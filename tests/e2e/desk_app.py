"""The agent whose gateway is killed: it writes down each goal that it works on, and in which process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from bus.vocabulary.task import TaskRequest, TaskResult
from sealbus import App, Context

app = App("desk@svc")


@app.on(TaskRequest)
async def work(request: TaskRequest, context: Context) -> TaskResult:
    """Do it in three steps, and tell of each."""
    for part in range(3):
        await context.progress(f"part {part}", pct=part * 30)
        await asyncio.sleep(0.02)
    await asyncio.to_thread(_note, request.goal)
    return TaskResult(status="completed", summary=request.goal.upper())


def _note(goal: str) -> None:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{goal} {os.getpid()}\n")
