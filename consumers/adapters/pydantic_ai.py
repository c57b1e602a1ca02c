"""Pydantic AI agents on the bus, and the tools of an app as a toolset of theirs.

    from sealbus.adapters import pydantic_ai

    app = App("desk@svc")
    app.include(pydantic_ai.serve(agent))

A model request and a tool call are steps: a run that died pays again only for the call under way. A tool with
`requires_approval=True` waits for a person. Needs `sealbus[pydantic-ai]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from consumers.adapters.run import AgentRun, declare_untrusted
from consumers.adapters.serving import Dialogue, ServeTerms, needs, served
from consumers.app.router import Router

__all__ = ["serve", "tools", "untrusted"]

_Tool = TypeVar("_Tool")


def serve(agent: Any, *, name: str = "", deps: Any = None, **terms: Any) -> Router:
    """Return a router in which the `pydantic_ai.Agent` *agent* answers messages.

        app.include(pydantic_ai.serve(agent, on=TaskRequest, returns=TaskResult))

    *name* is the agent's name in steps, by default its own; a change of it asks the model again. *deps* are the agent's
    dependencies: a value, or a function of the payload.

    *terms*: `on` and `returns` are the message types, by default TaskRequest and TaskResult. `approval` is the
    `Approval` for tools that need one, by default that of a person. `prompt` is a function of the payload that returns
    what the agent is told. `idle_s`, by default 600: a run in which nothing begins or ends for so long is cut.
    `options` are further options of `app.on`. With `memory="conversation"` the agent
    hears what its requester said before in the conversation, and what it answered. `local` is reserved.

    Raises ImportError without Pydantic AI, ConfigurationError for an agent that cannot be served.
    """
    needs("pydantic_ai", "pydantic-ai")
    from consumers.adapters.pydantic_ai_engine import AgentDialogue, app_tools_of, check_agent

    called = name or getattr(agent, "name", None) or "agent"
    check_agent(agent, called)

    def begin(run: AgentRun, payload: object) -> Dialogue:
        return AgentDialogue(run, agent, deps(payload) if _is_function(deps) else deps)

    return served(begin, ServeTerms(**terms), agent=called, framework="pydantic_ai", app_tools=app_tools_of(agent))


def tools(app: Router) -> Any:
    """Return the tools and handoffs of *app* as a toolset: `Agent(..., toolsets=[pydantic_ai.tools(app)])`.

    They are called within a run that `serve` began, as `app.tools.call` calls them: policy, step, taint.
    """
    needs("pydantic_ai", "pydantic-ai")
    from consumers.adapters.pydantic_ai_engine import toolset_of

    return toolset_of(app.tools)


def untrusted(tool: _Tool) -> _Tool:
    """Declare that *tool*, a function or a `Tool`, returns text from outside, and return it.

        @agent.tool_plain
        @pydantic_ai.untrusted
        def fetch(url: str) -> str: ...

    A run that has called it may inform, and no longer give orders.
    """
    return declare_untrusted(tool)


def _is_function(value: object) -> bool:
    return isinstance(value, Callable) and not isinstance(value, type)  # type: ignore[arg-type]
