"""AgentRun: one run of a framework's agent for one message: its model and tool calls as steps of the bus.

Owns the identity of those calls (kind, agent, hash of what is given, count of equal ones), which errors end the run
although the framework swallows them, the approvals that are asked for between two runs of the framework, the reports of
usage, and the cut of a run in which nothing happens.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from bus.errors import (
    ApprovalRefused,
    BusError,
    ConfigurationError,
    ContractError,
    text_of,
)
from bus.payloads.kept_values import plain_of
from bus.payloads.payload_types import payload_type
from bus.telemetry.logs import get_logger
from bus.trust.labels import LEAST_TRUSTED
from bus.trust.policy.decision import Deny, NeedsApproval
from bus.vocabulary.usage import UsageReported
from consumers.adapters.run_tasks import guard_tasks
from consumers.delivery.context import Context
from consumers.delivery.handler_errors import RunHeld
from consumers.delivery.inbox.step_call import StepCall
from consumers.processes.approvals.approval import Approval
from consumers.tools.registry import Tools
from consumers.tools.tool import check_answer, check_storable
from consumers.tools.tool_call import called, ends_the_run, kept_failure, taking

__all__ = ["AgentRun", "ModelUsage", "AGENT_RUN", "ToolUse", "current_run", "declare_untrusted", "step_name"]

_UNTRUSTED: Final[set[str]] = set()
"""Names of tools that were declared to return text from outside."""
AGENT_RUN: Final[ContextVar[AgentRun | None]] = ContextVar("agent run", default=None)
"""The run that the present code belongs to."""
_NAME: Final = re.compile(r"[^A-Za-z0-9._-]")
_MAX_NAME: Final = 64
_DONE: Final = "done"
_FAILED: Final = "failed"

_Tool = TypeVar("_Tool")

_log = get_logger("adapters")


class ModelUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one model call has used."""

    model: str
    provider: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    tool_calls: int = 0


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of a model: *arguments* in plain JSON values; *call_id* is the framework's name of it."""

    tool: str
    arguments: Mapping[str, Any]
    call_id: str = ""
    place: str = ""
    """Where it is called, for a framework whose code runs again in one run: equal calls at one place are one."""


class AgentRun:
    """One run for the message of *context*, by the framework's agent named *agent*."""

    def __init__(
        self,
        context: Context,
        payload: object,
        *,
        agent: str,
        approval: Approval,
        idle_s: float,
        app_tools: Mapping[str, Tools] = MappingProxyType({}),
    ) -> None:
        self.context = context
        self.agent = agent
        self._payload = payload
        self._approval = approval
        self._app_tools = dict(app_tools)
        self._idle_s = idle_s
        self._equal: Counter[str] = Counter()
        self._read: list[tuple[str, str]] = []
        """The levels and names of tools whose results no model has read yet."""
        self.notes: dict[object, Any] = {}
        """What an adapter keeps in this run."""
        self._asked: dict[str, list[Any]] = {}
        self._asked_tools: set[str] = set()
        self._asked_unnamed: dict[str, list[tuple[str, list[Any]]]] = {}
        """Tool and key of what was asked for, by the hash of its arguments: for calls without an id."""
        self._at_work: list[asyncio.Task[Any]] = []
        """The tasks of the steps under way."""
        self._timeout: asyncio.Timeout | None = None
        self._over: BaseException | None = None

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Run the body as this run, and cut it where nothing begins or ends for `idle_s`. Raises TimeoutError."""
        guard_tasks(AGENT_RUN)
        token = AGENT_RUN.set(self)
        try:
            async with asyncio.timeout(self._idle_s) as self._timeout:
                yield
        finally:
            self._timeout = None
            AGENT_RUN.reset(token)
            await self._steps_ended()

    async def _steps_ended(self) -> None:
        """Wait for the steps that the framework has left behind in tasks of their own: what they have done is kept.

        A framework that is cancelled cancels its tools, and does not wait. Those of a held run end where it is held.
        """
        if isinstance(self._over, RunHeld):
            return
        cut: asyncio.CancelledError | None = None
        while left := {task for task in self._at_work if task is not asyncio.current_task()}:
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError as error:
                cut = error
                for task in left:
                    task.cancel()
        if cut is not None:
            raise cut

    @contextmanager
    def _working(self) -> Generator[None]:
        """Let the body, a step, count as work of this run."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        self._at_work.append(task)
        self.alive()
        try:
            yield
        finally:
            self._at_work.remove(task)
            self.alive()

    def alive(self) -> None:
        """Note that something has begun or ended."""
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._idle_s)

    def check(self) -> None:
        """Raise again what has ended the run, whatever the framework made of it."""
        if self._over is not None:
            raise self._over

    def ended_by(self, error: BaseException) -> NoReturn:
        """Remember that *error* ends the run, and raise it."""
        self._over = self._over or error
        raise error

    async def model(
        self, given: object, call: Callable[[], Awaitable[Any]], usage: Callable[[Any], ModelUsage | None]
    ) -> Any:
        """Return what the model answers to *given*, from this run or an earlier one, and report what it has used.

        *call* returns plain JSON values. *usage* reads them.
        """

        self.take_in()
        key = self.key("model", given)
        reports: list[asyncio.Task[None]] = []

        async def paid() -> Any:
            began = time.monotonic()
            answer = await call()
            if (used := usage(answer)) is not None:
                # While it is kept: a call that is made again is paid again, and reported under the same key.
                duration_ms = int((time.monotonic() - began) * 1000)
                reports.append(asyncio.create_task(self.report(used, key, duration_ms)))
            return answer

        try:
            return await self._step(StepCall(name=step_name(f"model.{self.agent}"), function=paid, key=key))
        finally:
            await asyncio.gather(*reports)

    async def plain(self, kind: str, given: object, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return what another call of the framework returns, from this run or an earlier one."""
        return await self._step(StepCall(name=step_name(kind), function=call, key=self.key(kind, given)))

    async def tool(self, use: ToolUse, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return what the tool returns, in plain JSON values, from this run or an earlier one.

        Its error is kept as a result. Raises ToolFailure for it, and ApprovalRefused where it may not run.
        """
        try:
            check_storable(use.arguments)
        except ContractError as error:
            raise ToolFailure("wrong arguments", str(error)) from error
        use, key = self._found(use)
        approve = self._approval if key is not None else None
        if key is None:
            key = self.key(f"tool.{use.tool}", use.arguments)

        async def kept(*_: Any) -> list[Any]:
            try:
                result = await call()
                check_answer(result)
            except (Exception, SystemExit, asyncio.CancelledError) as error:
                if ends_the_run(error):
                    raise
                return kept_failure(error)
            return [_DONE, result]

        if approve is not None:
            self.lend()
        outcome = await self._step(self._step_of(use, kept, key, approve))
        self.taint(use.tool)
        if outcome[0] == _FAILED:
            raise ToolFailure(outcome[1], outcome[2])
        return outcome[1]

    async def ask_for(self, uses: Sequence[ToolUse]) -> None:
        """Ask for the approvals of all *uses* at once; the run ends as held while one is not decided."""
        # What cannot be shown to people is refused where the tool is called.
        steps = [step for use in uses if _is_storable(use) and (step := self._asked_step(use)) is not None]
        try:
            await self.context.ask_for(steps)
        except RunHeld as error:
            self.ended_by(error)

    def _asked_step(self, use: ToolUse) -> StepCall | None:
        if use.call_id not in self._asked:
            key = self._asked[use.call_id] = self._key_of(use)
            self._asked_tools.add(use.tool)
            self._asked_unnamed.setdefault(_hashed(use.arguments), []).append((use.tool, key))
        key = self._asked[use.call_id]
        if use.tool in self._app_tools:
            return self._app_tools[use.tool].planned(use.tool, use.arguments, self.context, key=key)
        return self._step_of(use, _not_called(), key, self._approval)

    def know(self, name: str, tools: Tools) -> None:
        """Note that the tool of that name is one of an app."""
        self._app_tools[name] = tools

    def app_tool_waits(self, use: ToolUse) -> bool:
        """Tell whether a tool of the app needs an approval that was not asked for between two runs yet."""
        if self.is_asked(use.call_id):
            return False
        step = self._app_tools[use.tool].planned(use.tool, use.arguments, self.context, key=None)
        return step is not None and (step.approve is not None or self.needs_person(use.tool))

    async def app_tool(self, use: ToolUse) -> str:
        """Return what a model is told of a call of a tool of the app: its policy, its step, its level."""
        self.check()
        key = self._asked.get(use.call_id) or self._key_of(use)
        self.lend()
        try:
            tool = self._app_tools[use.tool][use.tool]
            with self._working():
                return (await called(tool, use.arguments, self.context, key, taint=self._taint_later)).text
        except Exception as error:
            if ends_the_run(error):
                self.ended_by(error)
            raise
        except RunHeld as error:
            self.ended_by(error)

    async def agreed(self, use: ToolUse) -> None:
        """Return where the effect of *use*, which `ask_for` has asked for, is approved. Raises ApprovalRefused."""
        if (key := self._asked.get(use.call_id)) is None:
            raise ApprovalRefused("its arguments cannot be kept and shown", "too_large")
        try:
            await self.context.approve(step_name(use.tool), use.arguments, self._approval, key=key)
        except RunHeld as error:
            self.ended_by(error)

    def _key_of(self, use: ToolUse) -> list[Any]:
        if use.place:
            return [f"tool.{use.tool}", self.agent, _hashed([use.arguments, use.place]), 1]
        return self.key(f"tool.{use.tool}", use.arguments)

    def _found(self, use: ToolUse) -> tuple[ToolUse, list[Any] | None]:
        """Return *use* with the key under which its approval was asked for; None where it was not."""
        if use.call_id:
            return use, self._asked.get(use.call_id)
        waiting = self._asked_unnamed.get(_hashed(use.arguments))
        if not waiting:
            return use, None
        tool, key = waiting.pop(0)
        return msgspec.structs.replace(use, tool=tool), key

    def is_asked(self, call_id: str) -> bool:
        """Tell whether the approval of that call was asked for in this run, and is decided."""
        return call_id in self._asked

    def lend(self) -> None:
        """Let the present task use an approval: it is decided, and a framework runs its tools in tasks of their own."""
        self.context.lent(asyncio.current_task())

    def needs_person(self, tool: str) -> bool:
        """Tell whether the policy wants an approval for each use of *tool*."""
        run = self.context.run
        kind = payload_type(type(self._payload))
        decision = run.admission.decide_use(step_name(tool), run.message, kind, self._payload, run.current)
        return isinstance(decision, NeedsApproval)

    def refusal_of(self, tool: str) -> ApprovalRefused | None:
        """Return why the policy does not let this run use *tool* as it is, for tools that cannot be made steps."""
        if tool in self._app_tools or tool in self._asked_tools:
            return None
        run = self.context.run
        kind = payload_type(type(self._payload))
        decision = run.admission.decide_use(step_name(tool), run.message, kind, self._payload, run.current)
        if isinstance(decision, Deny):
            return ApprovalRefused(f"rule {decision.rule} of the policy denies the tool {tool[:80]}", "unauthorized")
        if isinstance(decision, NeedsApproval):
            why = "wants an approval for the tool"
            return ApprovalRefused(f"rule {decision.rule} of the policy {why} {tool[:80]}: ask for it", "unauthorized")
        return None

    def taint(self, tool: str) -> None:
        """Lower the run to the level of what *tool* has returned, when a model reads it."""
        if tool in _UNTRUSTED or self.context.run.admission.has_keys:
            self._taint_later(LEAST_TRUSTED, f"tool:{tool}")

    def _taint_later(self, level: str, source: str) -> None:
        """Lower the run when the model reads on: until then no other call of its turn can come of what was read.

        So several calls that one answer of a model asked for keep the level at which people agreed to them.
        """
        self._read.append((level, source))

    def take_in(self) -> None:
        """Lower the run by all that its tools have returned so far: what follows comes of it."""
        while self._read:
            self.context.taint(*self._read.pop(0))

    def taint_hosted(self, tool: str) -> None:
        """Lower the run to the level of a tool that the provider has run inside a model call."""
        self.context.taint(LEAST_TRUSTED, f"hosted:{tool}")

    def key(self, kind: str, given: object) -> list[Any]:
        """Return the identity of one call: equal ones of a run are told apart by their number."""
        hashed = _hashed(given)
        name = f"{kind}\n{self.agent}\n{hashed}"
        self._equal[name] += 1
        return [kind, self.agent, hashed, self._equal[name]]

    def _step_of(
        self, use: ToolUse, function: Callable[..., Awaitable[Any]], key: list[Any], approve: Approval | None
    ) -> StepCall:
        return StepCall(
            name=step_name(use.tool),
            function=taking(use.arguments, function),
            arguments=tuple(use.arguments.values()),
            key=key,
            approve=approve,
            is_tool=True,
        )

    async def take(self, call: StepCall) -> Any:
        """Return the result of a step that an adapter identifies itself, also where the run is over meanwhile.

        So work that is done is kept.
        """
        return await self._step(call, is_new=False)

    async def _step(self, call: StepCall, *, is_new: bool = True) -> Any:
        if is_new:
            self.check()
        try:
            with self._working():
                return await self.context.take_step(call)
        except ApprovalRefused:
            raise
        except Exception as error:
            if ends_the_run(error):
                self.ended_by(error)
            raise
        except RunHeld as error:
            self.ended_by(error)

    async def report(self, used: ModelUsage, key: list[Any], duration_ms: int | None = None) -> None:
        """Report what a model call has used; the record's idempotency key is derived from the step."""
        message_id = self.context.message.message_id
        derived = hashlib.sha256(json.dumps([message_id, *key]).encode()).hexdigest()[:32]
        try:
            report = UsageReported(
                model=used.model[:256] or "unknown",
                provider=used.provider,
                input_tokens=used.input_tokens,
                output_tokens=used.output_tokens,
                cached_input_tokens=min(used.cached_input_tokens, used.input_tokens),
                tool_calls=used.tool_calls,
                duration_ms=duration_ms,
            )
            await self.context.send_now(report, idempotency_key=f"usage-{derived}")
        except BusError as error:
            # What a run has used must not end it.
            _log.warning("adapters.usage_not_reported", agent=self.agent, detail=text_of(error))


class ToolFailure(Exception):  # noqa: N818 - a result
    """A tool raised an error, in this run or an earlier one; the model is told."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}" if text else kind)


def declare_untrusted(tool: _Tool) -> _Tool:
    """Note that *tool*, a function or an object with a name, returns text from outside, and return it."""
    name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
    if not isinstance(name, str):
        raise ConfigurationError(f"untrusted takes a tool with a name, not {type(tool).__name__}")
    _UNTRUSTED.add(name)
    return tool


def current_run() -> AgentRun:
    """Return the run that the present code belongs to. Raises ConfigurationError outside one."""
    run = AGENT_RUN.get()
    if run is None:
        raise ConfigurationError(
            "the tools of an app need a message: call the agent through `serve(agent)`, or `app.tools.call` directly"
        )
    return run


def step_name(text: str) -> str:
    """Return *text* as a name that steps, people and policies can carry."""
    return _NAME.sub("_", text)[:_MAX_NAME] or "_"


def _not_called() -> Callable[..., Awaitable[Any]]:
    async def call(*_: Any) -> Any:
        raise AssertionError("a step that is only asked for was called")

    return call


def _is_storable(use: ToolUse) -> bool:
    try:
        check_storable(use.arguments)
    except ContractError:
        return False
    return True


def _hashed(given: object) -> str:
    text = json.dumps(given, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=_text)
    return hashlib.sha256(text.encode()).hexdigest()


def _text(value: object) -> Any:
    try:
        return plain_of(value)
    except ContractError:
        return repr(type(value))
