"""The parts of a message around its data: who sent it, to whom, and of what it is a part.

    from sealbus.envelope import Agent

Page: `docs/how-to/ask-agents.md`.
"""

from __future__ import annotations

from bus.protocol.envelope import Agent, Metadata, Routing

__all__ = [
    "Agent",
    "Metadata",
    "Routing",
]
