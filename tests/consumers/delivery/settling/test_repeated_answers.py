"""The answer to a repeat says what the first one said: also which fields its reader must know, and in which act."""

from __future__ import annotations

from typing import Any

import msgspec

from bus.protocol.sealing import parse
from bus.topics.names import reply_topic
from bus.transports.base import TopicSpec
from bus.transports.read_all import scan_topic
from sealbus import App, Outgoing, payload
from tests.kit import Job


@payload("told.order", performative="propose", critical=("dry_run",))
class Told(msgspec.Struct, frozen=True, kw_only=True):
    dry_run: bool = False


async def test_a_repeat_is_answered_with_the_same_terms() -> None:
    app = App("worker@svc", group="work", types=[Told])

    @app.on(Job)
    async def ask(request: Job) -> Any:
        return Outgoing(Told(dry_run=True), priority=7, intent="a plan", critical_fields=("/routing/priority",))

    answers_to = reply_topic("agents", "planner@svc")
    async with app.test() as bus:
        await bus.transport.admin.create_topics([TopicSpec(name=answers_to, partitions=1)])
        for _ in range(2):
            await bus.publish(Job(number=1), idempotency_key="one", reply_to=answers_to)
            await bus.settle()
        bus.assert_all_handled()
        first, second = [parse(record.value) async for record in scan_topic(bus.transport, answers_to)]
    assert first.metadata.critical_fields == ("/routing/priority", "/data/dry_run")
    for name in ("critical_fields", "performative", "intent"):
        assert getattr(second.metadata, name) == getattr(first.metadata, name)
    assert second.routing.priority == first.routing.priority == 7
    assert second.message_id != first.message_id
