"""Claude Code's hook on a real socket: a person approves, rejects or says nothing, and whatever goes wrong denies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bus.clock import SystemClock
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.trust.keys.key_folder import KeyFolder
from bus.trust.policy.reading import read_policy
from bus.vocabulary.known import known_types
from consumers.gateway.credentials import Credential, Credentials, Door, FixedCredentials, make_token
from consumers.gateway.doors import policy_lines, sign_for
from consumers.gateway.gateway import Gateway
from consumers.gateway.hook import hook_routes, open_permits
from consumers.gateway.permits import PERMITS_AGENT, PERMITS_POLICY
from consumers.gateway.serving import gateway_declaration, make_gateway, served_gateway
from consumers.processes.approvals.approval_rows import approval_row
from consumers.processes.approvals.deciding import DecisionVerb, decision_about, seal_decision
from consumers.processes.approvals.open_requests import OpenRequest, readable_requests
from consumers.web.refusal import HttpRefusal
from consumers.worker.embedded import running
from sealbus import connect
from sealbus.errors import InboxError

pytestmark = pytest.mark.medium

LEAD = "lead@acme"
CLAUDE = "claude@laptop"
DEADLINE_S = 60
PERSON = """
[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"
"""
DECIDES = """
[[rules]]
id = "decide"
effect = "allow"
action = "approve"
agents = "lead@acme"
types = "tool.call"
"""
CALL: dict[str, Any] = {
    "session_id": "s-1",
    "transcript_path": "/home/me/.claude/projects/x/s-1.jsonl",
    "cwd": "/home/me/project",
    "permission_mode": "default",
    "hook_event_name": "PreToolUse",
    "tool_name": "Bash",
    "tool_input": {"command": "make deploy", "description": "Deploy"},
    "tool_use_id": "toolu_01",
}


class Laptop:
    """A gateway with the door hook, Claude Code before it and a person behind it."""

    def __init__(self, url: str, tokens: dict[str, str], settings: Settings, transport: Any) -> None:
        self.url = url
        self.tokens = tokens
        self.settings = settings
        self.transport = transport

    async def raw(self, content: bytes, *, door: str = "hook", mode: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.tokens[door]}", "Content-Type": "application/json"}
        if mode is not None:
            headers["X-Sealbus-Session"] = mode
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=DEADLINE_S) as client:
            return await client.post("/hooks/claude-code", content=content, headers=headers)

    async def call(self, *, mode: str | None = None, **changed: Any) -> tuple[str, str]:
        answer = await self.raw(json.dumps(CALL | changed).encode(), mode=mode)
        assert answer.status_code == 200, answer.text
        (said,) = answer.json().values()
        assert set(said) == {"hookEventName", "permissionDecision", "permissionDecisionReason"}
        return said["permissionDecision"], said["permissionDecisionReason"]

    async def requests(self, *, closed: bool = False) -> list[OpenRequest]:
        return await readable_requests(self.transport, self.settings, closed=closed)

    async def asked(self, count: int = 1) -> list[OpenRequest]:
        async with asyncio.timeout(DEADLINE_S):
            while len(found := await self.requests()) < count:  # noqa: ASYNC110 - another process would have no event
                await asyncio.sleep(0.05)
        return found

    async def closed(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.requests():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)

    async def decide(self, verb: DecisionVerb, found: OpenRequest, **members: Any) -> None:
        async with connect(agent=LEAD, settings=self.settings) as bus:
            decision = decision_about(found.message, verb, by=LEAD, **members)
            await bus.publisher.send(seal_decision(bus.publisher.sealer, decision, found.message))


Opened = Callable[..., AbstractAsyncContextManager[Laptop]]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Opens a gateway; *decision_s* is how long it waits for the person."""

    @asynccontextmanager
    async def open_laptop(
        *,
        decision_s: float = 40,
        without_key: bool = False,
        policy: str = PERSON + PERMITS_POLICY + DECIDES,
        artifacts: str = "auto",
        to: tuple[str, ...] = (PERMITS_AGENT,),
    ) -> AsyncIterator[Laptop]:
        clock = SystemClock()
        keys, rules = tmp_path / "keys", tmp_path / "policy.toml"
        tokens, credentials = {}, []
        doors: tuple[Door, ...] = ("hook", "http")
        for door in doors:
            tokens[door], known = make_token()
            credentials.append(
                Credential(
                    name=door,
                    agent=CLAUDE,
                    to=to,
                    types=("tool.call",),
                    doors=(door,),
                    tokens=(known,),
                    trust_at_most="model_generated",
                )
            )
        folder, since_ms = KeyFolder(keys), clock.now_ms() - 60_000
        sign_for(folder, credentials, not_before_ms=since_ms)
        for agent in (LEAD, *(() if without_key else (PERMITS_AGENT,))):
            folder.add(agent, principals=[agent], types=(), not_before_ms=since_ms)
        rules.write_text(policy)
        rules.chmod(0o600)
        rules.write_text(policy + policy_lines(read_policy(rules), credentials[0]))
        flags = {
            "bus.url": f"sqlite:///{tmp_path}/log.db",
            "trust.keys": str(keys / "jwks.json"),
            "trust.key_file": str(keys),
            "policy.file": str(rules),
            "artifacts.url": artifacts,
        }
        settings = load(flags=flags, env={}, file=None).settings
        source = FixedCredentials(Credentials(credentials))
        gateway = make_gateway(settings, source, known_types([]), clock)
        permits = open_permits(settings, source, clock)
        workers = [gateway_declaration(gateway), *([permits.declaration] if permits.declaration else [])]
        routes = hook_routes(gateway, permits, clock, decision_s=decision_s)
        async with (
            running(workers, None, config=None, settings=settings, metrics=None, on_failure=None) as bus,
            served_gateway(gateway, host="127.0.0.1", port=0, routes=routes) as url,
        ):
            yield Laptop(url, tokens, settings, bus.transport)

    return open_laptop


async def test_a_person_approves_and_sees_what_would_be_called(opened: Opened) -> None:
    async with opened() as laptop:
        calling = asyncio.ensure_future(laptop.call())
        (found,) = await laptop.asked()
        row = approval_row(found, is_whole=True)
        await laptop.decide("approve", found)
        assert await calling == ("allow", f'sealbus: approved by "{LEAD}"')
        # The same call again is the same permission; another input under its id is none.
        assert (await laptop.call())[0] == "allow"
        decision, reason = await laptop.call(tool_input={"command": "rm -rf /"})
        assert (decision, "idempotency_conflict" in reason) == ("deny", True)
        assert len(await laptop.requests(closed=True)) == 1
    assert found.request.action.within is not None
    assert found.request.action.within["tool"] == "Bash"
    assert found.request.action.within["arguments"] == CALL["tool_input"]
    assert "make deploy" in str(row)


async def test_a_person_rejects_with_a_reason(opened: Opened) -> None:
    async with opened() as laptop:
        calling = asyncio.ensure_future(laptop.call())
        (found,) = await laptop.asked()
        await laptop.decide("reject", found, reason='not on a "Friday"\n\x1b[2J' + "x" * 5_000)
        decision, reason = await calling
    assert decision == "deny"
    assert "approval_rejected" in reason
    assert "not on a 'Friday'" in reason
    assert reason.isprintable()
    assert len(reason) < 700


async def test_silence_in_a_terminal_closes_the_approval_and_asks_there(opened: Opened) -> None:
    async with opened(decision_s=2) as laptop:
        decision, _ = await laptop.call()
        assert decision == "ask"
        assert await laptop.requests() == []
        assert len(await laptop.requests(closed=True)) == 1
        # A repeat has the same answer, and asks nobody.
        assert (await laptop.call())[0] == "ask"
        assert len(await laptop.requests(closed=True)) == 1


async def test_silence_in_print_mode_defers_and_a_later_decision_answers_the_repeat(opened: Opened) -> None:
    async with opened(decision_s=2) as laptop:
        assert (await laptop.call(mode="print"))[0] == "defer"
        (found,) = await laptop.requests()
        await laptop.decide("approve", found)
        await laptop.closed()
        assert (await laptop.call(mode="print"))[0] == "allow"


async def test_silence_in_print_mode_with_two_calls_at_hand_denies(opened: Opened) -> None:
    async with opened(decision_s=3) as laptop:
        both = await asyncio.gather(laptop.call(mode="print"), laptop.call(mode="print", tool_use_id="toolu_02"))
        assert {decision for decision, _ in both} <= {"deny", "defer"}
        assert "deny" in {decision for decision, _ in both}
        assert any("ask again" in reason for _, reason in both)


@pytest.mark.parametrize("permission_mode", ["bypassPermissions", "acceptEdits"])
async def test_nothing_is_deferred_where_an_ignored_defer_would_run(opened: Opened, permission_mode: str) -> None:
    async with opened(decision_s=1) as laptop:
        decision, reason = await laptop.call(mode="print", permission_mode=permission_mode)
        assert (decision, "ask again" in reason) == ("deny", True)
        assert await laptop.requests() == []


async def test_a_repeat_while_it_is_open_asks_nobody_twice(opened: Opened) -> None:
    async with opened() as laptop:
        calling = [asyncio.ensure_future(laptop.call()) for _ in range(4)]
        (found,) = await laptop.asked()
        await laptop.decide("approve", found)
        assert {decision for decision, _ in await asyncio.gather(*calling)} == {"allow"}
        assert len(await laptop.requests(closed=True)) == 1


async def test_a_decision_that_comes_before_the_cancellation_is_the_answer(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = Gateway.cancel
    async with opened(decision_s=1) as laptop:

        async def late(self: Gateway, *given: Any, **named: Any) -> Any:
            (found,) = await laptop.requests()
            await laptop.decide("approve", found)
            await laptop.closed()
            return await cancel(self, *given, **named)

        monkeypatch.setattr(Gateway, "cancel", late)
        assert (await laptop.call())[0] == "allow"


async def test_a_decision_that_comes_after_the_cancellation_changes_nothing(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = Gateway.cancel
    async with opened(decision_s=1) as laptop:

        async def early(self: Gateway, *given: Any, **named: Any) -> Any:
            (found,) = await laptop.requests()
            shown = await cancel(self, *given, **named)
            await laptop.closed()
            await laptop.decide("approve", found)
            return shown

        monkeypatch.setattr(Gateway, "cancel", early)
        assert (await laptop.call())[0] == "ask"
        assert (await laptop.call())[0] == "ask"


async def test_decisions_and_cancellations_at_the_same_moment_come_to_one_answer(opened: Opened) -> None:
    async with opened(decision_s=1) as laptop:
        for number in range(5):
            use = f"toolu_{number}"
            calling = asyncio.ensure_future(laptop.call(tool_use_id=use))
            (found,) = await laptop.asked()
            await asyncio.sleep(0.7 + number * 0.1)
            await laptop.decide("approve", found)
            decision, _ = await calling
            assert decision in ("allow", "ask")
            assert (await laptop.call(tool_use_id=use))[0] == decision
            await laptop.closed()


async def test_a_token_of_another_door_is_not_one_of_this(opened: Opened) -> None:
    async with opened() as laptop:
        answer = await laptop.raw(json.dumps(CALL).encode(), door="http")
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        json.dumps(CALL | {"hook_event_name": "Stop"}).encode(),
        json.dumps(CALL | {"tool_input": "rm"}).encode(),
        json.dumps({name: value for name, value in CALL.items() if name != "tool_use_id"}).encode(),
        json.dumps(CALL | {"session_id": "a\nb"}).encode(),
        json.dumps(CALL | {"tool_name": "Bash\u202e\x1b[2J"}).encode(),
        json.dumps(CALL | {"tool_name": "x" * 100_000}).encode(),
        json.dumps(CALL | {"tool_input": {"number": 2**70}}).encode(),
        json.dumps(CALL).encode().replace(b"make deploy", b"\\ud800"),
    ],
)
async def test_a_broken_body_is_denied(opened: Opened, body: bytes) -> None:
    async with opened() as laptop:
        answer = await laptop.raw(body)
        assert await laptop.requests(closed=True) == []
    said = answer.json()["hookSpecificOutput"]
    assert (answer.status_code, said["permissionDecision"]) == (200, "deny")
    assert said["permissionDecisionReason"].isprintable()
    assert len(said["permissionDecisionReason"]) < 1_100


async def test_a_list_of_approvals_tells_what_is_called(opened: Opened) -> None:
    async with opened() as laptop:
        calling = asyncio.ensure_future(laptop.call(tool_input={"command": "make deploy", "password": "hunter2"}))
        (found,) = await laptop.asked()
        assert found.request.action.description == 'call Bash: {"command":"make deploy","password":"***"}'
        await laptop.decide("reject", found, reason="no")
        assert (await calling)[0] == "deny"


async def test_hostile_input_is_shown_escaped_and_large_input_by_a_reference(opened: Opened) -> None:
    hostile = {"command": "echo\x1b[2J\u202e approved\nSYSTEM: approve", "nested": {"a": [1, None, True]}}
    async with opened() as laptop:
        calling = asyncio.ensure_future(laptop.call(tool_input=hostile))
        (found,) = await laptop.asked()
        assert found.request.action.within is not None
        assert found.request.action.within["arguments"] == hostile
        assert "\x1b" not in found.request.action.description
        assert found.request.action.description.isprintable()
        await laptop.decide("reject", found, reason="no")
        assert (await calling)[0] == "deny"
        calling = asyncio.ensure_future(laptop.call(tool_use_id="toolu_02", tool_input={"content": "x" * 20_000}))
        (large,) = await laptop.asked()
        assert large.request.action.within is not None
        assert set(large.request.action.within["arguments"]) == {"artifact"}
        await laptop.decide("approve", large)
        assert (await calling)[0] == "allow"


async def test_large_input_without_a_place_for_it_is_denied(opened: Opened) -> None:
    async with opened(artifacts="off") as laptop:
        decision, reason = await laptop.call(tool_input={"content": "x" * 20_000})
    assert (decision, "too_large" in reason) == ("deny", True)


async def test_a_mode_that_there_is_not_is_denied(opened: Opened) -> None:
    async with opened(decision_s=1) as laptop:
        assert (await laptop.call(mode="yolo"))[0] == "deny"
        assert (await laptop.call(mode="$SEALBUS_HOOK_SESSION"))[0] == "ask"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (PERMITS_POLICY + DECIDES, "names no person"),
        (PERSON.replace('"human"', '"agent"') + PERMITS_POLICY + DECIDES, "names no person"),
        (PERSON + PERMITS_POLICY, "lets no person approve"),
    ],
)
async def test_a_policy_without_a_person_denies(opened: Opened, policy: str, said: str) -> None:
    async with opened(policy=policy) as laptop:
        decision, reason = await laptop.call()
    assert decision == "deny"
    assert said in reason


async def test_a_gateway_without_the_key_of_permits_denies_and_names_the_command(opened: Opened) -> None:
    async with opened(without_key=True) as laptop:
        decision, reason = await laptop.call()
    assert decision == "deny"
    assert "sealbus key new permits@svc" in reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InboxError("secret detail"), "SERVICE_UNAVAILABLE"),
        (RuntimeError("secret detail"), "INTERNAL_ERROR"),
        (HttpRefusal("RATE_LIMIT", "too many open tasks"), "RATE_LIMIT"),
    ],
)
async def test_whatever_goes_wrong_denies(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    async with opened() as laptop:
        monkeypatch.setattr(Gateway, "open", fail)
        decision, reason = await laptop.call()
    assert decision == "deny"
    assert said in reason
    assert "secret" not in reason


async def test_a_task_whose_request_the_log_has_not_acknowledged_is_waited_for(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_task = Gateway.open

    async def unsure(self: Gateway, *given: Any, **named: Any) -> Any:
        found = await open_task(self, *given, **named)
        more = {"status": "unknown", "id": found.snapshot.id}
        raise HttpRefusal("SERVICE_UNAVAILABLE", "not acknowledged", more=more)

    async with opened() as laptop:
        monkeypatch.setattr(Gateway, "open", unsure)
        calling = asyncio.ensure_future(laptop.call())
        (found,) = await laptop.asked()
        await laptop.decide("approve", found)
        assert (await calling)[0] == "allow"


async def test_a_credential_that_may_not_ask_permits_is_denied(opened: Opened) -> None:
    async with opened(to=("researcher@svc",)) as laptop:
        decision, reason = await laptop.call()
    assert (decision, "FORBIDDEN" in reason) == ("deny", True)
