"""What a test gets from `app.test()`: a bus in memory, fakes, held messages, questions, and dead letters.

    from sealbus.testing import TestBus

Page: `docs/how-to/test-agents.md`.
"""

from __future__ import annotations

from consumers.app.testing import AskedBack, Fake, HeldMessage, PlayedAgent, TestBus
from consumers.deadletters.letters import DeadLetter

__all__ = [
    "AskedBack",
    "DeadLetter",
    "Fake",
    "HeldMessage",
    "PlayedAgent",
    "TestBus",
]
