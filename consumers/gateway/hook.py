"""The hook door of a gateway: `POST /hooks/claude-code` asks a person whether Claude Code may call a tool.

Owns what becomes of a call without a decision, and that whatever goes wrong is a `deny`. The person is asked by the
agent `permits@svc`, which the gateway runs with a key of its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from litestar import MediaType, Request, Response, post

from bus.clock import Clock
from bus.errors import BusError, ConfigurationError, ContractError, text_of
from bus.redaction import cut
from bus.settings.schema import Settings
from bus.telemetry.logs import get_logger
from bus.trust.opening import ALLOW_ALL, key_file_of, keyless, open_trust
from bus.trust.policy.policy import Policy, rules_source
from consumers.delivery.declaration import Declaration
from consumers.gateway.claude_code import (
    HOOK_PATH,
    MODE_HEADER,
    HookDecision,
    HookInput,
    SessionMode,
    WrongHookInput,
    hook_answer,
    mode_of,
    parse_hook_input,
    quoted_reason,
)
from consumers.gateway.credentials import Credential
from consumers.gateway.gateway import CredentialSource, Gateway, TaskOrder
from consumers.gateway.permits import PERMITS_AGENT, permits_app
from consumers.processes.tasks.snapshot import TaskSnapshot
from consumers.web.refusal import HttpRefusal

__all__ = ["DECISION_S", "HookDoor", "PermitsAgent", "hook_routes", "open_permits"]

DECISION_S: Final = 40.0
"""So long a call waits for a person."""
_CLOSING_S: Final = 12.0
"""So long it waits for the end of what it has cancelled."""
_PAUSE_S: Final = 0.5
_TYPE: Final = "tool.call"
_LATER: Final = frozenset({"RATE_LIMIT", "SERVICE_UNAVAILABLE"})

_log = get_logger("gateway")


class PermitsAgent(msgspec.Struct, frozen=True, kw_only=True):
    """The agent that asks: what to run of it, or why it cannot run; and the policy that says who is a person."""

    declaration: Declaration | None
    fault: str
    policy: Policy


def open_permits(settings: Settings, source: CredentialSource, clock: Clock) -> PermitsAgent:
    """Return the agent `permits@svc` as the gateway of *settings* runs it.

    It runs where a credential of the door hook is there. Raises ConfigurationError for keys and policies that cannot be
    used at all.
    """
    trust = open_trust(keyless(settings), "", clock=clock)

    def faulty(fault: str) -> PermitsAgent:
        return PermitsAgent(declaration=None, fault=fault, policy=trust.policy)

    if not any("hook" in each.doors for each in source.current().all):
        return faulty("the gateway had no credential of the door hook when it started: start it again")
    again = f"`sealbus key new {PERMITS_AGENT}`, then start the gateway again"
    if trust.verifier is None:
        return faulty(f"no keys are configured (trust.keys), so no decision could be verified: {again}")
    if settings.policy.file in ("", ALLOW_ALL):
        return faulty("no policy is configured (policy.file), and only a policy defines who is human")
    configured = Path(settings.trust.key_file)
    file = key_file_of(configured if configured.is_dir() else configured.parent, PERMITS_AGENT)
    if not settings.trust.key_file or not file.exists():
        return faulty(f"{PERMITS_AGENT} has no private key beside the gateway's: {again}")
    from bus.trust.keys.key_pairing import check_pair
    from bus.trust.keys.private_keys import SigningKey
    from bus.trust.keys.trusted_files import alarm_about

    try:
        signer = SigningKey(file, clock=clock, alarm=alarm_about("private_key", file, "the last good key signs"))
        check_pair(signer, trust.verifier, PERMITS_AGENT)
    except ConfigurationError as error:
        return faulty(f"the key of {PERMITS_AGENT} cannot be used: {text_of(error)}")
    return PermitsAgent(declaration=permits_app(signer=signer).declaration, fault="", policy=trust.policy)


class HookDoor:
    """The calls of Claude Code."""

    def __init__(
        self, gateway: Gateway, permits: PermitsAgent, clock: Clock, *, decision_s: float = DECISION_S
    ) -> None:
        self._gateway = gateway
        self._permits = permits
        self._clock = clock
        self._decision_s = min(decision_s, gateway.settings.gateway.wait_s)
        self._at_hand: dict[tuple[str, str], Counter[str]] = {}

    async def decide(self, credential: Credential, body: bytes, mode: str | None) -> bytes:
        """Return the answer to the hook input in *body*: a `deny` for whatever goes wrong."""
        try:
            asked = parse_hook_input(body)
            session = mode_of(mode)
            if fault := self._permits.fault or self._no_person():
                return _denied("SERVICE_UNAVAILABLE", fault)
            with self._counted(credential, asked):
                return hook_answer(*await self._decided(credential, asked, session))
        except WrongHookInput as wrong:
            return _denied("INVALID_MESSAGE", str(wrong))
        except HttpRefusal as refusal:
            return _denied(refusal.code, refusal.text)
        except ContractError as error:
            return _denied(error.reason or "INVALID_MESSAGE", error.text)
        except BusError as error:
            _log.warning("gateway.hook_failed", error=str(error))
            return _denied("SERVICE_UNAVAILABLE", "the store or the log is away")
        except Exception as error:  # noqa: BLE001 - nothing that goes wrong may let a tool run
            _log.error("gateway.hook_failed", error=type(error).__name__, exc_info=error)
            return _denied("INTERNAL_ERROR", "the gateway failed: see its log")

    def _no_person(self) -> str:
        rules = rules_source(self._permits.policy)()
        if rules is None:
            return "only a policy file defines who is human"
        if not any(row.kind == "human" for row in rules.rows):
            return 'the policy names no person: it needs an [[agents]] row with kind = "human"'
        if not any(rule.effect == "allow" and "approve" in rule.actions for rule in rules.rules):
            return 'the policy lets no person approve: it needs a rule with action = "approve" for tool.call'
        return ""

    @contextmanager
    def _counted(self, credential: Credential, asked: HookInput) -> Generator[None]:
        """Count *asked* among the calls of its session that wait here."""
        session = (credential.name, asked.session_id)
        calls = self._at_hand.setdefault(session, Counter())
        calls[asked.tool_use_id] += 1
        try:
            yield
        finally:
            calls[asked.tool_use_id] -= 1
            if not +calls:
                self._at_hand.pop(session, None)

    def _is_alone(self, credential: Credential, asked: HookInput) -> bool:
        return len(+self._at_hand[(credential.name, asked.session_id)]) == 1

    async def _decided(
        self, credential: Credential, asked: HookInput, session: SessionMode
    ) -> tuple[HookDecision, str]:
        shown = await self._opened(credential, asked)
        shown = await self._ended(credential, shown, self._decision_s)
        if shown.is_over:
            return _told(shown, asked, session)
        can_wait = session == "print" and asked.may_be_deferred and self._is_alone(credential, asked)
        if can_wait and shown.status == "waiting_for_approval":
            return "defer", "it waits for a person's decision: resume the session to look again"
        return _told(await self._cancelled(credential, shown), asked, session)

    async def _opened(self, credential: Credential, asked: HookInput) -> TaskSnapshot:
        """Open the task of the call, or find it. Raises HttpRefusal."""
        order = TaskOrder(
            to=PERMITS_AGENT,
            message_type=_TYPE,
            data={"tool_call_id": asked.tool_use_id, "tool_name": asked.tool_name, "arguments": asked.tool_input},
            conversation_id=asked.session_id,
        )
        try:
            return (await self._gateway.open(credential, order, key=asked.key)).snapshot
        except HttpRefusal as refusal:
            more = refusal.more or {}
            if more.get("status") != "unknown" or not isinstance(more.get("id"), str):
                raise
            # Its row is durable, and its request is appended again until the log acknowledges it.
            return await self._gateway.find(credential, more["id"])

    async def _ended(self, credential: Credential, shown: TaskSnapshot, wait_s: float) -> TaskSnapshot:
        """Return a task at its end, or as it is after *wait_s*. Raises HttpRefusal."""
        end_s = self._clock.monotonic_s() + wait_s
        while not shown.is_over and (left_s := end_s - self._clock.monotonic_s()) > 0:
            try:
                shown = await self._gateway.wait(
                    credential, shown.id, after=shown.generation, wait_s=left_s, until_end=True
                )
            except HttpRefusal as refusal:
                if refusal.code not in _LATER:
                    raise
                await asyncio.sleep(min(_PAUSE_S, left_s))
        return shown

    async def _cancelled(self, credential: Credential, shown: TaskSnapshot) -> TaskSnapshot:
        """Cancel a task, which closes its approval, and return its end: a decision that was first is the end."""
        try:
            shown = await self._gateway.cancel(credential, shown.id)
        except HttpRefusal as refusal:
            if refusal.code not in ("INVALID_TRANSITION", "SERVICE_UNAVAILABLE"):
                raise
            # It has ended, is being cancelled, or the cancellation is sent again until the log has it.
        return await self._ended(credential, await self._gateway.find(credential, shown.id), _CLOSING_S)


def _told(shown: TaskSnapshot, asked: HookInput, session: SessionMode) -> tuple[HookDecision, str]:
    """Return the answer that the end of a task comes to. Pure."""
    if not shown.is_over or shown.confirmed is False:
        return "deny", "no decision in time, and it is not known whether the approval was closed: call the tool again"
    if shown.status == "cancelled":
        if session == "terminal":
            return "ask", "no decision in time: decide here; the approval was closed"
        return "deny", "no decision in time, and the approval was closed: call the tool again to ask again"
    if shown.status != "completed":
        error = shown.error
        if error is msgspec.UNSET:
            return "deny", "the permission failed"
        return "deny", f"{cut(error.code, 100)}: {quoted_reason(error.message)}"
    return _said(shown.result, asked)


def _said(result: Any, asked: HookInput) -> tuple[HookDecision, str]:
    output = result.get("output") if isinstance(result, dict) else None
    if not isinstance(output, dict):
        return "deny", "the answer about the permission cannot be read"
    if (result.get("tool_call_id"), result.get("tool_name")) != (asked.tool_use_id, asked.tool_name):
        return "deny", "the answer is about another call"
    if output.get("decision") == "approved" and not result.get("error"):
        return "allow", f"approved by {quoted_reason(_names(output.get('decided_by')))}"
    code = output.get("code")
    return (
        "deny",
        f"{cut(code, 100) if isinstance(code, str) else 'rejected'}: {quoted_reason(str(output.get('reason')))}",
    )


def _names(found: object) -> str:
    return ", ".join(map(str, found)) if isinstance(found, list) else ""


def _denied(code: str, text: str) -> bytes:
    return hook_answer("deny", f"{code}: {text}")


def hook_routes(
    gateway: Gateway, permits: PermitsAgent, clock: Clock, *, decision_s: float = DECISION_S
) -> Sequence[Any]:
    """Return the routes of the door, for the site of *gateway*."""
    door = HookDoor(gateway, permits, clock, decision_s=decision_s)

    @post(HOOK_PATH, include_in_schema=False, status_code=200)
    async def claude_code(request: Request[Any, Any, Any]) -> Response[bytes]:
        credential: Credential = request.scope["state"]["credential"]
        answer = await door.decide(credential, await request.body(), request.headers.get(MODE_HEADER))
        return Response(answer, media_type=MediaType.JSON, headers={"cache-control": "no-store"})

    return (claude_code,)
