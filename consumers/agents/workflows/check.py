"""Find mistakes in a workflow before it runs; each finding has its location and a fix. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from consumers.agents.workflows.definition import (
    Emit,
    EndNode,
    Parallel,
    WaitRetry,
    Workflow,
    WorkflowBranch,
    edges_of,
)
from consumers.agents.workflows.variables import BUILT_IN_VARIABLES, references

__all__ = ["WorkflowFinding", "check_workflow"]


class WorkflowFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, or a doubt."""

    severity: Literal["error", "warning"]
    pointer: str
    text: str
    cure: str


def check_workflow(definition: Workflow) -> list[WorkflowFinding]:
    """Return the findings about *definition*, errors first."""
    found = [*_names(definition), *_references(definition), *_reach(definition), *_fixed(definition)]
    return sorted(found, key=lambda finding: (finding.severity, finding.pointer))


def _error(pointer: str, text: str, cure: str) -> WorkflowFinding:
    return WorkflowFinding(severity="error", pointer=pointer, text=text, cure=cure)


def _names(definition: Workflow) -> Iterator[WorkflowFinding]:
    known, seen = {node.id for node in definition.nodes}, set()
    for at, node in enumerate(definition.nodes):
        if node.id in seen:
            yield _error(f"/nodes/{at}/id", f"{node.id!r} is the id of two nodes", "give each node an id of its own")
        seen.add(node.id)
        for _, to, below in edges_of(node):
            if to not in known:
                yield _error(f"/nodes/{at}{below}", f"no node {to!r}", f"name one of {', '.join(sorted(known))}")
        if isinstance(node, Parallel) and len({branch.id for branch in node.branches}) < len(node.branches):
            yield _error(f"/nodes/{at}/branches", "two branches have one id", "give each branch an id of its own")


def _references(definition: Workflow) -> Iterator[WorkflowFinding]:
    variables = {*definition.variables, *BUILT_IN_VARIABLES}
    answered = {node.id for node in definition.nodes if isinstance(node, Emit)}
    answered |= {node.id for node in definition.nodes if isinstance(node, Parallel)}
    for at, node in enumerate(definition.nodes):
        for name in references(_texts(node)):
            first, _, rest = name.partition(".")
            if first == "nodes":
                if rest.partition(".")[0] not in answered:
                    yield _error(f"/nodes/{at}", f"${{{name}}}: no such node is answered", "name a node of type emit")
            elif name not in variables:
                cure = "add it to variables"
                yield _error(f"/nodes/{at}", f"${{{name}}}: unknown variable", cure)
    for name, value in definition.variables.items():
        for each in references(value):
            if each.startswith("nodes.") or each not in variables:
                text = f"${{{each}}}: a variable is computed at the start, from variables before it"
                yield _error(f"/variables/{name}", text, "use a variable defined before it, or a built-in one")


def _reach(definition: Workflow) -> Iterator[WorkflowFinding]:
    by_id = definition.by_id()
    following = {node.id: {to for _, to, _ in edges_of(node) if to in by_id} for node in definition.nodes}
    reached = _closure(following, definition.nodes[0].id)
    ends = {node.id for node in definition.nodes if isinstance(node, EndNode)}
    if not ends & reached:
        yield _error("/nodes", "no end is ever reached", 'add a node {"id": "finish", "type": "end"} and lead to it')
    for at, node in enumerate(definition.nodes):
        if node.id not in reached:
            yield WorkflowFinding(
                severity="warning",
                pointer=f"/nodes/{at}",
                text=f"{node.id!r} is never reached",
                cure="lead to it, or remove it",
            )
        elif not ends & _closure(following, node.id):
            yield _error(
                f"/nodes/{at}",
                f"from {node.id!r} no end can be reached: its nodes form a loop",
                "add an edge out of it",
            )
        elif not isinstance(node, EndNode | WaitRetry) and not _takes_errors(node):
            yield WorkflowFinding(
                severity="warning",
                pointer=f"/nodes/{at}/out",
                text=f"an error of {node.id!r} fails the workflow",
                cure='add "fallback": {"on": "error", "to": ...} where that is not meant',
            )


def _takes_errors(node: Emit | Parallel) -> bool:
    return any(on in ("error", "any") for on, *_ in list(edges_of(node))[1:])


def _fixed(definition: Workflow) -> Iterator[WorkflowFinding]:
    """Refuse references through which untrusted text would choose a receiver, a type, or a key of the content."""
    for at, node in enumerate(definition.nodes):
        emits: tuple[Emit | WorkflowBranch, ...] = (
            (node,) if isinstance(node, Emit) else node.branches if isinstance(node, Parallel) else ()
        )
        for each in emits:
            for name in ("receiver", "type"):
                if "${" in (getattr(each.message, name) or ""):
                    yield _error(
                        f"/nodes/{at}/message/{name}",
                        f"{name} is fixed: nothing is replaced there",
                        "write it out; the receiver must not depend on an answer",
                    )
            for name in _keys(each.message.content):
                if "${" in name:
                    yield _error(f"/nodes/{at}/message/content", f"the key {name!r} is fixed", "replace values only")


def _texts(node: object) -> object:
    if isinstance(node, Emit):
        return node.message.content
    if isinstance(node, Parallel):
        return [branch.message.content for branch in node.branches]
    return node.result if isinstance(node, EndNode) else None


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield str(name)
            yield from _keys(each)
    elif isinstance(value, list):
        for each in value:
            yield from _keys(each)


def _closure(following: dict[str, set[str]], start: str) -> set[str]:
    seen, waiting = {start}, [start]
    while waiting:
        for each in following.get(waiting.pop(), set()):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    return seen
