"""Messages of other systems at `/ingest`: whose they may be, what comes back, and that repeats are known."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import msgspec
import pytest

from bus.protocol import sealing
from bus.vocabulary.act import ActInform, ActRequest
from bus.vocabulary.task import TaskRequest, TaskResult
from producers.sealing.options import Outgoing
from sealbus import App, Context
from tests.consumers.gateway.conftest import Opened


def now(**shift: float) -> str:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(**shift)
    return moment.replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def request(**given: Any) -> dict[str, Any]:
    """A request as the sender script of the dialect `speech-acts` writes it."""
    return {
        "message_id": str(uuid.uuid4()),
        "conversation_id": "conv-1726",
        "sender": "planner@svc",
        "receiver": "researcher@svc",
        "timestamp": now(),
        "performative": "request",
        "schema_version": "1.0.0",
        "ttl": 120,
        "idempotency_key": "conv-1726:market_scan",
        "content": {"task": "market_scan", "query": "RAG evaluation best practices"},
    } | given


def task(**given: Any) -> dict[str, Any]:
    """A task of the dialect `frameworks`."""
    return {
        "message_id": "msg_1719000000000_abcd123",
        "timestamp": now(),
        "sender": {"agent_id": "claude-code://orchestrator", "framework": "claude-code", "session_id": "sess_x"},
        "recipient": {"agent_id": "researcher@svc", "framework": "opencode"},
        "message_type": "task_request",
        "priority": "high",
        "payload": {"task_type": "code_review", "files": ["a.ts"]},
        "routing": {
            "timeout": "300s",
            "retry_policy": {"max_retries": 2, "backoff": "exponential"},
            "delivery_mode": "sync",
        },
        "metadata": {"task_id": "task_12345"},
    } | given


def researcher() -> tuple[App, list[Any]]:
    app, taken = App("researcher@svc"), []

    @app.on(ActRequest)
    async def asked(act: ActRequest, context: Context) -> ActInform:
        taken.append(context.message)
        return ActInform(content={"summary": "Report ready"})

    @app.on(TaskRequest)
    async def work(wanted: TaskRequest, context: Context) -> TaskResult:
        taken.append(context.message)
        return TaskResult(status="completed", summary=wanted.goal)

    @app.on(ActInform)
    async def told(act: ActInform, context: Context) -> None:
        taken.append(context.message)

    return app, taken


PLANNER = {"agent": "planner@svc", "types": ("act.*",)}
ORCHESTRATOR = {"agent": "claude-code://orchestrator"}


async def test_a_request_is_taken_and_its_repeat_gets_the_stored_answer(opened: Opened) -> None:
    app, taken = researcher()
    async with opened(app) as place, place.client(**PLANNER) as client:
        sent = request()
        first = await client.post("/ingest", json=sent)
        await place.ended(client, first.json()["task_id"])
        again = await client.post("/ingest", json=request(timestamp=now(seconds=1)))
    assert (first.status_code, first.json()["status"]) == (202, "ok")
    assert first.json()["message_id"] == sent["message_id"]
    assert (again.status_code, again.json()["status"]) == (200, "duplicate")
    assert again.json()["reply"]["content"] == {"summary": "Report ready"}
    assert len(taken) == 1


async def test_a_repeat_with_other_content_is_refused_at_the_body_which_has_its_key(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client(**PLANNER) as client:
        await client.post("/ingest", json=request())
        other = await client.post("/ingest", json=request(content={"other": "work"}))
    assert (other.status_code, other.json()["code"], other.json()["pointer"]) == (409, "idempotency_conflict", "")


async def test_a_key_of_the_header_counts_where_the_message_has_none_and_is_refused_where_they_differ(
    opened: Opened,
) -> None:
    app, taken = researcher()
    async with opened(app) as place, place.client(**PLANNER) as client:
        bare = request()
        del bare["idempotency_key"]
        first = await client.post("/ingest", json=bare, headers={"Idempotency-Key": "h-1"})
        later = bare | {"message_id": str(uuid.uuid4())}
        again = await client.post("/ingest", json=later, headers={"Idempotency-Key": "h-1"})
        same = await client.post("/ingest", json=request(), headers={"Idempotency-Key": request()["idempotency_key"]})
        other = await client.post("/ingest", json=request(), headers={"Idempotency-Key": "h-2"})
        wrong = await client.post("/ingest", json=bare, headers={"Idempotency-Key": "k" * 300})
        await place.ended(client, first.json()["task_id"])
    assert (first.json()["status"], again.json()["status"], same.json()["status"]) == ("ok", "duplicate", "ok")
    at = "/headers/idempotency-key"
    assert (other.status_code, other.json()["code"], other.json()["pointer"]) == (400, "INVALID_MESSAGE", at)
    assert (wrong.status_code, wrong.json()["pointer"]) == (400, at)
    assert len(taken) <= 2


async def test_the_answer_names_what_its_sender_knows(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client(**PLANNER) as client:
        sent = request()
        reply = (await client.post("/ingest", json=sent, headers={"Prefer": "wait=20"})).json()["reply"]
    assert reply["performative"] == "inform"
    assert reply["conversation_id"] == sent["conversation_id"]
    assert reply["in_reply_to"] == sent["message_id"]
    assert (reply["sender"], reply["receiver"]) == ("researcher@svc", "planner@svc")


async def test_who_wants_to_wait_gets_the_answer_in_its_own_form(opened: Opened) -> None:
    app, taken = researcher()
    async with opened(app) as place, place.client(**ORCHESTRATOR) as client:
        reply = (await client.post("/ingest", json=task())).json()["reply"]
    assert reply["message_type"] == "task_response"
    assert reply["metadata"]["task_id"] == "task_12345"
    assert reply["payload"]["status"] == "completed"
    assert taken[0].metadata.sender.id == "claude-code://orchestrator"


async def test_ids_of_two_clients_are_never_the_same_on_the_bus(opened: Opened) -> None:
    app, taken = researcher()
    async with (
        opened(app) as place,
        place.client("a", **ORCHESTRATOR) as one,
        place.client("b", **ORCHESTRATOR) as two,
    ):
        await one.post("/ingest", json=task())
        await two.post("/ingest", json=task())
    assert len({each.message_id for each in taken}) == 2
    assert len({each.metadata.conversation_id for each in taken}) == 2
    assert len({each.metadata.task_id for each in taken}) == 2


@pytest.mark.parametrize(
    ("changed", "status", "code", "pointer"),
    [
        ({"sender": "other@svc"}, 403, "sender_mismatch", "/sender"),
        ({"receiver": "writer@svc"}, 403, "FORBIDDEN", "/to"),
        ({"timestamp": "2024-09-15T12:02:03Z"}, 504, "expired", "/timestamp"),
        ({"timestamp": now(days=2)}, 409, "clock_skew", "/timestamp"),
        ({"message_id": "zz"}, 400, "INVALID_MESSAGE", "/message_id"),
        ({"ttl": 0}, 400, "INVALID_MESSAGE", "/ttl"),
        ({"auth": {"type": "jwt", "token": "a.b.c"}}, 401, "key_unknown", "/auth"),
        ({"signature": "abc"}, 401, "key_unknown", "/signature"),
        ({"surprise": 1}, 400, "INVALID_MESSAGE", "/surprise"),
    ],
)
async def test_what_a_message_may_not_say_is_refused_by_name(
    opened: Opened, changed: dict[str, Any], status: int, code: str, pointer: str
) -> None:
    app, taken = researcher()
    async with opened(app) as place, place.client(**PLANNER, to=("researcher@svc",)) as client:
        answer = await client.post("/ingest", json=request(**changed))
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.json()["pointer"] == pointer
    assert taken == []


async def test_what_has_no_form_is_told_which_there_are(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        answer = await client.post("/ingest", json={"hello": "world"})
    assert answer.status_code == 400
    assert "speech-acts" in answer.json()["message"]


async def test_what_informs_opens_no_task_and_comes_once(opened: Opened) -> None:
    app, taken = researcher()
    async with opened(app) as place, place.client(**PLANNER) as client:
        said = request(performative="inform", content={"summary": "ready"}, idempotency_key="i-1")
        first = await client.post("/ingest", json=said)
        again = await client.post("/ingest", json=said)
        asked = await client.post("/ingest", json=request(), headers={"Prefer": "wait=20"})
    assert (first.status_code, first.json()) == (202, {"status": "ok", "message_id": said["message_id"]})
    assert (again.status_code, again.json()["status"]) == (200, "duplicate")
    assert asked.status_code == 200
    assert [each.message_type for each in taken].count("act.inform") <= 1


async def test_other_content_under_the_key_of_what_informs_is_refused_and_not_called_a_repeat(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client(**PLANNER) as client:
        said = request(performative="inform", content={"summary": "ready"}, idempotency_key="i-1")
        first = await client.post("/ingest", json=said)
        later = await client.post("/ingest", json=said | {"timestamp": now(seconds=1)})
        other = await client.post("/ingest", json=said | {"content": {"summary": "something else"}})
    assert (first.status_code, later.json()["status"]) == (202, "duplicate")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


async def test_a_ceiling_is_sealed_into_what_a_credential_sends(opened: Opened) -> None:
    app, taken = researcher()
    async with opened(app) as place, place.client(**ORCHESTRATOR, trust_at_most="model_generated") as client:
        answer = await client.post("/ingest", json=task())
    assert answer.json()["reply"]["payload"]["code"] == "untrusted_instruction"
    assert taken == []


async def test_sealed_bytes_pass_every_check_and_come_once(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client() as client:
        draft = TaskRequest(goal="compare")
        sealer = place.gateway.sealers.of("ci@acme")
        sealed = sealer.seal(Outgoing(draft, to="researcher@svc", task_id="t-1")).message
        first = await client.post("/ingest", content=sealed.value)
        again = await client.post("/ingest", content=sealed.value)
        twin = sealer.seal(
            Outgoing(TaskRequest(goal="else"), to="researcher@svc", task_id="t-1", message_id=sealed.message_id)
        )
        other = await client.post("/ingest", content=twin.message.value)
        forged = msgspec.json.decode(sealed.value)
        forged["data"]["goal"] = "something else"
        changed = await client.post("/ingest", json=forged)
        foreign = place.gateway.sealers.of("other@acme").seal(Outgoing(draft, to="researcher@svc", task_id="t-2"))
        stolen = await client.post("/ingest", content=foreign.message.value)
    assert (first.status_code, again.json()["status"]) == (202, "duplicate")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert changed.status_code in (400, 401)
    assert (stolen.status_code, stolen.json()["code"]) == (403, "sender_mismatch")
    assert sealing.parse(sealed.value).message_id == sealed.message_id


async def test_agents_are_those_that_may_be_asked(opened: Opened) -> None:
    app, _ = researcher()
    async with opened(app) as place, place.client("a") as one, place.client("b", to=("writer@svc",)) as two:
        known: list[dict[str, Any]] = []
        while not known:
            known = (await one.get("/agents", params={"query": "research"})).json()["agents"]
        assert known[0]["id"] == "researcher@svc"
        assert (await one.get("/agents/researcher@svc")).json()["id"] == "researcher@svc"
        assert (await two.get("/agents")).json()["agents"] == []
        assert (await two.get("/agents/researcher@svc")).status_code == 404


async def test_types_come_with_their_schemas(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        (listed,) = (await client.get("/types")).json()["types"]
        schema = await client.get(listed["schema"])
        again = await client.get(listed["schema"], headers={"If-None-Match": schema.headers["etag"]})
        other = await client.get("/types/approval.decision/1.0.0.json")
    assert listed["type"] == "task.request"
    assert schema.json()["properties"].keys() >= {"goal", "inputs"}
    assert "immutable" in schema.headers["cache-control"]
    assert again.status_code == 304
    assert other.status_code == 404


@pytest.mark.parametrize("member", ["signature", "token", "auth"])
@pytest.mark.parametrize("place", ["", "metadata"])
async def test_a_proof_in_a_member_that_the_format_does_not_know_is_refused(
    opened: Opened, member: str, place: str
) -> None:
    agent = "claude-code://orchestrator"
    async with opened() as place_, place_.client(agent=agent) as client:
        message = task()
        (message[place] if place else message)[member] = "c2lnbmF0dXJl"
        answer = await client.post("/ingest", json=message)
    assert (answer.json()["code"], answer.json()["pointer"]) == (
        "key_unknown",
        "/".join(("", *([place] if place else []), member)),
    )
