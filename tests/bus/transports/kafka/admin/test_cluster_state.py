"""A change of topics is known when every broker that answers knows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiokafka.errors import NodeNotReadyError
from aiokafka.protocol.metadata import MetadataRequest

from bus.transports.kafka.admin.cluster_state import known_everywhere

KNOWN, UNKNOWN, NO_LEADER, DENIED = 0, 3, 5, 29
WANTED = {"partitions": "2", "retention.ms": "2000"}


class View(msgspec.Struct, frozen=True):
    """What one broker tells of the topic `a.c`: error codes, and what it found."""

    error: int = KNOWN
    partitions: int = 2
    retention_ms: str = "2000"
    settings_error: int = KNOWN


class Link:
    """Asks brokers that answer with these views, or raise."""

    def __init__(self, *answers: View | Exception) -> None:
        self.answers = dict(enumerate(answers, 1))
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=number) for number in self.answers])

    async def ask(self, _: str, question: Callable[[Any], Awaitable[bool]]) -> bool:
        return await question(self)

    async def send(self, broker: int, request: object) -> Any:
        view = self.answers[broker]
        if isinstance(view, Exception):
            raise view
        if isinstance(request, MetadataRequest):
            return SimpleNamespace(to_object=lambda: {"topics": [_topic("a.b", View()), _topic("a.c", view)]})
        return SimpleNamespace(resources=[_settings("a.b", View()), _settings("a.c", view)])


def _topic(name: str, view: View) -> dict[str, Any]:
    partitions = [{"replicas": [1]}] * view.partitions
    return {"topic": name, "error_code": view.error, "partitions": [] if view.error else partitions}


def _settings(name: str, view: View) -> tuple[Any, ...]:
    return (view.settings_error, None, 2, name, [] if view.settings_error else [("retention.ms", view.retention_ms)])


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        ((View(), View(), View()), True),
        ((View(), View(error=UNKNOWN), View()), False),
        ((View(), View(), View(error=NO_LEADER)), False),
        ((View(), NodeNotReadyError()), True),
        ((View(error=UNKNOWN), NodeNotReadyError()), False),
        ((View(), View(error=DENIED)), True),
        ((View(), View(partitions=1)), False),
        ((View(), View(partitions=3)), True),
        ((View(), View(retention_ms="1000")), False),
        ((View(), View(settings_error=UNKNOWN)), False),
        ((View(), View(settings_error=DENIED)), True),
    ],
)
async def test_a_change_is_known_everywhere_when_no_broker_that_answers_misses_it(
    answers: tuple[Any, ...], known: bool
) -> None:
    link: Any = Link(*answers)
    assert await known_everywhere(link, {"a.b": WANTED, "a.c": WANTED}) is known
