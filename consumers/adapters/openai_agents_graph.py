"""The graph of an agent of the OpenAI Agents SDK, cloned once so that its model and tool calls are steps.

Owns the clone (handoffs, agents as tools, cycles) and what is refused in it, by its name. A clone knows no run: it asks
for the present one. Private names of the SDK that are read here are listed in `_PRIVATE`; the pin is to its minor.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import CellType, FunctionType
from typing import Any, Final

from agents import (
    Agent,
    ApplyPatchTool,
    CodeInterpreterTool,
    CustomTool,
    FileSearchTool,
    FunctionTool,
    HostedMCPTool,
    ImageGenerationTool,
    LocalShellTool,
    RunContextWrapper,
    Runner,
    ShellTool,
    WebSearchTool,
)
from agents.mcp import MCPServer
from agents.models.interface import Model
from agents.tool import ShellResult, ToolSearchTool
from mcp.types import CallToolResult
from mcp.types import Tool as MCPTool
from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python

from bus.errors import ApprovalRefused, ConfigurationError, HandlerError, text_of
from consumers.adapters.openai_agents_model import StepModel, arguments_of
from consumers.adapters.run import AgentRun, ToolFailure, ToolUse, current_run
from consumers.tools.registry import Tools
from consumers.tools.tool import Tool as AppTool

__all__ = ["AgentGraph", "function_tools_of"]

_APP_TOOLS: Final = "__sealbus_tools__"
"""The attribute of a tool that makes its own step: the tools of an app."""
_HOSTED: Final = (
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ToolSearchTool,
    WebSearchTool,
)
"""Tools that the provider runs inside a model call."""
_SHELL_RESULT: Final = TypeAdapter(ShellResult)
_MCP_TOOLS: Final = TypeAdapter(list[MCPTool])
_MCP_RESULT: Final = TypeAdapter(CallToolResult)


class AgentGraph:
    """The clone of *root* and of every agent that it reaches. Raises ConfigurationError for what cannot be one."""

    def __init__(self, root: Any, models: Callable[[str | None], Model]) -> None:
        self._models = models
        self._clones: dict[int, Agent[Any]] = {}
        self._originals: list[Any] = []
        """Kept, so that no other agent gets the id of one."""
        self._servers: dict[int, StepServer] = {}
        self.servers: list[MCPServer] = []
        """The servers of tools that the agents use; they are connected while a worker runs."""
        self.app_tools: dict[str, Tools] = {}
        self.root = self.clone(root)

    def clone(self, agent: Any) -> Agent[Any]:
        """Return the clone of *agent*, the same for the same one."""
        if id(agent) in self._clones:
            return self._clones[id(agent)]
        _check_agent(agent)
        clone = dataclasses.replace(agent)
        self._clones[id(agent)] = self._clones[id(clone)] = clone
        self._originals += [agent, clone]
        model = agent.model if isinstance(agent.model, Model) else None
        clone.model = StepModel(agent.name, model, None if model else agent.model, self._models)
        clone.tools = [self._tool(agent, tool) for tool in agent.tools]
        clone.mcp_servers = [self._server(server) for server in agent.mcp_servers]
        clone.handoffs = [self._handoff(each) for each in agent.handoffs]
        return clone

    def _handoff(self, handoff: Any) -> Any:
        if isinstance(handoff, Agent):
            return self.clone(handoff)
        invoke = handoff.on_invoke_handoff
        target = handoff._agent_ref() if handoff._agent_ref is not None else None  # noqa: SLF001 - the SDK has no other

        async def invoked(context: RunContextWrapper[Any], arguments: str) -> Any:
            return self.clone(await invoke(context, arguments))

        clone = dataclasses.replace(handoff, on_invoke_handoff=invoked)
        if target is not None:
            import weakref

            clone._agent_ref = weakref.ref(self.clone(target))  # noqa: SLF001 - as above
        return clone

    def _server(self, server: MCPServer) -> StepServer:
        if id(server) not in self._servers:
            self._servers[id(server)] = StepServer(server)
            self.servers.append(server)
        return self._servers[id(server)]

    def _tool(self, agent: Any, tool: Any) -> Any:
        if (tools := getattr(tool, _APP_TOOLS, None)) is not None:
            self.app_tools[tool.name] = tools
            return tool
        where = f"the agent {agent.name!r} has the tool {getattr(tool, 'name', type(tool).__name__)!r}"
        if getattr(tool, "on_approval", None) is not None or getattr(tool, "on_approval_request", None) is not None:
            raise ConfigurationError(
                f"{where}, whose on_approval decides without the bus: leave it out, and a person is asked"
            )
        if isinstance(tool, FunctionTool):
            return self._agent_tool(tool, where) if tool._is_agent_tool else _function_tool(tool)  # noqa: SLF001
        if isinstance(tool, CustomTool):
            return dataclasses.replace(tool, on_invoke_tool=_custom(tool))
        if isinstance(tool, ShellTool):
            return tool if tool.executor is None else dataclasses.replace(tool, executor=_shell(tool))
        if isinstance(tool, LocalShellTool):
            return dataclasses.replace(tool, executor=_local_shell(tool))
        if isinstance(tool, ApplyPatchTool):
            return dataclasses.replace(tool, editor=StepEditor(tool))
        if isinstance(tool, _HOSTED) and getattr(tool, "execution", None) != "client":
            return tool
        raise ConfigurationError(f"{where} of {type(tool).__name__}, which cannot be made a step: leave it out")

    def _agent_tool(self, tool: FunctionTool, where: str) -> FunctionTool:
        """Return the tool that an agent is, with the clone in its place: its own calls are the steps."""
        agent = tool._agent_instance  # noqa: SLF001 - the SDK has no other
        invoker: Any = tool.on_invoke_tool
        implementation = getattr(invoker, "_invoke_tool_impl", None)
        if not isinstance(implementation, FunctionType):
            raise ConfigurationError(f"{where}, an agent as a tool of a form that this adapter does not know")
        state = dict(zip(implementation.__code__.co_freevars, implementation.__closure__ or (), strict=True))
        for name in ("session", "conversation_id", "previous_response_id", "on_stream"):
            if name in state and state[name].cell_contents is not None:
                raise ConfigurationError(f"{where}, an agent as a tool with {name}=, which is not kept by the bus")
        clone = self.clone(agent)
        cells = tuple(CellType(clone) if cell.cell_contents is agent else cell for cell in state.values())
        run_agent = FunctionType(
            implementation.__code__, implementation.__globals__, implementation.__name__, None, cells
        )
        guarded = _guarded(run_agent)

        async def invoke(context: Any, arguments: str) -> Any:
            run = current_run()
            use = _use(tool.name, arguments, context.tool_call_id)
            if run.is_asked(use.call_id):
                run.lend()
                try:
                    await run.agreed(use)
                except ApprovalRefused as error:
                    return _refusal(error)
            run.check()
            return await guarded(context, arguments)

        rebound = type(invoker)(invoke, invoker._on_handled_error)  # noqa: SLF001 - as above
        made = dataclasses.replace(tool, on_invoke_tool=rebound)
        made._agent_instance = clone  # noqa: SLF001 - as above
        return made


def _check_agent(agent: Any) -> None:
    """Raise ConfigurationError for an agent that cannot be cloned."""
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"serve takes an agents.Agent, not {type(agent).__name__}")
    if type(agent).__module__.startswith("agents.") and type(agent) is not Agent:
        raise ConfigurationError(f"the agent {agent.name!r} is a {type(agent).__name__}, which cannot be served")
    for guardrail in (*agent.input_guardrails, *agent.output_guardrails):
        function = guardrail.guardrail_function
        if any(value is Runner or isinstance(value, Agent) for value in _named(function)):
            raise ConfigurationError(
                f"the agent {agent.name!r} has the guardrail {getattr(function, '__name__', guardrail)!r}, which runs "
                "an agent: its model calls are not steps. Make it a check without a model, or a tool"
            )


def _named(function: Any) -> Iterator[Any]:
    """Yield the values of the global and enclosing names in the code of *function*."""
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    if code is None:
        return
    yield from (inner.__globals__[name] for name in code.co_names if name in inner.__globals__)
    yield from (cell.cell_contents for cell in inner.__closure__ or () if cell != CellType())


def _function_tool(tool: FunctionTool) -> FunctionTool:
    inner: Any = tool.on_invoke_tool
    implementation = getattr(inner, "_invoke_tool_impl", None)
    if implementation is not None:
        # What ends the run is seen before the SDK makes a text of it.
        inner = type(inner)(_guarded(implementation), inner._on_handled_error, function_tool=tool)  # noqa: SLF001

    async def invoke(context: Any, arguments: str) -> Any:
        run = current_run()
        use = _use(tool.name, arguments, context.tool_call_id)
        return await _stepped(run, use, lambda: _plain_of(inner(context, arguments)))

    return dataclasses.replace(tool, on_invoke_tool=invoke)


def _guarded(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(*arguments: Any) -> Any:
        try:
            return await function(*arguments)
        except HandlerError as error:
            current_run().ended_by(error)

    return call


async def _stepped(run: AgentRun, use: ToolUse, call: Callable[[], Awaitable[Any]]) -> Any:
    """Return what a tool call comes to: its result, or the text of its refusal."""
    if use.call_id and not run.is_asked(use.call_id) and run.needs_person(use.tool):
        run.lend()
        await run.ask_for([use])

    async def checked() -> Any:
        result = await call()
        # Its error may have ended the run, and the SDK has made a text of it: that is not kept.
        run.check()
        return result

    try:
        return await run.tool(use, checked)
    except ApprovalRefused as error:
        return _refusal(error)
    except ToolFailure as error:
        # A tool without a text for its errors would end the run, and each repetition, too.
        return f"error: {error}"


async def _plain_of(result: Any) -> Any:
    """Return the output of a tool as what is kept: a text, or the parts that the SDK knows."""
    output = await result
    if output is None or isinstance(output, str | int | float | bool):
        return output
    if isinstance(output, BaseModel):
        return output.model_dump(mode="json")
    return to_jsonable_python(output, fallback=str)


def _use(name: str, arguments: str, call_id: str | None) -> ToolUse:
    return ToolUse(tool=name, arguments=arguments_of(arguments), call_id=call_id or "")


def _custom(tool: CustomTool) -> Callable[..., Awaitable[Any]]:
    async def invoke(context: Any, text: str) -> Any:
        use = ToolUse(tool=tool.name, arguments={"input": text}, call_id=context.tool_call_id or "")
        return await _stepped(current_run(), use, lambda: _plain_of(_awaited(tool.on_invoke_tool(context, text))))

    return invoke


def _shell(tool: ShellTool) -> Callable[..., Awaitable[Any]]:
    async def execute(request: Any) -> Any:
        use = ToolUse(tool=tool.name, arguments=action_arguments(request.data.action), call_id=request.data.call_id)

        async def call() -> Any:
            result = await _awaited(tool.executor(request))
            return result if isinstance(result, str) else _SHELL_RESULT.dump_python(result, mode="json")

        found = await _stepped(current_run(), use, call)
        return found if isinstance(found, str) else _SHELL_RESULT.validate_python(found)

    return execute


def _local_shell(tool: LocalShellTool) -> Callable[..., Awaitable[Any]]:
    async def execute(request: Any) -> Any:
        use = ToolUse(tool="local_shell", arguments=action_arguments(request.data.action), call_id=request.data.call_id)
        return await _stepped(current_run(), use, lambda: _awaited(tool.executor(request)))

    return execute


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


class StepEditor:
    """The editor of an ApplyPatchTool, each operation of which is a step."""

    def __init__(self, tool: ApplyPatchTool) -> None:
        self._tool = tool

    async def create_file(self, operation: Any) -> Any:
        """Create a file, or return what that came to in an earlier run."""
        return await self._step(operation, "create_file")

    async def update_file(self, operation: Any) -> Any:
        """Update a file, or return what that came to in an earlier run."""
        return await self._step(operation, "update_file")

    async def delete_file(self, operation: Any) -> Any:
        """Delete a file, or return what that came to in an earlier run."""
        return await self._step(operation, "delete_file")

    async def _step(self, operation: Any, method: str) -> Any:
        use = ToolUse(tool=self._tool.name, arguments=patch_arguments(operation))

        async def call() -> Any:
            result = await _awaited(getattr(self._tool.editor, method)(operation))
            return result if result is None or isinstance(result, str) else result.output

        return await _stepped(current_run(), use, call)


def action_arguments(action: Any) -> dict[str, Any]:
    """Return the action of a shell call as what people see of it."""
    plain = to_jsonable_python(action, fallback=str)
    return {name: value for name, value in plain.items() if value is not None and value != {}}


def patch_arguments(operation: Any) -> dict[str, Any]:
    """Return an operation of a patch as what people see of it."""
    names = ("type", "path", "diff", "move_to")
    plain = operation if isinstance(operation, Mapping) else {name: getattr(operation, name, None) for name in names}
    return {name: plain[name] for name in names if plain.get(name) is not None}


class StepServer(MCPServer):  # type: ignore[misc]
    """A server of the Model Context Protocol whose calls are steps; everything else is the server's own."""

    def __init__(self, server: MCPServer) -> None:
        # Not the base's: its attributes are those of the server.
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    @property
    def name(self) -> str:
        """The server's own name."""
        return str(self._server.name)

    async def connect(self) -> None:
        """Do nothing: the server is connected while a worker runs."""

    async def cleanup(self) -> None:
        """Do nothing, as `connect`."""

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any:
        """Return the server's tools, for one run always the same."""
        run = current_run()

        async def call() -> Any:
            return _MCP_TOOLS.dump_python(await self._server.list_tools(run_context, agent), mode="json")

        if self not in run.notes:
            run.notes[self] = await run.plain("mcp.list_tools", [self.name], call)
        return _MCP_TOOLS.validate_python(run.notes[self])

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        """Call a tool, or return what it returned in an earlier run."""
        use = ToolUse(tool=tool_name, arguments=arguments or {})

        async def call() -> Any:
            options = {} if meta is None else {"meta": meta}
            return _MCP_RESULT.dump_python(
                await self._server.call_tool(tool_name, arguments, **options), mode="json", by_alias=True
            )

        try:
            return _MCP_RESULT.validate_python(await current_run().tool(use, call))
        except ApprovalRefused as error:
            raise ToolFailure("refused", _refusal(error)) from error

    async def list_prompts(self) -> Any:
        """Return the server's prompts."""
        server: Any = self._server
        return await server.list_prompts()

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        """Return a prompt of the server."""
        server: Any = self._server
        return await server.get_prompt(name, arguments)


def _refusal(error: ApprovalRefused) -> str:
    return f"not allowed ({error.reason}): {text_of(error)}"


def function_tools_of(tools: Tools) -> list[FunctionTool]:
    """Return the tools of an app as tools of the SDK."""
    return [_app_tool(tools, tool) for tool in tools.values()]


def _app_tool(tools: Tools, tool: AppTool) -> FunctionTool:
    async def invoke(context: Any, arguments: str) -> str:
        run = current_run()
        use = _use(tool.name, arguments, context.tool_call_id)
        if run.app_tool_waits(use):
            # The message or the policy wants a person, which the SDK does not know before the call.
            run.lend()
            await run.ask_for([use])
        return await run.app_tool(use)

    made = FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.strict_schema or tool.schema,
        on_invoke_tool=invoke,
        strict_json_schema=tool.strict_schema is not None,
        needs_approval=tool.terms.approval is not None,
    )
    setattr(made, _APP_TOOLS, tools)
    return made
