"""LangGraph graphs on the bus, and the tools of an app as tools of LangChain.

    from sealbus.adapters import langgraph

    app = App("desk@svc")
    app.include(langgraph.serve(graph))

The checkpoints of a graph are kept with its message: a run that died pays again only for the nodes under way. A node
that interrupts with a tool and its arguments waits for a person. Needs `sealbus[langgraph]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from consumers.adapters.run import AgentRun, current_run, declare_untrusted
from consumers.adapters.serving import Dialogue, ServeTerms, needs, served
from consumers.app.router import Router

__all__ = ["serve", "step", "tools", "untrusted"]

_Tool = TypeVar("_Tool")


def serve(
    graph: Any,
    *,
    name: str = "",
    input: Callable[[Any, str], Any] | None = None,  # noqa: A002 - the framework's word
    output: Callable[[Any], Any] | None = None,
    context: Any = None,
    allow: Sequence[type[Any]] = (),
    recursion_limit: int = 100,
    **terms: Any,
) -> Router:
    """Return a router in which the compiled *graph* answers messages.

        app.include(langgraph.serve(graph, on=TaskRequest, returns=TaskResult))

    The unit that is paid once is the node: make one model call in each, or call `langgraph.step` in it. A node that
    interrupts with `{"tool": name, "args": {...}}`, or with `action_requests`, waits for a person, and gets
    `{"approved": True}`, or `False` with a `reason`; it runs again from its beginning, as ever in LangGraph. What a
    node returns after it has caught its own interrupt does not count; `except Exception` lets one pass.

    *name* is the graph's name in steps, by default its own. *input* makes what the graph begins with of the payload and
    the text of the prompt, by default a message of a user; *output* reads the answer of the state, by default the text
    of the last message. *context* is that of `ainvoke`, or a function of the payload. Checkpoints hold objects of the
    classes of the state alone, and of those in *allow*.

    *terms*: `on` and `returns` are the message types, by default TaskRequest and TaskResult. `approval` is the
    `Approval` for tools that need one, by default that of a person. `prompt` is a function of the payload that returns
    what the agent is told. `idle_s`, by default 600: a run in which nothing begins or ends for so long is cut.
    `options` are further options of `app.on`. With `memory="conversation"` the agent
    hears what its requester said before in the conversation, and what it answered. `local` is reserved.

    Raises ImportError without LangGraph, ConfigurationError for a graph that cannot be served, such as one with a
    checkpointer of its own.
    """
    needs("langgraph", "langgraph")
    from consumers.adapters.langgraph_engine import GraphDialogue, GraphTerms, allowed_classes, check_graph

    check_graph(graph)
    given = GraphTerms(
        allowed_classes(graph, allow),
        make_input=input,
        read_output=output,
        context=context,
        recursion_limit=recursion_limit,
    )

    def begin(run: AgentRun, payload: object) -> Dialogue:
        return GraphDialogue(run, graph, given, payload)

    called = name or getattr(graph, "name", None) or "graph"
    return served(begin, ServeTerms(**terms), agent=called, framework="langgraph")


async def step(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of a step within a node: the `context.step` of the message that the graph works for.

    plan = await langgraph.step("plan", call_model, state["goal"])
    """
    return await current_run().context.step(name, function, *arguments, **options)


def tools(app: Router) -> list[Any]:
    """Return the tools and handoffs of *app* as tools of LangChain, for a `ToolNode` or `create_agent`.

    They are called within a run that `serve` began, as `app.tools.call` calls them: policy, step, taint.
    """
    needs("langgraph", "langgraph")
    from consumers.adapters.langgraph_engine import langchain_tools_of

    return langchain_tools_of(app.tools)


def untrusted(tool: _Tool) -> _Tool:
    """Declare that *tool*, a function or a tool of LangChain, returns text from outside, and return it.

    A run that has called it may inform, and no longer give orders.
    """
    return declare_untrusted(tool)
