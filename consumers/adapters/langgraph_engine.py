"""The engine behind `langgraph`: runs of a graph on a saver of the message, and its interrupts as approvals.

Owns the dialogue with a graph: what it begins with, what its interrupts ask for, and what it has used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import StructuredTool
from langgraph._internal import _serde
from langgraph.config import get_config
from langgraph.pregel import Pregel
from langgraph.types import Command, interrupt

from bus.errors import ApprovalRefused, ConfigurationError, Reject, text_of
from bus.payloads.kept_values import plain_of
from bus.telemetry.logs import get_logger
from consumers.adapters.langgraph_interrupts import InterruptCallbacks, forget_interrupts, swallowed_in
from consumers.adapters.langgraph_saver import Saver, StepRows, strict_serializer
from consumers.adapters.run import AgentRun, ModelUsage, ToolUse, current_run
from consumers.delivery.inbox.conversation import MemoryItem
from consumers.delivery.inbox.step_call import StepCall
from consumers.tools.registry import Tools
from consumers.tools.tool import Tool as AppTool

__all__ = ["GraphDialogue", "allowed_classes", "check_graph", "langchain_tools_of"]

_APP: Final = "sealbus_call"
"""The member of an interrupt's value that says that a tool of an app asks."""
_MAX_ROUNDS: Final = 100
_MAX_SHOWN: Final = 200

_log = get_logger("adapters")


class GraphDialogue:
    """The graph *graph* at work for *run*."""

    def __init__(self, run: AgentRun, graph: Any, given: GraphTerms, payload: object) -> None:
        self._run = run
        self._terms = given
        self._payload = payload
        self._turn = 0
        self._recalled: list[tuple[str, str]] = []
        self._thread = run.context.message.message_id
        self._saver = Saver(
            StepRows(self._row), serde=strict_serializer(given.allowed), swallowed=partial(swallowed_in, run)
        )
        self._graph = graph.copy({"checkpointer": self._saver})
        self._config: dict[str, Any] = {
            "configurable": {"thread_id": self._thread},
            "recursion_limit": given.recursion_limit,
            "callbacks": [PolicyCallbacks(run), InterruptCallbacks(), RunCallbacks(run)],
        }

    def recall(self, said: Sequence[MemoryItem]) -> None:
        """Begin after what was *said* in earlier messages of the conversation."""
        self._recalled = [(each.role, str(each.content)) for each in said]

    async def say(self, text: str) -> Any:
        """Return the graph's output to *text*."""
        self._turn += 1
        if self._turn == 1:
            await self._saver.load()
        if self._saver.inputs(self._thread) < self._turn:
            given = self._terms.input_of(self._graph, self._payload, text)
            if self._recalled and isinstance(given, dict) and "messages" in given:
                given = {**given, "messages": [*self._recalled, *given["messages"]]}
            # Later turns of this message have it in the graph's own state.
            self._recalled = []
            await self._invoke(given)
        else:
            # A node that was interrupted runs again: what it asks for now is compared with what was agreed to.
            # One whose writes are kept is not in `next`, and what follows from it has not run.
            state = await self._graph.aget_state(self._config)
            if state.tasks:
                await self._invoke(None)
        for _ in range(_MAX_ROUNDS):
            state = await self._graph.aget_state(self._config)
            if not state.interrupts:
                return self._terms.output_of(state.values)
            answers = await self._decided(state.interrupts)
            await self._invoke(Command(resume=answers))
        raise Reject(f"the graph was interrupted {_MAX_ROUNDS} times")

    async def _invoke(self, given: Any) -> None:
        self._saver.begin()
        context = self._terms.context_of(self._payload)
        try:
            await self._graph.ainvoke(given, self._config, durability="sync", context=context)
        except (Exception, BaseExceptionGroup):
            # What a node raises after it has swallowed its interrupt is not believed either.
            if not self._saver.lost:
                raise
        finally:
            forget_interrupts(self._run)
        self._run.check()
        if lost := self._saver.lost:
            detail = "a node has caught its interrupt; its result does not count: let GraphInterrupt pass"
            _log.warning("adapters.interrupt_swallowed", agent=self._run.agent, asked=_shown(lost), detail=detail)

    async def _row(self, number: int, made: Callable[[], Awaitable[Any]]) -> Any:
        # A later run gets the level with the row: it does not call the tools again.
        self._run.take_in()
        call = StepCall(name="langgraph", function=made, key=["langgraph", self._run.agent, number])
        return await self._run.take(call)

    async def _decided(self, interrupts: Sequence[Any]) -> dict[str, Any]:
        asked = {each.id: _uses_of(each) for each in interrupts}
        await self._run.ask_for([use for uses in asked.values() for use in uses])
        return {each.id: await self._answer(each, asked[each.id]) for each in interrupts}

    async def _answer(self, each: Any, uses: Sequence[ToolUse]) -> Any:
        if _APP in each.value:
            # The tool of the app takes the approval itself, with its arguments.
            return {"approved": True}
        refusals = [await self._refusal(use) for use in uses]
        if "action_requests" in each.value:
            decisions = [{"type": "approve"} if why is None else {"type": "reject", "message": why} for why in refusals]
            return {"decisions": decisions}
        (why,) = refusals
        return {"approved": True} if why is None else {"approved": False, "reason": why}

    async def _refusal(self, use: ToolUse) -> str | None:
        try:
            await self._run.agreed(use)
        except ApprovalRefused as error:
            return f"not allowed ({error.reason}): {text_of(error)}"
        return None


class GraphTerms:
    """How a graph is given its input and asked for its output. *make_input* and *read_output* are the user's."""

    def __init__(
        self,
        allowed: Sequence[Any],
        *,
        make_input: Callable[[Any, str], Any] | None,
        read_output: Callable[[Any], Any] | None,
        context: Any,
        recursion_limit: int,
    ) -> None:
        self.allowed = allowed
        self.recursion_limit = recursion_limit
        self._make_input = make_input
        self._read_output = read_output
        self._context = context

    def input_of(self, graph: Any, payload: object, text: str) -> Any:
        """Return what the graph begins with: messages, where its state has them, else the payload's members."""
        if self._make_input is not None:
            return self._make_input(payload, text)
        if "messages" in graph.channels:
            return {"messages": [("user", text)]}
        plain = plain_of(payload)
        known = {name: value for name, value in plain.items() if name in graph.channels}
        if not known:
            raise ConfigurationError(
                f"the state of the graph has neither messages nor a member of {type(payload).__name__}: give "
                "input=, a function of payload and text"
            )
        return known

    def output_of(self, values: Any) -> Any:
        """Return what the graph has come to: the text of its last message, or its state."""
        if self._read_output is not None:
            return self._read_output(values)
        messages = values.get("messages") if isinstance(values, Mapping) else None
        if messages and isinstance(messages[-1], BaseMessage):
            # A text with methods of its own.
            return str(messages[-1].text)
        return values

    def context_of(self, payload: object) -> Any:
        """Return the graph's context for one payload."""
        is_function = callable(self._context) and not isinstance(self._context, type)
        return self._context(payload) if is_function else self._context


class RunCallbacks(AsyncCallbackHandler):  # type: ignore[misc]
    """Reports what models have used, lowers the run by what tools have returned, and shows that it is alive."""

    run_inline = True

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._nodes: dict[Any, str] = {}
        """The node that a model call is made in, by the id of the call; it is the same in a replay."""

    async def on_chat_model_start(self, *_: Any, run_id: Any, **options: Any) -> None:
        """Note in which node a model is called."""
        self._run.take_in()
        metadata = options.get("metadata") or {}
        self._nodes[run_id] = str(metadata.get("langgraph_checkpoint_ns", ""))

    async def on_chain_start(self, *_: Any, **__: Any) -> None:
        """Note that a node begins."""
        self._run.alive()

    async def on_llm_end(self, response: Any, *, run_id: Any, **_: Any) -> None:
        """Report what a model call has used."""
        node = self._nodes.pop(run_id, "")
        for generations in response.generations:
            for each in generations:
                used = _usage(getattr(each, "message", None))
                if used is not None:
                    await self._run.report(used, self._run.key("model", [node, used.model]))

    async def on_tool_end(self, output: Any, **options: Any) -> None:
        """Lower the run by what a tool has returned."""
        self._run.taint(str(options.get("name") or getattr(output, "name", "") or ""))


class PolicyCallbacks(BaseCallbackHandler):  # type: ignore[misc]
    """Lets a run use only what the policy allows. It is called before each tool, in the tool's own thread."""

    run_inline = True
    raise_error = True

    def __init__(self, run: AgentRun) -> None:
        self._run = run

    def on_tool_start(self, serialized: Any, input_str: str, **options: Any) -> None:  # noqa: ARG002 - the form
        """Raise ApprovalRefused for a tool that the policy forbids, or wants a person for."""
        name = str((serialized or {}).get("name") or options.get("name") or "")
        if (refusal := self._run.refusal_of(name)) is not None:
            self._run.ended_by(refusal)


def _usage(message: Any) -> ModelUsage | None:
    used = message.usage_metadata if isinstance(message, AIMessage) else None
    if message is None:
        return None
    used = used or {}
    about = message.response_metadata or {}
    return ModelUsage(
        model=str(about.get("model_name") or about.get("model") or "unknown"),
        provider=about.get("model_provider"),
        input_tokens=int(used.get("input_tokens") or 0),
        output_tokens=int(used.get("output_tokens") or 0),
        cached_input_tokens=int((used.get("input_token_details") or {}).get("cache_read") or 0),
        tool_calls=len(getattr(message, "tool_calls", ())),
    )


def _shown(interrupts: Sequence[Any]) -> str:
    return ", ".join(f"{each.value!r:.{_MAX_SHOWN}}" for each in interrupts)


def _uses_of(each: Any) -> list[ToolUse]:
    """Return what an interrupt asks for. Raises Reject for one that is no question about a tool."""
    value = each.value
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        return [
            ToolUse(
                tool=str(request.get("name") or request.get("action")),
                arguments=request.get("args") or request.get("arguments") or {},
                call_id=f"{each.id}:{place}",
                place=f"{each.id}:{place}",
            )
            for place, request in enumerate(value["action_requests"])
        ]
    if isinstance(value, Mapping) and isinstance(value.get("tool"), str) and isinstance(value.get("args"), Mapping):
        call_id, node = value.get(_APP) or (each.id, each.id)
        return [ToolUse(tool=value["tool"], arguments=dict(value["args"]), call_id=call_id, place=node)]
    raise Reject(
        "the graph asks for something other than an approval, which is not possible yet: interrupt with "
        "{'tool': ..., 'args': {...}} or with action_requests"
    )


def check_graph(graph: object) -> None:
    """Raise ConfigurationError for what cannot be served, by its name."""
    if not isinstance(graph, Pregel):
        compiled = ": call .compile() first" if hasattr(graph, "compile") else ""
        raise ConfigurationError(f"serve takes a compiled LangGraph graph, not {type(graph).__name__}{compiled}")
    if graph.checkpointer is not None:
        raise ConfigurationError(
            f"the graph {graph.name!r} has a checkpointer, {type(graph.checkpointer).__name__}: compile it without "
            "one, its checkpoints are kept with the message"
        )
    if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
        raise ConfigurationError(
            f"the graph {graph.name!r} has interrupt_before or interrupt_after, which ask for nothing that a person "
            "could agree to: call interrupt({'tool': ..., 'args': {...}}) in the node"
        )


def allowed_classes(graph: Any, more: Sequence[type[Any]]) -> list[tuple[str, ...]]:
    """Return the classes that checkpoints of *graph* may hold: those of its state, and *more*."""
    builder = getattr(graph, "builder", None)
    schemas = [getattr(builder, name, None) for name in ("state_schema", "input_schema", "output_schema")]
    found = _serde.build_serde_allowlist(schemas=schemas, channels=graph.channels)
    return sorted({*found, *((cls.__module__, cls.__qualname__) for cls in more)})


def langchain_tools_of(tools: Tools) -> list[StructuredTool]:
    """Return the tools of an app as tools of LangChain."""
    return [_app_tool(tools, tool) for tool in tools.values()]


def _app_tool(tools: Tools, tool: AppTool) -> StructuredTool:
    async def call(**arguments: Any) -> str:
        run = current_run()
        run.know(tool.name, tools)
        node = str(get_config()["configurable"].get("checkpoint_ns", ""))
        use = ToolUse(tool=tool.name, arguments=arguments, call_id=f"{node}/{tool.name}/{arguments}", place=node)
        if run.app_tool_waits(use):
            interrupt({"tool": tool.name, "args": arguments, _APP: [use.call_id, use.place]})
        return await run.app_tool(use)

    return StructuredTool(
        name=tool.name, description=tool.description or tool.name, args_schema=tool.schema, coroutine=call
    )
