"""Agents of the OpenAI Agents SDK on the bus, and the tools of an app as theirs.

    from sealbus.adapters import openai_agents

    app = App("desk@svc")
    app.include(openai_agents.serve(agent))

A model call and a tool call are steps: a run that died pays again only for the call under way. A tool with
`needs_approval=True` waits for a person. Needs `sealbus[openai]`.
"""

from __future__ import annotations

from typing import Any, TypeVar

from consumers.adapters.run import AgentRun, declare_untrusted
from consumers.adapters.serving import Dialogue, ServeTerms, needs, served
from consumers.app.router import Router

__all__ = ["serve", "tools", "untrusted"]

_Tool = TypeVar("_Tool")


def serve(
    agent: Any, *, context: Any = None, max_turns: int = 30, run_config: Any = None, hooks: Any = None, **terms: Any
) -> Router:
    """Return a router in which the `agents.Agent` *agent* answers messages.

        app.include(openai_agents.serve(agent, on=TaskRequest, returns=TaskResult))

    The whole graph is cloned here, once: handoffs, agents as tools, servers of tools; what is added to an agent later
    is not served. *context*, *max_turns*, *run_config* and *hooks* are those of `Runner.run`; *context* may be a
    function of the payload. The SDK's traces are off, and the model is told of a tool that is not there.

    *terms*: `on` and `returns` are the message types, by default TaskRequest and TaskResult. `approval` is the
    `Approval` for tools that need one, by default that of a person. `prompt` is a function of the payload that returns
    what the agent is told. `idle_s`, by default 600: a run in which nothing begins or ends for so long is cut.
    `options` are further options of `app.on`. With `memory="conversation"` the agent
    hears what its requester said before in the conversation, and what it answered. `local` is reserved.

    Raises ImportError without the SDK. Raises ConfigurationError, with the name of the part, for what cannot be made a
    step: computer tools, tools that decide about their own approval, agents as tools with a session or a stream,
    guardrails that run an agent.
    """
    needs("agents", "openai")
    from consumers.adapters.openai_agents_engine import RunnerDialogue, agent_graph_of, config_of, connecting

    config = config_of(run_config)
    graph = agent_graph_of(agent, config)

    def begin(run: AgentRun, payload: object) -> Dialogue:
        given = context(payload) if callable(context) and not isinstance(context, type) else context
        options = {"context": given, "max_turns": max_turns, "run_config": config, "hooks": hooks}
        return RunnerDialogue(run, graph, options)

    return served(
        begin,
        ServeTerms(**terms),
        agent=agent.name,
        framework="openai_agents",
        app_tools=graph.app_tools,
        lifespan=connecting(graph),
    )


def tools(app: Router) -> list[Any]:
    """Return the tools and handoffs of *app* as tools of the SDK: `Agent(..., tools=openai_agents.tools(app))`.

    They are called within a run that `serve` began, as `app.tools.call` calls them: policy, step, taint.
    """
    needs("agents", "openai")
    from consumers.adapters.openai_agents_graph import function_tools_of

    return function_tools_of(app.tools)


def untrusted(tool: _Tool) -> _Tool:
    """Declare that *tool*, a function or a `FunctionTool`, returns text from outside, and return it.

        @openai_agents.untrusted
        @function_tool
        async def fetch(url: str) -> str: ...

    A run that has called it may inform, and no longer give orders.
    """
    return declare_untrusted(tool)
