"""The rig of LangGraph: a graph of a scripted chat model and its tools, one node for each call."""

from __future__ import annotations

import sys
from inspect import iscoroutinefunction
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt
from scripted import Script, Spec

from sealbus.adapters import langgraph

__all__ = [
    "adapter",
    "agent",
    "asks_by_policy",
    "helper_argument",
    "model_is_asked_again",
    "status_error",
    "tools_are_steps",
]

adapter = langgraph
helper_argument = "text"
model_is_asked_again = False
asks_by_policy = False
tools_are_steps = False


class Scripted(BaseChatModel):
    script: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        turn = self.script.next(str(messages))
        calls = [] if isinstance(turn, str) else turn
        message = AIMessage(
            turn if isinstance(turn, str) else "",
            tool_calls=[{"name": call.tool, "args": call.given, "id": f"c{at}"} for at, call in enumerate(calls)],
            response_metadata={"model_name": f"scripted-{self.script.version}"},
            usage_metadata={"input_tokens": 7, "output_tokens": 2, "total_tokens": 9},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]


class Calling(TypedDict):
    call: Any


def agent(script: Script, *specs: Spec, app: Any = None, mcp: str = "", helper: Script | None = None) -> Any:
    model = Scripted(script=script)
    tools = _tools(specs, app=app, mcp=mcp, helper=helper)
    gated = {spec.name for spec in specs if spec.needs_approval}

    async def think(state: State) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def route(state: State) -> Any:
        calls = state["messages"][-1].tool_calls
        return [Send("act", {"call": {**call, "model": script.version}}) for call in calls] or END

    async def act(state: Calling) -> Any:
        call = state["call"]
        if call["name"] in gated:
            # A new release would ask for something else: its model is another one.
            arguments = call["args"] if script.version == call["model"] else {"text": "prod"}
            answer = interrupt({"tool": call["name"], "args": arguments})
            if not answer["approved"]:
                return {"messages": [ToolMessage(answer["reason"], tool_call_id=call["id"])]}
            call = {**call, "args": arguments}
        try:
            content = await tools[call["name"]].ainvoke(call["args"])
        except (KeyError, ValueError) as error:
            content = f"{type(error).__name__}: {error}"
        text = content if isinstance(content, str) else str(content)
        return {"messages": [ToolMessage(text, tool_call_id=call["id"])]}

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", route, ["act", END])
    graph.add_edge("act", "think")
    return graph.compile(name="dev")


def _tools(specs: Any, *, app: Any, mcp: str, helper: Script | None) -> dict[str, Any]:
    tools: dict[str, Any] = {spec.name: _tool(spec) for spec in specs}
    if app is not None:
        tools |= {tool.name: tool for tool in adapter.tools(app)}
    if mcp:
        tools["append"] = _of_server(mcp, "append")
    if helper is not None:
        second = agent(helper)

        async def ask_helper(text: str) -> str:
            return (await second.ainvoke({"messages": [("user", text)]}))["messages"][-1].text

        tools["ask_helper"] = StructuredTool.from_function(coroutine=ask_helper, name="ask_helper", description="Ask.")
    return tools


def _of_server(path: str, name: str) -> Any:
    from langchain_mcp_adapters.client import MultiServerMCPClient

    client = MultiServerMCPClient({"files": {"command": sys.executable, "args": [path], "transport": "stdio"}})

    async def call(text: str) -> str:
        found = {tool.name: tool for tool in await client.get_tools()}
        return str(await found[name].ainvoke({"text": text}))

    return StructuredTool.from_function(coroutine=call, name=name, description="A tool of a server.")


def _tool(spec: Spec) -> Any:
    def function(text: str) -> str:
        return spec.function(text)

    async def coroutine(text: str) -> Any:
        return await spec.function(text)

    form: dict[str, Any] = {"coroutine": coroutine} if iscoroutinefunction(spec.function) else {"func": function}
    tool = StructuredTool.from_function(**form, name=spec.name, description="A tool.")
    return adapter.untrusted(tool) if spec.untrusted else tool


class StatusError(Exception):
    """As clients of providers raise it."""

    def __init__(self, status: int) -> None:
        super().__init__("no")
        self.status_code = status
        self.body = {"error": {"code": "context_length_exceeded"}}


def status_error(status: int) -> Exception:
    return StatusError(status)
