"""Requests from several processes while the workers that answer are killed one after another.

`SEALBUS_FAULTS=all` runs the full size: 10,000 requests from three processes to three workers, one of them killed every
ten seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest

from bus.settings.loading import load
from bus.topics.names import reply_topic
from bus.topics.specs import group_topics, message_topics, namespace_topics, reply_topics
from bus.transports import open_transport

ROOT = Path(__file__).resolve().parents[2]
FULL = os.environ.get("SEALBUS_FAULTS") == "all"
REQUESTS = 10_000 if FULL else 1_500
REQUESTERS = WORKERS = 3
KILL_EVERY_S = 10.0 if FULL else 7.0
# A group that loses a member more often than it notices never comes to rest.
SESSION_TIMEOUT = "6s" if FULL else "3s"
RATE = 120.0 if FULL else 75.0
TIMEOUT_S = 40.0 if FULL else 25.0
TYPED = {"RequestTimedOut", "RequestFailed", "PublishUnknown", "PublishRejected"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Play:
    """The processes of one run, in a namespace of its own."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.url = f"kafka://{bootstrap}"
        self.namespace = f"q{uuid.uuid4().hex[:8]}"
        self._folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'kafka'}",
            "SEALBUS_KAFKA__SESSION_TIMEOUT_S": SESSION_TIMEOUT,
        }

    async def prepare(self) -> None:
        settings = load(
            flags={"bus.url": self.url, "bus.namespace": self.namespace, "topics.partitions": 6}, env={}, file=None
        ).settings
        transport = open_transport(self.url)
        try:
            await transport.admin.create_topics(
                [
                    *message_topics(settings, ["request.sum", "request.total", "task.cancel"]),
                    *group_topics(settings, "request-test"),
                    *reply_topics(settings, [reply_topic(self.namespace, "adder@test")]),
                    *namespace_topics(settings),
                ]
            )
        finally:
            await transport.close()

    async def worker(self) -> asyncio.subprocess.Process:
        options = ["--bus", self.url, "--namespace", self.namespace]
        return await self._started("worker", ["-m", "consumers.cli", "run", "request_app:app", *options])

    async def requester(self, name: str, count: int, rate: float) -> asyncio.subprocess.Process:
        arguments = [
            str(ROOT / "tests" / "kafka" / "requester.py"),
            self.url,
            self.namespace,
            str(count),
            str(rate),
            str(TIMEOUT_S),
        ]
        return await self._started(name, arguments)

    async def _started(self, name: str, arguments: list[str]) -> asyncio.subprocess.Process:
        with (self._folder / f"{name}.out").open("ab") as output, (self._folder / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, *arguments, env=self._environment, stdout=output, stderr=log
            )

    def ends(self, name: str) -> list[tuple[int, str, float]]:
        return [tuple(json.loads(line)) for line in (self._folder / f"{name}.out").read_text().splitlines()]

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text("utf-8", "replace")[-3000:]


async def test_every_request_ends_by_its_deadline_while_workers_are_killed(kafka: str, tmp_path: Path) -> None:
    play = Play(tmp_path, kafka)
    await play.prepare()
    workers = [await play.worker() for _ in range(WORKERS)]
    requesters: dict[str, asyncio.subprocess.Process] = {}
    killed = 0
    try:
        await asyncio.sleep(5)
        for index in range(REQUESTERS):
            count = REQUESTS // REQUESTERS + (index < REQUESTS % REQUESTERS)
            requesters[f"requester{index}"] = await play.requester(f"requester{index}", count, RATE / REQUESTERS)
        asking = asyncio.gather(*(process.wait() for process in requesters.values()))
        while True:
            done, _ = await asyncio.wait([asking], timeout=KILL_EVERY_S)
            if done:
                break
            workers[killed % WORKERS].kill()
            await workers[killed % WORKERS].wait()
            workers[killed % WORKERS] = await play.worker()
            killed += 1
        assert asking.result() == [0] * REQUESTERS, "\n".join(map(play.log, requesters))
    finally:
        for process in (*workers, *requesters.values()):
            if process.returncode is None:
                process.kill()
            await process.wait()
    ends = [end for name in requesters for end in play.ends(name)]
    outcomes = Counter(outcome for _, outcome, _ in ends)
    slowest_s = sorted(took_s for _, _, took_s in ends)
    print(
        f"{len(ends)} requests, {killed} workers killed: {dict(outcomes)}; slowest {slowest_s[-1]} s, median "
        f"{slowest_s[len(slowest_s) // 2]} s"
    )
    assert len(ends) == REQUESTS
    assert set(outcomes) <= {"answered", *TYPED}, play.log("worker")
    assert slowest_s[-1] <= TIMEOUT_S + 1
    assert killed >= 2
    assert outcomes["answered"] >= 0.9 * REQUESTS, "\n".join(map(play.log, requesters))
