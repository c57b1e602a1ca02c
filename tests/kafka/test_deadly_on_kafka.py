"""On Kafka, where no inbox remembers anything by default: a message that ends its process is found out, and one that is
parked is not run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from deadly_app import Job, app

from bus.topics.names import dead_letter_topic
from bus.transports import open_transport
from bus.transports.read_all import scan_topic
from consumers.deadletters.letters import DeadLetter, read_dead_letter
from sealbus import BusError, Receipt, connect

ROOT = Path(__file__).resolve().parents[2]


class Case:
    """Two processes of the deadly app on one cluster."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.url = f"kafka://{bootstrap}"
        self.namespace = f"n{uuid.uuid4().hex[:8]}"
        self.ledger = folder / "ledger.txt"
        self.environment = os.environ | {
            "LEDGER": str(self.ledger),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'e2e'}",
            "SEALBUS_BUS__NAMESPACE": self.namespace,
            "SEALBUS_BUS__URL": self.url,
            "SEALBUS_TOPICS__CREATE": "true",
            "SEALBUS_WORKER__STATE_DIR": str(folder / "state"),
        }
        self.folder = folder
        self._worker: subprocess.Popen[bytes] | None = None

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "consumers.cli", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60, check=True
        )

    def work(self) -> None:
        command = [sys.executable, "-m", "consumers.cli", "run", "deadly_app:app", "--processes", "2"]
        with (self.folder / "worker.log").open("wb") as log:
            self._worker = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.terminate()
            self._worker.wait(60)

    async def publish(self, *jobs: Job) -> list[Receipt]:
        async with connect(agent="tests@tests", env=self.environment) as bus:
            return [await bus.publish(job, key=f"k{job.number}") for job in jobs]

    async def letter(self, within_s: float) -> DeadLetter:
        """The first dead letter."""
        transport = open_transport(self.url)
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        async for record in scan_topic(transport, dead_letter_topic(f"{self.namespace}.test.job")):
                            return read_dead_letter(record)
                    except BusError:
                        pass
                    await asyncio.sleep(0.2)
        finally:
            await transport.close()

    def handled(self) -> Counter[int]:
        return Counter(int(line) for line in self.ledger.read_text().splitlines())

    async def until_handled(self, numbers: set[int], within_s: float) -> None:
        async with asyncio.timeout(within_s):
            while set(self.handled()) != numbers:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.1)


@pytest.fixture
async def case(tmp_path: Path, kafka: str) -> AsyncIterator[Case]:
    made = Case(tmp_path, kafka)
    made.ledger.touch()
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_crashing_message_without_key_is_isolated_within_a_minute(case: Case) -> None:
    await case.publish(Job(number=0, deadly=True), *(Job(number=number) for number in range(1, 50)))
    case.work()
    assert (await case.letter(60)).reason == "crash_loop"
    await case.until_handled(set(range(50)), 30)
    assert 3 <= case.handled()[0] <= 5


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_parked_message_is_dead_lettered_and_not_run(case: Case) -> None:
    case.call("topic", "apply", "deadly_app:app")
    receipts = await case.publish(Job(number=0, deadly=True), *(Job(number=number) for number in range(1, 20)))
    place = f"{receipts[0].topic}/{receipts[0].partition}/{receipts[0].offset}"
    case.call("dlq", "add", place, "--group", app.group, "--why", "known to kill", "--yes")
    case.work()
    letter = await case.letter(60)
    assert (letter.reason, letter.error, letter.origin) == ("rejected", "Parked", place)
    await case.until_handled(set(range(1, 20)), 30)
