"""A credential that is gone: its open tasks end, at their agents too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.clock import SystemClock
from bus.errors import UnreachableError
from bus.trust.keys.key_folder import KeyFolder
from bus.trust.policy.reading import read_policy
from bus.vocabulary.task import TaskRequest, TaskResult
from consumers.gateway import rounds
from consumers.gateway.credentials import Credential, make_token
from consumers.gateway.doors import policy_lines, sign_for
from consumers.gateway.rounds import gone_owners
from consumers.processes.approvals.open_requests import readable_requests
from consumers.processes.tasks import service
from sealbus import App, Approval, Context
from tests.consumers.gateway.conftest import Opened, Place
from tests.databases import Postgres

BODY = {"to": "researcher@svc", "goal": "compare"}
WHY = "its credential was removed"


GONE_S = 2.0
POLICY = """
[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"

[[rules]]
id = "all"
effect = "allow"
action = ["publish", "handle", "approve"]
agents = "**"
types = "**"
"""
PUSHED: list[str] = []


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_EVERY_S", 0.1)
    monkeypatch.setattr(rounds, "_STAMP_S", 0.2)
    monkeypatch.setattr(rounds, "_GONE_S", GONE_S)


async def push(goal: str) -> str:
    PUSHED.append(goal)
    return goal


async def until(holds: Callable[[], bool]) -> None:
    """Wait until *holds*."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)


def working() -> tuple[App, list[str]]:
    """An agent that works until it is cancelled, and asks a person before it pushes; and what it did."""
    app, done = App("researcher@svc"), list[str]()

    @app.on(TaskRequest, asks=True)
    async def work(request: TaskRequest, context: Context) -> TaskResult:
        done.append(f"began {request.goal}")
        if request.goal == "push":
            await context.step("push", push, request.goal, approve=Approval(by="human"))
        while not context.cancelled:  # noqa: ASYNC110 - it is a flag
            await asyncio.sleep(0.01)
        done.append(f"stopped {request.goal}")
        return TaskResult(status="cancelled")

    return app, done


def with_keys(folder: Path, *names: str) -> dict[str, str]:
    """Settings with a policy and keys, of the gateway for the credentials *names* and of the agent."""
    found, since_ms = KeyFolder(folder / "keys"), SystemClock().now_ms() - 60_000
    made = [Credential(name=name, agent=f"{name}@acme", to=("**",), tokens=(make_token()[1],)) for name in names]
    sign_for(found, made, not_before_ms=since_ms)
    found.add("researcher@svc", principals=["researcher@svc"], types=(), not_before_ms=since_ms)
    rules = folder / "policy.toml"
    rules.write_text(POLICY)
    rules.chmod(0o600)
    for each in made:
        rules.write_text(rules.read_text() + policy_lines(read_policy(rules), each))
    keys = folder / "keys"
    return {"trust.keys": str(keys / "jwks.json"), "trust.key_file": str(keys), "policy.file": str(rules)}


def cancelled(*places: Place) -> float:
    """How many tasks were cancelled at *places*: the answer about one may come to any of them."""
    name, labels = "sealbus_gateway_tasks_total", {"event": "cancelled"}
    return sum(place.gateway.metrics.registry.get_sample_value(name, labels) or 0 for place in places)


async def asked(place: Place) -> list[Any]:
    """The approvals that are open."""
    return await readable_requests(place.bus.transport, place.gateway.settings)


async def ended(place: Place, name: str) -> list[dict[str, Any]]:
    """The ended tasks of a credential, by the token of its next form."""
    place.add(name)
    async with place.client(name) as client:
        listed: list[dict[str, Any]] = []
        for status in ("cancelled", "failed", "rejected"):
            listed += (await client.get("/tasks", params={"status": status})).json()["tasks"]
        return listed


async def begin(client: httpx.AsyncClient, goal: str, status: str) -> str:
    """Open a task and wait until it has *status*."""
    shown = (await client.post("/tasks", json=BODY | {"goal": goal})).json()
    async with asyncio.timeout(60):
        while shown["status"] != status:
            query = {"after": shown["generation"], "wait": 20}
            shown = (await client.get(f"/tasks/{shown['id']}", params=query)).json()
    return str(shown["id"])


async def test_agents_of_a_removed_credential_stop_and_ask_nobody_any_more(opened: Opened, tmp_path: Path) -> None:
    settings = with_keys(tmp_path, "gone", "stays")
    app, done = working()
    async with opened(app, **settings) as place, place.client("gone") as gone, place.client("stays") as stays:
        await begin(gone, "push", "waiting_for_approval")
        await gone.post("/tasks", json=BODY | {"goal": "slow"})
        other = (await stays.post("/tasks", json=BODY | {"goal": "other"})).json()["id"]
        await until(lambda: {"began slow", "began other"} <= set(done))
        assert len(await asked(place)) == 1
        place.remove("gone")
        await until(lambda: "stopped slow" in done)
        async with asyncio.timeout(60):
            while await asked(place) or len(found := await ended(place, "gone")) < 2:
                place.remove("gone")
                await asyncio.sleep(0.2)
        assert {(each["status"], each["confirmed"]) for each in found} == {("cancelled", True)}
        assert (await stays.get(f"/tasks/{other}")).json()["status"] != "cancelled"
        await stays.post(f"/tasks/{other}/cancel")
    assert not PUSHED


async def test_a_task_of_a_removed_credential_ends_where_no_agent_confirms_it(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "OVERDUE_MS", 500)
    async with opened() as place, place.client("gone") as gone:
        for number in range(3):
            await gone.post("/tasks", json=BODY | {"goal": str(number)})
        assert await place.gateway.tasks.cancel_all("gone/gone@acme", WHY) == 3
        found = [await place.ended(gone, each["id"]) for each in (await gone.get("/tasks")).json()["tasks"]]
    assert {(each["status"], each["confirmed"]) for each in found} == {("cancelled", False)}
    assert WHY in json.dumps(found[0]["error"])


async def test_two_replicas_cancel_each_task_once(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        for number in range(5):
            await client.post("/tasks", json=BODY | {"goal": str(number)})
        counts = await asyncio.gather(*(place.gateway.tasks.cancel_all("ci/ci@acme", WHY) for _ in range(3)))
    assert sum(counts) == 5


async def test_a_cancel_that_the_log_did_not_take_is_sent_again(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_AGAIN_MS", 500)
    app, done = working()
    async with opened(app) as place, place.client() as client:
        await client.post("/tasks", json=BODY | {"goal": "slow"})
        await until(lambda: "began slow" in done)

        async def away(*_: object, **__: object) -> object:
            raise UnreachableError("no acknowledgement")

        with monkeypatch.context() as patched:
            patched.setattr(place.gateway.tasks.publisher, "queue", away)
            assert await place.gateway.tasks.cancel_all("ci/ci@acme", WHY) == 1
            await asyncio.sleep(0.2)
            assert "stopped slow" not in done
        await until(lambda: "stopped slow" in done)


async def test_an_operator_who_cancels_a_task_stops_its_agent(opened: Opened) -> None:
    app, done = working()
    async with opened(app) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY | {"goal": "slow"})).json()
        await until(lambda: "began slow" in done)
        store = place.gateway.tasks.store
        process = await store.find(place.gateway.tasks.id_of("ci/ci@acme", task["id"]))
        assert process is not None
        assert await store.ask_to_cancel(process, "a wrong order")
        shown = await place.ended(client, task["id"])
    assert "stopped slow" in done
    assert (shown["status"], shown["confirmed"]) == ("cancelled", True)


@pytest.mark.parametrize("is_postgres", [False, pytest.param(True, marks=pytest.mark.medium)])
async def test_a_credential_that_one_replica_still_has_keeps_its_tasks(
    opened: Opened, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, *, is_postgres: bool
) -> None:
    monkeypatch.setattr(service, "OVERDUE_MS", 500)
    settings: dict[str, Any] = {}
    if is_postgres:
        postgres: Postgres = request.getfixturevalue("postgres")
        settings["inbox.url"] = await postgres.create_database()
    async with opened(**settings) as one, opened(**settings) as two:
        two.add("solo")
        two.add("only")
        async with one.client("solo") as solo, two.client("only") as only:
            task = (await solo.post("/tasks", json=BODY)).json()
            (await only.post("/tasks", json=BODY)).raise_for_status()
            two.remove("solo")
            two.remove("only")
            # Once the one that no replica has is cancelled, this replica has judged both.
            await until(lambda: cancelled(one, two) == 1)
            assert (await solo.get(f"/tasks/{task['id']}")).json()["status"] == "submitted"
            one.remove("solo")
            await until(lambda: cancelled(one, two) == 2)
        assert WHY in json.dumps((await ended(two, "solo"))[0]["error"])


async def test_a_credential_that_was_removed_while_no_gateway_ran_is_noticed(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "OVERDUE_MS", 500)
    async with opened() as place, place.client("gone") as gone:
        await gone.post("/tasks", json=BODY)
        async with asyncio.timeout(60):
            while not await place.gateway.tasks.rows.unseen_ms():  # noqa: ASYNC110 - a round has no event
                await asyncio.sleep(0.02)
    async with opened() as place:
        await until(lambda: cancelled(place) == 1)
        assert len(await ended(place, "gone")) == 1


def test_a_credential_without_a_stamp_is_gone_only_where_its_removal_was_seen() -> None:
    unseen = {"old": 31_000, "fresh": 5_000, "here": 99_000}
    found = gone_owners(unseen, {"here"}, {"fresh", "unstamped", "here"}, gone_ms=30_000)
    assert found == {"old", "unstamped"}
