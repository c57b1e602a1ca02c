"""What a process keeps in memory of a log that is larger than that."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bus.transports import open_transport
from bus.transports.base import NewRecord, TopicSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

KIB, MIB = 1 << 10, 1 << 20
BACKLOG = 48 * MIB
AN_HOUR_MS = 3_600_000

COMMON = """
import asyncio
import os
import sys
from pathlib import Path

from bus.transports import open_transport


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
"""

READER = f"""{COMMON}
class Listener:
    def assigned(self, assignments): ...
    def lost(self, assignments): ...
    async def revoked(self, assignments): ...


async def main(url):
    transport = open_transport(url)
    subscription = await transport.subscribe("g", ["a.b"], Listener(), member="m")
    left, before, most = {BACKLOG}, None, 0
    while left > 0:
        records = await subscription.poll(timeout_s=5, max_records=500, max_bytes=1 << 20)
        left -= sum(len(record.value) for record in records)
        if before is None:
            before = resident()
        most = max(most, resident())
    await subscription.close()
    await transport.close()
    print(most - before)


asyncio.run(main(sys.argv[1]))
"""

SWEEPER = f"""{COMMON}
async def main(url):
    transport = open_transport(url, retention_interval_s=0.05)
    await transport.admin.topics()
    before = resident()
    # Until the record that is older than the topic keeps any is gone: then a sweep has been everywhere.
    while (await transport.read("a.b", 11, 0, max_records=1, max_bytes=1 << 20))[0].offset == 0:
        await asyncio.sleep(0.05)
    await transport.close()
    print(resident() - before)


asyncio.run(main(sys.argv[1]))
"""


async def filled(folder, **spec):
    url = f"sqlite:///{folder}/x.db"
    transport = open_transport(url)
    await transport.admin.create_topics([TopicSpec(name="a.b", **spec)])
    for _ in range(BACKLOG // (4 * MIB)):
        await transport.append([NewRecord("a.b", None, bytes(2 * KIB))] * (2 * KIB), timeout_s=20)
    await transport.close()
    return url


def printed(script, url):
    command = [sys.executable, "-c", script, url]
    ran = subprocess.run(command, cwd=Path(__file__).parents[4], capture_output=True, text=True, timeout=60, check=True)
    return int(ran.stdout)


@pytest.mark.medium
async def test_reading_a_long_backlog_uses_little_memory(tmp_path):
    assert printed(READER, await filled(tmp_path, partitions=1)) < 4 * MIB


@pytest.mark.medium
async def test_the_retention_scan_uses_little_memory(tmp_path):
    url = await filled(tmp_path, partitions=12, retention_ms=AN_HOUR_MS)
    with closing(sqlite3.connect(tmp_path / "x.db")) as log, log:
        log.execute(
            "UPDATE records SET ts = 0 WHERE off = 0 AND part = (SELECT id FROM partitions WHERE partition = 11)"
        )
    log.close()
    assert printed(SWEEPER, url) < MIB
