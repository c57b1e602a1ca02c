"""What a test gets from `app.test()`: a bus in memory, its fakes, its held messages and its dead letters.

    from sealbus.testing import TestBus

Page: `docs/how-to/test-agents.md`.
"""

from __future__ import annotations

from consumers.app.testing import Fake, HeldMessage, PlayedAgent, TestBus
from consumers.deadletters.letters import DeadLetter

__all__ = [
    "DeadLetter",
    "Fake",
    "HeldMessage",
    "PlayedAgent",
    "TestBus",
]
