"""What a gateway tells of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bus.clock import SystemClock
from bus.errors import UnreachableError
from bus.vocabulary.task import TaskRequest, TaskResult
from consumers.gateway import rounds
from consumers.gateway.metrics import GatewayMetrics
from consumers.processes.tasks import service
from consumers.worker.health import answer_service
from sealbus import App
from tests.consumers.gateway.conftest import Opened, Place

BODY = {"to": "researcher@svc", "goal": "compare"}


def of(place: Place, name: str, **labels: str) -> float:
    """The value of a series."""
    return place.gateway.metrics.registry.get_sample_value(f"sealbus_gateway_{name}", labels) or 0.0


async def until(holds: Callable[[], bool]) -> None:
    """Wait until *holds*."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - a series has no event
            await asyncio.sleep(0.02)


def answering() -> App:
    """An agent that answers at once."""
    app = App("researcher@svc")

    @app.on(TaskRequest)
    async def work(request: TaskRequest) -> TaskResult:
        return TaskResult(status="completed", summary=request.goal)

    return app


async def test_requests_tasks_and_refusals_are_counted_by_closed_labels(opened: Opened) -> None:
    async with opened(answering()) as place, place.client() as client:
        key = {"Idempotency-Key": "k-1"}
        task = (await client.post("/tasks", json=BODY, headers=key)).json()
        await client.post("/tasks", json=BODY, headers=key)
        await place.ended(client, task["id"])
        await client.get("/tasks", headers={"Authorization": "Bearer <script>"})
        await client.get("/tasks/evil%0Atext")
        await client.post("/tasks", json={"to": "researcher@svc", "goal": 1})
        await client.get("/healthz/ready")
        await client.post("/mcp", json={})
        assert of(place, "tasks_total", event="opened") == 1
        assert of(place, "tasks_total", event="repeated") == 1
        assert of(place, "tasks_total", event="completed") == 1
        assert of(place, "refusals_total", code="AUTHENTICATION_FAILED") == 2
        assert of(place, "refusals_total", code="NOT_FOUND") == 1
        assert of(place, "refusals_total", code="INVALID_MESSAGE") == 1
        assert of(place, "requests_total", door="http", code="4xx") == 3
        assert of(place, "requests_total", door="mcp", code="4xx") == 1
        assert of(place, "unconfirmed_total") == 0
        labels = {
            value
            for family in place.gateway.metrics.registry.collect()
            for sample in family.samples
            for value in sample.labels.values()
        }
    assert not any("script" in value or "evil" in value for value in labels)


async def test_a_code_that_is_in_no_table_is_other() -> None:
    metrics = GatewayMetrics()
    metrics.refused("whatever a client says")
    assert metrics.registry.get_sample_value("sealbus_gateway_refusals_total", {"code": "other"}) == 1


async def test_calls_that_wait_count_as_streams_and_have_no_time(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        before = of(place, "request_seconds_count", door="http")
        waiting = asyncio.ensure_future(
            client.get(f"/tasks/{task['id']}", params={"after": task["generation"], "wait": 40})
        )
        await until(lambda: of(place, "streams") == 1)
        async with client.stream("GET", f"/tasks/{task['id']}/events") as stream:
            assert stream.status_code == 200
            await until(lambda: of(place, "streams") == 2)
            monkeypatch.setattr(service, "OVERDUE_MS", 500)
            known = place.gateway.source.current().by_name["ci"]
            await place.gateway.cancel(known, task["id"])
            assert (await waiting).json()["generation"] > task["generation"]
            await stream.aread()
        await until(lambda: of(place, "streams") == 0)
        assert of(place, "request_seconds_count", door="http") == before


async def test_an_append_that_is_not_confirmed_is_counted(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as place, place.client() as client:

        async def away(*_: object, **__: object) -> object:
            raise UnreachableError("no acknowledgement")

        with monkeypatch.context() as patched:
            patched.setattr(place.gateway.tasks.publisher, "queue", away)
            answer = await client.post("/tasks", json=BODY)
        assert (answer.status_code, answer.json()["status"]) == (503, "unknown")
        assert of(place, "unconfirmed_total") >= 1
        assert of(place, "tasks_total", event="opened") == 1
        assert of(place, "requests_total", door="http", code="5xx") == 1


async def test_a_file_of_credentials_that_cannot_be_used_is_told(opened: Opened) -> None:
    async with opened() as place:
        assert of(place, "credentials_fault") == 0
        place.gateway.source.fault = "not valid TOML"
        assert of(place, "credentials_fault") == 1


@pytest.mark.parametrize("fault", ["refuses", "hangs", "takes no appends"])
async def test_a_gateway_whose_log_is_away_is_not_ready_until_it_is_back(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(rounds, "_EVERY_S", 0.1)
    monkeypatch.setattr(rounds, "_LOG_ANSWER_S", 0.3)
    monkeypatch.setattr(service, "_SLOW_S", 0.3)
    monkeypatch.setattr(service, "_DOUBT_S", 0.5)

    async def away(*_: object, **__: object) -> Any:
        if fault != "refuses":
            await back.wait()
        raise UnreachableError("no broker")

    back = asyncio.Event()
    async with opened() as place, place.client() as client:

        async def becomes(status: int) -> None:
            async with asyncio.timeout(60):
                while (await client.get("/healthz/ready")).status_code != status:  # noqa: ASYNC110 - a probe asks
                    await asyncio.sleep(0.02)

        await becomes(200)
        publisher = place.gateway.tasks.publisher
        with monkeypatch.context() as patched:
            if fault == "takes no appends":
                patched.setattr(publisher, "queue", away)
                opening = asyncio.ensure_future(client.post("/tasks", json=BODY))
            else:
                patched.setattr(publisher.transport.admin, "ranges", away)
            await becomes(503)
            clock, metrics = SystemClock(), place.gateway.metrics
            ago_s = metrics.round_s_ago(clock)
            assert not answer_service("ready", "gateway", round_s_ago=ago_s, limit_s=60, error=metrics.error).ok
            assert answer_service("live", "gateway", round_s_ago=ago_s, limit_s=60, error=metrics.error).ok
        back.set()
        if fault == "takes no appends":
            assert (await opening).status_code == 503
            (await client.post("/tasks", json=BODY)).raise_for_status()
        await becomes(200)


async def test_a_gateway_that_goes_round_is_live(opened: Opened) -> None:
    starting = GatewayMetrics()
    assert not answer_service("ready", "gateway", round_s_ago=0, limit_s=60, error=starting.error).ok
    async with opened() as place:
        metrics, clock = place.gateway.metrics, SystemClock()
        await until(lambda: not metrics.error)
        ago_s = metrics.round_s_ago(clock)
        assert answer_service("ready", "gateway", round_s_ago=ago_s, limit_s=60, error=metrics.error).ok
