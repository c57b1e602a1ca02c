"""Request and reply: every request ends by its deadline, with its answer or with an error that says why; on every
transport alike."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from bus import native
from bus.clock import SystemClock
from bus.protocol import sealing
from bus.protocol.envelope import PROTOCOL, Metadata, Routing
from bus.protocol.timestamps import format_ms
from bus.settings.loading import load
from bus.settings.schema import Settings
from bus.topics.names import reply_topic
from bus.transports import open_configured
from bus.transports.base import NewRecord, TopicSpec, Transport
from bus.vocabulary.error import ErrorReported
from consumers.worker.host import make_worker
from consumers.worker.worker import Worker
from producers.connection import make_publisher
from producers.sealing.sealer import Sealer
from sealbus import App, Bus, Context, PublishRejected, Reject, RequestFailed, RequestTimedOut, Retry, connect, payload
from sealbus.envelope import Agent
from sealbus.errors import ContractError, UnexpectedReply, UnreachableError
from sealbus.telemetry import Metrics
from tests.kit import Answered, Asked

pytestmark = pytest.mark.medium  # real clocks


@payload("answer.other", risk="low")
class Other(msgspec.Struct, frozen=True):
    text: str = ""


@payload("fact.asked")
class Lookup(msgspec.Struct, frozen=True):
    query: str


@payload("fact.found")
class Facts(msgspec.Struct, frozen=True):
    text: str


Handler = Callable[..., Awaitable[Any]]


@pytest.fixture(params=["memory", "kafka"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """An embedded log and a real one, and a namespace nobody else uses."""
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/log.db"}.get(request.param)
    flags = {
        "bus.url": url or f"kafka://{request.getfixturevalue('kafka')}",
        "bus.namespace": f"r{uuid.uuid4().hex[:10]}",
        "topics.create": True,
        "topics.partitions": 2,
        "retry.tiers": ["1s"],
    }
    return load(flags=flags, env={}, file=None).settings


def oracle(handler: Handler, **options: Any) -> App:
    app = App("oracle@tests", types=[Answered, Other, Lookup, Facts, ErrorReported])
    app.on(Asked, **options)(handler)
    return app


async def shout(question: Asked) -> Answered:
    return Answered(question.text.upper())


class Stage:
    """A worker and a requester on one log."""

    def __init__(self, transport: Transport, settings: Settings) -> None:
        self.transport = transport
        self.settings = settings
        self.metrics = Metrics()
        self.bus = Bus(
            make_publisher(transport, settings, "planner@tests", clock=SystemClock(), metrics=self.metrics), transport
        )
        self.topic = reply_topic(settings.bus.namespace, "planner@tests")

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"sealbus_{name}_total", labels) or 0.0

    async def replies(self) -> list[sealing.Message]:
        """What is in the reply topic, read as another process would."""
        transport = open_configured(self.settings) if self.transport.features.between_processes else self.transport
        records = await transport.read(self.topic, 0, 0, max_records=99, max_bytes=1 << 24)
        if transport is not self.transport:
            await transport.close()
        return [sealing.parse(record.value) for record in records]


@asynccontextmanager
async def staged(app: App | None, settings: Settings) -> AsyncIterator[Stage]:
    transport = open_configured(settings)
    stage = Stage(transport, settings)
    worker: Worker | None = None
    stop = asyncio.Event()
    running: asyncio.Task[None] | None = None
    try:
        if app is not None:
            worker = make_worker(
                app.declaration, transport, settings, member="m", clock=SystemClock(), metrics=stage.metrics
            )
            await worker.start(create_topics=True)
            running = asyncio.create_task(worker.run(stop))
        yield stage
    finally:
        stop.set()
        await stage.bus.requests.close()
        if worker is not None and running is not None:
            await asyncio.wait([running], timeout=5)
            running.cancel()
            await worker.stop(1)
        await stage.bus.publisher.close()
        await transport.close()


@pytest.mark.parametrize("settings", ["memory", "sqlite", "kafka"], indirect=True)
async def test_a_request_is_answered_with_the_type_asked_for(settings: Settings) -> None:
    async with staged(oracle(shout), settings) as stage:
        assert await stage.bus.request(Asked("why?"), Answered, timeout_s=20) == Answered("WHY?")
        started_s = time.monotonic()
        assert await stage.bus.request(Asked("again"), Answered, timeout_s=20) == Answered("AGAIN")
        assert time.monotonic() - started_s < 15
        first, second = await stage.replies()
        assert first.metadata.recipient == second.metadata.recipient
        assert first.metadata.recipient.id == "planner@tests"
        assert first.metadata.recipient.session_id
        assert not stage.bus.late_replies


async def test_the_request_carries_session_reply_address_and_the_time_that_is_left(settings: Settings) -> None:
    seen: list[tuple[sealing.Message, float]] = []

    async def handle(question: Asked, context: Context) -> Answered:
        seen.append((context.message, context.remaining_s))
        return Answered("seen")

    async with staged(oracle(handle), settings) as stage:
        await stage.bus.publish(Asked("without"))
        await stage.bus.request(Asked(), Answered, timeout_s=20)
        await until(lambda: len(seen) == 2)
        messages = {message.routing.reply_to: message for message, _ in seen}
        assert messages[None].metadata.sender.session_id is None
        request = messages[stage.topic]
        answer = (await stage.replies())[0]
        assert answer.metadata.recipient == Agent(id="planner@tests", session_id=request.metadata.sender.session_id)
        assert answer.metadata.correlation_id == request.message_id
        (left_s,) = [left for message, left in seen if message.routing.reply_to]
        assert left_s < 20 + 5


@pytest.mark.skipif(native.core is None, reason="the compiled hot path is not built: make native")
@pytest.mark.parametrize("settings", ["memory"], indirect=True)
async def test_requests_alike_are_sealed_and_read_the_compiled_way(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact: list[str] = []

    def seal_exactly(sealer: Sealer, draft: Any, kind: Any, *rest: Any) -> Any:
        exact.append(kind.name)
        return whole(sealer, draft, kind, *rest)

    whole = Sealer.seal_data
    monkeypatch.setattr(Sealer, "seal_data", seal_exactly)
    async with staged(oracle(shout), settings) as stage:
        for number in range(10):
            found = await stage.bus.request(Asked(f"why {number}?"), Answered, timeout_s=20)
            assert found == Answered(f"WHY {number}?")
        sessions = {message.metadata.recipient for message in await stage.replies()}
    # A template is made when its options come for the second time.
    assert exact.count("question.asked") == 1
    assert len(sessions) == 1


async def test_an_answer_of_another_type_is_an_error_that_names_both(settings: Settings) -> None:
    async def handle(question: Asked) -> Other:
        return Other("x")

    async with staged(oracle(handle), settings) as stage:
        with pytest.raises(
            UnexpectedReply, match=r"question\.asked was answered with answer\.other, expected question\.answered"
        ) as caught:
            await stage.bus.request(Asked(), Answered, timeout_s=20)
        assert (caught.value.expected, caught.value.found, caught.value.message.message_type) == (
            "question.answered",
            "answer.other",
            "answer.other",
        )
        assert not caught.value.retriable


async def test_a_dead_lettered_request_raises_its_reason(settings: Settings) -> None:
    async def handle(question: Asked) -> Answered:
        if question.text == "flaky":
            raise ValueError("broken")
        raise Reject("no")

    async with staged(oracle(handle, retry=Retry(attempts=2, base_s=0.01)), settings) as stage:
        with pytest.raises(RequestFailed, match="oracle@tests reports rejected") as caught:
            await stage.bus.request(Asked(), Answered, timeout_s=20)
        assert (caught.value.reason, caught.value.reporter) == ("rejected", "oracle@tests")
        assert caught.value.request.message_type == "question.asked"
        with pytest.raises(RequestFailed) as exhausted:
            await stage.bus.request(Asked("flaky"), Answered, timeout_s=20)
        assert exhausted.value.reason == "retries_exhausted"


async def test_no_answer_by_the_deadline_is_a_retriable_error_and_a_late_answer_is_kept(settings: Settings) -> None:
    async def handle(question: Asked) -> Answered | None:
        if question.text == "nothing":
            return None
        if question.text == "first":
            return Answered("early")
        # It is cut when its message expires, and answers nevertheless.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Answered("late")

    async with staged(oracle(handle), settings) as stage:
        # Nothing is to be made any more: a busy broker takes seconds for a topic.
        await stage.bus.request(Asked("first"), Answered, timeout_s=20)
        started_s = time.monotonic()
        with pytest.raises(RequestTimedOut, match=r"accepted and not answered within 2\.5 s") as caught:
            await stage.bus.request(Asked(), Answered, timeout_s=2.5)
        assert time.monotonic() - started_s < 15
        assert caught.value.retriable
        await until(lambda: bool(stage.bus.late_replies))
        (late,) = stage.bus.late_replies
        assert late.metadata.correlation_id == caught.value.request.message_id
        assert stage.count("late_replies", type="question.answered") == 1
        with pytest.raises(RequestTimedOut):
            await stage.bus.request(Asked("nothing"), Answered, timeout_s=5)


async def test_a_second_answer_is_counted_as_late(settings: Settings) -> None:
    async def handle(question: Asked) -> list[Answered]:
        return [Answered("one"), Answered("two")]

    async with staged(oracle(handle), settings) as stage:
        assert await stage.bus.request(Asked(), Answered, timeout_s=20) == Answered("one")
        await until(lambda: bool(stage.bus.late_replies))
        assert stage.count("late_replies", type="question.answered") == 1


async def test_instances_of_one_agent_get_their_own_answers(settings: Settings) -> None:
    async with staged(oracle(shout), settings) as stage:
        # A log that several can open is opened twice, as two processes would.
        transport = open_configured(settings) if stage.transport.features.between_processes else stage.transport
        other = Bus(
            make_publisher(transport, settings, "planner@tests", clock=SystemClock(), metrics=stage.metrics), transport
        )
        asked = [(stage.bus, "a"), (other, "b"), (stage.bus, "c"), (other, "d")]
        answers = await asyncio.gather(*(bus.request(Asked(text), Answered, timeout_s=20) for bus, text in asked))
        assert [answer.text for answer in answers] == ["A", "B", "C", "D"]
        assert len(await stage.replies()) == 4
        assert not stage.bus.late_replies
        assert not other.late_replies
        await (other.close() if transport is not stage.transport else other.requests.close())


async def test_a_handler_asks_another_agent(settings: Settings) -> None:
    async def handle(question: Asked, context: Context) -> Answered:
        facts = await context.request(Lookup(question.text), Facts, timeout_s=20)
        return Answered(facts.text)

    async def look_up(lookup: Lookup) -> Facts:
        return Facts(f"because {lookup.query}")

    app = oracle(handle)
    app.on(Lookup)(look_up)
    async with staged(app, settings) as stage:
        assert await stage.bus.request(Asked("it is"), Answered, timeout_s=20) == Answered("because it is")


async def test_forged_answers_never_end_a_request(settings: Settings) -> None:
    async def handle(question: Asked, context: Context) -> Answered:
        await forge(stage, context.message)
        await until(
            lambda: sum(stage.count("refused_replies", reason=reason) for reason in REFUSED) >= len(REFUSED) + 3
        )
        return Answered("true")

    async with staged(oracle(handle, timeout_s=30), settings) as stage:
        assert await stage.bus.request(Asked(), Answered, timeout_s=25, to="oracle@tests") == Answered("true")
        assert {reason: stage.count("refused_replies", reason=reason) for reason in REFUSED} == dict.fromkeys(
            REFUSED, 1
        ) | {
            "uncorrelated": 4,
            "proof_invalid": 2,
        }
        assert not stage.bus.late_replies


REFUSED = (
    "malformed",
    "hash_mismatch",
    "seal_mismatch",
    "wrong_audience",
    "key_mismatch",
    "uncorrelated",
    "proof_invalid",
    "schema_violation",
    "expired",
)


async def forge(stage: Stage, request: sealing.Message) -> None:
    """Answers to *request*, each wrong in one respect; two more are for somebody else."""
    now_ms = time.time_ns() // 1_000_000
    before = request.metadata

    def made(
        data: bytes = b'{"text":"forged"}',
        *,
        routing: dict[str, Any] | None = None,
        chained: bool = True,
        cause: sealing.Message | None = request,
        **changes: Any,
    ) -> sealing.Message:
        metadata: dict[str, Any] = {
            "causation_id": before.message_id,
            "conversation_id": before.conversation_id,
            "correlation_id": before.message_id,
            "hops": 1,
            "message_id": str(uuid.uuid4()),
            "message_type": "question.answered",
            "namespace": before.namespace,
            "protocol": PROTOCOL,
            "recipient": Agent(id=before.sender.id, session_id=before.sender.session_id),
            "schema_version": "1.0.0",
            "sender": Agent(id="oracle@tests"),
            "timestamp": format_ms(now_ms),
        }
        return sealing.seal(
            data,
            Metadata(**(metadata | changes)),
            Routing(**({"expires_at": format_ms(now_ms + 60_000)} | (routing or {}))),
            parents=(cause.seal,) if cause else (),
            proof_chain=cause.chain_for_children() if cause and chained else (),
        )

    honest = made()
    # Of the request's id and all else, with other content.
    twin = sealing.seal(b'{"text":"how?"}', before, request.routing)
    forged: list[tuple[bytes, bytes]] = [(b"{", b"k"), (honest.value.replace(b"forged", b"f0rged"), honest.key)]
    forged += [
        (honest.value.replace(b'"id":"oracle@tests"', b'"id":"orakle@tests"'), honest.key),
        (made(namespace="elsewhere").value, honest.key),
        (honest.value, b"another key"),
        (made(correlation_id="nothing").value, honest.key),
        (made(conversation_id="another").value, b"another"),
        (made(cause=twin).value, honest.key),
        (made(cause=None, causation_id=None, hops=0).value, honest.key),
        (made(chained=False).value, honest.key),
        (made(sender=Agent(id="mallory@tests")).value, honest.key),
        (made(b'{"text":1}').value, honest.key),
        (
            made(
                timestamp=format_ms(now_ms - 90_000), routing={"expires_at": format_ms(now_ms - 10_000)}, chained=True
            ).value,
            honest.key,
        ),
        (made(recipient=Agent(id=before.sender.id, session_id="another")).value, honest.key),
        (made(recipient=Agent(id="other@tests", session_id=before.sender.session_id)).value, honest.key),
        (made(recipient=None).value, honest.key),
    ]
    outcomes = await stage.transport.append([NewRecord(stage.topic, key, value) for value, key in forged], timeout_s=10)
    assert all(hasattr(outcome, "offset") for outcome in outcomes)


async def test_a_thousand_requests_wait_at_once_in_one_process(settings: Settings) -> None:
    arrived: list[Asked] = []
    everybody = asyncio.Event()

    async def handle(question: Asked) -> Answered:
        arrived.append(question)
        if len(arrived) == 1000:
            everybody.set()
        await everybody.wait()
        return Answered(question.text)

    raised = msgspec.structs.replace(settings, worker=msgspec.structs.replace(settings.worker, concurrency=1000))
    async with staged(oracle(handle), raised) as stage:
        started_s = time.monotonic()
        asking = [
            asyncio.create_task(stage.bus.request(Asked(str(number)), Answered, timeout_s=45)) for number in range(1000)
        ]
        before = len(asyncio.all_tasks())
        await asyncio.wait_for(everybody.wait(), 40)
        waiting = stage.bus.requests.waiting
        assert len(waiting) == 1000
        assert waiting.causes() == set()
        # The worker's own, one for each that runs; none for each that waits.
        assert len(asyncio.all_tasks()) <= before + 1000 + 100
        answers = await asyncio.gather(*asking)
        print(f"1000 requests at once: {time.monotonic() - started_s:.2f} s")
        assert [answer.text for answer in answers] == [str(number) for number in range(1000)]
        assert len(waiting) == 0


async def test_an_invalid_request_is_refused_by_field_name(settings: Settings) -> None:
    async with staged(None, settings) as stage:
        for options, match in (
            ({"timeout_s": 0}, "timeout_s"),
            ({"timeout_s": 1e9}, "timeout_s"),
            ({"timeout_s": float("nan")}, "timeout_s"),
            ({"ttl_s": 5}, "ttl_s"),
            ({"reply_to": stage.topic}, "reply_to"),
            ({"priority": "soon"}, "priority"),
        ):
            with pytest.raises(PublishRejected, match=match):
                await stage.bus.request(Asked(), Answered, **options)
        with pytest.raises(ContractError, match="is not a payload type"):
            await stage.bus.request(Asked(), msgspec.Struct)
        asking = asyncio.create_task(stage.bus.request(Asked(), Answered, timeout_s=20, message_id="one"))
        await until(lambda: len(stage.bus.requests.waiting) == 1 and not stage.bus.requests.waiting.moving)
        with pytest.raises(PublishRejected, match="message_id"):
            await stage.bus.request(Asked(), Answered, message_id="one")
        asking.cancel()
        await asyncio.wait([asking])
        assert len(stage.bus.requests.waiting) == 0


async def test_closing_ends_what_waits(settings: Settings) -> None:
    async with staged(None, settings) as stage:
        asking = asyncio.create_task(stage.bus.request(Asked(), Answered, timeout_s=30))
        await until(lambda: len(stage.bus.requests.waiting) == 1 and not stage.bus.requests.waiting.moving)
        await stage.bus.requests.close()
        with pytest.raises(Exception, match="closed before"):
            await asyncio.wait_for(asking, 10)
        with pytest.raises(Exception, match="closed"):
            await stage.bus.request(Asked(), Answered)


@pytest.mark.slow  # waits until messages expire, on a real clock
async def test_an_expired_request_is_reported_too(settings: Settings) -> None:
    """Nobody works when it is sent; the report outlives the request and says why it died."""
    async with staged(None, settings) as stage:
        with pytest.raises(RequestTimedOut):
            # Time enough to send it: a busy broker takes seconds to make the two topics.
            await stage.bus.request(Asked(), Answered, timeout_s=12)
        await asyncio.sleep(5.2)
        worker = make_worker(
            oracle(shout).declaration, stage.transport, settings, member="m", clock=SystemClock(), metrics=stage.metrics
        )
        await worker.start(create_topics=True)
        stop = asyncio.Event()
        running = asyncio.create_task(worker.run(stop))
        await until(lambda: bool(stage.bus.late_replies), 20)
        stop.set()
        await running
        await worker.stop(1)
        (late,) = stage.bus.late_replies
        assert late.message_type == "error.reported"
        assert msgspec.json.decode(late.data)["error_code"] == "expired"
        assert stage.count("late_replies", type="error.reported") == 1


class Ahead(SystemClock):
    """A machine whose clock is *ahead_s* ahead of everybody else's."""

    def __init__(self, ahead_s: int) -> None:
        super().__init__()
        self._ahead_ms = ahead_s * 1000

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


async def test_a_report_that_rests_on_nothing_ends_no_wait(settings: Settings) -> None:
    """A requester whose clock is ahead: what it asked dies, and the report cannot rest on it. Anybody could forge such
    a report."""
    async with staged(oracle(shout), settings) as stage:
        planner = make_publisher(stage.transport, settings, "planner@tests", clock=Ahead(180), metrics=stage.metrics)
        bus = Bus(planner, stage.transport)
        with pytest.raises(RequestTimedOut, match="the request is not its first parent"):
            await bus.request(Asked(), Answered, timeout_s=8)
        await bus.requests.close()
        await planner.close()


async def test_a_reply_topic_that_may_not_be_made_is_named(settings: Settings) -> None:
    raised = msgspec.structs.replace(settings, topics=msgspec.structs.replace(settings.topics, create=False))
    async with staged(None, raised) as stage:
        with pytest.raises(PublishRejected, match=rf"{stage.topic}.*topics\.create is false.*topic apply"):
            await stage.bus.request(Asked(), Answered)


@pytest.mark.parametrize("settings", ["memory", "kafka"], indirect=True)
async def test_an_answer_to_an_address_nobody_has_opened_is_dropped_and_counted(settings: Settings) -> None:
    """Anybody can write a reply address into a message; it must not stop a partition for ever."""
    raised = msgspec.structs.replace(settings, topics=msgspec.structs.replace(settings.topics, create=False))
    async with staged(oracle(shout), raised) as stage:
        namespace = settings.bus.namespace
        await stage.bus.publish(Asked(), reply_to=reply_topic(namespace, "nobody@tests"))
        labels = {"group": "oracle-tests-8a711558", "kind": "answer"}
        await until(lambda: bool(stage.count("dropped_answers", **labels)))
        await stage.transport.admin.create_topics([TopicSpec(name=stage.topic, partitions=1)])
        assert await stage.bus.request(Asked("go on"), Answered, timeout_s=20) == Answered("GO ON")


@pytest.mark.parametrize("settings", ["kafka"], indirect=True)
async def test_a_reply_topic_that_was_deleted_is_made_again(settings: Settings) -> None:
    async with staged(oracle(shout), settings) as stage:
        assert await stage.bus.request(Asked(), Answered, timeout_s=20) == Answered("WHY?")
        admin = AdminClient({"bootstrap.servers": settings.bus.url.removeprefix("kafka://")})
        await asyncio.to_thread(admin.delete_topics([stage.topic])[stage.topic].result, 30)
        async with asyncio.timeout(60):
            # What is waited for has no event.
            while stage.topic not in await stage.transport.admin.topics():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert await stage.bus.request(Asked("again?"), Answered, timeout_s=20) == Answered("AGAIN?")


async def test_a_log_error_after_its_request_was_cancelled_does_not_fail_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connect("memory://", agent="planner@tests") as bus:
        asked, gave_up = asyncio.Event(), asyncio.Event()

        async def away(_: str) -> None:
            asked.set()
            await gave_up.wait()
            raise UnreachableError("the log is away")

        with monkeypatch.context() as patched:
            patched.setattr(bus.transport.admin, "ranges", away)
            first = asyncio.create_task(bus.request(Asked(), Answered, timeout_s=5))
            await asked.wait()
            first.cancel()
            await asyncio.wait([first])
            gave_up.set()
            await asyncio.wait([bus.requests._opening])  # type: ignore[type-var]

        with pytest.raises(RequestTimedOut):
            await bus.request(Asked(), Answered, timeout_s=1)


async def test_closing_reads_no_more_answers_although_it_is_cancelled() -> None:
    async with connect("memory://", agent="planner@tests") as bus:
        tasks = asyncio.all_tasks()
        with pytest.raises(RequestTimedOut):
            await bus.request(Asked(), Answered, timeout_s=1)
        following = {task for task in asyncio.all_tasks() - tasks if "ReplyReader" in task.get_coro().__qualname__}
        assert following
        closing = asyncio.create_task(bus.requests.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert not following & asyncio.all_tasks()


async def until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
