"""What went in, what came out, and what the log says: the books of a fault test.

Owns publishing at a steady rate, workers as processes, and the comparison at the end, with every commit that the
cluster wrote down. Does not own the faults.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from harness.clusterlogs import read_commit

from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.transports import open_transport
from sealbus import Bus, PublishRejected, PublishUnknown, Receipt, connect, payload

ROOT = Path(__file__).resolve().parents[2]
GROUP = "fault-test"
TOPIC = "fault.item"
OFFSETS = "__consumer_offsets"


@payload("fault.item", version="1.0.0")
class Item(msgspec.Struct, frozen=True, kw_only=True):
    """What is published."""

    number: int


class Worker:
    """A worker process; what it says goes to a file."""

    def __init__(self, folder: Path, url: str, namespace: str, journal: Path, name: str) -> None:
        self.log = folder / f"{name}.log"
        self._arguments = [
            sys.executable,
            "-m",
            "consumers.cli",
            "run",
            "fault_app:app",
            "--bus",
            url,
            "--namespace",
            namespace,
        ]
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'kafka'}",
            "FAULT_JOURNAL": str(journal),
            "SEALBUS_KAFKA__SESSION_TIMEOUT_S": "6s",
            "SEALBUS_WORKER__DRAIN_TIMEOUT_S": "5s",
        }
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *self._arguments, env=self._environment, stdout=output, stderr=output
            )

    async def until_assigned(self, within_s: float = 60.0) -> None:
        """Until it holds partitions. A worker whose first words no broker answers ends, so a fault before this is of
        another kind."""
        async with asyncio.timeout(within_s):
            while "worker.assigned" not in self.log.read_text():
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def stop(self, within_s: float = 30.0) -> int:
        if self.process.returncode is None:
            self.signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), within_s)


class Ledger:
    """The books of one run in a namespace of its own."""

    def __init__(self, folder: Path, bootstrap: str, namespace: str) -> None:
        self.url = f"kafka://{bootstrap}"
        self.namespace = namespace
        self.topic = f"{namespace}.{TOPIC}"
        self.group = f"{namespace}.{GROUP}"
        self.journal = folder / "journal"
        self.journal.touch()
        self.receipts: dict[int, Receipt] = {}
        self.rejected: dict[int, str] = {}
        self.unknown: dict[int, str] = {}
        self.commits = 0
        """How many commits `check` has looked at."""
        self.published_s: dict[int, float] = {}
        self._folder = folder
        self._number = 0
        self._workers = 0

    def settings(self) -> Settings:
        return load(flags={"bus.url": self.url, "bus.namespace": self.namespace}, env={}, file=None).settings

    def worker(self) -> Worker:
        self._workers += 1
        return Worker(self._folder, self.url, self.namespace, self.journal, f"worker{self._workers}")

    async def publish(self, rate: float, stop: asyncio.Event, *, timeout_s: float = 20.0) -> None:
        """Publish *rate* messages a second until *stop*, each on its own, whatever becomes of the others."""
        async with connect(settings=self.settings(), agent="publisher@test") as bus:
            tasks: set[asyncio.Task[None]] = set()
            started_s = time.monotonic()
            while not stop.is_set():
                due = int((time.monotonic() - started_s) * rate)
                while self._number < due:
                    self._number += 1
                    task = asyncio.create_task(self._publish(bus, self._number, timeout_s))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                await asyncio.sleep(0.02)
            if tasks:
                await asyncio.wait(tasks)

    async def _publish(self, bus: Bus, number: int, timeout_s: float) -> None:
        try:
            self.receipts[number] = await bus.publish(Item(number=number), ttl_s=3600, timeout_s=timeout_s)
            self.published_s[number] = time.time()
        except PublishRejected as error:
            self.rejected[number] = str(error)
        except PublishUnknown as error:
            self.unknown[number] = str(error)

    def handled(self) -> Iterator[tuple[int, float]]:
        """Numbers and times from the journal."""
        for line in self.journal.read_text().splitlines():
            number, _, at = line.partition(" ")
            yield int(number), float(at)

    async def until_handled(self, within_s: float) -> float:
        """Seconds until every message with a receipt was handled; fails after *within_s*."""
        started_s = time.monotonic()
        while missing := set(self.receipts) - {number for number, _ in self.handled()}:
            assert time.monotonic() - started_s < within_s, (
                f"{len(missing)} messages not handled, such as {sorted(missing)[:5]}"
            )
            await asyncio.sleep(0.3)
        return time.monotonic() - started_s

    async def content(self) -> Mapping[tuple[int, int], int]:
        """Every record of the topic: (partition, offset) -> number."""
        transport = open_transport(self.url)
        found: dict[tuple[int, int], int] = {}
        try:
            for partition, span in (await transport.admin.ranges(self.topic)).items():
                offset = span.start
                while offset < span.end:
                    records = await transport.read(self.topic, partition, offset, max_records=5000, max_bytes=1 << 24)
                    assert records
                    for record in records:
                        found[partition, record.offset] = msgspec.json.decode(record.value)["data"]["number"]
                    offset = records[-1].offset + 1
        finally:
            await transport.close()
        return found

    async def check(self) -> None:
        """The books balance."""
        content = await self.content()
        for number, receipt in self.receipts.items():
            assert content[receipt.partition, receipt.offset] == number, (
                "a receipt names a place where another message lies"
            )
        there = set(content.values())
        assert not there & set(self.rejected), "a rejected message is in the log"
        assert there <= set(self.receipts) | set(self.unknown)
        first_handled: dict[int, float] = {}
        for number, at in self.handled():
            first_handled.setdefault(number, at)
        highest: dict[int, int] = {}
        for partition, offset, at in await asyncio.to_thread(
            commits, self.url.removeprefix("kafka://"), self.group, self.topic
        ):
            self.commits += 1
            before = highest.get(partition, 0)
            assert offset >= before, f"the commit of partition {partition} went back from {before} to {offset}"
            highest[partition] = offset
            passed = [
                content[partition, position] for position in range(before, offset) if (partition, position) in content
            ]
            # The broker's clock counts whole milliseconds.
            late = [number for number in passed if first_handled.get(number, at + 1) > at + 0.001]
            assert not late, f"a commit of partition {partition} passed messages that were not handled yet: {late[:5]}"


def commits(addresses: str, group: str, topic: str) -> list[tuple[int, int, float]]:
    """Every commit of *group* for *topic*, as the cluster itself wrote it down: partition, offset, time. In order per
    partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": "auditor",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found = []
    try:
        partitions = consumer.list_topics(OFFSETS, timeout=20).topics[OFFSETS].partitions
        consumer.assign([TopicPartition(OFFSETS, number, OFFSET_BEGINNING) for number in partitions])
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(20)
            assert message is not None, "the commits cannot be read"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
            elif (commit := read_commit(message.key(), message.value())) is not None and commit[:2] == (group, topic):
                found.append((commit[2], commit[3], message.timestamp()[1] / 1000))
    finally:
        consumer.close()
    return found
