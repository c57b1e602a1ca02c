"""What a worker's log says: the ids of the message in every line a handler causes, one line per message at debug, and
no secret, whatever a handler or a sender says."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import msgspec
import pytest

from sealbus import connect, payload

TALKING = """
import logging

import msgspec
import structlog

from sealbus import App, Context, payload


@payload("job.run", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    label: str = ""


app = App("worker@svc")


@app.on(Job, blocking=True)
def run(job: Job) -> None:
    logging.getLogger("pricing").info("looked at %s", job.number)
    structlog.get_logger().warning("priced", price=3, card={"password": "hunter2secret", "holder": "Ann"})
    if job.label:
        raise ValueError(f"wrong: {job.label}")
"""


GROUP = "worker-svc-ed7e5b97"


def lines(folder: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.path / "worker.log").read_text().splitlines() if line.startswith("{")]


def told(folder: Any, event: str) -> list[dict[str, Any]]:
    return [line for line in lines(folder) if line["event"] == event]


@pytest.fixture
def talking(folder: Any) -> Any:
    (folder.path / "agents.py").write_text(TALKING)
    return folder


def published(folder: Any, **job: Any) -> str:
    sent = folder.call("publish", "job.run", "--app", "agents:app", "-o", "json", stdin=json.dumps(job))
    assert sent.exit_code == 0, sent.output
    (receipt,) = folder.objects(sent.stdout)
    name: str = receipt["message_id"]
    return name


@pytest.mark.medium
def test_what_a_handler_logs_names_its_message_and_each_message_has_a_line_at_debug(talking: Any) -> None:
    worker = talking.worker("--log-level", "debug")
    message_id = published(talking, number=7)
    talking.wait_until(lambda: bool(told(talking, "message.handled")))
    talking.end(worker)
    (by_logging,), (by_structlog,) = told(talking, "looked at 7"), told(talking, "priced")
    for line in (by_logging, by_structlog):
        assert line["message_id"] == message_id
        assert line["type"] == "job.run"
        assert line["attempt"] == 1
        assert line["conversation_id"]
    assert by_logging["source"] == "pricing"
    assert by_structlog["card"] == {"password": "***", "holder": "Ann"}
    (handled,) = told(talking, "message.handled")
    assert handled["message_id"] == message_id
    assert handled["group"] == GROUP


@pytest.mark.medium
def test_without_debug_a_handled_message_has_no_line(talking: Any) -> None:
    worker = talking.worker()
    published(talking, number=7)
    talking.wait_until(lambda: bool(told(talking, "priced")))
    talking.end(worker)
    assert not told(talking, "message.handled")


def test_every_series_of_a_group_is_there_before_its_first_message(folder: Any) -> None:
    folder.worker("--metrics-port", str(port := folder.free_port()))
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    for series in (
        'sealbus_settled_total{group="%s",outcome="dead",reason="rejected",type="job.run"} 0.0',
        'sealbus_settled_total{group="%s",outcome="dead",reason="malformed",type="other"} 0.0',
        'sealbus_retried_total{group="%s",tier="lane",type="job.run"} 0.0',
        'sealbus_rebalances_total{group="%s"}',
        'sealbus_brake_on{group="%s",type="job.run"} 0.0',
        'sealbus_build_info{python="',
    ):
        assert (series % GROUP if "%" in series else series) in text, series


SLOW = """
import asyncio

import msgspec

from sealbus import App, Reject, payload


@payload("job.run", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    number: int


app = App("worker@svc")


@app.on(Job)
async def run(job: Job) -> None:
    await asyncio.sleep(0.3)
    if job.number:
        raise Reject("no")
"""


@pytest.mark.medium
def test_openmetrics_output_has_trace_exemplars(folder: Any) -> None:
    (folder.path / "agents.py").write_text(SLOW)
    folder.worker("--metrics-port", str(port := folder.free_port()))
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"

    async def publish() -> None:
        made = msgspec.defstruct("Job", [("number", int)], frozen=True, kw_only=True)
        kind: Any = payload("job.run", version="1.0.0")(made)
        async with connect(f"sqlite:///{folder.path}/sealbus.db", agent="cli@svc") as bus:
            await bus.publish(kind(number=1), traceparent=f"00-{trace}-00f067aa0ba902b7-01")

    asyncio.run(publish())
    folder.wait_until(lambda: bool(told(folder, "message.dead")))

    def asked(accept: str) -> list[str]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - of this test
            return [line for line in answer.read().decode().splitlines() if trace in line]

    def names() -> set[str]:
        found = asked("application/openmetrics-text; version=1.0.0")
        return {line.partition("{")[0] for line in found}

    # The line comes before the dead letter is durable and counted.
    folder.wait_until(lambda: names() == {"sealbus_settled_total", "sealbus_handler_seconds_bucket"})
    assert asked("text/plain") == []
