"""What the gates say today of a letter from a topic that carries any type."""

from __future__ import annotations

import pytest

from bus.payloads.examples import example_of
from bus.protocol import canonical, sealing
from bus.protocol.envelope import Agent, Metadata, Routing
from bus.transports.base import Record
from bus.vocabulary import BUILT_IN
from consumers.deadletters.diagnosis import examine
from consumers.deadletters.letters import DeadLetter


def letter_in(topic: str) -> DeadLetter:
    metadata = Metadata(
        protocol="sealbus/1",
        namespace="agents",
        message_id="m",
        message_type="status.update",
        schema_version="1.1.0",
        timestamp="2026-01-01T00:00:00.000Z",
        sender=Agent(id="a@svc"),
        conversation_id="c",
        hops=0,
        task_id="t",
        performative="inform",
    )
    kind = BUILT_IN.get("status.update")
    assert kind is not None
    data = canonical.encode({**example_of(kind), "task_id": "t"})  # type: ignore[dict-item]
    message = sealing.seal(data, metadata, Routing(expires_at="2026-01-01T01:00:00.000Z"))
    return DeadLetter(
        reason="rejected",
        gate="handler",
        error="",
        pointer="",
        group="group-a",
        attempts=1,
        failed_at="2026-01-01T00:00:00.000Z",
        topic=topic,
        partition=0,
        offset=0,
        redrive_count=0,
        is_stub=False,
        record=Record(f"{topic}.dlq", 0, 0, 1_767_225_600_000, message.key, message.value),
        message=message,
    )


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("agents.status.update", ""),
        ("agents._mail.group-a", ""),
        ("agents._reply.a-svc-3f2a9b1c", ""),
        ("agents.task.rejected", "type_mismatch"),
    ],
)
def test_a_topic_for_any_type_is_for_the_type_of_the_letter(topic: str, reason: str) -> None:
    found = examine(letter_in(topic), BUILT_IN, namespace="agents", max_message_bytes=1 << 20)
    assert found.reason == reason
    assert found.expected == ("task.rejected, which the topic is for" if reason else "")
