"""What is refused before anything reads it: names, pages, tokens, sizes, rates. Nothing of a token is in a log."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from consumers.web.guard import origin_fault, token_in
from tests.consumers.gateway.conftest import Opened

BODY = {"to": "researcher@svc", "goal": "compare"}
FORM = {"status", "code", "class", "pointer", "message"}


def refused(answer: httpx.Response, status: int, code: str) -> None:
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), answer.text
    assert body.keys() >= FORM
    assert body["status"] == "error"


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer nobody"}, {"Authorization": "Bearer"}, {"Authorization": "Basic !!"}],
)
async def test_without_a_good_token_nothing_is_told(opened: Opened, headers: dict[str, str]) -> None:
    async with opened() as place, httpx.AsyncClient(base_url=place.url, trust_env=False) as client:
        answers = [
            await client.get("/tasks", headers=headers),
            await client.post("/tasks", json=BODY, headers=headers),
            await client.get("/nowhere", headers=headers),
        ]
    for answer in answers:
        refused(answer, 401, "AUTHENTICATION_FAILED")
    assert len({answer.text for answer in answers}) == 1


async def test_the_password_of_basic_is_the_token(opened: Opened) -> None:
    async with opened() as place:
        token = place.add()
        async with httpx.AsyncClient(base_url=place.url, auth=("", token), trust_env=False) as client:
            assert (await client.get("/tasks")).status_code == 200


async def test_a_removed_credential_is_unknown_at_once(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        assert (await client.get("/tasks")).status_code == 200
        place.remove("ci")
        refused(await client.get("/tasks"), 401, "AUTHENTICATION_FAILED")


async def test_a_token_of_another_door_is_unknown(opened: Opened) -> None:
    async with opened() as place, place.client(doors=("hook",)) as client:
        refused(await client.get("/tasks"), 401, "AUTHENTICATION_FAILED")


async def test_a_rebinding_name_is_refused(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        refused(await client.get("/tasks", headers={"Host": "evil.example"}), 403, "FORBIDDEN")
        refused(await client.get("/healthz/live", headers={"Host": "evil.example"}), 403, "FORBIDDEN")


async def test_a_page_elsewhere_is_refused_unless_it_is_allowed(opened: Opened) -> None:
    async with opened(origins=("https://app.example",)) as place, place.client() as client:
        refused(await client.post("/tasks", json=BODY, headers={"Origin": "https://evil.example"}), 403, "FORBIDDEN")
        refused(await client.post("/tasks", json=BODY, headers={"Origin": "null"}), 403, "FORBIDDEN")
        good = await client.post("/tasks", json=BODY, headers={"Origin": "https://app.example"})
    assert good.status_code == 202


async def test_a_large_body_is_refused_however_it_comes(opened: Opened) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(40_000):
            sent += 65_536
            yield b" " * 65_536

    async with opened() as place, place.client() as client:
        refused(await client.post("/tasks", content=b" " * 2_000_000), 413, "PAYLOAD_TOO_LARGE")
        with contextlib.suppress(httpx.HTTPError):
            # It answers and ends the connection while the client still sends.
            refused(await client.post("/tasks", content=endless()), 413, "PAYLOAD_TOO_LARGE")
    assert sent < 64 * 1_048_576


async def test_a_page_of_an_allowed_origin_may_ask_first_and_read_the_answer(opened: Opened) -> None:
    page = "https://app.example"
    async with opened(origins=(page,)) as place:
        token = place.add()
        async with httpx.AsyncClient(base_url=place.url, trust_env=False) as client:
            asked = {"Origin": page, "Access-Control-Request-Method": "POST"}
            before = await client.options("/tasks", headers=asked)
            foreign = await client.options("/tasks", headers=asked | {"Origin": "https://evil.example"})
            headers = {"Origin": page, "Authorization": f"Bearer {token}"}
            answer = await client.post("/tasks", json=BODY, headers=headers)
    assert before.status_code == 204
    assert before.headers["access-control-allow-origin"] == page
    assert "authorization" in before.headers["access-control-allow-headers"]
    assert foreign.status_code == 403
    assert answer.headers["access-control-allow-origin"] == page


async def test_a_long_address_is_refused(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        answer = await client.get("/tasks", params={"status": "a" * 20_000})
    assert answer.status_code in (400, 414)


async def test_nothing_is_loaded_from_elsewhere(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        refused(await client.get("/schema"), 404, "NOT_FOUND")


async def test_another_agent_under_the_same_name_has_none_of_its_tasks(opened: Opened) -> None:
    async with opened() as place, place.client("ci") as client:
        task = (await client.post("/tasks", json=BODY, headers={"Idempotency-Key": "k"})).json()
        place.add("ci", agent="evil@acme")
        async with place.client("ci") as other:
            assert (await other.get("/tasks")).json()["tasks"] == []
            refused(await other.get(f"/tasks/{task['id']}"), 404, "NOT_FOUND")


async def test_long_headers_are_refused(opened: Opened) -> None:
    async with opened() as place, place.client() as client:
        answer = await client.get("/tasks", headers={"x-long": "a" * 17_000})
    assert answer.status_code in (400, 431)


async def test_who_asks_too_often_waits(opened: Opened) -> None:
    async with opened() as place, place.client("slow", rate=0.01, burst=2) as client, place.client("other") as other:
        answers = [await client.get("/tasks") for _ in range(3)]
        refused(answers[2], 429, "RATE_LIMIT")
        assert int(answers[2].headers["retry-after"]) > 0
        assert (await other.get("/tasks")).status_code == 200


async def test_wrong_tokens_lock_out_nobody_else_behind_the_same_proxy(opened: Opened) -> None:
    async with opened() as place, place.client() as good:
        async with httpx.AsyncClient(base_url=place.url, trust_env=False) as bad:
            wrong = [await bad.get("/tasks", headers={"Authorization": f"Bearer {n}"}) for n in range(40)]
        assert (await good.get("/tasks")).status_code == 200
    assert wrong[0].status_code == 401
    assert wrong[-1].status_code == 429


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b"{", ""),
        (b"[1]", ""),
        (b'{"to": "a", "goal": "\xff"}', ""),
        (b'{"to": "a", "inputs": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", ""),
        (b'{"to": "a", "to": "b", "goal": "c"}', ""),
        (b"", ""),
        (b'{"to": "researcher@svc"}', "/goal"),
        (b'{"to": "researcher@svc", "goal": 1}', "/goal"),
        (b'{"to": "researcher@svc", "goal": "a", "sender": "x@y"}', "/sender"),
        (b'{"to": "researcher@svc", "goal": "a", "ttl_s": -1}', "/ttl_s"),
        (b'{"to": "researcher@svc", "goal": "a", "ttl_s": 1e308}', "/ttl_s"),
        (b'{"to": "", "goal": "a"}', "/to"),
        (b'{"to": "researcher@svc", "goal": "a", "inputs": {"n": 9007199254740993}}', "/inputs/n"),
        (b'{"to": "researcher@svc", "goal": "a", "inputs": {"n": 1e400}}', ""),
        (b'{"to": "researcher@svc", "goal": "\\ud800"}', ""),
        (
            b'{"to": "researcher@svc", "message_type": "task.request", "data": {"goal": "a", "inputs": 1}}',
            "/data/inputs",
        ),
    ],
)
async def test_a_wrong_body_is_answered_with_its_place(opened: Opened, body: bytes, pointer: str) -> None:
    async with opened() as place, place.client() as client:
        answer = await client.post("/tasks", content=body)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json().keys() >= FORM
    if pointer:
        assert answer.json()["pointer"] == pointer, answer.text


async def test_whom_a_credential_may_not_ask_is_forbidden(opened: Opened) -> None:
    async with opened() as place, place.client(to=("writer@*",)) as client:
        refused(await client.post("/tasks", json=BODY), 403, "FORBIDDEN")


async def test_slow_readers_hold_no_more_than_their_streams(opened: Opened) -> None:
    async with opened() as place, place.client(streams=1) as client:
        task = (await client.post("/tasks", json=BODY)).json()
        async with client.stream("GET", f"/tasks/{task['id']}/events") as first:
            assert first.status_code == 200
            refused(await client.get(f"/tasks/{task['id']}", params={"wait": 5, "after": 1}), 429, "RATE_LIMIT")
        async with asyncio.timeout(30):
            # Its place is free when the client has gone.
            while (await client.get(f"/tasks/{task['id']}", params={"wait": 0.01, "after": 1})).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_token_is_in_no_log(opened: Opened, capfd: pytest.CaptureFixture[str]) -> None:
    with structlog.testing.capture_logs() as logs:
        async with opened() as place, place.client() as client:
            await client.post("/tasks", json=BODY)
            await client.get("/tasks/%00%ff", params={"wait": "x"})
            await client.get("/nowhere")
            token = place.tokens["ci"]
    out, err = capfd.readouterr()
    assert token not in json.dumps(logs, default=str) + out + err


@pytest.mark.parametrize(
    ("headers", "status", "pointer"),
    [
        ([("Idempotency-Key", "a"), ("Idempotency-Key", "b")], 400, "/headers/idempotency-key"),
        ([("If-Match", '"1-a"'), ("If-Match", '"2-b"')], 400, "/headers/if-match"),
        ([("Content-Encoding", "gzip")], 415, "/headers/content-encoding"),
    ],
)
@pytest.mark.parametrize("path", ["/tasks", "/ingest", "/mcp"])
async def test_headers_that_have_two_meanings_are_refused_at_every_door(
    opened: Opened, path: str, headers: list[tuple[str, str]], status: int, pointer: str
) -> None:
    async with opened() as place, place.client(doors=("http", "mcp")) as client:
        answer = await client.post(path, content=b"{}", headers=[*client.headers.items(), *headers])
    refused(answer, status, "INVALID_MESSAGE")
    assert answer.json()["pointer"] == pointer


async def test_whether_it_works_is_told_to_everybody(opened: Opened) -> None:
    async with opened() as place, httpx.AsyncClient(base_url=place.url, trust_env=False) as client:
        assert (await client.get("/healthz/live")).json() == {"status": "ok"}
        async with asyncio.timeout(60):
            while (answer := await client.get("/healthz/ready")).status_code == 503:  # noqa: ASYNC110 - before its first round
                await asyncio.sleep(0.02)
        assert answer.json() == {"status": "ok"}
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert {"/tasks", "/tasks/{task_id}/events", "/ingest", "/agents", "/types"} <= paths.keys()


@given(st.dictionaries(st.sampled_from(["host", "origin"]), st.text(max_size=30)))
def test_only_known_names_and_origins_pass(headers: dict[str, str]) -> None:
    passes = not origin_fault(headers, {"a:1"}, {"https://o"})
    assert passes == (headers.get("host", "").lower() == "a:1" and headers.get("origin", "https://o") == "https://o")


@given(st.text(max_size=40))
def test_any_authorization_header_has_a_token_or_none(text: str) -> None:
    found = token_in({"authorization": text})
    assert found is None or found
