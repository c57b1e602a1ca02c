"""A workflow as a Mermaid diagram, with its progress. Pure: ids are numbers, labels are escaped for the grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from consumers.agents.workflows.definition import Emit, EndNode, Parallel, WaitRetry, Workflow, edges_of

__all__ = ["mermaid_of_workflow"]

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9 _.,:@/()-]")
_LIMIT: Final = 60


def mermaid_of_workflow(definition: Workflow, progress: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a flow chart of *definition*; *progress* maps nodes to `done` or `here`."""
    numbers = {node.id: f"n{at}" for at, node in enumerate(definition.nodes)}
    lines = ["flowchart TD"]
    for node in definition.nodes:
        name = numbers[node.id]
        match node:
            case Emit():
                lines.append(
                    f'    {name}["{_label(f"{node.id}: {node.message.performative} {node.message.receiver}")}"]'
                )
            case Parallel():
                receivers = ", ".join(branch.message.receiver for branch in node.branches)
                lines.append(f'    {name}[["{_label(f"{node.id}: {node.join} of {receivers}")}"]]')
            case WaitRetry():
                lines.append(f'    {name}{{{{"{_label(f"{node.id}: {node.policy.max_retries} times")}"}}}}')
            case EndNode():
                lines.append(f'    {name}(["{_label(node.id)}"])')
    for node in definition.nodes:
        lines += [
            f"    {numbers[node.id]} -->|{_label(on)}| {numbers[to]}" for on, to, _ in edges_of(node) if to in numbers
        ]
    for state, style in (("done", "fill:#d7f0d7,stroke:#2a7a2a"), ("here", "fill:#fff3c4,stroke:#a67c00")):
        if chosen := [numbers[name] for name, stated in progress.items() if stated == state and name in numbers]:
            lines += [f"    classDef {state} {style}", f"    class {','.join(chosen)} {state}"]
    return "\n".join(lines)


def _label(text: str) -> str:
    return _UNSAFE.sub("_", text)[:_LIMIT]
