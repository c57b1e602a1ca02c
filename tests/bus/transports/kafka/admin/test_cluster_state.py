"""A new topic is known when every broker that answers knows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import NodeNotReadyError

from bus.transports.kafka.admin.cluster_state import known_everywhere

KNOWN, UNKNOWN, NO_LEADER, DENIED = 0, 3, 5, 29


class Link:
    """Asks brokers that answer with these error codes, or raise."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = dict(enumerate(answers, 1))
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=number) for number in self.answers])

    async def ask(self, _: str, question: Callable[[Any], Awaitable[bool]]) -> bool:
        return await question(self)

    async def send(self, broker: int, _: object) -> Any:
        answer = self.answers[broker]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(to_object=lambda: {"topics": [{"error_code": KNOWN}, {"error_code": answer}]})


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        ((KNOWN, KNOWN, KNOWN), True),
        ((KNOWN, UNKNOWN, KNOWN), False),
        ((KNOWN, KNOWN, NO_LEADER), False),
        ((KNOWN, NodeNotReadyError()), True),
        ((UNKNOWN, NodeNotReadyError()), False),
        ((KNOWN, DENIED), True),
    ],
)
async def test_a_topic_is_known_everywhere_when_no_broker_that_answers_misses_it(
    answers: tuple[Any, ...], known: bool
) -> None:
    link: Any = Link(*answers)
    assert await known_everywhere(link, ["a.b", "a.c"]) is known
