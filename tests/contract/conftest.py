"""What every transport is tested with: a harness per adapter, and members that write down what they are told.

Tests see the Protocol and `Features` only. To add an adapter: one more entry in `_ADAPTERS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from bus.clock import Clock
from bus.transports import open_transport
from bus.transports.base import Appended, Assignment, LogSubscription, NewRecord, Record, TopicSpec, Transport

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

_ADAPTERS: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "kafka": lambda request, _: f"kafka://{request.getfixturevalue('kafka')}",
    "kafka of three": lambda request, _: f"kafka://{request.getfixturevalue('kafka_of_three').bootstrap}",
    "memory": lambda _, __: "memory://",
    "sqlite": lambda _, folder: f"sqlite:///{folder}/log.db",
}


def emptied(addresses: str) -> None:
    """Delete every topic and group: the next test has the cluster to itself."""
    admin = AdminClient({"bootstrap.servers": addresses})
    topics = [name for name in admin.list_topics(timeout=10).topics if not name.startswith("__")]
    if topics:
        for deleted in admin.delete_topics(topics).values():
            try:
                deleted.result(10)
            except KafkaException as error:
                # A broker that lags behind the controller still lists what the test before deleted.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
    groups = [group.group_id for group in admin.list_consumer_groups().result(10).valid]
    if groups:
        for gone in admin.delete_consumer_groups(groups).values():
            with contextlib.suppress(KafkaException):
                gone.result(10)


class Member:
    """A subscription and what its listener heard. Set `drained` to hold back a revocation."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Assignment]] = []
        self.drained = asyncio.Event()
        self.drained.set()
        self.subscription: LogSubscription

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self.heard += [("assigned", assignment) for assignment in assignments]

    async def revoked(self, assignments: Sequence[Assignment]) -> None:
        self.heard += [("revoked", assignment) for assignment in assignments]
        await self.drained.wait()

    def lost(self, assignments: Sequence[Assignment]) -> None:
        self.heard += [("lost", assignment) for assignment in assignments]

    def holds(self) -> set[tuple[str, int]]:
        return {(assignment.topic, assignment.partition) for assignment in self.subscription.assignments()}

    def told(self, word: str) -> list[Assignment]:
        return [assignment for heard, assignment in self.heard if heard == word]

    async def poll(self, *, timeout_s: float = 0.05, max_records: int = 500, max_bytes: int = MIB) -> Sequence[Record]:
        return await self.subscription.poll(timeout_s=timeout_s, max_records=max_records, max_bytes=max_bytes)

    async def receive(self, count: int, *, within_s: float = 45.0, **limits: int) -> list[Record]:
        """Poll until *count* records have come; more are a failure of the test."""
        got: list[Record] = []
        give_up_s = time.monotonic() + within_s
        while len(got) < count and time.monotonic() < give_up_s:
            got += await self.poll(timeout_s=0.2, **limits)
        assert len(got) == count
        return got

    async def receive_nothing(self, *, for_s: float = 0.2) -> None:
        assert list(await self.poll(timeout_s=for_s)) == []


class Log:
    """One log, any number of transports on it (just one where it is private to its transport)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[Transport] = []

    @property
    def between_processes(self) -> bool:
        return not self.url.startswith("memory:")

    @property
    def embedded(self) -> bool:
        """Whether the log is ours: its retention is exact, and whoever waits is woken by its writers."""
        return not self.url.startswith("kafka:")

    def open(self, *, clock: Clock | None = None, **options: float) -> Transport:
        if self._opened and not self.between_processes:
            return self._opened[0]
        options = {"heartbeat_s": 0.2, "session_timeout_s": 2.0, **options}
        if not self.embedded:
            # Retention is the broker's; and its members may be given sessions that are not longer than this.
            options.pop("retention_interval_s", None)
            options = {"max_record_bytes": 16 * MIB, **options}
        self._opened.append(open_transport(self.url, clock=clock, **options))
        return self._opened[-1]

    async def topic(self, transport: Transport, name: str = "a.b", partitions: int = 1, **spec: int | bool) -> str:
        await transport.admin.create_topics([TopicSpec(name=name, partitions=partitions, **spec)])
        return name

    async def append(self, transport: Transport, *records: NewRecord) -> list[Appended]:
        outcomes = await transport.append(records, timeout_s=20)
        assert all(isinstance(outcome, Appended) for outcome in outcomes), outcomes
        return [outcome for outcome in outcomes if isinstance(outcome, Appended)]

    async def fill(self, transport: Transport, count: int, topic: str = "a.b", partition: int = 0) -> list[Appended]:
        return await self.append(
            transport, *(NewRecord(topic, None, b"%d" % i, partition=partition) for i in range(count))
        )

    async def join(
        self, transport: Transport, name: str = "m", topics: Sequence[str] = ("a.b",), group: str = "g"
    ) -> Member:
        member = Member()
        member.subscription = await transport.subscribe(group, topics, member, member=name)
        return member

    async def reader(self, transport: Transport, count: int) -> Member:
        """A member that has had all *count* records of a new topic."""
        await self.topic(transport)
        await self.fill(transport, count)
        member = await self.join(transport)
        await member.receive(count)
        return member

    async def eventually(self, true: Callable[[], bool], *members: Member, within_s: float = 30.0) -> None:
        """Keep *members* alive, fetching nothing, until *true*."""
        give_up_s = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < give_up_s, [member.heard for member in members]
            for member in members:
                await member.poll(timeout_s=0.01, max_records=0)
            await asyncio.sleep(0.005)

    async def child(self, script: str, *arguments: str) -> asyncio.subprocess.Process:
        """Run a script of this folder as another process on the same log."""
        return await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name(script)),
            self.url,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    async def close(self) -> None:
        for transport in self._opened:
            await transport.close()
        if not self.embedded:
            await asyncio.to_thread(emptied, self.url.removeprefix("kafka://"))


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow if name == "kafka of three" else ()) for name in sorted(_ADAPTERS)
    ]
)
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Log]:
    opened = Log(_ADAPTERS[request.param](request, tmp_path))
    if not opened.embedded:
        # Other suites use the same cluster, and leave their topics there.
        await asyncio.to_thread(emptied, opened.url.removeprefix("kafka://"))
    yield opened
    await opened.close()


@pytest.fixture
def embedded_log(log: Log) -> Log:
    """A log whose retention and wake-ups are ours to promise."""
    if not log.embedded:
        pytest.skip("this log leaves that to its brokers")
    return log


@pytest.fixture
def shared_log(log: Log) -> Log:
    """A log that several processes can open."""
    if not log.between_processes:
        pytest.skip("this log is private to its transport")
    return log
