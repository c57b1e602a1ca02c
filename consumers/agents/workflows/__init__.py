"""Workflows: a small language for work among agents (seed 003 section D), and the agent that runs it.

    from sealbus import workflows

    async with workflows.engine_app().running("sqlite:///sealbus.db"):
        ...                                                             # or: sealbus workflow serve

`definition` is the form, `variables` what stands for `${...}`, `advance` the meaning as a pure state machine, `check`
what is wrong with a definition, `diagram` its picture, `engine` the saga that carries decisions out as asks and timers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consumers.agents.workflows.engine import engine_app as engine_app


def __getattr__(name: str) -> Any:
    """Import the engine when it is asked for: it needs most of the vocabulary."""
    if name != "engine_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from consumers.agents.workflows import engine

    return engine.engine_app
