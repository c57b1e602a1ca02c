"""The rig of the OpenAI Agents SDK: its scripted items, in a model that follows a script."""

from __future__ import annotations

import sys
import uuid
from inspect import iscoroutinefunction
from typing import Any

import openai
from agents import Agent, ModelResponse, Usage, function_tool, set_tracing_disabled
from agents.mcp import MCPServerStdio
from agents.testing import ScriptedModel, assistant_message, function_call
from scripted import Script, Spec

from sealbus.adapters import openai_agents

__all__ = [
    "adapter",
    "agent",
    "asks_by_policy",
    "helper_argument",
    "model_is_asked_again",
    "status_error",
    "tools_are_steps",
]

adapter = openai_agents
helper_argument = "input"
model_is_asked_again = True
asks_by_policy = True
tools_are_steps = True
set_tracing_disabled(True)


class Scripted(ScriptedModel):
    """Takes each step from a script when it is called."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    @property
    def model(self) -> str:
        return f"scripted-{self._script.version}"

    async def get_response(self, *arguments: Any, **options: Any) -> Any:
        turn = self._script.next(str(arguments))
        items = (
            [assistant_message(turn)]
            if isinstance(turn, str)
            else [function_call(call.tool, call.given, call_id=f"call-{uuid.uuid4().hex}") for call in turn]
        )
        usage = Usage(requests=1, input_tokens=7, output_tokens=2, total_tokens=9)
        self.enqueue(ModelResponse(output=items, usage=usage, response_id=None))
        return await super().get_response(*arguments, **options)


def agent(script: Script, *specs: Spec, app: Any = None, mcp: str = "", helper: Script | None = None) -> Any:
    tools = [*([] if app is None else adapter.tools(app)), *map(_tool, specs)]
    if helper is not None:
        second: Any = Agent(name="helper", model=Scripted(helper))
        tools.append(second.as_tool("ask_helper", "Ask the helper."))
    servers = [MCPServerStdio({"command": sys.executable, "args": [mcp]}, name="files")] if mcp else []
    return Agent(name="dev", model=Scripted(script), tools=tools, mcp_servers=servers)


def _tool(spec: Spec) -> Any:
    def function(text: str) -> str:
        return spec.function(text)

    async def coroutine(text: str) -> Any:
        return await spec.function(text)

    tool = function_tool(
        coroutine if iscoroutinefunction(spec.function) else function,
        name_override=spec.name,
        needs_approval=spec.needs_approval,
        failure_error_function=lambda _, error: f"failed: {error}",
    )
    return adapter.untrusted(tool) if spec.untrusted else tool


def status_error(status: int) -> Exception:
    try:
        import httpx2 as httpx
    except ImportError:  # before openai 3
        import httpx
    response = httpx.Response(status, request=httpx.Request("POST", "https://scripted.test"))
    body = {"code": "context_length_exceeded", "message": "no"}
    return openai.APIStatusError("no", response=response, body=body)
