"""A task over HTTP: opened, followed, answered, and the same again under its key."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from bus.errors import UnreachableError
from bus.vocabulary.parts import ErrorInfo
from bus.vocabulary.task import TaskArtifact, TaskRejected, TaskRequest, TaskResult
from consumers.processes.tasks import service
from sealbus import App, Context, Reject, payload
from tests.consumers.gateway.conftest import Opened
from tests.consumers.gateway.test_ingest import request as foreign_request

BODY = {"to": "researcher@svc", "goal": "compare"}


def researcher() -> tuple[App, list[str]]:
    """An agent that tells of its work, and what it was asked."""
    app, asked = App("researcher@svc"), []

    @app.on(TaskRequest)
    async def work(request: TaskRequest, context: Context) -> TaskResult | TaskRejected:
        asked.append(request.goal)
        if request.goal == "refuse":
            return TaskRejected(reason_code="OUT_OF_SCOPE", explanation="not mine")
        if request.goal == "die":
            raise Reject("it cannot be done")
        if request.goal == "fail":
            return TaskResult(status="failed", error=ErrorInfo(code="NO_DATA", message="nothing found"))
        if request.goal == "large":
            return TaskResult(status="completed", output={"text": "x" * 40_000})
        if request.goal == "artifacts":
            for index, text in enumerate(("one ", "two ", "three")):
                part = TaskArtifact(artifact_id="report", index=index, content=text, append=index > 0, last=index == 2)
                await context.send_now(part, to_requester=True)
        await context.progress("reading", pct=40)
        return TaskResult(status="completed", summary=request.goal.upper())

    return app, asked


async def events(client: httpx.AsyncClient, task_id: str, **given: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """All events of a task up to the end of the stream."""
    found, name, number = [], "", ""
    async with client.stream("GET", f"/tasks/{task_id}/events", **given) as stream:
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("id: "):
                number = line[4:]
            elif line.startswith("data: "):
                found.append((name, number, json.loads(line[6:])))
    return found


async def test_a_task_is_answered(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client() as client:
        answer = await client.post("/tasks", json=BODY)
        task = answer.json()
        assert answer.status_code == 202
        assert task["status"] == "submitted"
        assert answer.headers["location"] == f"/tasks/{task['id']}"
        assert answer.headers["etag"] == f'"{task["cursor"]}"'
        ended = await place.ended(client, task["id"])
    assert ended["status"] == "completed"
    assert ended["result"] == {"status": "completed", "summary": "COMPARE"}
    assert ended["message"] == "reading"
    assert ended["progress_pct"] == 40
    assert "kept_until" in ended


async def test_pages_have_each_task_once_also_where_many_have_changed_at_the_same_time(
    opened: Opened, tmp_path: Path
) -> None:
    async with opened() as place, place.client(open_tasks=1_000) as client:
        orders = [client.post("/tasks", json=BODY | {"goal": str(number)}) for number in range(230)]
        made = {(await order).json()["id"] for order in orders}
        for path in tmp_path.glob("*.db"):
            with contextlib.closing(sqlite3.connect(path, timeout=30)) as database, database:
                if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'sealbus_processes'").fetchone():
                    database.execute("UPDATE sealbus_processes SET changed_ms = 1700000000000 WHERE owner <> ''")
        for query in ({}, {"status": "submitted"}):
            found, page = list[str](), {"before": ""}
            while "before" in page and len(found) < 1_000:
                more = {"before": page["before"]} if page["before"] else {}
                page = (await client.get("/tasks", params=query | more)).json()
                found += [each["id"] for each in page["tasks"]]
            assert sorted(found) == sorted(made)
        for before in ("x", "1.zz", "9" * 40, "1.", "-1", "1.0"):
            answer = await client.get("/tasks", params={"before": before})
            assert (answer.status_code, answer.json()["pointer"]) == (400, "/before"), before


async def test_curl_needs_no_content_type(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client() as client:
        form = {"content-type": "application/x-www-form-urlencoded"}
        answer = await client.post("/tasks", content=json.dumps(BODY), headers=form)
        assert answer.status_code == 202


async def test_a_call_may_wait_for_the_end(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client() as client:
        answer = await client.post("/tasks", json=BODY, headers={"Prefer": "wait=20"})
    assert answer.status_code == 200
    assert answer.json()["status"] == "completed"


async def test_a_repeat_under_its_key_is_the_same_task_and_runs_once(opened: Opened) -> None:
    app, asked = researcher()
    async with opened(app) as place, place.client() as client:
        key = {"Idempotency-Key": "k-1"}
        first = (await client.post("/tasks", json=BODY, headers=key)).json()
        many = await asyncio.gather(*(client.post("/tasks", json=BODY, headers=key) for _ in range(8)))
        await place.ended(client, first["id"])
        late = await client.post("/tasks", json=BODY, headers=key)
        other = await client.post("/tasks", json=BODY | {"goal": "else"}, headers=key)
    assert {each.json()["id"] for each in many} == {first["id"]}
    assert late.status_code == 200
    assert late.headers["idempotent-replayed"] == "true"
    assert late.json()["result"]["summary"] == "COMPARE"
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert asked == ["compare"]


async def test_the_key_of_another_credential_is_another_task(opened: Opened) -> None:
    app, asked = researcher()
    async with opened(app) as place, place.client("a") as one, place.client("b") as two:
        key = {"Idempotency-Key": "k-1"}
        mine = (await one.post("/tasks", json=BODY, headers=key)).json()
        theirs = (await two.post("/tasks", json=BODY, headers=key)).json()
        await place.ended(one, mine["id"])
        await place.ended(two, theirs["id"])
        foreign = await two.get(f"/tasks/{mine['id']}")
    assert mine["id"] != theirs["id"]
    assert foreign.status_code == 404
    assert len(asked) == 2


async def test_generations_grow_and_the_stream_ends_with_the_task(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        seen = await events(client, task["id"])
        after = await client.get(f"/tasks/{task['id']}/events", headers={"Last-Event-ID": seen[-1][1]})
        again = await events(client, task["id"], headers={"Last-Event-ID": task["cursor"]})
        strange = await events(client, task["id"], headers={"Last-Event-ID": "99-00000000"})
    generations = [shown["generation"] for _, _, shown in seen]
    assert generations == sorted(set(generations))
    assert seen[-1][2]["status"] == "completed"
    assert after.status_code == 204
    assert [name for name, *_ in again] == ["task"]
    assert [name for name, *_ in strange] == ["reset", "task"]


async def test_a_poll_with_a_cursor_that_does_not_fit_gets_the_whole_task_at_once(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        own = f"/tasks/{task['id']}"
        async with asyncio.timeout(20):
            lost = [
                await client.get(own, params={"after": after, "wait": wait})
                for after in ("99", "99-00000000", f"{task['generation']}-00000000")
                for wait in (0, 40)
            ]
        fits = [await client.get(own, params={"after": after, "wait": 0.2}) for after in ("0", "1", task["cursor"])]
        wrong = await client.get(own, params={"after": "x", "wait": 40})
    assert {(each.status_code, each.headers.get("x-sealbus-reset")) for each in lost} == {(200, "true")}
    assert {each.json()["cursor"] for each in (*lost, *fits)} == {task["cursor"]}
    assert {(each.status_code, each.headers.get("x-sealbus-reset")) for each in fits} == {(200, None)}
    assert (wrong.status_code, wrong.json()["pointer"]) == (400, "/after")


async def test_a_store_that_is_away_is_told_as_what_was_asked(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        own = f"/tasks/{task['id']}"

        async def away(*_: object, **__: object) -> object:
            raise UnreachableError("no database")

        monkeypatch.setattr(place.gateway.tasks.store, "find", away)
        monkeypatch.setattr(place.gateway.tasks.rows, "open", away)
        got = await client.get(own)
        changed = [await client.post(f"{own}/cancel"), await client.post(f"{own}/input", json={"answers": ["x"]})]
        opening = await client.post("/tasks", json=BODY)
        monkeypatch.undo()
    assert {each.status_code for each in (got, *changed, opening)} == {503}
    assert ["nothing was opened" in each.json()["message"] for each in (got, *changed, opening)] == [False] * 3 + [True]


async def test_a_task_waits_for_a_newer_state(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        ended = await place.ended(client, task["id"])
        known = await client.get(f"/tasks/{task['id']}", headers={"If-None-Match": f'"{ended["cursor"]}"'})
        missing = await client.get("/tasks/nothing")
    assert known.status_code == 304
    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("goal", "status", "code"),
    [("refuse", "rejected", "OUT_OF_SCOPE"), ("die", "failed", "rejected"), ("fail", "failed", "NO_DATA")],
)
async def test_what_comes_instead_of_a_result_ends_it(opened: Opened, goal: str, status: str, code: str) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY | {"goal": goal})).json()
        ended = await place.ended(client, task["id"])
    assert ended["status"] == status
    assert ended["error"]["code"] == code
    assert ended["error"]["class"].startswith("error.")


async def test_a_large_result_is_an_artifact(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY | {"goal": "large"})).json()
        ended = await place.ended(client, task["id"])
        content = await client.get(f"/tasks/{task['id']}/artifacts/result")
    assert "result" not in ended
    assert [entry["id"] for entry in ended["artifacts"]] == ["result"]
    assert content.json()["output"]["text"] == "x" * 40_000
    assert content.headers["content-disposition"].startswith("attachment")
    assert content.headers["x-content-type-options"] == "nosniff"


async def test_content_that_a_result_refers_to_is_served(opened: Opened, tmp_path: Path) -> None:
    app = App("researcher@svc")

    @app.on(TaskRequest)
    async def work(_: TaskRequest, context: Context) -> TaskResult:
        return TaskResult(status="completed", artifacts=(await context.artifacts.put(b"the report"),))

    async with opened(app, **{"artifacts.url": f"file://{tmp_path}/artifacts"}) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        ended = await place.ended(client, task["id"])
        (entry,) = ended["artifacts"]
        content = await client.get(f"/tasks/{task['id']}/artifacts/{entry['id']}")
    assert content.content == b"the report"


async def test_an_artifact_may_have_a_path_as_its_id(opened: Opened) -> None:
    app = App("researcher@svc")

    @app.on(TaskRequest)
    async def work(_: TaskRequest, context: Context) -> TaskResult:
        part = TaskArtifact(artifact_id="src/app.py", index=0, content="print()", last=True)
        await context.send_now(part, to_requester=True)
        return TaskResult(status="completed")

    async with opened(app) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        await place.ended(client, task["id"])
        found = [await client.get(f"/tasks/{task['id']}/artifacts/{name}") for name in ("src/app.py", "src%2Fapp.py")]
    assert {each.text for each in found} == {"print()"}


async def test_an_artifact_comes_in_parts(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY | {"goal": "artifacts"})).json()
        ended = await place.ended(client, task["id"])
        content = await client.get(f"/tasks/{task['id']}/artifacts/report")
    assert content.text == "one two three"
    assert ended["artifacts"][0]["size"] == 13
    assert "lost" not in ended


@payload("report.request")
class ReportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for a report."""

    about: str


@payload("report.output")
class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A report."""

    text: str


async def test_a_message_of_another_type_is_a_task_too(opened: Opened) -> None:
    app = App("reporter@svc")

    @app.on(ReportRequest)
    async def report(request: ReportRequest) -> Report:
        return Report(text=request.about.upper())

    async with opened(app) as place, place.client(types=("report.*",)) as client:
        body = {"to": "reporter@svc", "message_type": "report.request", "data": {"about": "tea"}}
        answer = await client.post("/tasks", json=body, headers={"Prefer": "wait=20"})
        wrong = await client.post("/tasks", json=body | {"data": {"about": 1}})
        unknown = await client.post("/tasks", json=body | {"message_type": "no.such"})
        forbidden = await client.post("/tasks", json=BODY)
    assert answer.json()["result"] == {"text": "TEA"}
    assert (wrong.status_code, wrong.json()["pointer"]) == (422, "/data/about")
    assert (unknown.status_code, unknown.json()["code"]) == (405, "unknown_type")
    assert forbidden.status_code == 403


async def test_a_task_of_a_type_that_its_agent_does_not_take_is_refused_where_that_is_known(opened: Opened) -> None:
    app = App("reporter@svc")

    @app.on(ReportRequest)
    async def report(request: ReportRequest) -> Report:
        return Report(text=request.about)

    async with opened(app) as place, place.client(types=("**",)) as client:
        key, body = {"Idempotency-Key": "k-1"}, BODY | {"to": "reporter@svc"}
        directory, place.gateway.directory = place.gateway.directory, None
        before = await client.post("/tasks", json=body, headers=key)
        place.gateway.directory = directory
        async with asyncio.timeout(60):
            while not (await client.get("/agents")).json()["agents"]:  # noqa: ASYNC110 - a card has no event here
                await asyncio.sleep(0.05)
        refused = await client.post("/tasks", json=body)
        foreign = await client.post("/ingest", json=foreign_request(sender="ci@acme", receiver="reporter@svc"))
        again = await client.post("/tasks", json=body, headers=key)
        absent = await client.post("/tasks", json=body | {"to": "nobody@svc"})
        taken = {"to": "reporter@svc", "message_type": "report.request", "data": {"about": "tea"}}
        good = await client.post("/tasks", json=taken, headers={"Prefer": "wait=20"})
    assert {each.json()["code"] for each in (refused, foreign)} == {"unknown_type"}
    assert "report.request" in refused.json()["message"]
    assert (before.status_code, again.status_code, absent.status_code) == (202, 200, 202)
    assert good.json()["status"] == "completed"


async def test_an_answer_of_a_type_that_is_not_known_here_is_shown_as_data(opened: Opened) -> None:
    app = App("reporter@svc")

    @app.on(TaskRequest)
    async def report(request: TaskRequest) -> Report:
        return Report(text=request.goal)

    async with opened(app, known=()) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY | {"to": "reporter@svc"})).json()
        ended = await place.ended(client, task["id"])
    assert ended["result"] == {"text": "compare"}


@payload("report.output", version="1.0.0")
class LooseReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report of a program whose type is not the published one."""

    text: int


async def test_an_answer_that_a_check_refuses_ends_the_task_at_once(opened: Opened) -> None:
    app, published = App("reporter@svc"), App("other@svc", types=[Report])

    @app.on(TaskRequest)
    async def report(_: TaskRequest) -> LooseReport:
        return LooseReport(text=1)

    async with opened(app, known=(published,)) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY | {"to": "reporter@svc"})).json()
        ended = await place.ended(client, task["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "schema_violation")


async def test_open_tasks_are_counted(opened: Opened) -> None:
    async with opened() as place, place.client(open_tasks=2) as client:
        answers = [await client.post("/tasks", json=BODY | {"goal": str(number)}) for number in range(3)]
    assert [each.status_code for each in answers] == [202, 202, 429]
    assert "retry-after" in answers[2].headers


async def test_a_task_that_no_agent_answers_fails_when_its_time_is_over(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "OVERDUE_MS", 500)
    async with opened() as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY | {"ttl_s": 1})).json()
        ended = await place.ended(client, task["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "TIMEOUT")


async def test_a_task_whose_agent_is_still_at_work_when_its_time_is_over_fails_the_same_way(opened: Opened) -> None:
    app = App("researcher@svc")

    @app.on(TaskRequest)
    async def work(_: TaskRequest) -> TaskResult:
        await asyncio.sleep(60)
        return TaskResult(status="completed")

    async with opened(app) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY | {"ttl_s": 2})).json()
        ended = await place.ended(client, task["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "TIMEOUT")


async def test_a_cancelled_task_ends_when_its_agent_confirms_it(opened: Opened) -> None:
    app, begun = App("researcher@svc"), asyncio.Event()

    @app.on(TaskRequest)
    async def work(_: TaskRequest, context: Context) -> TaskResult:
        begun.set()
        while not context.cancelled:  # noqa: ASYNC110 - it is a flag
            await asyncio.sleep(0.01)
        return TaskResult(status="cancelled")

    async with opened(app) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        await asyncio.wait_for(begun.wait(), 30)
        answer = await client.post(f"/tasks/{task['id']}/cancel")
        twice = await client.post(f"/tasks/{task['id']}/cancel")
        ended = await place.ended(client, task["id"])
    assert answer.status_code == 202
    assert twice.status_code == 409
    assert ended["status"] == "cancelled"
    assert ended["confirmed"] is True


async def test_a_cancel_that_nobody_confirms_ends_it_all_the_same(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "OVERDUE_MS", 500)
    async with opened() as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        await client.post(f"/tasks/{task['id']}/cancel")
        ended = await place.ended(client, task["id"])
    assert (ended["status"], ended["confirmed"]) == ("cancelled", False)


async def test_a_change_is_made_to_the_state_that_was_seen_or_not_at_all(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        stale = await client.post(f"/tasks/{task['id']}/cancel", headers={"If-Match": '"7-00000000"'})
        good = await client.post(f"/tasks/{task['id']}/cancel", headers={"If-Match": f'"{task["cursor"]}"'})
    assert stale.status_code == 412
    assert stale.json()["task"]["cursor"] == task["cursor"]
    assert good.status_code == 202


async def test_own_tasks_are_listed(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client("a") as one, place.client("b") as two:
        task = (await one.post("/tasks", json=BODY)).json()
        await place.ended(one, task["id"])
        listed = (await one.get("/tasks", params={"status": "completed"})).json()
        others = (await two.get("/tasks")).json()
    assert [each["id"] for each in listed["tasks"]] == [task["id"]]
    assert others["tasks"] == []


def asking(*questions: str) -> App:
    """An agent that asks *questions*, one after the other, and answers with what it was told."""
    app = App("researcher@svc")

    @app.on(TaskRequest, asks=True)
    async def work(request: TaskRequest, context: Context) -> TaskResult:
        said = [await context.clarify([each], options=["main", "dev"]) for each in questions]
        return TaskResult(status="completed", summary=" ".join([request.goal, *(each.answers[0] for each in said)]))

    return app


async def asked(client: httpx.AsyncClient, task: dict[str, Any]) -> dict[str, Any]:
    """A task once it asks."""
    async with asyncio.timeout(60):
        while task["status"] != "input_required":
            query = {"after": task["generation"], "wait": 20}
            task = (await client.get(f"/tasks/{task['id']}", params=query)).json()
    return task


async def test_a_question_of_the_agent_is_answered_once(opened: Opened) -> None:
    async with opened(asking("Which branch?")) as place, place.client() as client:
        task = (await client.post("/tasks", json=BODY)).json()
        none = await client.post(f"/tasks/{task['id']}/input", json={"answers": ["early"]})
        shown = await asked(client, task)
        stale = await client.post(
            f"/tasks/{task['id']}/input", json={"answers": ["dev"]}, headers={"If-Match": '"1-00000000"'}
        )
        many = await client.post(f"/tasks/{task['id']}/input", json={"answers": ["dev", "main"]})
        seen = {"If-Match": f'"{shown["cursor"]}"'}
        answer = await client.post(f"/tasks/{task['id']}/input", json={"answers": ["dev"]}, headers=seen)
        same = await client.post(f"/tasks/{task['id']}/input", json={"answers": ["dev"]}, headers=seen)
        ended = await place.ended(client, task["id"])
        late = await client.post(f"/tasks/{task['id']}/input", json={"answers": ["dev"]})
        other = await client.post(f"/tasks/{task['id']}/input", json={"answers": ["main"]})
    assert (many.status_code, many.json()["pointer"]) == (422, "/answers")
    assert (none.status_code, stale.status_code, answer.status_code) == (409, 412, 202)
    assert {(each.status_code, each.headers.get("idempotent-replayed")) for each in (same, late)} == {(200, "true")}
    assert (other.status_code, "it has ended" in other.json()["message"]) == (409, True)
    assert (shown["questions"], shown["options"]) == (["Which branch?"], ["main", "dev"])
    assert answer.json()["status"] == "working"
    assert ended["result"]["summary"] == "compare dev"
    assert "questions" not in ended


async def test_an_answer_that_the_log_did_not_acknowledge_may_be_repeated(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(asking("Which branch?")) as place, place.client() as client:
        task = await asked(client, (await client.post("/tasks", json=BODY)).json())

        async def away(*_: object, **__: object) -> object:
            raise UnreachableError("no acknowledgement")

        place_of_input = f"/tasks/{task['id']}/input"
        with monkeypatch.context() as patched:
            patched.setattr(place.gateway.tasks.publisher, "queue", away)
            first = await client.post(place_of_input, json={"answers": ["dev"]})
            again = await client.post(place_of_input, json={"answers": ["dev"]})
            other = await client.post(place_of_input, json={"answers": ["main"]})
        ended = await place.ended(client, task["id"])
    assert (first.status_code, first.json()["status"]) == (503, "unknown")
    assert (again.status_code, again.json()["status"]) == (200, "working")
    assert (other.status_code, "answered otherwise" in other.json()["message"]) == (409, True)
    assert ended["result"]["summary"] == "compare dev"


async def test_an_answer_under_its_key_never_answers_the_next_question(opened: Opened) -> None:
    async with opened(asking("Which branch?", "Which base?")) as place, place.client() as client:
        task = await asked(client, (await client.post("/tasks", json=BODY)).json())
        place_of_input, key = f"/tasks/{task['id']}/input", {"Idempotency-Key": "a-1"}
        first = (await client.post(place_of_input, json={"answers": ["dev"]}, headers=key)).json()
        await asked(client, first)
        again = await client.post(place_of_input, json={"answers": ["dev"]}, headers=key)
        other = await client.post(place_of_input, json={"answers": ["main"]}, headers=key)
        # Without a key it is an answer to what is asked now.
        await client.post(place_of_input, json={"answers": ["dev"]})
        ended = await place.ended(client, task["id"])
    assert (again.status_code, again.json()["questions"]) == (200, ["Which base?"])
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert ended["result"]["summary"] == "compare dev dev"
