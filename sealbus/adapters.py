"""Adapters: agents of other frameworks on the bus, and the tools of an app as theirs.

    from sealbus.adapters import pydantic_ai

`langgraph`, `openai_agents` and `pydantic_ai` have the same functions: `serve`, `tools` and `untrusted`. Each needs an
extra (`sealbus[pydantic-ai]`), and imports its framework when it is called.

Page: `docs/how-to/tools-and-frameworks.md`.
"""

from __future__ import annotations

from consumers.adapters import langgraph, openai_agents, pydantic_ai

__all__ = [
    "langgraph",
    "openai_agents",
    "pydantic_ai",
]
