"""A worker settles each record in exactly one way: done, skipped, retry later, or dead. On a log in memory, with a
clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import msgspec
import pytest
from structlog.testing import capture_logs

from bus import native
from bus.clock import ManualClock
from bus.errors import (
    BusError,
    ContractError,
    DependencyDown,
    InboxError,
    NotPermittedError,
    RecordTooLargeError,
    Reject,
    RetryLater,
    TopicMissingError,
    UnreachableError,
)
from bus.payloads.payload_types import payload
from bus.protocol import sealing
from bus.protocol.envelope import Agent, Metadata, Routing
from bus.protocol.reasons import gate_of
from bus.protocol.sealing import Message
from bus.protocol.timestamps import format_ms
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.telemetry.metrics import Metrics
from bus.topics.names import dead_letter_topic, read_topic
from bus.transports import open_transport
from bus.transports.base import AppendOutcome, NewRecord, Record, TopicSpec
from bus.vocabulary.error import ErrorReported
from consumers.app.app import App
from consumers.app.testing import TestBus
from consumers.delivery.context import Context
from consumers.delivery.resilience.retry import Retry
from consumers.worker.host import make_worker
from consumers.worker.needed_topics import needed_topics
from consumers.worker.worker import Worker
from producers.connection import make_publisher
from producers.requests.requester import Requester
from producers.sealing.options import Outgoing

REPLY = "agents._reply.planner-svc-0123abcd"
TOPIC = "agents.job.asked"
ORIGIN = (("sb-origin-topic", TOPIC.encode()), ("sb-origin-partition", b"0"), ("sb-origin-offset", b"0"))


@payload("job.asked", version="1.0.0")
class Job(msgspec.Struct, frozen=True, kw_only=True):
    n: int = 0


@payload("job.done", version="1.0.0")
class Done(msgspec.Struct, frozen=True, kw_only=True):
    n: int = 0


@payload("job.progress", version="1.0.0", risk="low")
class Progress(msgspec.Struct, frozen=True, kw_only=True):
    percent: int = 0


def app_of(handler: Callable[..., Any], **options: Any) -> App:
    app = App("worker@svc", types=[Done, Progress, ErrorReported], roles=("reviewer",))
    app.on(Job, **options)(handler)
    return app


def failing(
    runs: list[int], times: int, error: Callable[[], Exception] = lambda: ValueError("x")
) -> Callable[..., Any]:
    """A handler that notes each run and fails the first *times*."""

    async def handle(job: Job, context: Context) -> None:
        runs.append(context.attempt)
        if len(runs) <= times:
            raise error()

    return handle


async def handled(job: Job) -> None:
    return None


async def records_of(bus: TestBus, topic: str) -> list[Record]:
    found: list[Record] = []
    for partition in range((await bus.transport.admin.topics())[topic].partitions):
        found += await bus.transport.read(topic, partition, 0, max_records=1_000, max_bytes=1 << 30)
    return found


async def unsettled(bus: TestBus, group: str) -> int:
    """Records of message topics and tiers beyond the group's commits."""
    committed = {
        place: offset
        for info in await bus.transport.admin.groups()
        if info.name == f"agents.{group}"
        for place, offset in info.committed.items()
    }
    left = 0
    for topic in await bus.transport.admin.topics():
        name = read_topic(topic)
        if name is not None and name.kind in ("message", "retry") and name.message_type in ("", "job.asked"):
            ranges = await bus.transport.admin.ranges(topic)
            left += sum(kept.end - committed.get((topic, partition), 0) for partition, kept in ranges.items())
    return left


def make(
    bus: TestBus,
    data: bytes = b'{"n":1}',
    routing: dict[str, Any] | None = None,
    cause: Message | None = None,
    **changes: Any,
) -> Message:
    now_ms = bus.clock.now_ms()
    fields: dict[str, Any] = {
        "conversation_id": "talk",
        "hops": 0,
        "message_id": "m-1",
        "message_type": "job.asked",
        "namespace": "agents",
        "protocol": "sealbus/1",
        "schema_version": "1.0.0",
        "sender": Agent(id="planner@svc"),
        "timestamp": format_ms(now_ms),
    }
    return sealing.seal(
        data, Metadata(**fields | changes), Routing(**{"expires_at": format_ms(now_ms + 60_000)} | (routing or {}))
    )


async def append(
    bus: TestBus,
    value: bytes | None,
    key: bytes | None = b"talk",
    headers: tuple[tuple[str, bytes], ...] = (),
    topic: str = TOPIC,
) -> None:
    await bus.transport.append([NewRecord(topic, key, value, headers)], timeout_s=1)


async def until(condition: Callable[[], object]) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


# --- done -------------------------------------------------------------------------------------------------------------


async def test_a_message_is_handled_once_and_its_offset_committed() -> None:
    seen: list[Job] = []

    async def handle(job: Job) -> None:
        seen.append(job)

    app = app_of(handle)
    async with app.test() as bus:
        await bus.publish(Job(n=7))
        await bus.settle()
        await bus.settle()
        await bus.advance(600)
        assert seen == [Job(n=7)]
        assert await unsettled(bus, app.group) == 0
        assert bus.dead_letters == []


async def test_a_returned_payload_goes_to_the_topic_of_its_type() -> None:
    async def handle(job: Job) -> Done:
        return Done(n=job.n + 1)

    async with app_of(handle).test() as bus:
        await bus.publish(Job(n=1))
        await bus.settle()
        assert bus.sent(Done) == [Done(n=2)]


async def test_a_returned_payload_goes_to_reply_to_where_there_is_one() -> None:
    async def handle(job: Job) -> Done:
        return Done(n=job.n)

    async with app_of(handle).test() as bus:
        await bus.transport.admin.create_topics([TopicSpec(name=REPLY, partitions=1)])
        receipt = await bus.publish(Job(n=1), reply_to=REPLY)
        await bus.settle()
        assert bus.sent(Done) == [Done(n=1)]
        (record,) = await records_of(bus, REPLY)
        answer = sealing.parse(record.value)
        assert answer.message_type == "job.done"
        assert answer.metadata.correlation_id == receipt.message_id


async def test_several_payloads_may_be_returned() -> None:
    async def handle(job: Job) -> list[Done]:
        return [Done(n=1), Done(n=2)]

    async with app_of(handle).test() as bus:
        await bus.publish(Job())
        await bus.settle()
        assert bus.sent(Done) == [Done(n=1), Done(n=2)]


async def test_queued_messages_are_sent_only_on_success() -> None:
    runs: list[int] = []

    async def handle(job: Job, context: Context) -> None:
        await context.send(Done(n=context.attempt))
        runs.append(context.attempt)
        if len(runs) < 3:
            raise ValueError("not yet")

    async with app_of(handle, retry=Retry(attempts=5, base_s=0.1)).test() as bus:
        await bus.publish(Job())
        await bus.settle()
        assert bus.sent(Done) == []
        await bus.advance(10)
        assert bus.sent(Done) == [Done(n=3)]


@pytest.mark.parametrize("error", [None, ValueError("x")])
async def test_sending_after_the_end_of_the_run_raises(error: Exception | None) -> None:
    kept: list[Context] = []

    async def handle(job: Job, context: Context) -> None:
        kept.append(context)
        if error is not None:
            raise error

    async with app_of(handle, retry=Retry(attempts=1)).test() as bus:
        await bus.publish(Job())
        await bus.settle()
        # Such as from a task that the handler began and did not wait for.
        with pytest.raises(ContractError, match="has ended"):
            kept[0].send(Done())


async def test_send_now_leaves_whatever_becomes_of_the_run() -> None:
    async def handle(job: Job, context: Context) -> None:
        await context.send_now(Progress(percent=10))
        raise Reject("no")

    async with app_of(handle).test() as bus:
        await bus.publish(Job())
        await bus.settle()
        assert bus.sent(Progress) == [Progress(percent=10)]
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]


async def test_outputs_have_the_handled_message_as_cause() -> None:
    async def handle(job: Job, context: Context) -> Done:
        await context.send(Done(n=1))
        await context.send_now(Progress())
        return Done(n=2)

    async with app_of(handle).test() as bus:
        receipt = await bus.publish(Job(), conversation_id="talk", task_id="t")
        await bus.settle()
        cause = sealing.parse((await records_of(bus, TOPIC))[0].value)
        for message in (*bus.messages(Done), *bus.messages(Progress)):
            assert message.metadata.causation_id == receipt.message_id
            assert message.metadata.correlation_id == receipt.message_id
            assert message.metadata.conversation_id == "talk"
            assert message.metadata.task_id == "t"
            assert message.metadata.hops == 1
            assert message.verification.parents == (cause.seal,)
            sealing.check_integrity(message)
        assert all(len(message.verification.proof_chain or ()) == 1 for message in bus.messages(Done))
        assert bus.messages(Progress)[0].verification.proof_chain is None


async def test_a_chain_grows_with_each_hop_to_sixteen_links_and_ends_after_sixty_four_hops() -> None:
    app = App("worker@svc")

    @app.on(Job)
    async def again(job: Job) -> Job:
        return Job(n=job.n + 1)

    async with app.test() as bus:
        await bus.publish(Job())
        await bus.settle()
        assert [job.n for job in bus.sent(Job)] == list(range(1, 65))
        assert [len(message.verification.proof_chain or ()) for message in bus.messages(Job)] == [
            min(16, hops) for hops in range(1, 65)
        ]
        assert [(letter.reason, letter.error.partition(":")[0]) for letter in bus.dead_letters] == [
            ("rejected", "PublishRejected")
        ]


# --- order ------------------------------------------------------------------------------------------------------------


async def test_messages_of_one_key_are_handled_one_at_a_time_in_their_order() -> None:
    log: list[str] = []

    async def handle(job: Job) -> None:
        log.append(f"+{job.n}")
        await asyncio.sleep(0)
        log.append(f"-{job.n}")

    async with app_of(handle).test() as bus:
        for number in range(5):
            await bus.publish(Job(n=number), key="k")
        await bus.settle()
    assert log == [f"{sign}{number}" for number in range(5) for sign in "+-"]


async def test_a_key_keeps_its_order_while_its_head_waits_in_the_lane() -> None:
    order: list[int] = []

    async def handle(job: Job, context: Context) -> None:
        if job.n == 0 and context.attempt == 1:
            raise ValueError("once")
        order.append(job.n)

    async with app_of(handle, retry=Retry(attempts=3, base_s=0.5)).test() as bus:
        for number in range(3):
            await bus.publish(Job(n=number), key="k")
        await bus.settle()
        assert order == []
        await bus.advance(1)
    assert order == [0, 1, 2]


async def test_different_keys_run_in_parallel() -> None:
    running: set[int] = set()
    together = asyncio.Event()

    async def handle(job: Job) -> None:
        running.add(job.n)
        if len(running) == 3:
            together.set()
        await together.wait()

    async with app_of(handle).test() as bus:
        for number in range(3):
            await bus.publish(Job(n=number), key=f"k-{number}")
        await asyncio.wait_for(bus.settle(), 30)
    assert running == {0, 1, 2}


# --- retries ----------------------------------------------------------------------------------------------------------


async def test_a_short_wait_happens_in_the_lane_and_never_early() -> None:
    runs: list[int] = []
    async with app_of(failing(runs, 2), retry=Retry(attempts=5, backoff="constant", base_s=1.5)).test() as bus:
        await bus.publish(Job())
        await bus.settle()
        await bus.advance(1.19)
        assert runs == [1]
        await bus.advance(0.32)
        assert runs == [1, 2]
        await bus.advance(3)
        assert runs == [1, 2, 3]
        assert bus.dead_letters == []


@pytest.mark.parametrize(
    ("after_s", "tier", "due_s"), [(3, "5s", 5), (5, "5s", 5), (6, "30s", 30), (31, "5m", 300), (301, "5m", 600)]
)
async def test_a_longer_wait_goes_through_a_tier_and_never_early(after_s: float, tier: str, due_s: float) -> None:
    runs: list[int] = []
    app = app_of(failing(runs, 1, lambda: RetryLater(after_s=after_s)), retry=Retry(attempts=2, base_s=0.1))
    async with app.test() as bus:
        await bus.publish(Job(), ttl_s=3_600)
        await bus.settle()
        (first, *_) = await records_of(bus, f"agents._retry.{app.group}.{tier}")
        assert dict(first.headers)["sb-attempt"] == b"1"
        await bus.advance(due_s - 0.01)
        assert runs == [1]
        await bus.advance(0.02)
        assert runs == [1, 2]
        await bus.advance(20)
        assert runs == [1, 2]
        assert await unsettled(bus, app.group) == 0


async def test_attempts_are_counted_exactly_through_lane_and_tiers() -> None:
    runs: list[int] = []
    app = app_of(failing(runs, 99), retry=Retry(attempts=6, backoff="exponential", base_s=1, cap_s=20))
    async with app.test() as bus:
        await bus.publish(Job(), ttl_s=3_600)
        await bus.advance(160)
        assert runs == [1, 2, 3, 4, 5, 6]
        (letter,) = bus.dead_letters
        assert (letter.reason, letter.gate, letter.attempts, letter.error.partition(":")[0]) == (
            "retries_exhausted",
            "handler",
            6,
            "ValueError",
        )
        assert await unsettled(bus, app.group) == 0


async def test_a_message_may_ask_for_fewer_attempts() -> None:
    runs: list[int] = []
    async with app_of(failing(runs, 99), retry=Retry(attempts=6)).test() as bus:
        await bus.publish(Job(), retry=Retry(attempts=2, backoff="constant", base_s=0.1, cap_s=0.1))
        await bus.advance(60)
        assert runs == [1, 2]
        assert [letter.reason for letter in bus.dead_letters] == ["retries_exhausted"]


async def test_a_wait_that_would_outlive_the_message_ends_it_at_once() -> None:
    runs: list[int] = []
    async with app_of(failing(runs, 99, lambda: RetryLater(after_s=60)), retry=Retry(attempts=6)).test() as bus:
        await bus.publish(Job(), ttl_s=30)
        await bus.settle()
        assert runs == [1]
        assert [(letter.reason, letter.error.partition(":")[0]) for letter in bus.dead_letters] == [
            ("retries_exhausted", "RetryLater")
        ]


async def test_a_rejection_is_not_repeated() -> None:
    runs: list[int] = []
    app = app_of(failing(runs, 99, lambda: Reject("never")))
    async with app.test() as bus:
        await bus.publish(Job())
        await bus.advance(600)
        assert runs == [1]
        assert [(letter.reason, letter.gate, letter.error.partition(":")[0]) for letter in bus.dead_letters] == [
            ("rejected", "handler", "Reject")
        ]
        assert await unsettled(bus, app.group) == 0


async def test_a_dependency_that_is_down_spends_no_attempt_and_buries_nothing() -> None:
    runs: list[int] = []
    async with app_of(failing(runs, 8, lambda: DependencyDown("db")), retry=Retry(attempts=2)).test() as bus:
        await bus.publish(Job(), ttl_s=3_600)
        await bus.advance(300)
        assert runs == [1] * 9
        assert bus.dead_letters == []


async def test_an_output_that_can_never_be_sent_rejects_the_message() -> None:
    async def handle(job: Job) -> Done:
        return Done(n="x")

    async with app_of(handle).test() as bus:
        await bus.publish(Job())
        await bus.advance(60)
        assert [(letter.reason, letter.error.partition(":")[0]) for letter in bus.dead_letters] == [
            ("rejected", "PublishRejected")
        ]


async def test_a_handler_that_overruns_its_timeout_is_cut_and_tried_again() -> None:
    runs: list[int] = []

    async def handle(job: Job, context: Context) -> None:
        runs.append(context.attempt)
        if context.attempt == 1:
            await asyncio.Event().wait()

    async with app_of(handle, timeout_s=10, retry=Retry(attempts=2, base_s=0.1)).test() as bus:
        await bus.publish(Job(), ttl_s=600)
        settling = asyncio.create_task(bus.settle())
        await until(lambda: runs)
        bus.clock.advance(9.9)
        await asyncio.sleep(0)
        assert not settling.done()
        bus.clock.advance(0.2)
        await settling
        await bus.advance(5)
        assert runs == [1, 2]
        assert bus.dead_letters == []


async def test_a_handlers_deadline_is_the_end_of_its_message() -> None:
    left: list[float] = []

    async def handle(job: Job, context: Context) -> None:
        left.append(context.remaining_s)

    async with app_of(handle, timeout_s=100).test() as bus:
        await bus.publish(Job(), ttl_s=30)
        await bus.publish(Job(), ttl_s=1_000)
        await bus.settle()
    assert sorted(left) == [30.0, 100.0]


async def test_a_message_that_expired_while_waiting_is_not_handled() -> None:
    runs: list[int] = []
    app = app_of(failing(runs, 0))
    async with app.test() as bus:
        await bus.publish(Job(), ttl_s=1)
        for _ in range(13):
            bus.clock.advance(0.5)
            await asyncio.sleep(0.001)
        await bus.settle()
        assert runs == []
        assert [(letter.reason, letter.gate, letter.pointer) for letter in bus.dead_letters] == [
            ("expired", "lifetime", "/routing/expires_at")
        ]


async def test_a_message_that_expires_in_its_lane_is_not_handled_again() -> None:
    runs: list[int] = []
    async with app_of(failing(runs, 99, lambda: DependencyDown("db"))).test() as bus:
        await bus.publish(Job(), ttl_s=20)
        await bus.advance(120)
        assert [letter.reason for letter in bus.dead_letters] == ["expired"]


# --- skipped ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "runs"),
    [
        ("worker@svc", 1),
        ("other@svc", 0),
        (Agent(role="reviewer"), 1),
        (Agent(role="writer"), 0),
        (Agent(id="other@svc", role="reviewer"), 0),
    ],
)
async def test_a_message_for_another_agent_is_skipped(to: str | Agent, runs: int) -> None:
    seen: list[int] = []
    app = app_of(failing(seen, 0))
    async with app.test() as bus:
        await bus.publish(Job(), to=to)
        await bus.settle()
        assert len(seen) == runs
        assert bus.dead_letters == []
        assert await unsettled(bus, app.group) == 0


# --- dead -------------------------------------------------------------------------------------------------------------


def retampered(message: Message, old: bytes, new: bytes) -> bytes:
    assert old in message.value
    return message.value.replace(old, new)


RAW: dict[str, tuple[Callable[[TestBus], bytes | None], str, str]] = {
    "null": (lambda _: None, "malformed", ""),
    "no JSON": (lambda _: b"{", "malformed", ""),
    "a million digits": (lambda _: b'{"data":' + b"9" * 1_000_000 + b"}", "malformed", ""),
    "an unknown member of 1 MB": (
        lambda bus: retampered(make(bus), b'"seal"', b'"' + b"d" * 900_000 + b'":1,"seal"'),
        "malformed",
        "/verification/" + "d" * 1_010,
    ),
    "another protocol": (
        lambda bus: retampered(make(bus), b"sealbus/1", b"sealbus/2"),
        "unsupported_protocol",
        "/metadata/protocol",
    ),
    "oversized": (lambda _: b"x" * 1_048_577, "oversized", ""),
    "changed data": (
        lambda bus: retampered(make(bus), b'{"n":1}', b'{"n":2}'),
        "hash_mismatch",
        "/verification/content_hash",
    ),
    "changed metadata": (
        lambda bus: retampered(make(bus), b"planner@svc", b"mallory@svc"),
        "seal_mismatch",
        "/verification/seal",
    ),
    "another namespace": (lambda bus: make(bus, namespace="other").value, "wrong_audience", "/metadata/namespace"),
    "another type": (lambda bus: make(bus, message_type="job.done").value, "type_mismatch", "/metadata/message_type"),
    "another key": (lambda bus: make(bus, routing={"key": "order-1"}).value, "key_mismatch", "/routing/key"),
    "another major": (
        lambda bus: make(bus, schema_version="2.0.0").value,
        "unsupported_version",
        "/metadata/schema_version",
    ),
    "a major of 64 digits": (
        lambda bus: make(bus, schema_version="9" * 64 + ".0.0").value,
        "unsupported_version",
        "/metadata/schema_version",
    ),
    "another shape": (lambda bus: make(bus, b'{"n":"x"}').value, "schema_violation", "/data/n"),
    "an unknown critical field": (
        lambda bus: make(bus, critical_fields=("/data/other",)).value,
        "critical_field",
        "/metadata/critical_fields",
    ),
    "too late": (
        lambda bus: (
            make(
                bus,
                timestamp=format_ms(bus.clock.now_ms() - 9_000),
                routing={"expires_at": format_ms(bus.clock.now_ms() - 5_001)},
            ).value
        ),
        "expired",
        "/routing/expires_at",
    ),
    "from the future": (
        lambda bus: (
            make(
                bus,
                timestamp=format_ms(bus.clock.now_ms() + 120_001),
                routing={"expires_at": format_ms(bus.clock.now_ms() + 200_000)},
            ).value
        ),
        "clock_skew",
        "/metadata/timestamp",
    ),
}
HEADERS = (
    ("content-type", b"x"),
    ("sb-attempt", b"4"),
    ("sb-origin-topic", b"agents.elsewhere"),
    ("sb-not-before", b"99999999999999"),
    ("x", b"\xff"),
    ("x", b""),
)


@pytest.mark.parametrize("name", RAW)
async def test_a_record_that_no_gate_lets_pass_becomes_one_dead_letter(name: str) -> None:
    build, reason, pointer = RAW[name]
    seen: list[int] = []
    app = app_of(failing(seen, 0))
    async with app.test() as bus:
        value = build(bus)
        await append(bus, value, headers=HEADERS)
        await bus.publish(Job(n=5))
        await bus.settle()
        (letter,) = bus.dead_letters
        assert (letter.reason, letter.gate, letter.pointer) == (reason, gate_of(reason), pointer)
        assert (letter.topic, letter.attempts, letter.group) == (TOPIC, 1, app.group)
        assert (letter.record.topic, letter.record.key, letter.record.value) == (
            dead_letter_topic(TOPIC),
            b"talk",
            value,
        )
        assert letter.record.headers[: len(HEADERS)] == HEADERS
        assert seen == [1], "whatever one record is, the next one is handled"
        assert await unsettled(bus, app.group) == 0


async def test_a_type_without_a_handler_in_its_own_topic_is_unknown() -> None:
    app = App("worker@svc", types=[Done])
    app.on(Job)(handled)
    async with app.test() as bus:
        message = make(bus, message_type="job.other")
        await append(bus, message.value)
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["type_mismatch"]


async def test_a_message_with_too_many_hops_is_dead() -> None:
    async with app_of(handled).test() as bus:
        last = make(bus)
        for number in range(2, 19):
            last = sealing.seal(
                b'{"n":1}',
                msgspec.structs.replace(
                    last.metadata, message_id=f"m-{number}", causation_id=last.message_id, hops=last.metadata.hops + 1
                ),
                last.routing,
                parents=(last.seal,),
                proof_chain=last.chain_for_children(),
            )
        await append(bus, last.value)
        await bus.settle()
        assert [(letter.reason, letter.pointer) for letter in bus.dead_letters] == [("too_many_hops", "/metadata/hops")]


async def test_parents_without_a_chain_are_dead_at_medium_risk() -> None:
    async with app_of(handled).test() as bus:
        cause = make(bus)
        child = sealing.seal(
            b'{"n":1}',
            msgspec.structs.replace(cause.metadata, message_id="m-2", causation_id="m-1", hops=1),
            cause.routing,
            parents=(cause.seal,),
        )
        await append(bus, child.value)
        await bus.settle()
        assert [(letter.reason, letter.pointer) for letter in bus.dead_letters] == [
            ("proof_invalid", "/verification/proof_chain")
        ]


async def test_control_headers_count_for_nothing_on_a_normal_topic() -> None:
    seen: list[int] = []
    app = app_of(failing(seen, 0))
    async with app.test() as bus:
        headers = (
            ("sb-attempt", b"4"),
            ("sb-not-before", b"99999999999999"),
            ("sb-extend-until", b"99999999999999"),
            ("sb-origin-topic", b"agents.job.done"),
        )
        await append(bus, make(bus).value, headers=headers)
        await bus.settle()
        assert seen == [1]
        late = make(
            bus,
            message_id="m-2",
            timestamp=format_ms(bus.clock.now_ms() - 9_000),
            routing={"expires_at": format_ms(bus.clock.now_ms() - 6_000)},
        )
        await append(bus, late.value, headers=headers)
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["expired"]


@pytest.mark.medium
@pytest.mark.parametrize("not_before", [lambda now_ms: now_ms + 7_200_000, lambda _: 10**16, lambda _: 10**40])
@pytest.mark.parametrize("topic", ["_retry.{group}.5s", "_retry.{group}.5m"])
async def test_a_message_that_expires_in_a_retry_tier_never_runs(not_before: Callable[[int], int], topic: str) -> None:
    seen: list[int] = []
    app = app_of(failing(seen, 0))
    async with app.test() as bus:
        message = make(bus, routing={"expires_at": format_ms(bus.clock.now_ms() + 3_600_000)})
        headers = (("sb-attempt", b"1"), ("sb-not-before", b"%d" % not_before(bus.clock.now_ms())), *ORIGIN)
        await append(bus, message.value, headers=headers, topic=f"agents.{topic.format(group=app.group)}")
        await bus.advance(9_000)
        assert seen == []
        assert [letter.reason for letter in bus.dead_letters] == ["expired"]


@pytest.mark.parametrize(("more_ms", "reasons"), [(0, []), (1, ["ttl_too_long"]), (10**12, ["ttl_too_long"])])
async def test_no_message_lives_longer_than_its_namespace_allows(more_ms: int, reasons: list[str]) -> None:
    seen: list[int] = []
    async with app_of(failing(seen, 0)).test() as bus:
        now_ms = bus.clock.now_ms()
        message = make(
            bus, timestamp=format_ms(now_ms), routing={"expires_at": format_ms(now_ms + 7 * 86_400_000 + more_ms)}
        )
        for _ in range(3):
            await append(bus, message.value)
            await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == reasons * 3
        assert seen == ([] if reasons else [1, 1, 1])


async def test_an_output_that_no_topic_takes_is_found_out_before_anything_is_committed() -> None:
    app = App("worker@svc", types=[Done])

    @app.on(Job, dedup="always")
    async def handle(job: Job, context: Context) -> Done:
        transaction = await context.transaction()
        await transaction.execute("CREATE TABLE IF NOT EXISTS effects (n INTEGER)")
        await transaction.execute("INSERT INTO effects VALUES ($1)", job.n)
        context.send(Done(n=0))
        return Done(n=job.n)

    async with app.test() as bus:
        refusals = bus.transport.refusals

        async def small(records: Sequence[NewRecord]) -> Sequence[RecordTooLargeError | None]:
            found = await refusals(records)
            return [
                RecordTooLargeError("too large") if b'"n":1' in (record.value or b"") else fault
                for record, fault in zip(records, found, strict=True)
            ]

        with mock.patch.object(bus.transport, "refusals", small):
            await bus.publish(Job(n=1))
            await bus.publish(Job(n=2))
            await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]
        assert bus.sent(Done) == [Done(n=0), Done(n=2)]


async def test_a_hostile_traceparent_cannot_stop_a_worker() -> None:
    async def handle(job: Job) -> Done:
        return Done(n=job.n)

    app = app_of(handle)
    async with app.test() as bus:
        await append(bus, make(bus, traceparent="t" * 1_000_000).value)
        await bus.settle()
        assert bus.sent(Done) == [Done(n=1)]
        assert bus.messages(Done)[0].metadata.traceparent is None
        assert await unsettled(bus, app.group) == 0


async def test_the_requester_gets_a_report_of_a_death() -> None:
    async def handle(job: Job) -> None:
        raise Reject("no")

    async with app_of(handle).test() as bus:
        await bus.transport.admin.create_topics([TopicSpec(name=REPLY, partitions=1)])
        receipt = await bus.publish(Job(), reply_to=REPLY)
        await bus.settle()
        (record,) = await records_of(bus, REPLY)
        report = sealing.parse(record.value)
        assert report.message_type == "error.reported"
        assert report.metadata.correlation_id == receipt.message_id
        assert msgspec.json.decode(report.data)["error_code"] == "rejected"


@pytest.mark.parametrize("error", [TopicMissingError("no such topic"), NotPermittedError("ask for an ACL")])
@pytest.mark.parametrize("handler", ["answers", "rejects"])
async def test_a_reply_topic_that_cannot_be_written_stops_no_partition(handler: str, error: BusError) -> None:
    """Anybody can name one in a message."""

    async def handle(job: Job) -> Done:
        if handler == "rejects":
            raise Reject("no")
        return Done(n=job.n)

    app = app_of(handle)
    async with app.test() as bus:
        append = bus.transport.append

        async def refusing(records: Sequence[NewRecord], **options: Any) -> Sequence[AppendOutcome | BusError]:
            return [error if record.topic == REPLY else (await append([record], **options))[0] for record in records]

        with mock.patch.object(bus.transport, "append", refusing):
            await bus.publish(Job(n=1), reply_to=REPLY)
            await bus.advance(10)
        assert [letter.reason for letter in bus.dead_letters] == (["rejected"] if handler == "rejects" else [])
        assert await unsettled(bus, app.group) == 0


async def test_an_unknown_type_in_a_retry_tier_waits_longer_without_using_attempts() -> None:
    app = app_of(handled)
    async with app.test() as bus:
        tier = f"agents._retry.{app.group}.5s"
        message = make(bus, message_type="job.other", routing={"expires_at": format_ms(bus.clock.now_ms() + 3_600_000)})
        headers = (
            ("sb-attempt", b"2"),
            ("sb-origin-topic", b"agents.job.other"),
            ("sb-origin-partition", b"0"),
            ("sb-origin-offset", b"9"),
        )
        await append(bus, message.value, headers=headers, topic=tier)
        await bus.advance(5 + 30 + 300 + 1)
        counts = {delay: await records_of(bus, f"agents._retry.{app.group}.{delay}") for delay in ("5s", "30s", "5m")}
        assert {delay: len(found) for delay, found in counts.items()} == {"5s": 1, "30s": 1, "5m": 2}
        records = [record for found in counts.values() for record in found]
        assert {dict(record.headers)["sb-attempt"] for record in records} == {b"2"}
        assert {dict(record.headers)["sb-origin-offset"] for record in records} == {b"9"}
        assert bus.dead_letters == []


async def test_an_unreadable_record_of_a_tier_becomes_a_dead_letter_of_that_tier() -> None:
    app = app_of(handled)
    async with app.test() as bus:
        tier = f"agents._retry.{app.group}.5s"
        await append(bus, b"{", topic=tier)
        await bus.advance(6)
        assert [(letter.reason, letter.topic) for letter in bus.dead_letters] == [("malformed", tier)]


# --- nothing is committed past an unsettled record --------------------------------------------------------------------


def without_creation() -> Settings:
    return load(flags={"topics.create": False, "topics.partitions": 1}, env={}, file=None).settings


def missing_topic(metrics: Metrics, app: App, topic: str) -> float | None:
    return metrics.registry.get_sample_value("sealbus_missing_topics", {"group": app.group, "topic": topic})


async def test_without_a_dead_letter_topic_no_offset_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, clock, metrics = without_creation(), ManualClock(), Metrics()
    app = app_of(failing([], 99, lambda: Reject("never")))
    transport = open_transport("memory://", clock=clock)
    worker = make_worker(app.declaration, transport, settings, member="m", clock=clock, metrics=metrics)
    publisher = make_publisher(transport, settings, "test@sealbus", clock=clock, metrics=metrics)
    await transport.admin.create_topics(needed_topics(settings, app.declaration))
    await worker.start(create_topics=False)
    dead, append, exists = dead_letter_topic(TOPIC), transport.append, False

    async def without_letters(records: Sequence[NewRecord], **options: Any) -> Sequence[AppendOutcome]:
        if not exists and any(record.topic == dead for record in records):
            return [TopicMissingError(f"no topic {dead}") for _ in records]
        return await append(records, **options)

    monkeypatch.setattr(transport, "append", without_letters)

    async def start(_: object) -> Worker:
        raise AssertionError("no agent is played here")

    bus = TestBus(
        [app.declaration],
        transport=transport,
        workers=[worker],
        clock=clock,
        failures={},
        start=start,
        play=lambda _: (publisher, Requester(publisher, transport)),
    )
    try:
        await publisher.publish(Outgoing(Job()))
        await bus.advance(25)
        assert await unsettled(bus, app.group) == 1
        assert missing_topic(metrics, app, dead) == 1
        exists = True
        await bus.advance(30)
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]
        assert missing_topic(metrics, app, dead) == 0
        assert await unsettled(bus, app.group) == 0
    finally:
        await worker.stop(0)
        await publisher.close()
        await transport.close()


@pytest.mark.parametrize("how", ["revoked", "lost"])
async def test_a_stop_counts_runs_cancelled_by_a_lost_partition(how: str) -> None:
    settings = load(flags={"topics.partitions": 1, "worker.drain_timeout_s": "5s"}, env={}, file=None).settings
    clock, metrics, seen = ManualClock(), Metrics(), asyncio.Event()

    async def handle(_: Job) -> None:
        seen.set()
        await asyncio.get_running_loop().create_future()

    app = app_of(handle)
    transport = open_transport("memory://", clock=clock)
    worker = make_worker(app.declaration, transport, settings, member="m", clock=clock, metrics=metrics)
    publisher = make_publisher(transport, settings, "test@sealbus", clock=clock, metrics=metrics)
    await worker.start(create_topics=True)
    await publisher.publish(Outgoing(Job()))
    while not seen.is_set():
        await worker.cycle(0)
    assignments = [partition.assignment for partition in worker._partitions.all()]
    stopping = asyncio.create_task(worker.stop(60))
    await asyncio.sleep(0)
    if how == "revoked":
        going = asyncio.create_task(worker.revoked(assignments))
        await asyncio.sleep(0)
        clock.advance(5)
        await going
    else:
        worker.lost(assignments)
    assert await asyncio.wait_for(stopping, 30) == 1
    await publisher.close()
    await transport.close()


@pytest.mark.parametrize("how", ["revoked", "lost"])
async def test_messages_waiting_in_a_lane_are_dropped_with_their_partition(how: str) -> None:
    settings = load(flags={"topics.partitions": 1}, env={}, file=None).settings
    app, runs = App("worker@tests"), []

    @app.on(Job, order="key_strict")
    async def handle(job: Job) -> None:
        runs.append(job.n)
        if len(runs) == 1:
            raise RetryLater(after_s=3_600)

    async with app.test(settings=settings) as bus:
        worker = bus.workers[0]
        await bus.publish(Job(n=1), key="same", ttl_s=86_400)
        await bus.settle()
        assert (runs, len(worker.in_flight), len(worker.lanes)) == ([1], 1, 1)
        assignments = [partition.assignment for partition in worker._partitions.all()]
        if how == "revoked":
            await worker.revoked(assignments)
        else:
            worker.lost(assignments)
        await bus.settle()
        assert (runs, len(worker.in_flight), len(worker.lanes)) == ([1], 0, 0)


async def test_what_fails_while_its_partition_goes_does_not_wait_for_it() -> None:
    settings = load(flags={"topics.partitions": 1}, env={}, file=None).settings
    app, seen = App("worker@tests"), asyncio.Event()

    @app.on(Job, order="key_strict")
    async def handle(job: Job) -> None:
        seen.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as error:
            # As many drivers do when they are cut.
            raise RetryLater(after_s=3_600) from error

    async with app.test(settings=settings) as bus:
        worker = bus.workers[0]
        await bus.publish(Job(n=1), key="same", ttl_s=86_400)
        while not seen.is_set():
            await worker.cycle(0)
        worker.lost([partition.assignment for partition in worker._partitions.all()])
        await bus.settle()
        assert (len(worker.in_flight), len(worker.lanes)) == (0, 0)


async def test_an_unsettled_message_blocks_the_commit_of_its_partition() -> None:
    release = asyncio.Event()
    seen: list[int] = []

    async def handle(job: Job) -> None:
        seen.append(job.n)
        if job.n == 0:
            await release.wait()

    app = app_of(handle)
    async with app.test(settings=load(flags={"topics.partitions": 1}, env={}, file=None).settings) as bus:
        for number in range(3):
            await bus.publish(Job(n=number), key=f"k-{number}")
        settling = asyncio.create_task(bus.settle())
        await until(lambda: len(seen) == 3)
        await bus.workers[0].commit()
        assert await unsettled(bus, app.group) == 3
        release.set()
        await settling
        assert await unsettled(bus, app.group) == 0


async def test_no_offset_is_committed_before_the_inbox_has_on_its_disk_what_was_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk_fails = True

    async def sync() -> None:
        if disk_fails:
            raise InboxError("the disk fails")

    app = app_of(handled)
    async with app.test() as bus:
        assert bus.workers[0].inbox is not None
        monkeypatch.setattr(bus.workers[0].inbox, "sync", sync)
        await bus.publish(Job())
        with capture_logs() as logs:
            await bus._work(0.1)
            await bus.workers[0].commit()
        assert {line["error"] for line in logs if line["event"] == "inbox.not_durable"} == {"the disk fails"}
        assert await unsettled(bus, app.group) == 1
        disk_fails = False
        await bus.workers[0].commit()
        assert await unsettled(bus, app.group) == 0


@pytest.mark.parametrize(("core", "way"), [(object(), "compiled"), (None, "python")])
async def test_the_first_line_says_which_way_messages_go(
    monkeypatch: pytest.MonkeyPatch, core: object, way: str
) -> None:
    monkeypatch.delenv("SEALBUS_NATIVE", raising=False)
    monkeypatch.setattr(native, "hot_path", partial(native.hot_path, core))
    with capture_logs() as logs:
        async with app_of(handled).test():
            pass
    (line,) = [line for line in logs if line["event"] == "worker.started"]
    assert line["hot_path"] == way
    assert ("prebuilt wheel" in line.get("hint", "")) == (core is None)


async def test_a_log_that_cannot_be_left_keeps_nothing_from_being_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    async with app_of(handled).test() as bus:
        worker = bus.workers[0]
        subscription, inbox = worker._partitions.subscription, worker.inbox
        assert subscription is not None
        assert inbox is not None

        async def locked() -> None:
            raise UnreachableError("locked by another writer")

        async def close(end: Callable[[], Awaitable[None]] = inbox.close) -> None:
            closed.append("inbox")
            await end()

        monkeypatch.setattr(subscription, "close", locked)
        monkeypatch.setattr(inbox, "close", close)
        assert await worker.stop(0) == 0
    assert closed[:1] == ["inbox"]
