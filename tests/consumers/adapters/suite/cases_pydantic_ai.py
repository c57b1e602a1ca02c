"""What only Pydantic AI has: calls that are not the agent's own, toolsets of several kinds, validators of output."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from cases import RETRY, Tools, Verdict, desk, rig, tools  # noqa: F401 - fixtures
from pydantic_ai import Agent, DeferredToolRequests, ExternalToolset, FunctionToolset, ModelRetry, Tool
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset
from rig_pydantic_ai import Scripted
from scripted import Call, Script

from sealbus import App
from sealbus.adapters import pydantic_ai
from sealbus.errors import ConfigurationError
from sealbus.vocabulary import ToolCall, ToolResult


async def test_a_call_that_is_not_the_agents_own_is_asked_of_a_tool_worker() -> None:
    definition = ToolDefinition(
        name="weather", parameters_json_schema={"type": "object", "properties": {"text": {"type": "string"}}}
    )
    script = Script([[Call("weather", "Bern")], "rain in Bern"])
    agent: Any = Agent(Scripted(script), name="dev", toolsets=[ExternalToolset([definition], id="remote")])
    worker, calls = App("weather@tools"), []

    @worker.on(ToolCall)
    async def call(request: ToolCall) -> ToolResult:
        calls.append(request.arguments)
        return ToolResult(tool_call_id=request.tool_call_id, tool_name=request.tool_name, output="rain")

    async with desk(agent, worker) as d:
        await d.begin()
        await d.finish()
        assert d.results == ["rain in Bern"]
    assert calls == [{"text": "Bern"}]
    assert "rain" in script.seen[1]


async def test_a_tool_that_asks_for_a_retry_is_told_as_ever(tools: Tools) -> None:  # noqa: F811
    script = Script([[Call("pick", "a")], [Call("pick", "b")], "picked b"])
    agent: Any = Agent(Scripted(script), name="dev")

    @agent.tool_plain(retries=3)
    def pick(text: str) -> str:
        tools.calls.append(text)
        if text == "a":
            raise ModelRetry("pick another one")
        return "fine"

    async with desk(agent) as d:
        await d.begin()
        assert d.results == ["picked b"]
    assert tools.calls == ["a", "b"]
    assert "pick another one" in script.seen[1]


async def test_an_output_type_of_the_agent_is_the_answer() -> None:
    class Said(pydantic.BaseModel):
        is_safe: bool
        reason: str

    script = Script([[Call("final_result", "", {"is_safe": True, "reason": "ok"})]])
    agent: Any = Agent(Scripted(script), name="dev", output_type=Said)
    async with desk(agent, returns=Verdict) as d:
        await d.begin()
        assert d.bus.sent(Verdict) == [Verdict(is_safe=True, reason="ok")]


async def test_the_instructions_of_an_agent_do_not_make_another_call() -> None:
    script, clock = Script(["done"]), iter(range(100))
    agent: Any = Agent(Scripted(script), name="dev")

    @agent.instructions
    def now() -> str:
        return f"it is {next(clock)} o'clock"

    deaths = iter([RuntimeError("died")])

    def prompt(request: Any) -> str:
        return str(request.goal)

    app = App("dev@svc", middleware=[])

    def dies_once(following: Any) -> Any:
        async def handler(payload: Any, context: Any) -> Any:
            result = await following(payload, context)
            if (error := next(deaths, None)) is not None:
                raise error
            return result

        return handler

    app.middleware.append(dies_once)
    async with desk(agent, app=app, prompt=prompt) as d:
        await d.begin()
        await d.finish()
        assert d.results == ["done"]
    assert script.calls == 1


class Own(AbstractToolset[Any]):
    @property
    def id(self) -> str:
        return "own"

    async def get_tools(self, ctx: Any) -> Any:
        return {}

    async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any: ...


def validated(output: Any) -> Any:
    made: Any = Agent(
        Scripted(Script(["x"])), name="dev", tools=[Tool(len, name="f", requires_approval=True)], output_type=output
    )
    made.output_validator(lambda text: text)
    return made


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        (lambda: Agent(name="dev"), "has no model"),
        (lambda: Agent(Scripted(Script(["x"])), name="dev", toolsets=[FunctionToolset([len])]), "unique `id`"),
        (lambda: Agent(Scripted(Script(["x"])), name="dev", toolsets=[Own()]), "the toolset Own"),
        (lambda: validated(str), "has output validators"),
    ],
)
def test_what_cannot_be_served_is_refused_at_the_start(agent: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        pydantic_ai.serve(agent())


def test_validators_beside_deferred_requests_are_accepted() -> None:
    pydantic_ai.serve(validated([str, DeferredToolRequests]))


def test_the_names_of_steps_are_pinned() -> None:
    """They are stored with messages: another name asks the model again."""
    assert rig.adapter is pydantic_ai
    assert RETRY
    from consumers.adapters.run import step_name

    assert step_name("model.dev") == "model.dev"
    assert step_name("a tool/of mine") == "a_tool_of_mine"
    assert len(step_name("x" * 200)) == 64
