"""Requests in `App.test()`: no real time passes, and the clock moves only where nobody answers."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import msgspec
import pytest

from bus.protocol import sealing
from bus.protocol.envelope import Statement
from bus.protocol.signatures import Signature
from bus.topics.names import reply_topic, retry_topic
from bus.transports.base import NewRecord, TopicSpec
from bus.vocabulary.error import ErrorReported
from consumers.app.testing import TestBus
from producers.sealing.seal_request import SealRequest
from sealbus import (
    App,
    Context,
    Outgoing,
    PublishRejected,
    Reject,
    RequestFailed,
    RequestTimedOut,
    Retry,
    RetryLater,
    payload,
)
from sealbus.errors import UnexpectedReply
from tests.kit import handling


@payload("study.request")
class Research(msgspec.Struct, frozen=True, kw_only=True):
    question: str


@payload("study.output")
class Output(msgspec.Struct, frozen=True, kw_only=True):
    answer: str


@payload("lookup.request")
class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    query: str


@payload("lookup.facts")
class Facts(msgspec.Struct, frozen=True, kw_only=True):
    text: str


def researcher(**options: Any) -> App:
    app = App("researcher@tests", types=[Facts, ErrorReported])

    @app.on(Research, **options)
    async def research(request: Research, context: Context) -> Output:
        facts = await context.request(Lookup(query=request.question), Facts, timeout_s=30)
        return Output(answer=facts.text)

    return app


async def test_a_handler_may_ask_another_handler_of_the_same_app() -> None:
    app = researcher()

    @app.on(Lookup)
    async def look_up(lookup: Lookup) -> Facts:
        return Facts(text=lookup.query.upper())

    async with app.test() as bus:
        started_s = time.monotonic()
        assert await bus.request(Research(question="why?"), Output) == Output(answer="WHY?")
        await bus.publish(Research(question="how?"))
        await bus.settle()
        assert bus.sent(Output) == [Output(answer="WHY?"), Output(answer="HOW?")]
        assert [message.metadata.hops for message in bus.messages(Lookup)] == [1, 1]
        assert bus.clock.monotonic_s() == 0
        assert time.monotonic() - started_s < 8


async def test_requests_at_the_same_time_each_get_their_answer() -> None:
    app = App("echo@tests")

    @app.on(Lookup)
    async def look_up(lookup: Lookup) -> Facts:
        return Facts(text=lookup.query)

    async with app.test() as bus:
        answers = await asyncio.gather(*(bus.request(Lookup(query=str(number)), Facts) for number in range(20)))
        assert [answer.text for answer in answers] == [str(number) for number in range(20)]
        assert bus.clock.monotonic_s() == 0


async def test_where_nobody_answers_the_clock_moves_to_the_deadline_and_no_further() -> None:
    app = handling(App("silent@tests", types=[Facts]), Lookup)
    async with app.test() as bus:
        started_s = time.monotonic()
        with pytest.raises(RequestTimedOut):
            await bus.request(Lookup(query="x"), Facts, timeout_s=600)
        assert bus.clock.monotonic_s() == pytest.approx(600)
        assert time.monotonic() - started_s < 8


async def test_a_retry_falls_due_while_the_requester_waits() -> None:
    app = App("flaky@tests")
    runs: list[int] = []

    @app.on(Lookup)
    async def look_up(lookup: Lookup, context: Context) -> Facts:
        runs.append(context.attempt)
        if context.attempt < 3:
            raise RetryLater(after_s=6)
        return Facts(text="at last")

    async with app.test() as bus:
        assert await bus.request(Lookup(query="x"), Facts, timeout_s=300) == Facts(text="at last")
        assert runs == [1, 2, 3]
        assert bus.clock.monotonic_s() < 120


async def test_settle_does_not_wait_for_a_handler_that_only_time_can_end() -> None:
    app = researcher(retry=Retry(attempts=1))
    async with app.test() as bus:
        # Nobody handles the lookup.
        await bus.publish(Research(question="why?"))
        await bus.settle()
        assert not bus.dead_letters
        await bus.advance(31)
        assert [letter.reason for letter in bus.dead_letters] == ["retries_exhausted"]


async def test_a_request_of_a_handler_never_outlives_its_own_deadline() -> None:
    app = researcher(timeout_s=4, retry=Retry(attempts=1))
    async with app.test() as bus:
        await bus.publish(Research(question="why?"))
        await bus.settle()
        (request,) = bus.messages(Lookup)
        assert request.routing.expires_at == "2026-01-01T00:00:04.000Z"
        await bus.advance(5)
        assert [letter.reason for letter in bus.dead_letters] == ["retries_exhausted"]


async def test_a_failure_in_a_nested_request_reaches_the_first_requester() -> None:
    app = researcher(retry=Retry(attempts=1))

    @app.on(Lookup)
    async def look_up(lookup: Lookup) -> Facts:
        raise Reject("not allowed to")

    async with app.test() as bus:
        with pytest.raises(RequestFailed, match="retries_exhausted") as caught:
            await bus.request(Research(question="why?"), Output)
        assert caught.value.reporter == "researcher@tests"
        assert [letter.reason for letter in bus.dead_letters] == ["rejected", "retries_exhausted"]


def failing(error: Exception) -> App:
    app = App("failing@tests", types=[Facts])

    @app.on(Lookup, retry=Retry(attempts=1))
    async def look_up(lookup: Lookup) -> Facts:
        raise error from OSError("a cause of the author's")

    return app


async def test_the_requester_is_told_the_text_of_a_reject() -> None:
    async with failing(Reject("no such sku")).test() as bus:
        with pytest.raises(RequestFailed, match=r"failing@tests reports rejected: no such sku$"):
            await bus.request(Lookup(query="x"), Facts)


async def test_the_requester_is_not_told_the_text_of_any_other_error() -> None:
    for error in (ValueError("row 7 of customers"), RetryLater("row 7 of customers")):
        async with failing(error).test() as bus:
            with pytest.raises(RequestFailed) as caught:
                await bus.request(Lookup(query="x"), Facts)
        assert "row 7" not in str(caught.value)
        assert "author" not in str(caught.value)
        assert "was not handled" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no password=hunter2 here", "no password=*** here"),
        ("x" * 10_000, "x" * 239 + "…"),
        ("half a \ud800 pair", "half a \\ud800 pair"),
        ("two\nlines\x1b[31m", "two\\nlines\\x1b[31m"),
    ],
    ids=["secret", "long", "surrogate", "control"],
)
async def test_the_text_of_a_reject_is_masked_and_bounded_and_can_be_printed(text: str, told: str) -> None:
    async with failing(Reject(text)).test() as bus:
        with pytest.raises(RequestFailed) as caught:
            await bus.request(Lookup(query="x"), Facts)
    assert str(caught.value).endswith(f"reports rejected: {told}")


async def test_a_reject_without_a_text_is_reported_as_not_handled() -> None:
    async with failing(Reject()).test() as bus:
        with pytest.raises(RequestFailed, match=r"was not handled$"):
            await bus.request(Lookup(query="x"), Facts)


async def test_runs_that_wait_leave_their_places_to_what_they_wait_for() -> None:
    app = researcher(timeout_s=20, retry=Retry(attempts=1))

    @app.on(Lookup)
    async def look_up(lookup: Lookup) -> Facts:
        return Facts(text=lookup.query)

    async with app.test() as bus:
        for number in range(200):
            await bus.publish(Research(question=str(number)))
        await bus.settle()
        assert not bus.dead_letters
        assert {output.answer for output in bus.sent(Output)} == {str(number) for number in range(200)}


async def test_an_answer_of_another_type_names_both_types() -> None:
    app = handling(App("wrong@tests"), Lookup, Output(answer="?"))
    async with app.test() as bus:
        with pytest.raises(UnexpectedReply) as caught:
            await bus.request(Lookup(query="x"), Facts)
        assert (caught.value.expected, caught.value.found) == ("lookup.facts", "study.output")


async def test_no_request_leaves_without_time_left() -> None:
    app = App("late@tests", types=[Facts])
    refused: list[str] = []

    @app.on(Lookup)
    async def look_up(lookup: Lookup, context: Context) -> None:
        context._deadline_s = 0.0
        try:
            await context.request(Lookup(query="y"), Facts)
        except PublishRejected as error:
            refused.append(str(error))

    async with app.test() as bus:
        await bus.publish(Lookup(query="x"))
        await bus.settle()
        assert refused == ["not sent: no time is left to this run"]


async def test_every_death_after_the_seal_was_checked_is_reported_to_the_very_instance() -> None:
    app = handling(App("strict@tests", types=[Facts]), Research, Output(answer=""))
    async with app.test() as bus:
        await opened(bus, reply_topic("agents", "asker@tests"))
        for options in ({"max_hops": 0}, {}):
            await bus.publish(Research(question="x"), ttl_s=1, reply_to=reply_topic("agents", "asker@tests"), **options)
        bus.clock.advance(10)
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["expired", "expired"]
        for report in await reports(bus, "asker@tests"):
            assert msgspec.json.decode(report.data)["error_code"] == "expired"
            assert report.metadata.recipient is not None
            assert report.metadata.recipient.id == "test@sealbus"
            assert report.routing.expires_at > "2026-01-01T00:30"
        assert len(await reports(bus, "asker@tests")) == 2


class Keys:
    """Signs everything alike, and takes that for good."""

    kid, alg = "k", "HS256"

    def sign(self, signing_input: bytes) -> bytes:
        return b"signed"

    def judge(self, signature: Signature, statement: Statement, payload: bytes) -> str | None:
        return None


async def test_an_unverified_message_causes_no_failure_report() -> None:
    """Whom it names need not have sent it: the report would end a bystander's request."""
    app = handling(App("strict@tests", signer=Keys(), verifier=Keys()), Lookup, Facts(text=""))
    async with app.test() as bus:
        with pytest.raises(RequestTimedOut):
            await bus.request(Lookup(query="x"), Facts)
        assert [letter.reason for letter in bus.dead_letters] == ["signature_missing"]


@pytest.mark.parametrize("max_hops", [0, 1, None])
async def test_a_request_is_refused_if_its_answer_would_exceed_the_hop_limit(
    max_hops: int | None,
) -> None:
    app, refused = App("far@tests", types=[Facts]), []

    @app.on(Research)
    async def research(request: Research, context: Context) -> None:
        try:
            await context.request(Lookup(query="x"), Facts, timeout_s=30)
        except PublishRejected as error:
            refused.append(str(error))

    async with app.test() as bus:
        cause = None
        for _ in range(63 if max_hops is None else max_hops):
            cause = bus.publisher.sealer.seal(Outgoing(Lookup(query="x")), SealRequest(cause=cause)).message
        last = None if max_hops is None else max_hops + 1
        await bus.publisher.send(
            bus.publisher.sealer.seal(Outgoing(Research(question="x"), max_hops=last), SealRequest(cause=cause))
        )
        await bus.settle()
        hops = 65 if max_hops is None else max_hops + 2
        assert len(refused) == 1
        assert f"/metadata/hops: its answer would have {hops} hops, at most {hops - 1} are allowed" in refused[0]


async def test_a_death_at_the_last_hop_is_reported() -> None:
    app = handling(App("far@tests"), Lookup, Facts(text=""))
    async with app.test() as bus:
        await opened(bus, reply_topic("agents", "asker@tests"))
        cause = None
        for _ in range(64):
            cause = bus.publisher.sealer.seal(Outgoing(Lookup(query="x")), SealRequest(cause=cause)).message
        sealed = bus.publisher.sealer.seal(
            Outgoing(Lookup(query="x"), reply_to=reply_topic("agents", "asker@tests")), SealRequest(cause=cause)
        )
        assert sealed.message.metadata.hops == 64
        await bus.publisher.send(sealed)
        await bus.settle()
        (report,) = await reports(bus, "asker@tests")
        assert msgspec.json.decode(report.data)["error_code"] == "rejected"
        assert (report.metadata.hops, report.metadata.correlation_id) == (0, sealed.message_id)
        assert report.metadata.conversation_id == sealed.message.metadata.conversation_id


async def test_an_unknown_type_is_reported_after_its_retry_tier() -> None:
    app = handling(App("strict@tests", types=[Facts]), Lookup, Facts(text=""))
    async with app.test() as bus:
        reply_to = reply_topic("agents", "asker@tests")
        sealed = bus.publisher.sealer.seal(Outgoing(Research(question="x"), reply_to=reply_to, ttl_s=12))
        headers = (
            ("sb-attempt", b"1"),
            ("sb-origin-topic", b"agents.study.request"),
            ("sb-origin-partition", b"0"),
            ("sb-origin-offset", b"0"),
        )
        tier = NewRecord(retry_topic("agents", app.group, "5s"), sealed.record.key, sealed.record.value, headers)
        await bus.transport.append([tier], timeout_s=5)
        await opened(bus, reply_to)
        await bus.advance(11)
        assert not await reports(bus, "asker@tests")
        await bus.advance(20)
        (report,) = await reports(bus, "asker@tests")
        assert msgspec.json.decode(report.data)["error_code"] == "unknown_type"
        assert report.metadata.correlation_id == sealed.message_id


class Fickle:
    """Signs what it can."""

    kid, alg = "k", "HS256"

    def __init__(self, failures: float) -> None:
        self.failures = failures

    def sign(self, signing_input: bytes) -> bytes:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError("the keys are away")
        return b"signed"


async def test_an_answer_that_cannot_be_signed_just_now_is_made_again() -> None:
    app = handling(
        App("signing@tests", signer=Fickle(failures=1)),
        Lookup,
        Facts(text="found"),
        retry=Retry(attempts=2, base_s=0.1),
    )
    async with app.test() as bus:
        assert await bus.request(Lookup(query="x"), Facts, timeout_s=30) == Facts(text="found")
        assert not bus.dead_letters


async def test_a_death_whose_report_cannot_be_signed_just_now_is_reported_when_it_can() -> None:
    app = handling(App("signing@tests", signer=Fickle(failures=3)), Lookup, Reject("no"))
    async with app.test() as bus:
        started_s = bus.clock.monotonic_s()
        with pytest.raises(RequestFailed):
            await bus.request(Lookup(query="x"), Facts, timeout_s=30)
        assert bus.clock.monotonic_s() - started_s < 10
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]


class Keyless(Fickle):
    """Reads which key it has each time; just now there is none."""

    @property
    def kid(self) -> str:
        raise OSError("the keys are away")


@pytest.mark.parametrize(
    "signer", [Fickle(failures=math.inf), Keyless(failures=0)], ids=["it fails", "it does not know its key"]
)
async def test_a_death_whose_report_cannot_be_signed_ends_no_worker(signer: Fickle) -> None:
    app = handling(App("signing@tests", signer=signer), Lookup, Reject("no"))
    async with app.test() as bus:
        for _ in range(2):
            with pytest.raises(RequestTimedOut):
                await bus.request(Lookup(query="x"), Facts, timeout_s=30)
        assert [letter.reason for letter in bus.dead_letters] == ["rejected", "rejected"]


async def test_nothing_is_reported_about_a_report() -> None:
    app = handling(App("reporter@tests"), ErrorReported, Reject("no"))
    async with app.test() as bus:
        topic = reply_topic("agents", "asker@tests")
        now = "2026-01-01T00:00:00Z"
        report = msgspec.convert(
            {"error_code": "x", "error_message": "x", "source_agent": "x", "timestamp": now}, ErrorReported
        )
        await bus.publish(report, reply_to=topic)
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]
        assert topic not in await bus.transport.admin.topics()


async def opened(bus: TestBus, topic: str) -> None:
    """As whoever asks does before."""
    await bus.transport.admin.create_topics([TopicSpec(name=topic, partitions=1)])


async def reports(bus: TestBus, agent: str) -> list[sealing.Message]:
    records = await bus.transport.read(reply_topic("agents", agent), 0, 0, max_records=99, max_bytes=1 << 24)
    return [sealing.parse(record.value) for record in records]
