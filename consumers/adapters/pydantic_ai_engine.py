"""The engine behind `pydantic_ai`: Pydantic AI's own seam for durable execution, on steps of the bus.

Owns the identity of its operations, its pause (`DeferredToolRequests`) and what it reports of usage. Pydantic AI gives
each model request and tool call to `Backend.execute`, with its name and what identifies it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
)
from pydantic_ai.exceptions import ApprovalRequired, ToolFailed, UserError
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.tools import RunContext, Tool
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset, FunctionToolset
from pydantic_core import to_jsonable_python

from bus.errors import ApprovalRefused, ConfigurationError, text_of
from bus.vocabulary.tool import ToolCall, ToolResult
from consumers.adapters.run import AgentRun, ModelUsage, ToolFailure, ToolUse, current_run
from consumers.delivery.inbox.conversation import MemoryItem
from consumers.tools.registry import Tools
from consumers.tools.tool import Tool as AppTool

__all__ = ["AgentDialogue", "app_tools_of", "check_agent", "toolset_of"]

_CONFIG_KEY: Final = "sealbus"
"""The member of a tool's metadata that says that it makes its own step."""
_CLOCKS: Final = frozenset({"timestamp", "run_id", "conversation_id", "instructions", "metadata", "usage", "state"})
"""Members of messages and parts that a replay makes anew, or that say nothing to the model."""
_SYSTEM: Final = frozenset({"system-prompt", "instruction"})
_EXECUTING: Final = ("pydantic_ai.",)
_CALL_S: Final = 3600.0


class StepBackend(JournalCallableOperationBackend[Any]):  # type: ignore[misc]
    """Makes each operation of *run* a step."""

    def __init__(self, run: AgentRun, *, default_model_id: str | None) -> None:
        config = RoleBasedOperationConfig(model=None, event=None, capability=None, tool=None, resolve_tool=_config_of)
        super().__init__(agent_name=run.agent, default_model_id=default_model_id, config=config)
        self._run = run

    async def execute(
        self,
        *,
        operation_id: Any,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[Any, ...],
        config: Any,  # noqa: ARG002 - the form of the seam
    ) -> object:
        """Run *body*, or return what it returned in an earlier run of the message."""
        if isinstance(operation_id, ModelRequestId):
            return await self._run.model(_given(operation_id, cache_key), body, _usage)
        if isinstance(operation_id, ToolsetCallToolId):
            return await self._tool(cache_key, body)
        return await self._run.plain(name, [], body)

    async def _tool(self, cache_key: tuple[Any, ...], body: Callable[[], Awaitable[object]]) -> object:
        tool, arguments, context = cache_key[:3]
        use = ToolUse(tool=tool, arguments=to_jsonable_python(arguments), call_id=context.tool_call_id or "")
        if not self._run.is_asked(use.call_id) and self._run.needs_person(tool):
            raise ApprovalRequired
        try:
            return await self._run.tool(use, body)
        except ApprovalRefused as error:
            raise ToolFailed(_refusal(error)) from error
        except ToolFailure as error:
            raise ToolFailed(str(error)) from error


class SealbusDurability(BaseDurabilityCapability[Any]):  # type: ignore[misc]
    """Lets an agent run on the steps of one run."""

    engine_spec: ClassVar[Any] = DurabilityEngineSpec(
        engine_name="sealbus",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        journal_discovery=False,
        tool_config_key=_CONFIG_KEY,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
    )

    def __init__(self, run: AgentRun | None, *, name: str) -> None:
        super().__init__(name=name)
        self._sealbus_run = run

    @property
    def in_durable_context(self) -> bool:
        """Whether there is a run; none while an agent is only checked."""
        return self._sealbus_run is not None

    def get_durable_operation_backend(self) -> Any:
        """Return what makes the operations of this run steps."""
        run = self._sealbus_run
        if run is None:
            run = AgentRun.__new__(AgentRun)
            run.agent = self.name
        return StepBackend(run, default_model_id=self.default_model_id)


class AgentDialogue:
    """The agent *agent* at work for *run*."""

    def __init__(self, run: AgentRun, agent: Agent[Any, Any], deps: Any) -> None:
        self._run = run
        self._agent = agent
        self._options: dict[str, Any] = {"deps": deps, "infer_name": False}
        if not agent._output_validators and not _defers(agent):  # noqa: SLF001 - it refuses the other way late
            self._options["output_type"] = [agent.output_type, DeferredToolRequests]
        self._history: list[Any] | None = None

    def recall(self, said: Sequence[MemoryItem]) -> None:
        """Begin after what was *said* in earlier messages of the conversation."""
        self._history = [
            ModelRequest(parts=[UserPromptPart(content=str(each.content))])
            if each.role == "user"
            else ModelResponse(parts=[TextPart(content=str(each.content))])
            for each in said
        ]

    async def say(self, text: str) -> Any:
        """Return the agent's output to *text*."""
        result = await self._ran(user_prompt=text)
        while isinstance(result.output, DeferredToolRequests):
            result = await self._ran(deferred_tool_results=await self._decided(result.output))
        return result.output

    async def _ran(self, **given: Any) -> Any:
        capability = SealbusDurability(self._run, name=self._run.agent)
        result = await self._agent.run(
            message_history=self._history, capabilities=[capability], **given, **self._options
        )
        self._run.check()
        self._history = result.all_messages()
        return result

    async def _decided(self, requests: DeferredToolRequests) -> DeferredToolResults:
        uses = [_use(call) for call in requests.approvals]
        if uses:
            await self._run.ask_for(uses)
        results = DeferredToolResults()
        for use in uses:
            # A refusal is told where the tool is called: there the decision is judged again.
            results.approvals[use.call_id] = True
        for call in requests.calls:
            results.calls[call.tool_call_id] = await self._called(call)
        return results

    async def _called(self, call: Any) -> Any:
        """Return what a tool worker on the bus answers to a call that is not the agent's own."""
        use = _use(call)
        request = ToolCall(tool_call_id=use.call_id, tool_name=use.tool, arguments=dict(use.arguments))

        async def ask() -> Any:
            context = self._run.context
            return to_jsonable_python((await context.request(request, ToolResult, timeout_s=_CALL_S)).output)

        return await self._run.plain(f"call.{use.tool}", use.arguments, ask)


def check_agent(agent: object, name: str) -> None:
    """Raise ConfigurationError for what cannot be served, by its name."""
    if not isinstance(agent, Agent):
        raise ConfigurationError(f"serve takes a pydantic_ai.Agent, not {type(agent).__name__}")
    if agent.model is None:
        raise ConfigurationError(f"the agent {name!r} has no model: give it one, as in Agent('openai:gpt-5')")
    try:
        SealbusDurability(None, name=name).for_agent(agent)
    except UserError as error:
        raise ConfigurationError(f"the agent {name!r} cannot be served: {error}") from error
    leaves = _leaves(agent)
    for leaf in leaves:
        if type(leaf).__module__.startswith(_EXECUTING) or isinstance(leaf, FunctionToolset | ExternalToolset):
            continue
        raise ConfigurationError(
            f"the agent {name!r} has the toolset {type(leaf).__name__}, whose calls cannot be made steps: write its "
            "tools as functions of a FunctionToolset"
        )
    needing = [tool.name for leaf in leaves if isinstance(leaf, FunctionToolset) for tool in _needing(leaf)]
    if needing and agent._output_validators and not _defers(agent):  # noqa: SLF001 - as above
        raise ConfigurationError(
            f"the agent {name!r} has output validators, and the tool {needing[0]!r} needs an approval: write "
            "output_type=[..., DeferredToolRequests]"
        )


def toolset_of(tools: Tools) -> FunctionToolset[Any]:
    """Return the tools of an app as a toolset."""
    return AppToolset(tools)


class AppToolset(FunctionToolset[Any]):  # type: ignore[misc]
    """The tools of an app, which make their own steps."""

    def __init__(self, tools: Tools) -> None:
        super().__init__([_tool_of(tool) for tool in tools.values()], id=_CONFIG_KEY)
        self.app_tools = tools


def app_tools_of(agent: Agent[Any, Any]) -> dict[str, Tools]:
    """Return the tools of apps that *agent* has, by name."""
    leaves = [leaf for leaf in _leaves(agent) if isinstance(leaf, AppToolset)]
    return {name: leaf.app_tools for leaf in leaves for name in leaf.app_tools}


def _leaves(agent: Agent[Any, Any]) -> list[AbstractToolset[Any]]:
    found: list[AbstractToolset[Any]] = []
    for toolset in agent.toolsets:
        toolset.apply(found.append)
    return found


def _tool_of(tool: AppTool) -> Tool[Any]:
    async def call(ctx: RunContext[Any], **arguments: Any) -> str:
        run = current_run()
        use = ToolUse(tool=tool.name, arguments=arguments, call_id=ctx.tool_call_id or "")
        if run.app_tool_waits(use):
            raise ApprovalRequired
        return await run.app_tool(use)

    made = Tool.from_schema(
        call, tool.name, tool.description, json_schema=tool.schema, takes_ctx=True, sequential=False
    )
    made.metadata = {_CONFIG_KEY: False}
    made.requires_approval = tool.terms.approval is not None
    return made


def _config_of(operation_id: Any, tool: Any, tool_name: str) -> Any:  # noqa: ARG001 - the form of a resolver
    metadata: Mapping[str, Any] = (tool.tool_def.metadata or {}) if tool is not None else {}
    return False if metadata.get(_CONFIG_KEY) is False else None


def _use(call: Any) -> ToolUse:
    return ToolUse(tool=call.tool_name, arguments=to_jsonable_python(call.args_as_dict()), call_id=call.tool_call_id)


def _needing(toolset: FunctionToolset[Any]) -> list[Any]:
    return [tool for tool in toolset.tools.values() if tool.requires_approval]


def _defers(agent: Agent[Any, Any]) -> bool:
    output = agent.output_type
    return DeferredToolRequests in (output if isinstance(output, list | tuple) else [output])


def _refusal(error: ApprovalRefused) -> str:
    return f"not allowed ({error.reason}): {text_of(error)}"


def _given(operation_id: Any, cache_key: tuple[Any, ...]) -> list[Any]:
    """Return what identifies a model request: the conversation, the tools and the model, without instructions."""
    _, messages, _, parameters, context = cache_key
    plain = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    model = getattr(context.model, "model_name", "")
    tools = [[tool.name, tool.parameters_json_schema] for tool in parameters.function_tools]
    outputs = [[tool.name, tool.parameters_json_schema] for tool in parameters.output_tools]
    return [operation_id.model_id or model, [_timeless(message) for message in plain], tools, outputs]


def _timeless(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = [
        {name: value for name, value in part.items() if name not in _CLOCKS}
        for part in message.get("parts", ())
        if part.get("part_kind") not in _SYSTEM
    ]
    return {"kind": message.get("kind"), "parts": parts}


def _usage(response: Any) -> ModelUsage | None:
    """Return what a model response in plain JSON values has used."""
    usage = response.get("usage") if isinstance(response, Mapping) else None
    if not isinstance(usage, Mapping):
        return None
    parts = response.get("parts", ())
    return ModelUsage(
        model=str(response.get("model_name") or "unknown"),
        provider=response.get("provider_name"),
        input_tokens=int(usage.get("input_tokens") or 0),
        output_tokens=int(usage.get("output_tokens") or 0),
        cached_input_tokens=int(usage.get("cache_read_tokens") or 0),
        tool_calls=sum(part.get("part_kind") == "tool-call" for part in parts),
    )
