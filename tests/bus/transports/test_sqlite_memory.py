"""What a process keeps in memory of a log that is larger than that."""

import subprocess
import sys
from pathlib import Path

import pytest

from bus.transports import open_transport
from bus.transports.base import NewRecord, TopicSpec

KIB, MIB = 1 << 10, 1 << 20
BACKLOG = 48 * MIB

READER = """
import asyncio
import os
import sys
from pathlib import Path

from bus.transports import open_transport


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Listener:
    def assigned(self, assignments): ...
    def lost(self, assignments): ...
    async def revoked(self, assignments): ...


async def main(url, backlog):
    transport = open_transport(url)
    subscription = await transport.subscribe("g", ["a.b"], Listener(), member="m")
    left, before, most = backlog, None, 0
    while left > 0:
        records = await subscription.poll(timeout_s=5, max_records=500, max_bytes=1 << 20)
        left -= sum(len(record.value) for record in records)
        if before is None:
            before = resident()
        most = max(most, resident())
    await subscription.close()
    await transport.close()
    print(most - before)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_whoever_catches_up_with_a_long_backlog_keeps_little_of_it(tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    transport = open_transport(url)
    await transport.admin.create_topics([TopicSpec(name="a.b", partitions=1)])
    for _ in range(BACKLOG // (4 * MIB)):
        await transport.append([NewRecord("a.b", None, bytes(2 * KIB))] * (2 * KIB), timeout_s=20)
    await transport.close()

    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", READER, url, str(BACKLOG)]
    read = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)

    assert int(read.stdout) < 4 * MIB
