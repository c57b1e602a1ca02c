"""The rig of Pydantic AI: its FunctionModel."""

from __future__ import annotations

import sys
from inspect import iscoroutinefunction
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from scripted import Script, Spec

from sealbus.adapters import pydantic_ai

__all__ = [
    "adapter",
    "agent",
    "asks_by_policy",
    "helper_argument",
    "model_is_asked_again",
    "status_error",
    "tools_are_steps",
]

adapter = pydantic_ai
helper_argument = "text"
model_is_asked_again = True
asks_by_policy = True
tools_are_steps = True


class Scripted(FunctionModel):
    def __init__(self, script: Script) -> None:
        super().__init__(lambda messages, _: _answer(script, messages))
        self._script = script

    @property
    def model_name(self) -> str:
        return f"scripted-{self._script.version}"


def _answer(script: Script, messages: Any) -> ModelResponse:
    turn = script.next(str(messages))
    if isinstance(turn, str):
        return ModelResponse(parts=[TextPart(turn)])
    return ModelResponse(parts=[ToolCallPart(call.tool, call.given) for call in turn])


def agent(script: Script, *specs: Spec, app: Any = None, mcp: str = "", helper: Script | None = None) -> Any:
    toolsets: list[Any] = [] if app is None else [adapter.tools(app)]
    if mcp:
        from fastmcp.client.transports import StdioTransport

        toolsets.append(MCPToolset(StdioTransport(sys.executable, [mcp]), id="files"))
    made: Any = Agent(Scripted(script), name="dev", tools=[_tool(spec) for spec in specs], toolsets=toolsets)
    if helper is not None:
        second: Any = Agent(Scripted(helper), name="helper")

        @made.tool_plain
        async def ask_helper(text: str) -> str:
            return (await second.run(text)).output

    return made


def _tool(spec: Spec) -> Any:
    def function(text: str) -> str:
        return spec.function(text)

    async def coroutine(text: str) -> Any:
        return await spec.function(text)

    called = coroutine if iscoroutinefunction(spec.function) else function
    tool = Tool(called, name=spec.name, takes_ctx=False, requires_approval=spec.needs_approval)
    return adapter.untrusted(tool) if spec.untrusted else tool


def status_error(status: int) -> Exception:
    return ModelHTTPError(status, "scripted", body={"error": {"code": "context_length_exceeded", "message": "no"}})
