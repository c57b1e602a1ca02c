"""Workflows: a small language for work among agents (seed 003 section D), and the agent that runs it.

    from sealbus.workflows import workflow_engine

    async with workflow_engine().running("sqlite:///sealbus.db"):
        ...                                                             # or: sealbus serve workflows

`definition` has the form of a workflow, `variables` replaces `${...}`, `advance` is the pure state machine, `check`
finds mistakes in a definition, `diagram` draws it, and `engine` is the saga that carries out decisions as requests and
timers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consumers.agents.workflows.engine import workflow_engine as workflow_engine


def __getattr__(name: str) -> Any:
    """Import the engine when it is asked for: it needs most of the vocabulary."""
    if name != "workflow_engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from consumers.agents.workflows import engine

    return engine.workflow_engine
