"""What running costs when nothing happens, and what a full disk does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Workers, wait_until
from ledger_app import Entry

from sealbus import PublishRejected, PublishUnknown, Receipt, connect


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share_of_core(pid: int, seconds: float) -> float:
    before_s, began_s = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before_s) / (time.monotonic() - began_s)


@pytest.mark.slow
@pytest.mark.alone  # measures processor time
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_waiting_worker_is_idle(workers: Workers) -> None:
    process = workers.start()
    wait_until(lambda: "worker.assigned" in workers.logs(), 45, "the worker waits")
    # The quietest of several windows: the processor time of a busy machine's process includes what its neighbours cost.
    shares = [share_of_core(process.pid, seconds=5) for _ in range(4)]
    assert min(shares) < 0.02, ", ".join(f"{share:.1%}" for share in shares)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount a small tmpfs here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def fill(url: str) -> tuple[list[int], list[PublishRejected | PublishUnknown]]:
    accepted, refused = [], []
    async with connect(url, agent="tests@tests", env={}) as bus:
        for number in range(2000):
            try:
                await bus.publish(Entry(number=number, note="x" * 20_000), timeout_s=5)
            except (PublishRejected, PublishUnknown) as error:
                refused.append(error)
                if len(refused) > 3:
                    break
            else:
                accepted.append(number)
    return accepted, refused


async def read_back(url: str) -> set[int]:
    async with connect(url, agent="tests@tests", env={}) as bus:
        found = set()
        for partition in range(4):
            for record in await bus.transport.read(
                "agents.ledger.entry", partition, 0, max_records=100_000, max_bytes=1 << 30
            ):
                found.add(int((record.value or b"").partition(b'"number":')[2].partition(b"}")[0]))
        return found


async def publish_one(url: str, number: int) -> Receipt:
    async with connect(url, agent="tests@tests", env={}) as bus:
        return await bus.publish(Entry(number=number), timeout_s=5)


def test_a_full_disk_refuses_publishes_loses_nothing_and_works_again(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 1_500_000)
    url = f"sqlite:///{small_disk}/log.db"
    accepted, refused = asyncio.run(fill(url))
    assert accepted
    assert refused
    assert set(accepted) <= asyncio.run(read_back(url))
    ballast.unlink()
    assert asyncio.run(publish_one(url, 9999)).offset >= 0
    assert 9999 in asyncio.run(read_back(url))
