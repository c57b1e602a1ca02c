"""`sealbus verify` and `sealbus trace` on Kafka: what is found on the embedded log is found there, too."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import Any

from click.testing import CliRunner, Result

from bus.protocol.sealing import Message
from bus.transports import open_transport
from bus.transports.base import NewRecord, TopicSpec
from consumers.cli import main
from producers.sealing.sealed_record import record_of
from tests.consumers.operations.lineage.changes import HIDDEN, OPEN, conversation


class Log:
    """A namespace of its own on one cluster."""

    def __init__(self, kafka: str) -> None:
        self.url, self.namespace = f"kafka://{kafka}", f"l{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.namespace}.relay.step"

    def write(self, messages: Sequence[Message], **changed: bytes) -> None:
        """Append *messages*, with other bytes where their id is in *changed*."""

        async def body() -> None:
            transport = open_transport(self.url)
            await transport.admin.create_topics([TopicSpec(name=self.topic, partitions=3)])
            records = [record_of(message, self.topic) for message in messages]
            given = [
                NewRecord(record.topic, record.key, changed.get(message.message_id, record.value), record.headers)
                for message, record in zip(messages, records, strict=True)
            ]
            outcomes = await transport.append(given, timeout_s=20)
            assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            await transport.close()

        asyncio.run(body())

    def call(self, *arguments: str) -> Result:
        options = ("--bus", self.url, "--namespace", self.namespace, "-o", "json")
        return CliRunner().invoke(main, [*arguments, *options])


def test_a_changed_message_is_named_on_kafka(kafka: str) -> None:
    for change in (OPEN["a field of data"], HIDDEN["the sender, resealed"]):
        log = Log(kafka)
        messages = conversation(4, namespace=log.namespace)
        log.write(messages, **{messages[2].message_id: change(messages[2].value, messages[0]) or b""})
        result = log.call("verify", messages[-1].message_id)
        found: dict[str, Any] = json.loads(result.stdout)
        assert (result.exit_code, found["first_invalid"]["number"]) == (1, 2)
        assert found["first_invalid"]["message_id"] == messages[2].message_id


def test_a_whole_conversation_is_shown_on_kafka(kafka: str) -> None:
    log = Log(kafka)
    messages = conversation(4, namespace=log.namespace)
    log.write(messages)
    assert log.call("verify", messages[-1].message_id).exit_code == 0
    events = [json.loads(line) for line in log.call("trace", messages[0].message_id).stdout.splitlines()]
    assert [(event["message_id"], event["cause"], event["marks"]) for event in events] == [
        (message.message_id, number, []) for number, message in enumerate(messages)
    ]
