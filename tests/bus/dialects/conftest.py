"""What the tests of all dialects share: the formats' own examples, and the way there and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bus.dialects import NONE, Defaults, Foreign, dialect
from bus.dialects.sealing import seal_foreign
from bus.protocol import canonical
from bus.protocol.envelope import Agent
from bus.protocol.sealing import Message

EXAMPLES = Path(__file__).parent / "examples"
PROOFS = ("auth", "signature")
"""Members that are never written again: a token is no statement, and who signs, signs anew."""


@pytest.fixture(scope="session")
def examples() -> Callable[[str], dict[str, dict[str, Any]]]:
    """The messages that a format shows of itself, by name."""

    def read(name: str) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads((EXAMPLES / f"{name}.json").read_text("utf-8"))
        return found

    return read


@pytest.fixture(scope="session")
def fragment_defaults() -> Defaults:
    return Defaults(
        message_id="msg-1",
        sent_at_ms=1_767_225_600_000,
        sender=Agent(id="worker@svc", framework="codex"),
        recipient=Agent(id="planner@svc"),
        conversation_id="conversation-1",
        task_id="task-1",
        lifetime_ms=60_000,
    )


@pytest.fixture(scope="session")
def sealed() -> Callable[[Foreign], Message]:
    """A decoded message as it is sealed without an ingress."""
    return lambda foreign: seal_foreign(foreign, namespace="lab")


@pytest.fixture(scope="session")
def there_and_back() -> Callable[..., dict[str, Any]]:
    """`encode(decode(message))`, sealed in between."""

    def go(name: str, message: Mapping[str, Any], defaults: Defaults = NONE) -> dict[str, Any]:
        codec = dialect(name)
        foreign = codec.decode(json.dumps(message).encode(), defaults=defaults)
        return codec.encode(seal_foreign(foreign, namespace="lab"))

    return go


@pytest.fixture(scope="session")
def assert_kept_whole(there_and_back: Callable[..., dict[str, Any]]) -> Callable[..., None]:
    """Law A: a message that is accepted comes back as the same JSON value, without its proofs."""

    def check(name: str, message: Mapping[str, Any], defaults: Defaults = NONE) -> None:
        expected = {
            member: value for member, value in message.items() if name not in ("002", "003") or member not in PROOFS
        }
        back = there_and_back(name, message, defaults)
        # As text: true is not 1, and 1.0 is 1.
        assert json.loads(canonical.encode(back)) == json.loads(canonical.encode(expected))
        assert canonical.encode(back) == canonical.encode(expected)

    return check
