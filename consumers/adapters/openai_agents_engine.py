"""The engine behind `openai_agents`: runs of the OpenAI Agents SDK between which a person decides.

Owns the dialogue with an agent: what is said, its interruptions, and its connections to servers of tools.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from agents import MultiProvider, RunConfig, Runner
from agents.mcp import MCPServerManager

from bus.errors import ApprovalRefused, ConfigurationError
from consumers.adapters.openai_agents_graph import AgentGraph, action_arguments, patch_arguments
from consumers.adapters.openai_agents_model import arguments_of
from consumers.adapters.run import AgentRun, ToolUse
from consumers.delivery.inbox.conversation import MemoryItem

__all__ = ["RunnerDialogue", "config_of", "connecting", "agent_graph_of"]


class RunnerDialogue:
    """The agent of *graph* at work for *run*."""

    def __init__(self, run: AgentRun, graph: AgentGraph, options: Mapping[str, Any]) -> None:
        self._run = run
        self._agent: Any = graph.root
        self._options = options
        self._items: list[Any] = []

    def recall(self, said: Sequence[MemoryItem]) -> None:
        """Begin after what was *said* in earlier messages of the conversation."""
        self._items = [{"role": each.role, "content": str(each.content)} for each in said]

    async def say(self, text: str) -> Any:
        """Return the agent's output to *text*."""
        given: Any = [*self._items, {"role": "user", "content": text}] if self._items else text
        result = await Runner.run(self._agent, given, **self._options)
        self._run.check()
        while result.interruptions:
            state = result.to_state()
            await self._decide(state, state.get_interruptions())
            result = await Runner.run(self._agent, state, **self._options)
            self._run.check()
        self._items, self._agent = result.to_input_list(), result.last_agent
        return result.final_output

    async def _decide(self, state: Any, interruptions: list[Any]) -> None:
        uses = [use_of(item) for item in interruptions]
        await self._run.ask_for(uses)
        for item, use in zip(interruptions, uses, strict=True):
            if _type_of(item) != "mcp_approval_request":
                # A refusal is told where the tool is called: there the decision is judged again.
                state.approve(item)
                continue
            try:
                await self._run.agreed(use)
                state.approve(item)
            except ApprovalRefused as error:
                state.reject(item, rejection_message=f"not allowed ({error.reason}): {error}")


def use_of(item: Any) -> ToolUse:
    """Return the tool call that an interruption asks for."""
    raw = item.raw_item
    member = raw.get if isinstance(raw, Mapping) else lambda name, default=None: getattr(raw, name, default)
    kind = _type_of(item)
    call_id = member("call_id") or member("id") or ""
    if kind == "apply_patch_call":
        operation = member("operation") or (member("operations") or [{}])[0]
        return ToolUse(tool=item.tool_name or "apply_patch", arguments=patch_arguments(operation), call_id=call_id)
    if kind in ("shell_call", "local_shell_call"):
        action = action_arguments(member("action"))
        return ToolUse(tool=item.tool_name or "shell", arguments=action, call_id=call_id)
    if kind == "custom_tool_call":
        return ToolUse(tool=item.tool_name or "", arguments={"input": member("input") or ""}, call_id=call_id)
    arguments = member("arguments") or "{}"
    return ToolUse(tool=item.tool_name or member("name") or "", arguments=arguments_of(arguments), call_id=call_id)


def _type_of(item: Any) -> str:
    raw = item.raw_item
    return str(raw.get("type") if isinstance(raw, Mapping) else getattr(raw, "type", ""))


def config_of(given: Any) -> RunConfig:
    """Return the SDK's settings of a run: *given*, without traces to the provider.

    By default the SDK raises for a tool that is not there: here the model is told, as of every wrong call.
    """
    if given is None:
        given = RunConfig()
    if not isinstance(given, RunConfig):
        raise ConfigurationError(f"run_config is {type(given).__name__}: give an agents.RunConfig")
    if given.model is not None or given.sandbox is not None:
        raise ConfigurationError(
            "run_config sets model= or sandbox=, which cannot be made steps: give each agent its model"
        )
    own = given.tool_not_found_behavior
    told = "return_error_to_model" if own == RunConfig().tool_not_found_behavior else own
    return dataclasses.replace(given, tracing_disabled=True, tool_not_found_behavior=told)


def agent_graph_of(agent: Any, config: RunConfig) -> AgentGraph:
    """Return the clone of *agent*, whose models are found by the provider of *config*."""
    provider = config.model_provider or MultiProvider()
    return AgentGraph(agent, provider.get_model)


def connecting(graph: AgentGraph) -> Callable[[], AsyncIterator[None]] | None:
    """Return a lifespan that connects the servers of tools; None without one."""
    if not graph.servers:
        return None

    async def mcp_servers() -> AsyncIterator[None]:
        new = [server for server in graph.servers if getattr(server, "session", None) is None]
        async with MCPServerManager(new, strict=True, connect_in_parallel=True):
            yield

    return mcp_servers
