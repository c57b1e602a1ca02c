"""The end of a message is durable before anybody is told: who was told "rejected" is not served afterwards."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bus.protocol import sealing
from bus.settings.loading import load
from bus.topics.specs import reply_topics
from bus.transports.base import NewRecord, Record
from bus.transports.read_all import scan_topic
from consumers.app.testing import TestBus
from consumers.deadletters.records import end_id, read_control, reappend
from sealbus import App, Approval, Context, Reject, Retry, payload
from sealbus.sagas import Saga, SagaContext, on_message, on_start
from tests.kit import Done, Job


class Mind:
    """What a handler does next, and what it has done."""

    def __init__(self) -> None:
        self.rejects = True
        self.runs: list[str] = []


class Fickle:
    allows = True

    def refusal(self, *_: object) -> str | None:
        return None if self.allows else "not any more"


REPLY = "agents._reply.asker-svc-0a1b2c3d"


def shop(mind: Mind, **options: Any) -> App:
    app = App("ends@svc", types=[Done], policy=options.pop("policy", None))

    @app.on(Job, **options)
    async def handle(order: Job, context: Context) -> Done:
        if mind.rejects:
            raise Reject("no")
        mind.runs.append(context.message.message_id)
        return Done(number=order.number)

    return app


async def records(bus: TestBus, topic: str) -> list[Record]:
    return [record async for record in scan_topic(bus.transport, topic)]


async def again(bus: TestBus, record: Record, topic: str | None = None) -> None:
    """The same record once more: as after a death before the offset was committed."""
    await bus.transport.append(
        [NewRecord(topic or record.topic, record.key, record.value, record.headers)], timeout_s=5
    )
    await bus.settle()


async def told(bus: TestBus) -> list[tuple[str, str]]:
    """Everything that the requester was told: type and id."""
    found = []
    for record in await records(bus, REPLY):
        message = sealing.parse(record.value)
        found.append((message.message_type, message.message_id))
    return found


async def letters(bus: TestBus) -> list[str]:
    found = await records(bus, "agents.job.asked.dlq")
    return [dict(record.headers)["sb-dlq-id"].decode() for record in found]


async def asked(bus: TestBus, **options: Any) -> Record:
    await bus.publish(Job(), reply_to=REPLY, **options)
    await bus.settle()
    (record,) = await records(bus, "agents.job.asked")
    return record


async def prepared(bus: TestBus) -> None:
    await bus.transport.admin.create_topics(reply_topics(load(env={}, file=None).settings, [REPLY]))


@pytest.mark.parametrize("options", [{"idempotency_key": "one"}, {}])
async def test_a_rejected_message_stays_rejected_when_repeated(options: dict[str, str]) -> None:
    mind = Mind()
    async with shop(mind, dedup="key" if options else "always").test() as bus:
        await prepared(bus)
        record = await asked(bus, **options)
        mind.rejects = False
        for _ in range(3):
            await again(bus, record)
        assert mind.runs == []
        assert {kind for kind, _ in await told(bus)} == {"error.reported"}
        assert len(set(await told(bus))) == 1
        assert len(set(await letters(bus))) == 1


async def test_a_repeat_of_a_death_is_the_same_bytes() -> None:
    mind = Mind()
    async with shop(mind, dedup="always").test() as bus:
        await prepared(bus)
        record = await asked(bus)
        bus.clock.advance(7)
        await again(bus, record)
        reports = [each.value for each in await records(bus, REPLY)]
        dead = [(each.value, each.headers) for each in await records(bus, "agents.job.asked.dlq")]
        assert (len(reports), len(set(reports))) == (2, 1)
        assert (len(dead), len(set(dead))) == (2, 1)


async def test_without_an_inbox_the_repeats_of_a_death_have_one_id() -> None:
    mind = Mind()
    async with shop(mind, dedup="off").test() as bus:
        await prepared(bus)
        record = await asked(bus)
        bus.clock.advance(7)
        await again(bus, record)
        assert len(await told(bus)) == len(await letters(bus)) == 2
        assert len(set(await told(bus))) == len(set(await letters(bus))) == 1


async def test_only_a_redrive_reopens_a_message_reported_as_dead() -> None:
    mind = Mind()
    async with shop(mind, dedup="always").test() as bus:
        await prepared(bus)
        record = await asked(bus)
        group = next(iter(bus.workers)).app.group
        mind.rejects = False
        control = msgspec.structs.replace(read_control(record), redrive_count=1)
        sent_back = reappend(record, control, f"agents._redrive.{group}")
        await bus.transport.append([sent_back], timeout_s=5)
        await bus.settle()
        assert len(mind.runs) == 1
        assert [kind for kind, _ in await told(bus)] == ["error.reported", "job.done"]
        await again(bus, record)
        assert len(mind.runs) == 1


async def test_a_policy_refusal_stays_final_after_a_policy_change() -> None:
    mind, policy = Mind(), Fickle()
    mind.rejects = False
    async with shop(mind, policy=policy, dedup="always").test() as bus:
        await prepared(bus)
        policy.allows = False
        record = await asked(bus)
        policy.allows = True
        await again(bus, record)
        assert mind.runs == []
        assert [kind for kind, _ in await told(bus)] == ["error.reported"] * 2
        assert len(set(await told(bus))) == 1


async def test_a_message_that_the_schema_refused_does_not_run_when_the_code_has_changed() -> None:
    mind, objections = Mind(), ["makes no sense"]
    mind.rejects = False

    def check(_: Job, __: object) -> str | None:
        return objections[0] if objections else None

    async with shop(mind, dedup="always", checks=[check]).test() as bus:
        await prepared(bus)
        record = await asked(bus)
        objections.clear()
        await again(bus, record)
        assert mind.runs == []
        assert len(set(await told(bus))) == 1


async def test_a_repeat_of_a_finished_message_is_answered_although_the_handler_would_reject_it() -> None:
    mind = Mind()
    mind.rejects = False
    async with shop(mind, dedup="always").test() as bus:
        await prepared(bus)
        record = await asked(bus)
        mind.rejects = True
        await again(bus, record)
        assert len(mind.runs) == 1
        assert {kind for kind, _ in await told(bus)} == {"job.done"}
        assert len(set(await told(bus))) == 1


async def test_another_message_with_a_dead_key_gets_a_report_under_its_own_id() -> None:
    mind = Mind()
    async with shop(mind).test() as bus:
        await prepared(bus)
        await asked(bus, idempotency_key="one")
        mind.rejects = False
        await bus.publish(Job(), reply_to=REPLY, idempotency_key="one")
        await bus.settle()
        assert mind.runs == []
        assert [letter.reason for letter in bus.dead_letters] == ["rejected", "rejected"]
        assert len({identity for _, identity in await told(bus)}) == 2


async def test_retries_that_are_exhausted_end_a_message_once() -> None:
    app, runs = App("ends@svc", types=[Done]), list[int]()

    @app.on(Job, dedup="always", retry=Retry(attempts=2, base_s=0.01))
    async def handle(order: Job) -> Done:
        runs.append(1)
        raise OSError("away")

    async with app.test() as bus:
        await prepared(bus)
        record = await asked(bus)
        await bus.advance(5)
        await again(bus, record)
        await bus.advance(5)
        assert len(runs) == 2
        assert len(set(await told(bus))) == 1


@payload("ends.begin", version="1.0.0", performative="request")
class Begin(msgspec.Struct, frozen=True, kw_only=True):
    key: str = "one"


@payload("ends.event", version="1.0.0", performative="inform")
class Event(msgspec.Struct, frozen=True, kw_only=True):
    key: str = "one"


class Book(msgspec.Struct):
    count: int = 0


class Ending(Saga[Book], version="1.0.0"):
    @on_start(Begin, key="/data/key")
    async def begun(self, message: Begin, context: SagaContext) -> None:
        context.finish()

    @on_message(Event, key="/data/key", missing="dead", admits="anyone")
    async def event(self, message: Event, context: SagaContext) -> None: ...


@pytest.mark.parametrize("opened", [False, True])
async def test_a_verdict_of_a_process_stays_final_when_the_process_changes(opened: bool) -> None:
    app = App("ends@svc")
    app.add(Ending)
    async with app.test() as bus:
        if opened:
            await bus.publish(Begin())
            await bus.settle()
        await bus.publish(Event())
        await bus.settle()
        (record,) = await records(bus, "agents.ends.event")
        if not opened:
            await bus.publish(Begin())
            await bus.settle()
        await again(bus, record)
        letters = await records(bus, "agents.ends.event.dlq")
        assert len(letters) == 2
        assert len({(each.value, each.headers) for each in letters}) == 1


async def test_a_rejected_approval_ends_its_message_once() -> None:
    app, runs = App("ends@acme", types=[Done]), list[int]()

    @app.on(Job, approval=Approval(by="human", timeout_s=600))
    async def handle(order: Job) -> Done:
        runs.append(order.number)
        return Done(number=order.number)

    async with app.test(keys=True) as bus:
        await bus.publish(Job())
        await bus.settle()
        (held,) = await bus.held()
        await bus.reject(held, by="lead@acme", reason="too dear")
        await bus.settle()
        (record,) = await records(bus, "agents.job.asked")
        await again(bus, record)
        found = await letters(bus)
        assert runs == []
        assert len(set(found)) == 1


ACTS = ["again", "accept", "reject", "allow", "deny", "advance"]


@pytest.mark.medium
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(acts=st.lists(st.sampled_from(ACTS), max_size=14), dedup=st.sampled_from(["always", "key"]), first=st.booleans())
def test_no_request_is_both_refused_and_done_whatever_changes_its_mind(
    acts: list[str], dedup: str, first: bool
) -> None:
    async def run() -> None:
        mind, policy = Mind(), Fickle()
        mind.rejects = first
        async with shop(mind, policy=policy, dedup=dedup).test() as bus:
            await prepared(bus)
            await bus.publish(Job(), reply_to=REPLY, idempotency_key="one")
            await bus.settle()
            (record,) = await records(bus, "agents.job.asked")
            for act in acts:
                match act:
                    case "again":
                        await again(bus, record)
                    case "accept" | "reject":
                        mind.rejects = act == "reject"
                    case "allow" | "deny":
                        policy.allows = act == "allow"
                    case _:
                        await bus.advance(40)
            said = await told(bus)
            assert len({kind for kind, _ in said}) == 1
            assert len(set(said)) == 1
            assert len(mind.runs) == (0 if first else 1)

    asyncio.run(run())


def test_the_id_of_an_end_is_of_message_group_and_redrive() -> None:
    seals, groups, counts = ("sha256:a", "sha256:b"), ("g", "h"), (0, 1)
    ids = {
        end_id(seal, group, count, what)
        for seal, group, count, what in itertools.product(seals, groups, counts, ("letter", "report"))
    }
    assert len(ids) == 16


@pytest.mark.parametrize("rejects", [False, True])
async def test_an_expired_repeat_gets_no_second_different_report(
    rejects: bool,
) -> None:
    mind = Mind()
    mind.rejects = rejects
    async with shop(mind).test() as bus:
        await prepared(bus)
        await asked(bus, idempotency_key="one")
        second = await bus.publish(Job(), reply_to=REPLY, idempotency_key="one", ttl_s=4)
        await bus.settle()
        found = await records(bus, "agents.job.asked")
        (record,) = [each for each in found if sealing.parse(each.value).message_id == second.message_id]
        before = set(await told(bus))
        bus.clock.advance(3_600)
        await again(bus, record)
        assert set(await told(bus)) == before
        assert len(before) == 2
