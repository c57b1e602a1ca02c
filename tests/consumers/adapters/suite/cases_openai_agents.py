"""What only the OpenAI Agents SDK has: a graph of agents, and tools that are no functions."""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import agents
import pytest
from agents import Agent, ModelResponse, Usage, function_tool, handoff
from agents import tool as sdk
from agents.models.interface import Model
from agents.testing import assistant_message, function_call
from cases import Tools, desk, dying, rig, tools  # noqa: F401 - fixtures
from openai.types.responses import ResponseCustomToolCall, ResponseFunctionWebSearch
from openai.types.responses.response_apply_patch_tool_call import OperationCreateFile, ResponseApplyPatchToolCall
from openai.types.responses.response_function_shell_tool_call import Action, ResponseFunctionShellToolCall
from rig_openai_agents import Scripted
from scripted import Call, Script

from sealbus import App, Approval
from sealbus.adapters import openai_agents
from sealbus.errors import ConfigurationError
from sealbus.vocabulary import TaskRequest, TaskResult


class Items(Model):
    """A model that answers with items of the SDK, one list a call."""

    model = "items"

    def __init__(self, *turns: list[Any]) -> None:
        self.turns = turns
        self.calls = 0
        self.given: list[Any] = []

    async def get_response(self, *given: Any, **__: Any) -> Any:
        self.calls += 1
        self.given.append(given)
        return ModelResponse(output=self.turns[self.calls - 1], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


async def test_a_handoff_and_back_again_is_one_run(dying: Callable[[int], None]) -> None:  # noqa: F811
    first = Script([[Call("transfer_to_second", "", {})], "first ends it"])
    second = Script([[Call("transfer_to_dev", "", {})]])
    two: Any = Agent(name="second", model=Scripted(second))
    one: Any = Agent(name="dev", model=Scripted(first), handoffs=[two])
    heard: list[str] = []
    # A cycle, and a callback of the user's.
    two.handoffs = [handoff(one, on_handoff=lambda _: heard.append("back"))]
    dying(2)
    async with desk(one) as d:
        await d.begin()
        await d.finish()
        assert d.results == ["first ends it"]
    assert (first.calls, second.calls) == (2, 1)


async def test_a_tool_of_a_nested_agent_waits_for_a_person(tools: Tools) -> None:  # noqa: F811
    nested = Script([[Call("push", "main")], "pushed by the helper"])
    helper: Any = Agent(name="helper", model=Scripted(nested), tools=[rig._tool(tools.spec(needs_approval=True))])
    outer = Script([[Call("ask", "", {"input": "push it"})], "it is pushed"])
    agent: Any = Agent(name="dev", model=Scripted(outer), tools=[helper.as_tool("ask", "Ask.")])
    async with desk(agent) as d:
        await d.begin()
        (held,) = await d.held()
        assert (held.tool, held.arguments) == ("push", {"text": "main"})
        await d.decide()
        assert d.results == ["it is pushed"]
    assert (outer.calls, nested.calls, tools.calls) == (2, 2, ["push main"])


@pytest.mark.parametrize("approve", [True, False])
async def test_an_agent_that_is_a_tool_may_wait_itself(approve: bool) -> None:
    nested, outer = Script(["helped"]), Script([[Call("ask", "", {"input": "x"})], "done"])
    helper: Any = Agent(name="helper", model=Scripted(nested))
    agent: Any = Agent(name="dev", model=Scripted(outer), tools=[helper.as_tool("ask", "Ask.", needs_approval=True)])
    async with desk(agent) as d:
        await d.begin()
        await d.decide(approve=approve)
        assert d.results == ["done"]
    assert nested.calls == (1 if approve else 0)


async def test_an_unknown_tool_of_a_nested_agent_is_told_to_its_model(tools: Tools) -> None:  # noqa: F811
    nested = Script([[Call("pull", "main")], [Call("push", "main")], "pushed by the helper"])
    helper: Any = Agent(name="helper", model=Scripted(nested), tools=[rig._tool(tools.spec())])
    outer = Script([[Call("ask", "", {"input": "push it"})], "it is pushed"])
    agent: Any = Agent(name="dev", model=Scripted(outer), tools=[helper.as_tool("ask", "Ask.")])
    async with desk(agent, run_config=agents.RunConfig(workflow_name="mine")) as d:
        await d.begin()
        assert (d.results, d.deaths) == (["it is pushed"], [])
    assert (outer.calls, nested.calls, tools.calls) == (2, 3, ["push main"])


@pytest.mark.parametrize("needs_approval", [True, False])
@pytest.mark.parametrize("of_app", [True, False])
async def test_arguments_with_a_lone_surrogate_are_told_to_the_model(
    tools: Tools,  # noqa: F811
    dying: Callable[[int], None],  # noqa: F811
    of_app: bool,
    needs_approval: bool,
) -> None:
    app = App("dev@svc")

    @app.tool(name="push", approval=Approval(by="human") if needs_approval else None)
    async def push(text: str) -> str:
        tools.calls.append(text)
        return "pushed"

    call = function_call("push", '{"text": "\\ud800"}', call_id="c1")
    model = Items([call], [assistant_message("I may not \ud800")])
    spec = rig._tool(tools.spec(needs_approval=needs_approval))
    dying(1)
    async with desk(Agent(name="dev", model=model, tools=openai_agents.tools(app) if of_app else [spec]), app=app) as d:
        await d.begin()
        await d.finish()
        assert (d.results, d.deaths, await d.held()) == (["I may not \\ud800"], [], [])
    assert (model.calls, tools.calls) == (2, [])
    assert "a lone surrogate" in str(model.given[1])


class Editor:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def create_file(self, operation: Any) -> Any:
        self.calls.append(f"create {operation.path}")
        return "created"

    def update_file(self, operation: Any) -> Any: ...

    def delete_file(self, operation: Any) -> Any: ...


def shell_call() -> Any:
    return ResponseFunctionShellToolCall(
        id="s1", call_id="s1", type="shell_call", status="completed", action=Action(commands=["ls"])
    )


def patch_call() -> Any:
    operation = OperationCreateFile(type="create_file", path="a.txt", diff="+x")
    return ResponseApplyPatchToolCall(
        id="p1", call_id="p1", type="apply_patch_call", status="completed", operation=operation
    )


def custom_call() -> Any:
    return ResponseCustomToolCall(id="c1", call_id="c1", type="custom_tool_call", name="run", input="print(1)")


def wired(kind: str, calls: list[str], *, needs_approval: bool) -> tuple[Any, Any]:
    """The tool of that kind, and a model's call of it."""
    if kind == "shell":
        return (
            agents.ShellTool(executor=lambda _: calls.append("ls") or "a.txt", needs_approval=needs_approval),
            shell_call(),
        )
    if kind == "custom":

        def invoke(context: Any, text: str) -> str:
            calls.append(text)
            return "1"

        made = agents.CustomTool(name="run", description="Runs.", on_invoke_tool=invoke, needs_approval=needs_approval)
        return made, custom_call()
    editor = Editor()
    editor.calls = calls
    return agents.ApplyPatchTool(editor=editor, needs_approval=needs_approval), patch_call()


@pytest.mark.parametrize("kind", ["shell", "custom", "apply_patch"])
async def test_a_tool_that_is_no_function_is_a_step(kind: str, dying: Callable[[int], None]) -> None:  # noqa: F811
    calls: list[str] = []
    tool, call = wired(kind, calls, needs_approval=False)
    model = Items([call], [assistant_message("done")])
    dying(2)
    async with desk(Agent(name="dev", model=model, tools=[tool])) as d:
        await d.begin()
        await d.finish()
        assert d.results == ["done"]
    assert (len(calls), model.calls) == (1, 2)


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("kind", ["shell", "custom", "apply_patch"])
async def test_a_tool_that_is_no_function_waits_for_a_person(kind: str, approve: bool) -> None:
    calls: list[str] = []
    tool, call = wired(kind, calls, needs_approval=True)
    model = Items([call], [assistant_message("done")])
    async with desk(Agent(name="dev", model=model, tools=[tool])) as d:
        await d.begin()
        assert (len(await d.held()), calls) == (1, [])
        await d.decide(approve=approve)
        assert d.results == ["done"]
    assert (len(calls), model.calls) == (int(approve), 2)


async def test_a_tool_that_the_provider_runs_lowers_the_run() -> None:
    searched = ResponseFunctionWebSearch(
        id="w", type="web_search_call", status="completed", action={"type": "search", "query": "x", "queries": ["x"]}
    )
    model = Items([searched, assistant_message("found")])
    async with desk(Agent(name="dev", model=model, tools=[agents.WebSearchTool()])) as d:
        await d.begin()
        (message,) = d.bus.messages(TaskResult)
        assert message.metadata.security.trust_level == "untrusted_content"


REFUSED = {"ComputerTool", "ProgrammaticToolCallingTool"}


@pytest.mark.parametrize("cls", [typing.get_origin(each) or each for each in typing.get_args(sdk.Tool)])
def test_each_tool_class_of_the_package_is_wrapped_or_refused_by_its_name(cls: Any) -> None:
    given = {
        "FunctionTool": lambda: function_tool(lambda text: text, name_override="f"),
        "ComputerTool": lambda: agents.ComputerTool(computer=object()),
        "HostedMCPTool": lambda: agents.HostedMCPTool(
            tool_config={"type": "mcp", "server_label": "x", "server_url": "https://x.test"}
        ),
        "CustomTool": lambda: wired("custom", [], needs_approval=False)[0],
        "ShellTool": lambda: wired("shell", [], needs_approval=False)[0],
        "ApplyPatchTool": lambda: wired("apply_patch", [], needs_approval=False)[0],
        "LocalShellTool": lambda: agents.LocalShellTool(executor=lambda _: ""),
        "FileSearchTool": lambda: agents.FileSearchTool(vector_store_ids=["x"]),
        "ImageGenerationTool": lambda: agents.ImageGenerationTool(tool_config={"type": "image_generation"}),
        "CodeInterpreterTool": lambda: agents.CodeInterpreterTool(
            tool_config={"type": "code_interpreter", "container": {"type": "auto"}}
        ),
    }
    tool = given.get(cls.__name__, cls)()
    agent = Agent(name="dev", model=Items(), tools=[tool])
    if cls.__name__ in REFUSED:
        with pytest.raises(ConfigurationError, match=f"the agent 'dev' has the tool .*{cls.__name__}"):
            openai_agents.serve(agent)
    else:
        openai_agents.serve(agent)


def refused() -> list[tuple[Any, str]]:
    helper: Any = Agent(name="helper", model=Items())
    session = agents.SQLiteSession("x")

    def decides(context: Any, item: Any) -> Any:
        return {"approve": True}

    shell = agents.ShellTool(executor=lambda _: "", needs_approval=True, on_approval=decides)
    guarded = Agent(name="dev", input_guardrails=[agents.InputGuardrail(guardrail_function=runs_agent(helper))])
    return [
        (Agent(name="dev", tools=[helper.as_tool("ask", "", session=session)]), "session="),
        (Agent(name="dev", tools=[helper.as_tool("ask", "", conversation_id="c")]), "conversation_id="),
        (Agent(name="dev", tools=[helper.as_tool("ask", "", on_stream=lambda _: None)]), "on_stream="),
        (Agent(name="dev", tools=[shell]), "on_approval"),
        (guarded, "which runs an agent"),
        (Agent(name="dev", handoffs=[Agent(name="second", tools=[shell])]), "the agent 'second'"),
    ]


def runs_agent(helper: Any) -> Any:
    async def check(context: Any, agent: Any, given: Any) -> Any:
        return await agents.Runner.run(helper, given)

    return check


@pytest.mark.parametrize("place", range(6))
def test_what_cannot_be_a_step_is_refused_at_the_start_by_its_name(place: int) -> None:
    agent, text = refused()[place]
    with pytest.raises(ConfigurationError, match=text):
        openai_agents.serve(agent)


def test_an_agent_is_not_changed_by_being_served() -> None:
    tool = function_tool(lambda text: text, name_override="f")
    agent: Any = Agent(name="dev", model=Items(), tools=[tool])
    invoke = tool.on_invoke_tool
    openai_agents.serve(agent)
    assert agent.tools == [tool]
    assert tool.on_invoke_tool is invoke
    assert isinstance(agent.model, Items)


async def test_an_agent_that_never_ends_is_rejected(tools: Tools) -> None:  # noqa: F811
    script = Script([[Call("look", "a")]])
    async with desk(rig.agent(script, tools.spec("look")), max_turns=3) as d:
        await d.begin()
        assert d.deaths == ["rejected"]
    assert script.calls == 3


async def test_schemas_of_an_app_pass_the_sdks_own_check() -> None:
    from agents.strict_schema import ensure_strict_json_schema

    from sealbus import App

    app = App("x@svc")

    @app.tool()
    async def search(query: str, limit: int = 3, tags: list[str] | None = None) -> None: ...

    app.handoff_tool("ask", TaskRequest, TaskResult, to="y@svc")
    for tool in app.tools.values():
        if tool.strict_schema is not None:
            assert ensure_strict_json_schema(dict(tool.strict_schema)) == tool.strict_schema
