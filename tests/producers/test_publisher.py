"""A publish has three outcomes, and what receivers would refuse is refused at the door, naming the field."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from bus.clock import ManualClock
from bus.errors import (
    AppendUnknownError,
    BusError,
    ConfigurationError,
    ContractError,
    DeadlineError,
    TopicMissingError,
)
from bus.payloads.payload_types import payload
from bus.protocol import sealing
from bus.protocol.envelope import Agent, Authority, RetryPolicy, Security
from bus.protocol.timestamps import format_ms
from bus.retry import Retry
from bus.settings.loading import load
from bus.telemetry.metrics import Metrics
from bus.transports.base import Appended, AppendOutcome, Features, NewRecord, TopicSpec
from producers.connection import Bus, make_publisher
from producers.outcomes import PublishRejected, PublishUnknown, Receipt
from producers.sealing.options import Outgoing

START_MS = 1_767_225_600_000


@payload("note.added", version="1.2.3")
class Note(msgspec.Struct, frozen=True, kw_only=True):
    text: str = "x"
    weight: float | None = None


@payload("money.sent", risk="high")
class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    cents: int


@payload("chat.said", risk="low", sign=False)
class Cheap(msgspec.Struct, frozen=True, kw_only=True):
    text: str = "x"


class Broken:
    """A signer that makes whatever it is given, or fails with it."""

    kid, alg = "k", "HS256"

    def __init__(self, made: Any) -> None:
        self.made = made

    def sign(self, signing_input: bytes) -> Any:
        if isinstance(self.made, BaseException):
            raise self.made
        return self.made


class Unmarked(msgspec.Struct):
    pass


class FakeAdmin:
    async def topics(self) -> Mapping[str, TopicSpec]:
        return {}


class FakeLog:
    """Keeps every record; answers with `outcome`, or never while it is silent."""

    features = Features(
        name="fake", durable=True, between_processes=False, max_record_bytes=1 << 30, creates_topics_at_start=False
    )
    admin = FakeAdmin()

    def __init__(self) -> None:
        self.records: list[NewRecord] = []
        self.outcome: AppendOutcome | None = None
        self.silent = False

    async def append(self, records: Sequence[NewRecord], *, timeout_s: float, **_: object) -> Sequence[AppendOutcome]:
        self.records += records
        if self.silent:
            await asyncio.Event().wait()
        return [self.outcome or Appended(record.topic, 3, 42, START_MS) for record in records]

    async def close(self) -> None:
        return None


class Case:
    def __init__(self, agent: str | Agent = "planner@svc", signer: Broken | None = None, **flags: object) -> None:
        self.log, self.clock, self.metrics = FakeLog(), ManualClock(START_MS), Metrics()
        self.settings = load(flags=flags, env={}, file=None).settings
        publisher = make_publisher(
            self.log, self.settings, agent, clock=self.clock, metrics=self.metrics, signer=signer
        )
        self.bus = Bus(publisher, self.log)

    def counted(self, outcome: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            "sealbus_published_total", {"type": "note.added", "outcome": outcome}
        )


# --- outcomes ---------------------------------------------------------------------------------------------------------


async def test_a_receipt_has_the_location_of_the_message() -> None:
    case = Case()
    receipt = await case.bus.publish(Note())
    (record,) = case.log.records
    message = sealing.parse(record.value)
    assert (receipt.topic, receipt.partition, receipt.offset, receipt.timestamp_ms) == (
        "agents.note.added",
        3,
        42,
        START_MS,
    )
    assert receipt.message_id == message.message_id
    assert case.counted("accepted") == 1


@pytest.mark.parametrize("error", [DeadlineError("x"), TopicMissingError("x")])
async def test_rejected_means_certainly_not_in_the_log(error: Any) -> None:
    case = Case()
    case.log.outcome = error
    with pytest.raises(PublishRejected) as caught:
        await case.bus.publish(Note())
    assert caught.value.__cause__ is error
    assert case.counted("rejected") == 1


async def test_unknown_carries_the_message_and_resending_sends_the_same_bytes() -> None:
    case = Case()
    case.log.outcome = AppendUnknownError("x")
    with pytest.raises(PublishUnknown) as caught:
        await case.bus.publish(Note(), key="order-1", to="writer@svc")
    assert caught.value.retriable
    assert case.counted("unknown") == 1
    case.log.outcome = None
    case.clock.advance(10)
    receipt = await case.bus.resend(caught.value.message)
    first, second = case.log.records
    assert first == second
    assert receipt.message_id == caught.value.message.message_id


async def test_a_publish_ends_at_its_own_deadline() -> None:
    case = Case()
    case.log.silent = True
    task = asyncio.create_task(case.bus.publish(Note(), timeout_s=3))
    for _ in range(10):
        await asyncio.sleep(0)
    case.clock.advance(2.9)
    await asyncio.sleep(0)
    assert not task.done()
    case.clock.advance(0.2)
    with pytest.raises(PublishUnknown):
        await task


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
async def test_a_deadline_lies_in_the_future(timeout_s: float) -> None:
    with pytest.raises(PublishRejected, match="timeout_s"):
        await Case().bus.publish(Note(), timeout_s=timeout_s)
    with pytest.raises(PublishRejected, match="timeout_s"):
        Case().bus.publish_many([Note()], timeout_s=timeout_s)


# --- the record -------------------------------------------------------------------------------------------------------


async def test_key_and_headers_are_those_of_the_contract() -> None:
    case = Case()
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await case.bus.publish(Note(), key="order-1", to=Agent(role="writer"), traceparent=traceparent, message_id="m-1")
    (record,) = case.log.records
    assert (record.topic, record.key, record.partition) == ("agents.note.added", b"order-1", None)
    assert record.headers == (
        ("content-type", b"application/vnd.sealbus.v1+json"),
        ("sb-type", b"note.added"),
        ("sb-id", b"m-1"),
        ("sb-to", b"writer"),
        ("traceparent", traceparent.encode()),
    )


async def test_the_key_is_the_conversation_by_default() -> None:
    case = Case()
    await case.bus.publish(Note(), conversation_id="talk")
    await case.bus.publish(Note(), conversation_id="talk", key="talk")
    assert [record.key for record in case.log.records] == [b"talk", b"talk"]
    assert [sealing.parse(record.value).routing.key for record in case.log.records] == [None, None]


async def test_an_invalid_traceparent_is_not_sent_as_a_header() -> None:
    case = Case()
    await case.bus.publish(Note(), traceparent="00-nothing")
    assert "traceparent" not in dict(case.log.records[0].headers)


async def test_defaults_of_a_first_message() -> None:
    case = Case()
    await case.bus.publish(Note())
    message = sealing.parse(case.log.records[0].value)
    sealing.check_integrity(message)
    metadata = message.metadata
    assert (metadata.hops, metadata.causation_id, metadata.conversation_id) == (0, None, metadata.message_id)
    assert (metadata.namespace, metadata.schema_version, metadata.sender) == (
        "agents",
        "1.2.3",
        Agent(id="planner@svc", type="agent"),
    )
    assert (metadata.timestamp, message.routing.expires_at) == (format_ms(START_MS), format_ms(START_MS + 3_600_000))
    assert message.routing.priority is None


@pytest.mark.parametrize(
    ("name", "number"), [("low", 2), ("normal", 5), ("medium", 5), ("high", 7), ("critical", 9), (0, 0), (9, 9)]
)
async def test_priorities_have_names(name: int | str, number: int) -> None:
    case = Case()
    await case.bus.publish(Note(), priority=name)
    assert sealing.parse(case.log.records[0].value).routing.priority == number


async def test_every_option_reaches_the_envelope() -> None:
    case = Case()
    retry = Retry(attempts=3, backoff="linear", base_s=0.001, cap_s=0.002)
    security, authority = Security(trust_level="user_request"), Authority(can_read=("*",))
    options: dict[str, Any] = {
        "correlation_id": "c",
        "task_id": "t",
        "parent_task_id": "p",
        "run_id": "r",
        "sequence": 4,
        "intent": "look",
        "performative": "query",
        "authority": authority,
        "security": security,
        "critical_fields": ("/data/text",),
        "tracestate": "a=b",
        "message_id": "m-1",
        "conversation_id": "talk",
    }
    delivery: dict[str, Any] = {
        "idempotency_key": "i",
        "max_hops": 3,
        "reply_to": "agents._reply.planner-0123abcd",
        "retry": retry,
    }
    await case.bus.publish(Note(), ttl_s=0.0001, **options, **delivery)
    message = sealing.parse(case.log.records[0].value)
    assert {name: getattr(message.metadata, name) for name in options} == options
    assert {name: getattr(message.routing, name) for name in delivery} == delivery | {"retry": retry.policy()}
    assert message.routing.expires_at == format_ms(START_MS + 1)


async def test_a_message_carries_the_retry_that_handlers_take() -> None:
    case = Case()
    await case.bus.publish(Note(), retry=Retry(attempts=3, backoff="linear", base_s=0.001, cap_s=2))
    asked = sealing.parse(case.log.records[0].value).routing.retry
    assert asked == RetryPolicy(backoff="linear", base_ms=1, cap_ms=2000, max_attempts=3)


async def test_a_retry_without_a_cap_is_carried_as_the_longest_that_can_be_written() -> None:
    case = Case()
    await case.bus.publish(Note(), retry=Retry(cap_s=float("inf")))
    asked = sealing.parse(case.log.records[0].value).routing.retry
    assert asked is not None
    assert asked.cap_ms > 10**15


# --- the door ---------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"ttl_s": 0}, "ttl_s"),
    ({"ttl_s": -1}, "ttl_s"),
    ({"ttl_s": float("nan")}, "ttl_s"),
    ({"ttl_s": 7 * 86_400 + 1}, "ttl_s"),
    ({"ttl_s": "1h"}, "ttl_s"),
    ({"ttl_s": True}, "ttl_s"),
    ({"priority": 10}, "/routing/priority"),
    ({"priority": -1}, "/routing/priority"),
    ({"priority": "urgent"}, "priority"),
    ({"priority": 1.5}, "priority"),
    ({"to": ""}, "/metadata/recipient/id"),
    ({"to": Agent()}, "/metadata/recipient"),
    ({"to": 5}, "to"),
    ({"to": Agent(id="a", type="robot")}, "to"),
    ({"to": "a\u200b"}, "/metadata/recipient/id"),
    ({"to": "\ud800"}, "/metadata/recipient/id"),
    ({"key": ""}, "/routing/key"),
    ({"key": "x" * 257}, "/routing/key"),
    ({"key": 5}, "key"),
    ({"idempotency_key": ""}, "/routing/idempotency_key"),
    ({"reply_to": "agents.note.added"}, "/routing/reply_to"),
    ({"reply_to": "other._reply.a-00000000"}, "/routing/reply_to"),
    ({"max_hops": -1}, "/routing/max_hops"),
    ({"max_hops": 1.5}, "max_hops"),
    ({"max_hops": True}, "max_hops"),
    ({"max_hops": 2**53}, "/routing/max_hops"),
    ({"sequence": -1}, "/metadata/sequence"),
    ({"intent": "x" * 201}, "/metadata/intent"),
    ({"intent": "\ud800"}, "/metadata"),
    ({"performative": "shout"}, "performative"),
    ({"conversation_id": "a\n"}, "/metadata/conversation_id"),
    ({"message_id": "a b"}, "/metadata/message_id"),
    ({"critical_fields": ()}, "/metadata/critical_fields"),
    ({"critical_fields": ("x",)}, "/metadata/critical_fields/0"),
    ({"critical_fields": (1,)}, "critical_fields"),
    ({"critical_fields": "/"}, "critical_fields"),
    ({"retry": RetryPolicy(backoff="linear", base_ms=0, cap_ms=1, max_attempts=1)}, "retry"),
    ({"retry": {"backoff": "linear", "base_ms": 0, "cap_ms": 1, "max_attempts": 1}}, "retry"),
    ({"retry": 3}, "retry"),
    ({"retry": Retry(attempts=101)}, "retry"),
    ({"security": Security(trust_level=5)}, "security"),
    ({"authority": Authority(can_read=(5,))}, "authority"),
]


@pytest.mark.parametrize(("options", "field"), WRONG, ids=lambda value: repr(value)[:50])
async def test_what_receivers_would_refuse_is_refused_at_the_door(options: dict[str, Any], field: str) -> None:
    case = Case()
    with pytest.raises(PublishRejected) as caught:
        await case.bus.publish(Note(), **options)
    assert isinstance(caught.value.__cause__, ContractError)
    assert caught.value.__cause__.pointer == field
    assert case.log.records == []


@pytest.mark.parametrize(
    ("note", "pointer"),
    [(Note(text=5), "/data/text"), (Note(weight=float("inf")), "/data/weight"), (Note(text="\ud800"), "/data/text")],
)
async def test_a_payload_that_cannot_be_read_is_refused_at_the_door(note: Note, pointer: str) -> None:
    case = Case()
    with pytest.raises(PublishRejected, match=pointer):
        await case.bus.publish(note)


async def test_what_is_of_high_risk_and_cannot_be_signed_is_refused_at_the_door() -> None:
    case = Case()
    with pytest.raises(PublishRejected, match="give `connect` or the App a signer"):
        await case.bus.publish(Transfer(cents=5))
    with pytest.raises(PublishRejected):
        await case.bus.publish(Transfer(cents=5), priority=9)
    outcomes = [outcome async for outcome in case.bus.publish_many([Transfer(cents=5), Note()])]
    assert [type(outcome) for outcome in outcomes] == [PublishRejected, Receipt]
    assert len(case.log.records) == 1


@pytest.mark.parametrize("made", [OSError("no answer"), SystemExit(1), None, b"", "text"])
async def test_what_its_signer_does_not_sign_is_certainly_not_in_the_log(made: Any) -> None:
    case = Case(signer=Broken(made))
    with pytest.raises(PublishRejected, match="signer") as caught:
        await case.bus.publish(Transfer(cents=5))
    assert isinstance(caught.value.__cause__, BusError)
    assert caught.value.__cause__.retriable
    outcomes = [outcome async for outcome in case.bus.publish_many([Transfer(cents=5), Cheap()])]
    assert [type(outcome) for outcome in outcomes] == [PublishRejected, Receipt]
    assert len(case.log.records) == 1


async def test_a_message_that_is_too_large_is_refused_at_the_door() -> None:
    case = Case()
    with pytest.raises(PublishRejected, match="/data: the message takes"):
        await case.bus.publish(Note(text="x" * 1_048_576))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Unmarked(), r"Unmarked is not a payload type: write @payload\(\"my\.type\"\) above it"),
        (
            {"text": "x"},
            "dict is not a payload, because it has no message type: .*write .*text: str",
        ),
        (Note, "Note is a class: give an instance of it"),
        (Outgoing(Note()), "an Outgoing is for publish_many: give publish its payload, and its options by name"),
    ],
)
async def test_publish_refuses_a_non_payload_and_names_what_to_pass(given: Any, said: str) -> None:
    with pytest.raises(PublishRejected, match=said):
        await Case().bus.publish(given)


@pytest.mark.parametrize(
    "agent", ["", "a\u200b", "\ud800", Agent(), Agent(id="a", type="robot"), Agent(id="a", version=5)]
)
def test_an_agent_that_receivers_would_refuse_cannot_publish(agent: str | Agent) -> None:
    with pytest.raises(ConfigurationError, match="agent"):
        Case(agent)


@pytest.mark.parametrize(
    "agent",
    ["planner@svc", Agent(id="\u00e9 \U0001f600", role="r", version="1", framework="f", session_id="s", type="human")],
)
async def test_plain_and_full_sealing_make_the_same_bytes(agent: str | Agent) -> None:
    case = Case(agent)
    await case.bus.publish(
        Note(),
        message_id="019b7a3c-0000-7000-8000-000000000000",
        conversation_id="019b7a3c-0000-7000-8000-000000000000",
    )
    async for _ in case.bus.publish_many([Note()]):
        pass
    one, many = (record.value or b"" for record in case.log.records)
    made = sealing.parse(many)
    sealing.check_integrity(made)
    known = sealing.parse(one)
    assert msgspec.structs.replace(made.metadata, message_id="", conversation_id="") == msgspec.structs.replace(
        known.metadata, message_id="", conversation_id=""
    )
    assert made.routing == known.routing
