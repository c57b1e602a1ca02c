"""What a message does that comes again: nothing twice, and the same answer as the first time."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.gates import MAX_TTL_MS
from bus.protocol.sealing import parse
from bus.protocol.timestamps import parse_ms
from bus.settings.loading import load
from bus.topics.names import reply_topic
from bus.transports.base import NewRecord, TopicSpec
from bus.transports.read_all import scan_topic
from consumers.app.testing import TestBus
from consumers.delivery.inbox.open import inbox_url
from consumers.delivery.inbox.row_encoding import key_text
from producers.connection import make_publisher
from sealbus import App, Context, Outgoing, Reject, Retry, payload
from sealbus.errors import ConfigurationError, ContractError, InboxError
from sealbus.limits import Rate
from sealbus.telemetry import Metrics
from tests.kit import Done, handling


@payload("repeat.order")
class Order(msgspec.Struct, frozen=True):
    number: int
    amount: int = 1


@payload("repeat.transfer", risk="high")
class Transfer(msgspec.Struct, frozen=True):
    number: int


class Keys:
    """Signs, and finds every signature good."""

    kid, alg = "k1", "EdDSA"

    def sign(self, signing_input: bytes) -> bytes:
        return b"signed" + signing_input[:1]

    def judge(self, *_: object) -> None:
        return None


class OutOnce(Keys):
    """Fails to sign once, at one *call*."""

    def __init__(self, call: int) -> None:
        self.left = call

    def sign(self, signing_input: bytes) -> bytes:
        self.left -= 1
        if not self.left:
            raise OSError("the keys are away")
        return super().sign(signing_input)


def ledger(runs: list[int], *, policy: Any = None, **options) -> App:
    app = App("ledger@tests", policy=policy)

    @app.on(Order, **options)
    async def handle(order: Order) -> Done:
        runs.append(order.number)
        return Done(order.number)

    return app


async def test_a_repeated_idempotency_key_runs_once_and_is_answered_with_the_same_bytes() -> None:
    runs: list[int] = []
    async with ledger(runs).test() as bus:
        for _ in range(3):
            await bus.publish(Order(1), idempotency_key="one")
            await bus.settle()
        answers = [record.value async for record in scan_topic(bus.transport, "agents.job.done")]
    assert runs == [1]
    assert len(answers) == 3
    assert len(set(answers)) == 1


class Fickle:
    """Allows everything until told otherwise."""

    allows = True

    def refusal(self, *_: object) -> str | None:
        return None if self.allows else "not any more"


async def appended_again(bus: TestBus, topic: str) -> None:
    """Every record of *topic* once more: as after a death between the inbox's commit and the log's."""
    records = [record async for record in scan_topic(bus.transport, topic)]
    await bus.transport.append(
        [NewRecord(topic, record.key, record.value, record.headers) for record in records], timeout_s=5
    )
    await bus.settle()


@pytest.mark.parametrize("later_s", [60.0, 3 * 86_400.0])
async def test_a_repeat_of_a_finished_message_gets_the_stored_answer_after_expiry(later_s: float) -> None:
    runs: list[int] = []
    async with ledger(runs).test() as bus:
        await bus.publish(Order(1), idempotency_key="one", ttl_s=30)
        await bus.settle()
        bus.clock.advance(later_s)
        await appended_again(bus, "agents.repeat.order")
        answers = [record.value async for record in scan_topic(bus.transport, "agents.job.done")]
        assert not bus.dead_letters
    assert runs == [1]
    assert len(answers) == 2
    assert len(set(answers)) == 1


async def test_a_repeat_of_a_finished_message_gets_the_stored_answer_after_a_policy_change() -> None:
    policy, runs = Fickle(), list[int]()
    async with ledger(runs, policy=policy).test() as bus:
        await bus.publish(Order(1), idempotency_key="one")
        await bus.settle()
        policy.allows = False
        await appended_again(bus, "agents.repeat.order")
        assert len([record async for record in scan_topic(bus.transport, "agents.job.done")]) == 2
        assert not bus.dead_letters
        await bus.publish(Order(1), idempotency_key="one")
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["unauthorized"]
    assert runs == [1]


async def test_another_message_under_a_done_key_passes_every_gate_first() -> None:
    runs: list[int] = []
    settings = load(env={}, file=None).settings
    async with ledger(runs).test(settings=settings) as bus:
        await bus.publish(Order(1), idempotency_key="one", ttl_s=30)
        await bus.settle()
        late = make_publisher(
            bus.transport, settings, bus.publisher.sealer.origin.sender, clock=bus.clock, metrics=Metrics()
        )
        record = late.sealer.seal(Outgoing(Order(1), idempotency_key="one", ttl_s=30)).record
        bus.clock.advance(60)
        await bus.transport.append([record], timeout_s=5)
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["expired"]
        await late.close()


async def test_a_repeat_with_another_id_is_answered_to_its_own_id() -> None:
    runs: list[int] = []
    answers_to = reply_topic("agents", "planner@svc")
    async with ledger(runs).test() as bus:
        await bus.transport.admin.create_topics([TopicSpec(name=answers_to, partitions=1)])
        asked = []
        for _ in range(3):
            asked.append((await bus.publish(Order(1), idempotency_key="one", reply_to=answers_to)).message_id)
            await bus.settle()
        answers = [record.value async for record in scan_topic(bus.transport, answers_to)]
    assert runs == [1]
    correlated = [parse(answer).metadata.correlation_id for answer in answers]
    assert correlated == asked


async def test_a_repeat_under_another_id_that_comes_twice_is_answered_with_the_same_bytes() -> None:
    runs: list[int] = []
    answers_to = reply_topic("agents", "planner@svc")
    async with ledger(runs).test() as bus:
        await bus.transport.admin.create_topics([TopicSpec(name=answers_to, partitions=1)])
        for _ in range(2):
            receipt = await bus.publish(Order(1), idempotency_key="one", reply_to=answers_to)
            await bus.settle()
        bus.clock.advance(5)
        await appended_again(bus, "agents.repeat.order")
        answers = [record.value async for record in scan_topic(bus.transport, answers_to)]
    assert runs == [1]
    to_repeat = [each for each in answers if parse(each).metadata.correlation_id == receipt.message_id]
    assert len(to_repeat) == 2
    assert len(set(to_repeat)) == 1


async def test_repeats_under_different_ids_are_answered_by_messages_of_different_ids() -> None:
    answers_to = reply_topic("agents", "planner@svc")
    async with ledger([]).test() as bus:
        await bus.transport.admin.create_topics([TopicSpec(name=answers_to, partitions=1)])
        for _ in range(3):
            await bus.publish(Order(1), idempotency_key="one", reply_to=answers_to)
            await bus.settle()
        ids = [parse(record.value).message_id async for record in scan_topic(bus.transport, answers_to)]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("ttl_s", [86_400.0, 7 * 86_400.0])
async def test_the_answer_to_a_repeat_that_is_handled_late_lives_as_long_as_the_repeat(ttl_s: float) -> None:
    answers_to = reply_topic("agents", "planner@svc")
    async with ledger([]).test() as bus:
        await bus.transport.admin.create_topics([TopicSpec(name=answers_to, partitions=1)])
        await bus.publish(Order(1), idempotency_key="one", reply_to=answers_to)
        await bus.settle()
        repeat = bus.publisher.sealer.seal(Outgoing(Order(1), idempotency_key="one", ttl_s=ttl_s, reply_to=answers_to))
        bus.clock.advance(ttl_s - 1)
        await bus.transport.append([repeat.record], timeout_s=5)
        await bus.settle()
        answers = [parse(record.value) async for record in scan_topic(bus.transport, answers_to)]
    (answer,) = [each for each in answers if each.metadata.correlation_id == repeat.message_id]
    lives_ms = (parse_ms(answer.routing.expires_at) or 0) - (parse_ms(answer.metadata.timestamp) or 0)
    assert answer.routing.expires_at >= repeat.message.routing.expires_at
    assert lives_ms <= MAX_TTL_MS


async def test_a_request_that_is_made_again_under_its_key_runs_nothing_and_is_answered() -> None:
    runs: list[int] = []
    async with ledger(runs).test() as bus:
        for _ in range(3):
            assert await bus.request(Order(1), Done, idempotency_key="one", timeout_s=30) == Done(1)
        assert not bus.late_replies
    assert runs == [1]


async def test_a_duplicated_request_is_answered_with_the_same_bytes() -> None:
    runs: list[int] = []
    async with ledger(runs).test() as bus:
        await bus.request(Order(1), Done, idempotency_key="one", timeout_s=30)
        (first,) = [record async for record in scan_topic(bus.transport, "agents.repeat.order")]
        await bus.transport.append([NewRecord(first.topic, first.key, first.value, first.headers)], timeout_s=5)
        await bus.settle()
        answers = [record.value async for record in scan_topic(bus.transport, reply_topic("agents", "test@sealbus"))]
    assert runs == [1]
    assert len(answers) == 2
    assert len(set(answers)) == 1


async def test_a_stored_answer_that_cannot_be_sent_to_a_repeat_now_is_sent_later() -> None:
    runs: list[int] = []
    app = ledger(runs, retry=Retry(attempts=2, base_s=0.1))
    app.signer = OutOnce(call=2)
    async with app.test() as bus:
        for _ in range(2):
            assert await bus.request(Order(1), Done, idempotency_key="one", timeout_s=30) == Done(1)
    assert runs == [1]


async def test_repeats_that_are_taken_together_run_once_as_well() -> None:
    runs: list[int] = []
    async with ledger(runs, order="none").test() as bus:
        await asyncio.gather(*(bus.publish(Order(1), idempotency_key="one", key=f"k{number}") for number in range(8)))
        await bus.settle()
        await bus.advance(5)
        assert len(bus.sent(Done)) == 8
    assert runs == [1]


async def test_other_content_under_the_same_key_is_a_conflict() -> None:
    runs: list[int] = []
    async with ledger(runs).test() as bus:
        for number in (1, 2):
            await bus.publish(Order(number), idempotency_key="one")
            await bus.settle()
        (letter,) = bus.dead_letters
    assert (runs, letter.reason) == ([1], "idempotency_conflict")


async def test_messages_without_a_key_all_run_unless_their_ids_count() -> None:
    for options, expected in (({}, [1, 1]), ({"dedup": "always"}, [1, 1]), ({"dedup": "off"}, [1, 1])):
        runs: list[int] = []
        async with ledger(runs, **options).test() as bus:
            await bus.publish(Order(1))
            await bus.publish(Order(1))
            await bus.settle()
        assert runs == expected, options


@pytest.mark.parametrize("options", [{"dedup": "always"}, {"limits": [Rate("api", 600)]}])
async def test_a_duplicated_record_runs_once_where_ids_count_or_a_limit_does(options: dict[str, Any]) -> None:
    runs: list[int] = []
    async with ledger(runs, **options).test() as bus:
        await bus.publish(Order(1))
        await bus.settle()
        (first,) = [record async for record in scan_topic(bus.transport, "agents.repeat.order")]
        await bus.transport.append([NewRecord(first.topic, first.key, first.value, first.headers)], timeout_s=5)
        await bus.settle()
    assert runs == [1]


@pytest.mark.parametrize("idempotency_key", [None, "one"])
async def test_a_replayed_message_of_high_risk_runs_once(idempotency_key: str | None) -> None:
    runs: list[int] = []
    app = handling(
        App("ledger@tests", signer=Keys(), verifier=Keys()), Transfer, lambda transfer: runs.append(transfer.number)
    )
    async with app.test() as bus:
        settings = load(flags={}, env={}, file=None).settings
        payer = make_publisher(
            bus.transport, settings, "payer@tests", clock=bus.clock, metrics=Metrics(), signer=Keys()
        )
        sealed = payer.sealer.seal(Outgoing(Transfer(1), idempotency_key=idempotency_key))
        for _ in range(2):
            await payer.send(sealed)
            await bus.settle()
    assert runs == [1]


async def test_a_key_whose_run_failed_is_free_for_the_next_attempt() -> None:
    runs: list[int] = []
    app = App("ledger@tests")

    @app.on(Order, retry=Retry(attempts=3, base_s=0.1))
    async def handle(order: Order) -> Done:
        runs.append(order.number)
        if len(runs) < 3:
            raise ValueError("not yet")
        return Done(order.number)

    async with app.test() as bus:
        await bus.publish(Order(1), idempotency_key="one")
        await bus.settle()
        await bus.advance(10)
        await bus.publish(Order(1), idempotency_key="one")
        await bus.settle()
        assert len(bus.sent(Done)) == 2
    assert runs == [1, 1, 1]


async def test_transaction_writes_are_durable_exactly_if_the_run_counts() -> None:
    balances: list[list[tuple[object, ...]]] = []
    app = App("ledger@tests")

    @app.on(Order, retry=Retry(attempts=2, base_s=0.1))
    async def handle(order: Order, context: Context) -> None:
        transaction = await context.transaction()
        assert transaction is await context.transaction()
        await transaction.execute("CREATE TABLE IF NOT EXISTS booked (number INTEGER, amount INTEGER)")
        await transaction.execute("INSERT INTO booked VALUES ($1, $2)", order.number, order.amount)
        balances.append(
            await transaction.fetch("SELECT number, sum(amount) FROM booked GROUP BY number ORDER BY number")
        )
        if order.number == 2 and context.attempt == 1:
            raise ValueError("after the effect")
        if order.number == 3:
            raise Reject("after the effect")

    async with app.test() as bus:
        for number in (1, 1, 2, 3, 4):
            await bus.publish(Order(number, amount=10), idempotency_key=f"order-{number}")
            await bus.settle()
            await bus.advance(5)
    assert balances[-1] == [(1, 10), (2, 10), (4, 10)]


async def test_several_tasks_of_a_handler_can_write_in_its_transaction() -> None:
    totals: list[list[tuple[object, ...]]] = []
    app = App("ledger@tests")

    @app.on(Order, timeout_s=5, retry=Retry(attempts=1))
    async def handle(order: Order, context: Context) -> None:
        async def save(side: str) -> None:
            transaction = await context.transaction()
            await transaction.execute("CREATE TABLE IF NOT EXISTS entries (side TEXT, number INTEGER)")
            await transaction.execute("INSERT INTO entries VALUES ($1, $2)", side, order.number)

        await asyncio.gather(save("debit"), save("credit"))
        transaction = await context.transaction()
        totals.append(await transaction.fetch("SELECT side, count(*) FROM entries GROUP BY side ORDER BY side"))

    async with app.test() as bus:
        for number in (1, 2, 3):
            await bus.publish(Order(number), idempotency_key=f"order-{number}")
            await bus.settle()
        assert not bus.dead_letters
    assert totals[-1] == [("credit", 3), ("debit", 3)]


async def test_a_background_task_of_a_failed_handler_does_not_block_later_messages() -> None:
    runs: list[int] = []
    asked: list[asyncio.Task[object]] = []
    ended = asyncio.Event()
    app = App("ledger@tests")

    @app.on(Order)
    async def handle(order: Order, context: Context) -> None:
        runs.append(order.number)
        if order.number == 1:

            async def late() -> None:
                await ended.wait()
                await context.transaction()

            asked.append(asyncio.ensure_future(late()))
            raise Reject("no such account")

    async with app.test() as bus:
        await bus.publish(Order(1), idempotency_key="order-1")
        await bus.settle()
        ended.set()
        await asyncio.wait(asked)
        assert isinstance(asked[0].exception(), InboxError)
        await bus.publish(Order(2), idempotency_key="order-2")
        await bus.settle()
    assert runs == [1, 2]


async def test_a_transaction_is_refused_for_a_message_without_an_inbox_row() -> None:
    refused: list[str] = []
    app = App("ledger@tests")

    @app.on(Order)
    async def handle(order: Order, context: Context) -> None:
        try:
            await context.transaction()
        except ContractError as error:
            refused.append(str(error))

    async with app.test() as bus:
        await bus.publish(Order(1))
        await bus.settle()
    assert "no idempotency key" in refused[0]


async def test_in_strict_order_a_failing_message_blocks_only_its_own_key() -> None:
    done: list[int] = []
    failures = [10]
    app = App("ledger@tests")

    @app.on(Order, order="key_strict", retry=Retry(attempts=20, backoff="constant", base_s=60, cap_s=60))
    async def handle(order: Order) -> None:
        if order.number == 1 and failures[0]:
            failures[0] -= 1
            raise ValueError("not yet")
        done.append(order.number)

    async with app.test() as bus:
        for number in (1, 2, 3):
            await bus.publish(Order(number), key="a")
        await bus.publish(Order(4), key="b")
        await bus.settle()
        assert done == [4]
        await bus.advance(700)
    assert done == [4, 1, 2, 3]


async def test_in_strict_order_the_next_of_a_key_follows_a_death() -> None:
    done: list[int] = []
    app = App("ledger@tests")

    @app.on(Order, order="key_strict", retry=Retry(attempts=2, backoff="constant", base_s=10))
    async def handle(order: Order) -> None:
        if order.number == 1:
            raise ValueError("never")
        done.append(order.number)

    async with app.test() as bus:
        await bus.publish(Order(1), key="a")
        await bus.publish(Order(2), key="a")
        await bus.settle()
        assert not bus.dead_letters
        await bus.advance(30)
        assert [letter.reason for letter in bus.dead_letters] == ["retries_exhausted"]
    assert done == [2]


async def test_a_rejection_is_reported_once() -> None:
    app = handling(App("ledger@tests"), Order, Reject("no way"))
    settings = load(flags={"deadletter.details": True}, env={}, file=None).settings
    async with app.test(settings=settings) as bus:
        await bus.publish(Order(1))
        await bus.settle()
        (record,) = [record async for record in scan_topic(bus.transport, "agents.repeat.order.dlq")]
    assert any(b"no way" in value for _, value in record.headers)
    assert not any(b"no way: no way" in value for _, value in record.headers)


async def test_a_blocking_handler_runs_in_a_thread_of_its_own_and_answers() -> None:
    threads: list[str] = []
    app = App("ledger@tests")

    @app.on(Order, blocking=True, retry=Retry(attempts=2, base_s=0.01))
    def handle(order: Order, context: Context) -> Done:
        threads.append(threading.current_thread().name)
        if order.number == 2:
            raise Reject("no")
        context.send(Done(order.number + 100))
        return Done(order.number)

    async with app.test() as bus:
        await bus.publish(Order(1))
        await bus.publish(Order(2))
        await bus.settle()
        assert [receipt.number for receipt in bus.sent(Done)] == [101, 1]
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]
    assert threads == ["handler-handle", "handler-handle"]


@pytest.mark.medium
async def test_a_blocking_handler_keeps_its_message_until_it_ends_even_past_its_timeout() -> None:
    ends: list[str] = []
    release = threading.Event()
    app = App("ledger@tests")

    @app.on(Order, blocking=True, timeout_s=5, retry=Retry(attempts=2, base_s=0.01, backoff="constant"))
    def handle(order: Order, context: Context) -> None:
        if context.attempt == 1:
            release.wait(30)
        ends.append(f"attempt {context.attempt}")

    async with app.test() as bus:
        await bus.publish(Order(1))
        threading.Timer(1.0, release.set).start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bus.settle(), 0.2)
        bus.clock.advance(6)
        await asyncio.sleep(0.1)
        assert ends == []
        await bus.settle()
        await bus.advance(1)
    assert ends == ["attempt 1", "attempt 2"]


@pytest.mark.medium
async def test_an_error_after_the_timeout_of_a_blocking_handler_is_not_logged_by_the_loop() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    begun, release = threading.Event(), threading.Event()
    app = App("ledger@tests")

    @app.on(Order, blocking=True, timeout_s=5, retry=Retry(attempts=1))
    def handle(order: Order) -> None:
        begun.set()
        release.wait(30)
        raise ValueError(order.number)

    async with app.test() as bus:
        await bus.publish(Order(1))
        settling = asyncio.create_task(bus.settle())
        await asyncio.to_thread(begun.wait)
        bus.clock.advance(6)
        await asyncio.sleep(0)
        release.set()
        await settling
        assert [letter.error.partition(":")[0] for letter in bus.dead_letters] == ["HandlerTimeoutError"]
    gc.collect()
    assert complaints == []


def test_a_handler_is_declared_as_what_it_is() -> None:
    async def waits(order: Order) -> None: ...

    def blocks(order: Order) -> None: ...

    for function, blocking in ((waits, True), (blocks, False)):
        with pytest.raises(ConfigurationError, match="blocking=True"):
            App("a@b").on(Order, blocking=blocking)(function)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["order", "dedup"])
def test_an_unknown_mode_names_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is none of"):
        App("a@b").on(Order, **{name: "sometimes"})  # type: ignore[call-overload]


def settings_for(url: str, inbox: str, **more):
    return load(flags={"bus.url": url, "inbox.url": inbox, **more}, env={}, file=None).settings


def test_the_inbox_of_an_embedded_log_is_a_separate_file() -> None:
    assert inbox_url(settings_for("sqlite:///data/x.db", "auto")) == "sqlite:///data/x-inbox.db"
    assert inbox_url(settings_for("sqlite:////abs/x.db?y=1", "auto")) == "sqlite:////abs/x-inbox.db"
    assert inbox_url(settings_for("sqlite:///a%20b.db", "auto")) == "sqlite:///a%20b-inbox.db"
    for memory in ("memory://", "sqlite:///:memory:"):
        assert inbox_url(settings_for(memory, "auto")) == "memory://"
    assert inbox_url(settings_for("kafka://h:1", "auto")) is None
    assert inbox_url(settings_for("sqlite:///x.db", "off")) is None


def test_workers_that_reach_one_log_by_several_names_share_an_inbox(tmp_path: Path) -> None:
    log, link = tmp_path / "x.db", tmp_path / "link.db"
    log.touch()
    link.symlink_to(log.name)
    assert inbox_url(settings_for(f"sqlite:///{link}", "auto")) == inbox_url(settings_for(f"sqlite:///{log}", "auto"))


def test_kafka_with_a_local_inbox_is_refused_unless_allowed() -> None:
    with pytest.raises(ConfigurationError, match=r"inbox\.local = true"):
        inbox_url(settings_for("kafka://h:1", "sqlite:///x.db"))
    assert inbox_url(settings_for("kafka://h:1", "sqlite:///x.db", **{"inbox.local": True})) == "sqlite:///x.db"
    assert inbox_url(settings_for("kafka://h:1", "postgresql://h/d")) == "postgresql://h/d"


class Away:
    """A store that does not answer until it is back."""

    def __init__(self, inbox) -> None:
        self.inbox = inbox
        self.back = False
        self.asked = 0

    def __getattr__(self, name: str):
        async def call(*arguments, **named):
            self.asked += 1
            if not self.back:
                raise InboxError("no answer")
            return await getattr(self.inbox, name)(*arguments, **named)

        return call

    def claim_soon(self, asks, told) -> None:
        self._soon(self.inbox.claim_soon, asks, told)

    def finish_soon(self, ends, told) -> None:
        self._soon(self.inbox.finish_soon, ends, told)

    def _soon(self, call, items, told) -> None:
        self.asked += 1
        if self.back:
            call(items, told)
            return
        for item in items:
            item.answer = InboxError("no answer")
        asyncio.get_running_loop().call_soon(told, items)


async def test_while_the_inbox_is_unreachable_messages_wait_and_none_dies() -> None:
    runs: list[int] = []
    async with ledger(runs).test() as bus:
        claims = bus.workers[0]._claims
        away = claims.inbox = Away(claims.inbox)
        await bus.publish(Order(1), idempotency_key="one")
        await bus.publish(Order(2))
        for _ in range(10):
            await bus._work(0.02)
            bus.clock.advance(30)
        assert runs == [2]
        assert away.asked > 5
        away.back = True
        bus.clock.advance(30)
        await bus.settle()
        assert (sorted(runs), bus.dead_letters) == ([1, 2], [])
        assert len(bus.sent(Done)) == 2


class Mute:
    """A store that goes away just when it has committed what came with a transaction, so that nobody hears of it; or
    just before."""

    def __init__(self, inbox, *, commits: bool) -> None:
        self.inbox = inbox
        self.commits = commits

    def __getattr__(self, name: str):
        return getattr(self.inbox, name)

    async def finish(self, key, token, outputs, transaction=None) -> bool:
        if transaction is None:
            return await self.inbox.finish(key, token, outputs)
        if self.commits:
            await self.inbox.finish(key, token, outputs, transaction)
            self.inbox._running[key_text(key)] = token
        else:
            await transaction.rollback()
        raise InboxError("no answer")


@pytest.mark.parametrize("commits", [True, False])
async def test_a_last_attempt_with_an_unknown_commit_dies_only_if_nothing_was_written(commits: bool) -> None:
    app = App("ledger@tests")

    @app.on(Order, retry=Retry(attempts=1))
    async def handle(order: Order, context: Context) -> Done:
        transaction = await context.transaction()
        await transaction.execute("CREATE TABLE booked (number INTEGER)")
        return Done(order.number)

    async with app.test() as bus:
        claims = bus.workers[0]._claims
        claims.inbox = Mute(claims.inbox, commits=commits)
        await bus.publish(Order(1), idempotency_key="one")
        await bus.settle()
        await bus.advance(5)
        assert bus.sent(Done) == ([Done(1)] if commits else [])
        assert [letter.reason for letter in bus.dead_letters] == ([] if commits else ["retries_exhausted"])


async def test_old_keys_are_forgotten_and_a_store_that_is_away_is_left_alone() -> None:
    async with ledger([]).test() as bus:
        await bus.publish(Order(1), idempotency_key="one", ttl_s=60)
        await bus.settle()
        claims = bus.workers[0]._claims
        assert await claims.inbox.purge() == 0
        await bus.advance(8 * 86_400)
        inbox, claims.inbox = claims.inbox, Away(claims.inbox)
        await claims.purge()
        claims.inbox = inbox
        assert await inbox.purge() == 1


async def test_a_message_that_outlived_itself_waiting_for_the_store_is_not_handled() -> None:
    runs: list[int] = []
    async with ledger(runs).test() as bus:
        claims = bus.workers[0]._claims
        away = claims.inbox = Away(claims.inbox)
        await bus.publish(Order(1), idempotency_key="one", ttl_s=60)
        for _ in range(4):
            await bus._work(0.02)
            bus.clock.advance(30)
        away.back = True
        bus.clock.advance(30)
        await bus._work(0.05)
        await bus.advance(5)
        assert (runs, [letter.reason for letter in bus.dead_letters]) == ([], ["expired"])
