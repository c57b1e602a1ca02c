"""TasksExtension: `io.modelcontextprotocol/tasks` on the rows of tasks (SEP-2663), for clients that declare it.

A task of MCP is a task of the gateway: its id is the task id. Clients of older generations never see one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import UNSET
from pydantic import ValidationError

from bus.clock import Clock
from bus.protocol.timestamps import format_ms, parse_ms
from consumers.gateway.gateway import TaskAnswers
from consumers.gateway.mcp.task_client import TaskClient
from consumers.gateway.mcp.task_text import asked_text, status_text
from consumers.gateway.mcp.tools import TOOLS, AskedTask, McpTools, Reporter, ToolReply, refused_answer
from consumers.processes.tasks.snapshot import TaskSnapshot
from consumers.web.refusal import HttpRefusal

__all__ = ["ExtensionParts", "TasksExtension"]

_IDENTIFIER: Final = "io.modelcontextprotocol/tasks"
_DIRECT_S: Final = 2.0
"""A task that ends sooner is answered as a plain result."""
_POLL_MS: Final = 1_000
_STATUS: Final = {"input_required": "input_required", "cancelled": "cancelled"}
_ASK: Final = next(form for form in TOOLS if form.name == "ask")

_Context = ServerRequestContext[Any, Any]


class TaskParams(types.RequestParams):
    """The task that a request is about."""

    task_id: str


class TaskUpdateParams(TaskParams):
    """Responses to what a task asks, by the keys of its requests."""

    input_responses: dict[str, Any]


class ExtensionParts(NamedTuple):
    """What the extension needs of the server."""

    tools: McpTools
    client_of: Callable[[_Context], TaskClient]
    reporter: Callable[[_Context], Reporter]
    result_of: Callable[[ToolReply], types.CallToolResult]


class TasksExtension(Extension):
    """The extension."""

    identifier = _IDENTIFIER

    def __init__(self, parts: ExtensionParts, clock: Clock, *, wait_s: float, keep_ms: int) -> None:
        self._parts = parts
        self._clock = clock
        self._direct_s = min(_DIRECT_S, wait_s)
        self._keep_ms = keep_ms

    def methods(self) -> Sequence[MethodBinding]:
        """Return the methods that it adds."""
        return (
            MethodBinding("tasks/get", TaskParams, self._guarded(self._get)),
            MethodBinding("tasks/update", TaskUpdateParams, self._guarded(self._update)),
            MethodBinding("tasks/cancel", TaskParams, self._guarded(self._cancel)),
        )

    async def intercept_tool_call(
        self, params: types.CallToolRequestParams, ctx: _Context, call_next: CallNext
    ) -> HandlerResult:
        """Answer `ask` with a task where its client declares tasks, and it takes longer."""
        if params.name != _ASK.name or not declares_tasks(ctx):
            return await call_next(ctx)
        tools, client_of, reporter, result_of = self._parts
        client = client_of(ctx)
        try:
            given = tools.arguments_of(_ASK, params.arguments or {})
            asked = await tools.ask(given, client, reporter(ctx), at_most_s=self._direct_s)
            shown = asked.shown
            if shown.is_over or (shown.status == "input_required" and not takes_forms(ctx)):
                return result_of(await tools.asked_answer(asked, client))
        except HttpRefusal as refusal:
            return result_of(refused_answer(refusal))
        return {"resultType": "task", **self._task(shown, ctx)}

    async def _get(self, ctx: _Context, params: TaskParams) -> HandlerResult:
        client = self._parts.client_of(ctx)
        shown = await client.find(params.task_id)
        found = {"resultType": "complete", **self._task(shown, ctx)}
        if found["status"] == "completed":
            answer = await self._parts.tools.asked_answer(AskedTask(shown=shown), client)
            found["result"] = self._parts.result_of(answer).model_dump(by_alias=True, mode="json", exclude_none=True)
        elif found["status"] == "input_required":
            found["inputRequests"] = {str(shown.question_id): _form_of(shown)}
        return found

    async def _update(self, ctx: _Context, params: TaskUpdateParams) -> HandlerResult:
        client = self._parts.client_of(ctx)
        while True:
            shown = await client.find(params.task_id)
            if shown.status != "input_required" or str(shown.question_id) not in params.input_responses:
                # Answered already, or never asked: ignored, as the extension wants it.
                return {}
            said = _answers_in(params.input_responses[str(shown.question_id)], shown)
            if said is None:
                return {}
            try:
                await client.answer(params.task_id, said, if_match=shown.cursor)
            except HttpRefusal as refusal:
                if refusal.code == "INVALID_TRANSITION":
                    # It has moved since it was read.
                    continue
                if (refusal.more or {}).get("status") != "unknown":
                    raise
            return {}

    async def _cancel(self, ctx: _Context, params: TaskParams) -> HandlerResult:
        try:
            await self._parts.client_of(ctx).cancel(params.task_id)
        except HttpRefusal as refusal:
            if refusal.code != "INVALID_TRANSITION" and (refusal.more or {}).get("status") != "unknown":
                raise
        return {}

    def _guarded(self, handle: Any) -> Any:
        """Return *handle* for clients that declare the extension, with errors in the form of MCP."""

        async def guarded(ctx: _Context, params: TaskParams) -> HandlerResult:
            if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                raise MCPError(code=types.METHOD_NOT_FOUND, message="Method not found", data=ctx.method)
            if not declares_tasks(ctx):
                needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {_IDENTIFIER: {}}}}
                raise MCPError(
                    code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                    message=f"the client must declare the extension {_IDENTIFIER}",
                    data=needed,
                )
            _check_header(ctx, params)
            try:
                found: HandlerResult = await handle(ctx, params)
            except HttpRefusal as refusal:
                is_wrong = refusal.code in ("NOT_FOUND", "INVALID_MESSAGE")
                code = types.INVALID_PARAMS if is_wrong else types.INTERNAL_ERROR
                raise MCPError(code=code, message=refusal.text) from None
            return found

        return guarded

    def _task(self, shown: TaskSnapshot, ctx: _Context) -> dict[str, Any]:
        """Return the fields that every form of a task has."""
        begun_ms = parse_ms(shown.opened_at) or 0
        status = _STATUS.get(shown.status, "completed" if shown.is_over else "working")
        if status == "input_required" and not takes_forms(ctx):
            status = "working"
        kept_ms = None if shown.kept_until is UNSET else parse_ms(shown.kept_until)
        if kept_ms is None:
            kept_ms, changed_ms = (parse_ms(shown.expires_at) or begun_ms) + self._keep_ms, self._clock.now_ms()
        else:
            changed_ms = kept_ms - self._keep_ms
        return {
            "taskId": shown.id,
            "status": status,
            "statusMessage": status_text(shown),
            "createdAt": shown.opened_at,
            "lastUpdatedAt": format_ms(max(begun_ms, changed_ms)),
            "ttlMs": kept_ms - begun_ms,
            "pollIntervalMs": _POLL_MS,
        }


def _check_header(ctx: _Context, params: TaskParams) -> None:
    """Raise MCPError where the header by which proxies route names another task than the request; stdio has none."""
    if ctx.request is None:
        return
    if decode_header_value(ctx.request.headers.get(MCP_NAME_HEADER)) != params.task_id:
        raise MCPError(code=types.HEADER_MISMATCH, message=f"{MCP_NAME_HEADER} must be the taskId of the request")


def declares_tasks(ctx: _Context) -> bool:
    """Return whether the client of *ctx* may be given a task: of this generation, and it declares the extension."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return False
    found = ctx.session.client_capabilities
    return found is not None and _IDENTIFIER in (found.extensions or {})


def takes_forms(ctx: _Context) -> bool:
    """Return whether the client of *ctx* shows forms to a person."""
    found = ctx.session.client_capabilities
    if found is None or found.elicitation is None:
        return False
    # Without a mode it is that of forms.
    return found.elicitation.form is not None or found.elicitation.url is None


def _form_of(shown: TaskSnapshot) -> dict[str, Any]:
    """Return what a task asks as one form: a text for each question, one of the options where there are any."""
    questions = () if shown.questions is UNSET else shown.questions
    options = () if shown.options is UNSET else shown.options
    field: dict[str, Any] = {"type": "string"}
    if options:
        field["enum"] = list(dict.fromkeys(options))
    names = [_field_name(number) for number in range(len(questions))]
    return {
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": asked_text(shown),
            "requestedSchema": {
                "type": "object",
                "properties": {
                    name: {**field, "title": f"Answer to question {number}"} for number, name in enumerate(names, 1)
                },
                "required": names,
            },
        },
    }


def _field_name(number: int) -> str:
    return f"answer_{number + 1}"


def _answers_in(response: Any, shown: TaskSnapshot) -> TaskAnswers | None:
    """Return the answers in a filled form; None for one that was declined. Raises HttpRefusal."""
    try:
        filled = types.ElicitResult.model_validate(response)
    except ValidationError:
        raise HttpRefusal("INVALID_MESSAGE", "inputResponses: not the result of a form") from None
    if filled.action != "accept":
        return None
    content = filled.content or {}
    count = 0 if shown.questions is UNSET else len(shown.questions)
    said = [content.get(_field_name(number)) for number in range(count)]
    if not all(isinstance(each, str) for each in said):
        names = ", ".join(_field_name(number) for number in range(count))
        raise HttpRefusal("INVALID_MESSAGE", f"inputResponses: a string is needed for each of {names}")
    return TaskAnswers(answers=[str(each) for each in said])
