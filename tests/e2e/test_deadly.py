"""A message without an idempotency key that ends whatever process runs it becomes a dead letter, and the others go
on."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections import Counter

import pytest
from conftest import Workers, wait_until
from deadly_app import Job

from bus.topics.names import dead_letter_topic
from bus.transports import open_transport
from bus.transports.read_all import scan_topic
from consumers.deadletters.letters import read_dead_letter
from consumers.delivery.crashes.process_files import ProcessFiles
from sealbus import connect


async def publish(url: str, *jobs: Job) -> list[str]:
    """Their message ids."""
    async with connect(url, agent="tests@tests", env={}) as bus:
        return [(await bus.publish(job, key=f"k{job.number}")).message_id for job in jobs]


async def letters(url: str) -> list[str]:
    transport = open_transport(url)
    try:
        return [
            read_dead_letter(record).reason
            async for record in scan_topic(transport, dead_letter_topic("agents.test.job"))
        ]
    finally:
        await transport.close()


def buried(workers: Workers) -> bool:
    return asyncio.run(letters(workers.url)) == ["crash_loop"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_under_a_supervisor_it_is_found_out_within_a_minute_while_the_others_go_on(workers: Workers) -> None:
    ids = asyncio.run(
        publish(workers.url, Job(number=0, deadly=True), *(Job(number=number) for number in range(1, 100)))
    )
    supervisor = workers.start("--processes", "2", "--log-level", "info", app="deadly_app:app")
    wait_until(lambda: set(workers.handled()) == set(range(100)), 60, f"the others are handled\n{workers.logs()}")
    wait_until(lambda: buried(workers), 60, f"a dead letter\n{workers.logs()}")
    runs = Counter(workers.handled())
    assert 3 <= runs[0] <= 5
    supervisor.terminate()
    assert supervisor.wait(30) == 0
    lines = (workers.folder / "worker-0.log").read_text().splitlines()
    died = [
        event
        for line in lines
        if line.startswith("{") and (event := json.loads(line))["event"] == "supervisor.child_died"
    ]
    assert len(died) == runs[0]
    assert all(any(named.startswith(f"{ids[0]} at agents.test.job/") for named in event["running"]) for event in died)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_single_worker_that_somebody_starts_again_finds_it_out_too(workers: Workers) -> None:
    asyncio.run(publish(workers.url, Job(number=0, deadly=True), Job(number=1)))
    deadline_s = time.monotonic() + 90
    process = workers.start(app="deadly_app:app")
    while not buried(workers):
        assert time.monotonic() < deadline_s, workers.logs()
        if process.poll() is not None:
            process = workers.start(app="deadly_app:app")
        time.sleep(0.2)
    wait_until(lambda: 1 in workers.handled(), 30, f"the other is handled\n{workers.logs()}")
    assert 3 <= Counter(workers.handled())[0] <= 5


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_large_record_that_ends_its_process_while_it_is_judged_is_found_out_too(workers: Workers) -> None:
    asyncio.run(
        publish(
            workers.url,
            Job(number=0, in_judging=True, ballast="x" * 20_000),
            *(Job(number=number) for number in range(1, 20)),
        )
    )
    workers.start("--processes", "2", app="deadly_app:app")
    wait_until(lambda: buried(workers), 60, f"a dead letter\n{workers.logs()}")
    wait_until(lambda: set(workers.handled()) == set(range(1, 20)), 30, f"the others are handled\n{workers.logs()}")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_deliberate_kill_is_not_blamed_on_a_message(workers: Workers) -> None:
    """A handler that blocks its process, and an operator who insists: not a death, however often."""
    workers.env["DEADLY_BLOCKS"] = "1"
    asyncio.run(publish(workers.url, Job(number=7)))
    for count in range(1, 5):
        process: subprocess.Popen[bytes] = workers.start("--processes", "2", app="deadly_app:app")
        wait_until(lambda count=count: workers.handled().count(7) == count, 30, f"it runs\n{workers.logs()}")  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        time.sleep(0.6)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert asyncio.run(letters(workers.url)) == []
    (state,) = workers.folder.glob("log-workers/*")
    assert ProcessFiles(state).crash_counts() == {}
