"""Rows about sending dead letters back while whoever does it is cut off. On either log.

Owns their loads and scripts.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Iterator

from harness.arena import Arena
from harness.processes import ROOT
from harness.rows.row import TYPES, Row
from harness.terms import Load
from harness.timeline import Fault

__all__ = ["ROWS"]

_GLANCE_S = 0.005


async def _begun(arena: Arena, *options: str) -> Process:
    command = [
        sys.executable,
        "-m",
        "consumers.cli",
        "dlq",
        "redrive",
        "--yes",
        "--why",
        "repaired",
        "--bus",
        arena.log.url,
    ]
    with (arena.folder / "redrive.log").open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *command,
            "--namespace",
            arena.namespace,
            *options,
            cwd=arena.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


async def _to_the_end(arena: Arena) -> None:
    """Once, and then once more for nothing."""
    for _ in range(2):
        code = await (await _begun(arena)).wait()
        assert code == 0, f"the redrive ended with {code}: {(arena.folder / 'redrive.log').read_text()[-1000:]}"


async def _send_back(arena: Arena) -> None:
    """Once while the cause is still there, then cut off at several moments, then to the end."""
    arena.redriven = True
    await (await _begun(arena)).wait()
    await arena.settled(30)
    arena.flag.unlink(missing_ok=True)
    for kill_after_s in (0.4, 0.6, 0.8):
        redrive = await _begun(arena)
        await asyncio.sleep(kill_after_s)
        if redrive.returncode is None:
            redrive.kill()
            arena.injected += 1
        await redrive.wait()
    await _to_the_end(arena)


async def _send_thousands_back(arena: Arena) -> None:
    """Ctrl-C while a part of them is on its way, then kill -9 in the middle of the rest, then to the end."""
    arena.redriven = True
    arena.flag.unlink(missing_ok=True)
    chance = random.Random(f"redrive/{arena.seed}")
    dead = await asyncio.to_thread(arena.log.size, "dlq")
    code = await _cut_off(
        arena, await _begun(arena, "--rate", "500/s"), signal.SIGINT, round(dead * chance.uniform(0.1, 0.4))
    )
    assert code == 128 + signal.SIGINT, f"after Ctrl-C the redrive ended with {code}"
    # As fast as it can: this one dies while pieces of hundreds are between their notes.
    await _cut_off(arena, await _begun(arena), signal.SIGKILL, round(dead * chance.uniform(0.5, 0.8)))
    sent = await asyncio.to_thread(arena.log.size, "redrive")
    assert sent < dead, f"all {dead} letters had gone before the redrive could be cut off"
    await _to_the_end(arena)


async def _cut_off(arena: Arena, redrive: Process, number: signal.Signals, when: int) -> int:
    """Send it a signal as soon as *when* letters have gone back; its exit code."""
    while redrive.returncode is None and await asyncio.to_thread(arena.log.size, "redrive") < when:  # noqa: ASYNC110
        await asyncio.sleep(_GLANCE_S)
    if redrive.returncode is None:
        redrive.send_signal(number)
        arena.injected += 1
    return await redrive.wait()


def _broken_for_now(chance: random.Random) -> Iterator[Fault]:
    yield Fault(0.0, "break", how="until it is repaired")
    yield Fault(chance.uniform(1.0, 2.0), "kill", "w1")


ROWS = [
    Row(
        name="28-redrive",
        title="dead letters sent back too early, then cut off three times, then to the end, then again",
        logs=("embedded", "kafka"),
        schedule=_broken_for_now,
        load=Load(count=400, rate=100, types=dict(TYPES), mix={"ok": 2, "until": 1}),
        script=_send_back,
        quick=True,
        seeds=5,
    ),
    Row(
        name="28-long-redrive",
        title="5,000 dead letters sent back, cut off by Ctrl-C and by kill -9",
        logs=("embedded", "kafka"),
        schedule=_broken_for_now,
        load=Load(count=5600, rate=250, types=dict(TYPES), mix={"ok": 1, "until": 14}),
        script=_send_thousands_back,
        seeds=3,
    ),
]
