"""Clients of another language: `ws` and `eventsource-parser` of npm, as a stranger would use them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bus.vocabulary.task import TaskRequest, TaskResult
from sealbus import App, Context
from tests.consumers.gateway.conftest import Opened, Place
from tests.consumers.gateway.test_ingest import now
from tests.node_tools import node_project

pytestmark = pytest.mark.medium

_SOCKET = """
import WebSocket from "ws";
const [url, token, text] = process.argv.slice(2);
const plan = JSON.parse(text);
const socket = new WebSocket(url.replace("http", "ws") + "/ws", plan.inFrame ? ["sealbus.v1"] : [], {
  headers: plan.inFrame ? {} : { authorization: `Bearer ${token}` },
  ...(plan.origin ? { origin: plan.origin } : {}),
});
const got = [];
const done = (code, reason) => {
  console.log(JSON.stringify({ got, code, reason: String(reason ?? "") })); process.exit(0);
};
socket.on("open", () => {
  if (plan.inFrame) socket.send(JSON.stringify({ op: "auth", re: "a", body: { token } }));
  for (const frame of plan.frames) socket.send(typeof frame === "string" ? frame : JSON.stringify(frame));
});
socket.on("message", (data) => {
  const frame = JSON.parse(String(data));
  got.push(frame);
  const follow = plan.follow && frame.re === "t" && frame.ok;
  if (follow) socket.send(JSON.stringify({ op: "follow", re: "f", id: frame.ok.id, body: {} }));
  if (got.length >= plan.count || (frame.task && frame.task.kept_until)) socket.close();
  if (plan.until && frame.message_type === plan.until) socket.close();
});
socket.on("close", done);
socket.on("unexpected-response", (_, response) => done(response.statusCode, "refused"));
socket.on("error", () => undefined);
setTimeout(() => done(-1, "timeout"), 60000);
"""
_EVENTS = """
import { createParser } from "eventsource-parser";
const [url, token, id] = process.argv.slice(2);
const seen = [];
const parser = createParser({ onEvent: (event) => seen.push(event) });
const answer = await fetch(`${url}/tasks/${id}/events`, { headers: { authorization: `Bearer ${token}` } });
for await (const part of answer.body.pipeThrough(new TextDecoderStream())) parser.feed(part);
console.log(JSON.stringify(seen.map(({ id, event, data }) => ({ id, event, task: JSON.parse(data) }))));
"""


async def run_node(script: str, *arguments: str) -> Any:
    """Run *script*, and return the JSON that it prints."""
    project = await asyncio.to_thread(node_project)
    folder = Path(tempfile.mkdtemp(dir=project))
    try:
        file = folder / "client.mjs"
        file.write_text(script)
        process = await asyncio.create_subprocess_exec(
            "node", str(file), *arguments, stdout=asyncio.subprocess.PIPE, env={**os.environ}
        )
        out, _ = await process.communicate()
        assert process.returncode == 0
        return json.loads(out)
    finally:
        shutil.rmtree(folder)


async def talk(place: Place, token: str, *frames: Any, count: int, **plan: Any) -> dict[str, Any]:
    """Send *frames* over a socket, and return what came back up to *count* frames."""
    asked = {"frames": frames, "count": count, **plan}
    found: dict[str, Any] = await run_node(_SOCKET, place.url, token, json.dumps(asked))
    return found


def researcher() -> App:
    app = App("researcher@svc")

    @app.on(TaskRequest)
    async def work(request: TaskRequest, context: Context) -> TaskResult:
        await context.progress("reading", pct=40)
        return TaskResult(status="completed", summary=request.goal.upper())

    return app


TASK = {"op": "task", "re": "t", "body": {"to": "researcher@svc", "goal": "compare"}}


@pytest.mark.parametrize("in_frame", [False, True])
async def test_a_task_is_asked_for_and_followed_over_a_socket(opened: Opened, in_frame: bool) -> None:
    async with opened(researcher()) as place:
        found = await talk(place, place.add(), TASK, count=99, follow=True, inFrame=in_frame)
    tasks = [frame["task"] for frame in found["got"] if "task" in frame]
    generations = [shown["generation"] for shown in tasks]
    assert generations == sorted(set(generations))
    assert tasks[-1]["status"] == "completed"
    assert tasks[-1]["result"]["summary"] == "COMPARE"


async def test_a_cursor_that_does_not_fit_is_told_by_reset(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        task = (await client.post("/tasks", json={"to": "researcher@svc", "goal": "compare"})).json()
        frames = [
            {"op": "follow", "re": number, "id": task["id"], "body": {"after": after}}
            for number, after in enumerate(("99-00000000", "1-00000000"))
        ]
        found = await talk(place, place.tokens["ci"], frames[0], count=3)
        other = await talk(place, place.tokens["ci"], frames[1], count=3)
    for number, talked in enumerate((found, other)):
        assert talked["got"][:2] == [{"re": number, "ok": {}}, {"re": number, "reset": True}]
        assert talked["got"][2]["task"]["cursor"] == task["cursor"]


async def test_each_wrong_frame_is_answered_under_its_number(opened: Opened) -> None:
    frames = [
        {"op": "dance", "re": 1},
        {"op": "get", "re": 2},
        {"op": "get", "re": 3, "id": "nothing"},
        {"op": "task", "re": 4, "body": {"to": "researcher@svc"}},
        {"op": 5, "re": 5},
        "[1]",
        "{",
        {"op": "stop", "re": 8, "id": "x"},
    ]
    async with opened() as place:
        found = await talk(place, place.add(), *frames, count=len(frames))
    errors = [frame["error"]["code"] for frame in found["got"]]
    assert errors == ["INVALID_MESSAGE"] * 2 + ["NOT_FOUND"] + ["INVALID_MESSAGE"] * 4 + ["NOT_FOUND"]
    assert [frame["re"] for frame in found["got"]][:4] == [1, 2, 3, 4]


async def test_without_a_good_token_no_socket_is_opened(opened: Opened) -> None:
    async with opened() as place:
        place.add()
        by_header = await talk(place, "wrong", TASK, count=1)
        in_frame = await talk(place, "wrong", TASK, count=1, inFrame=True)
        elsewhere = await talk(place, place.tokens["ci"], TASK, count=1, origin="https://evil.example")
    assert by_header["code"] == 401
    assert (in_frame["code"], in_frame["got"]) == (1008, [])
    assert elsewhere["code"] == 403


async def test_a_message_of_a_framework_comes_back_in_its_own_form(opened: Opened) -> None:
    sent = {
        "message_id": "msg_1",
        "timestamp": now(),
        "sender": {"agent_id": "claude-code://orchestrator", "framework": "claude-code"},
        "recipient": {"agent_id": "researcher@svc", "framework": "opencode"},
        "message_type": "task_request",
        "priority": "high",
        "payload": {"goal": "review"},
        "routing": {
            "timeout": "300s",
            "retry_policy": {"max_retries": 2, "backoff": "exponential"},
            "delivery_mode": "async",
        },
        "metadata": {"task_id": "task_12345"},
    }
    async with opened(researcher()) as place:
        token = place.add(agent="claude-code://orchestrator")
        found = await talk(place, token, sent, count=99, until="task_response")
    types = [frame["message_type"] for frame in found["got"]]
    assert types[-1] == "task_response"
    assert set(types[:-1]) <= {"status_update"}
    assert {frame["metadata"]["task_id"] for frame in found["got"]} == {"task_12345"}


async def test_events_are_read_by_a_parser_of_another_language(opened: Opened) -> None:
    async with opened(researcher()) as place, place.client() as client:
        task = (await client.post("/tasks", json={"to": "researcher@svc", "goal": "compare"})).json()
        seen = await run_node(_EVENTS, place.url, place.tokens["ci"], task["id"])
    assert {event["event"] for event in seen} == {"task"}
    assert seen[-1]["task"]["status"] == "completed"
    assert seen[-1]["id"] == seen[-1]["task"]["cursor"]
