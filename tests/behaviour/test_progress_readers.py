"""Whoever asks survives progress: it neither ends nor fails a request or a process, and is no dead letter.

Progress is put into reply topics and mailboxes by hand here, as agents of other versions and foreign programs do it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.protocol import sealing
from bus.topics.names import group_of_agent, mailbox_topic
from bus.transports.read_all import scan_topic
from consumers.agents.workflows.engine import workflow_engine
from consumers.app.testing import TestBus
from producers.outcomes import PublishRejected
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from sealbus import App, Approval, Context, payload
from sealbus.errors import ConfigurationError
from sealbus.patterns import ContractNet, Handoff, IteratedReview
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_progress, on_start
from sealbus.vocabulary import (
    ActInform,
    ActRequest,
    ApprovalRequest,
    AuctionAward,
    AuctionBid,
    AuctionCall,
    AuctionResult,
    HandoffCompleted,
    HandoffRequest,
    Money,
    Ref,
    ReturnContract,
    ReviewRequest,
    ReviewResult,
    StatusUpdate,
    TaskAccepted,
    TaskArtifact,
    TaskClarification,
    TaskRequest,
    TaskResult,
    WorkflowStart,
)
from tests.kit import Answered, Asked

EACH = 100
WORKFLOWS = Path(__file__).parents[1] / "consumers" / "agents" / "workflows"
SAMPLE: dict[str, Any] = msgspec.json.decode((WORKFLOWS / "market_research.json").read_bytes())
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def said(number: int) -> Iterator[Any]:
    """One of each kind."""
    yield StatusUpdate(task_id="t-1", new_status="running", timestamp=WHEN, progress_pct=number % 100)
    yield TaskAccepted(understood_goal=f"goal {number}")
    yield TaskClarification(questions=(f"which, {number}?",))
    yield TaskArtifact(artifact_id="a-1", index=number, content="text")


class Talker:
    """Puts progress about a message where its answer goes, as the agent of *context* does."""

    def __init__(self, count: int = EACH) -> None:
        self.count = count
        self.sent = 0

    async def talk(self, context: Context) -> None:
        for number in range(self.count):
            for progress in said(number):
                await self.say(context, progress)

    async def say(self, context: Context, progress: Any, **options: Any) -> None:
        publisher, message = context._publisher, context.message
        draft = Outgoing(progress, to=message.metadata.sender, task_id="t-1", **options)
        request = SealRequest(cause=message, answers=True, topic=message.routing.reply_to)
        await publisher.send(publisher.sealer.seal(draft, request))
        self.sent += 1


def worker(talker: Talker, *kinds: tuple[type, Any], name: str = "worker@svc") -> App:
    """An agent that talks while it works on each of *kinds*, and answers with what stands beside the type."""
    app = App(name)

    def add(kind: type, answer: Any) -> None:
        async def work(asked: Any, context: Context) -> Any:
            await talker.talk(context)
            return answer(asked) if callable(answer) else answer

        work.__annotations__ = {"asked": kind, "context": Context, "return": Any}
        app.on(kind)(work)

    for kind, answer in kinds or ((Asked, Answered(text="done")),):
        add(kind, answer)
    return app


def recording(kept: list[Context], answer: Any = None) -> App:
    app = App("worker@svc")

    @app.on(Asked, timeout_s=None)
    async def work(asked: Asked, context: Context) -> Any:
        kept.append(context)
        return answer

    return app


async def test_a_request_survives_a_hundred_of_each_kind() -> None:
    async with worker(talker := Talker()).test() as bus:
        assert await bus.request(Asked(), Answered, to="worker@svc") == Answered(text="done")
        assert talker.sent == 4 * EACH
        assert bus.late_replies == ()
        bus.assert_all_handled()


async def test_a_request_shows_a_hundred_of_each_kind_in_their_order() -> None:
    shown: list[Any] = []
    async with worker(Talker()).test() as bus:
        await bus.request(Asked(), Answered, to="worker@svc", on_progress=shown.append)
    assert [event.payload for event in shown] == [each for number in range(EACH) for each in said(number)]
    assert not any(event.is_last for event in shown)


async def test_progress_after_the_answer_is_counted_and_changes_nothing() -> None:
    kept: list[Context] = []
    shown: list[Any] = []
    async with recording(kept, Answered(text="first")).test() as bus:
        await bus.request(Asked(), Answered, on_progress=shown.append)
        await Talker(count=1).talk(kept[0])
        await bus.settle()
        assert await bus.request(Asked(text="again"), Answered) == Answered(text="first")
        assert (shown, bus.late_replies) == ([], ())
        assert bus.publisher.metrics.progress.labels("late")._value.get() == 4


async def test_an_error_of_the_function_fails_no_request() -> None:
    def show(event: object) -> None:
        raise ValueError(event)

    async with worker(Talker(count=2)).test() as bus:
        assert await bus.request(Asked(), Answered, on_progress=show) == Answered(text="done")


async def test_the_same_message_is_shown_once() -> None:
    app, shown, talker = App("worker@svc"), list[Any](), Talker()

    @app.on(Asked)
    async def work(asked: Asked, context: Context) -> Answered:
        for pct in (1, 2):
            update = StatusUpdate(task_id="t-1", new_status="running", timestamp=WHEN, progress_pct=pct)
            await talker.say(context, update, message_id="said-once")
        return Answered()

    async with app.test() as bus:
        await bus.request(Asked(), Answered, on_progress=shown.append)
    assert [event.payload.progress_pct for event in shown] == [1]


async def test_an_answer_of_a_type_that_is_progress_is_refused_where_it_is_asked_for() -> None:
    async with worker(Talker(count=0)).test() as bus:
        with pytest.raises(PublishRejected, match="ends no request"):
            await bus.request(Asked(), TaskAccepted)


# Processes.


@payload("test.wanted")
class Wanted(msgspec.Struct, frozen=True):
    pass


@payload("test.finished")
class Finished(msgspec.Struct, frozen=True):
    text: str = ""
    heard: int = 0


class State(msgspec.Struct, kw_only=True):
    phase: str = ""
    heard: int = 0


class Asking(Saga[State], version="1.0.0", name="asking"):
    """It has a method for none of them."""

    @on_start(Wanted)
    async def wanted(self, wanted: Wanted, context: SagaContext) -> None:
        context.ask("work", Asked(), to="worker@svc", answer_by_s=600)

    @on_answer("work", Answered)
    async def answered(self, answered: Answered, context: SagaContext) -> None:
        context.answer(Finished(text=answered.text, heard=self.state.heard))
        context.finish()

    @on_failure("work")
    async def lost(self, context: SagaContext) -> None:
        context.answer(Finished(text=f"lost {context.failure}"))
        context.finish()


class Hearing(Asking, version="1.0.0", name="hearing"):
    """It has a method for one of the four types."""

    @on_progress("work", StatusUpdate)
    async def heard(self, update: StatusUpdate, context: SagaContext) -> None:
        self.state.heard += 1


def saga_app(saga: type[Any]) -> App:
    app = App("asker@svc", types=[Finished, Asked])
    app.add(saga)
    return app


async def rows_of(bus: TestBus, message_type: str) -> int:
    rows = await bus.database.fetch("SELECT key FROM sealbus_inbox")
    return sum(message_type in key for (key,) in rows)


async def mail_of(bus: TestBus, agent_id: str) -> list[str]:
    """The types of what came to the mailbox of *agent_id*."""
    topic = mailbox_topic("agents", group_of_agent(agent_id))
    return [sealing.parse(record.value).message_type async for record in scan_topic(bus.transport, topic)]


def test_a_saga_takes_no_progress_as_an_answer() -> None:
    with pytest.raises(ConfigurationError, match="@on_progress"):

        class Wrong(Asking, version="1.0.0"):
            @on_answer("more", TaskAccepted)
            async def accepted(self, accepted: TaskAccepted, context: SagaContext) -> None: ...


@pytest.mark.medium
async def test_a_saga_without_a_method_passes_over_progress_without_a_row() -> None:
    async with saga_app(Asking).test(worker(Talker())) as bus:
        assert await bus.request(Wanted(), Finished, timeout_s=600) == Finished(text="done")
        bus.assert_all_handled()
        mail = await mail_of(bus, "asker@svc")
        for kind in ("status.update", "task.accepted", "task.clarification", "task.artifact"):
            assert mail.count(kind) == EACH
            assert await rows_of(bus, kind) == 0
        assert await rows_of(bus, "question.answered") == 1


@pytest.mark.medium
async def test_a_saga_hears_the_progress_that_it_has_a_method_for() -> None:
    async with saga_app(Hearing).test(worker(Talker())) as bus:
        assert await bus.request(Wanted(), Finished, timeout_s=600) == Finished(text="done", heard=EACH)
        bus.assert_all_handled()
        assert await rows_of(bus, "task.artifact") == 0


@pytest.mark.medium
async def test_late_progress_leaves_no_dead_letter_and_no_row() -> None:
    kept: list[Context] = []
    async with saga_app(Hearing).test(recording(kept, Answered(text="done"))) as bus:
        await bus.request(Wanted(), Finished, timeout_s=600)
        await Talker(count=3).talk(kept[0])
        await bus.settle()
        bus.assert_all_handled()
        assert await rows_of(bus, "status.update") == 0


async def test_progress_that_has_expired_in_the_mailbox_is_no_dead_letter() -> None:
    kept: list[Context] = []
    async with saga_app(Hearing).test(recording(kept)) as bus:
        await bus.publish(Wanted())
        await bus.settle()
        publisher, message = kept[0]._publisher, kept[0].message
        update = StatusUpdate(task_id="t-1", new_status="running", timestamp=WHEN)
        request = SealRequest(cause=message, answers=True, topic=message.routing.reply_to)
        sealed = publisher.sealer.seal(Outgoing(update, to=message.metadata.sender, task_id="t-1", ttl_s=1), request)
        bus.clock.advance(60)
        await publisher.send(sealed)
        await bus.settle()
        bus.assert_all_handled()
        assert "status.update" in await mail_of(bus, "asker@svc")


async def test_the_same_progress_with_other_bytes_is_passed_over() -> None:
    kept: list[Context] = []
    talker = Talker()
    async with saga_app(Hearing).test(recording(kept)) as bus:
        await bus.publish(Wanted())
        await bus.settle()
        for pct in (1, 2):
            update = StatusUpdate(task_id="t-1", new_status="running", timestamp=WHEN, progress_pct=pct)
            await talker.say(kept[0], update, message_id="said-once", idempotency_key="said-once")
            await bus.settle()
        bus.assert_all_handled()


@pytest.mark.medium
async def test_progress_never_uses_up_the_steps_of_a_process() -> None:
    class Short(Hearing, version="1.0.0", name="short", max_steps=20):
        """Few steps."""

    async with saga_app(Short).test(worker(Talker())) as bus:
        finished = await bus.request(Wanted(), Finished, timeout_s=600)
        assert finished.text == "done"
        assert 0 < finished.heard < 20
        bus.assert_all_handled()


class Net(ContractNet, version="1.0.0", name="net"):
    sends = (AuctionCall, AuctionAward)

    @on_start(Wanted)
    async def wanted(self, wanted: Wanted, context: SagaContext) -> None:
        call = AuctionCall(
            goal="carry",
            return_contract=ReturnContract(expected_message_type="auction.result"),
            bid_by_s=5,
            answer_within_s=60,
        )
        self.call_for_bids(context, call)

    async def delivered(self, result: AuctionResult, context: SagaContext) -> None:
        context.answer(Finished(text="done"))

    async def unsold(self, context: SagaContext) -> None:
        context.answer(Finished(text="unsold"))


class HandingOver(Handoff, version="1.0.0", name="handing-over"):
    @on_start(Wanted)
    async def wanted(self, wanted: Wanted, context: SagaContext) -> None:
        request = HandoffRequest(
            handoff_id="h-1",
            original_goal="g",
            delegated_goal="d",
            acceptance_criteria=("it works",),
            return_contract=ReturnContract(expected_message_type="handoff.completed"),
        )
        self.hand_over(context, request, to="worker@svc", within_s=600)

    async def handed_back(self, completed: HandoffCompleted, context: SagaContext) -> None:
        context.answer(Finished(text="done"))

    async def not_handed_back(self, why: str, context: SagaContext) -> None:
        # The promised message did not come, and the handoff was completed.
        context.answer(Finished(text="done" if why.startswith("unkept") else why))


class Reviewing(IteratedReview, version="1.0.0", name="reviewing"):
    @on_start(Wanted)
    async def wanted(self, wanted: Wanted, context: SagaContext) -> None:
        self.begin(context, "an article", author="worker@svc", reviewer="worker@svc", rounds=1)

    async def approved(self, review: ReviewResult, context: SagaContext) -> None:
        context.answer(Finished(text="done"))

    async def abandoned(self, why: str, context: SagaContext) -> None:
        context.answer(Finished(text=why))


DONE = TaskResult(status="completed")
COMPLETED = HandoffCompleted(
    handoff_id="h-1", status="completed", summary="done", result_ref=Ref(uri="urn:made", sha256=None)
)
BID = AuctionBid(cost=Money(amount="1", currency="EUR"), confidence=0.5, duration_s=5)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("saga", "kinds"),
    [
        (Net, ((AuctionCall, BID), (AuctionAward, lambda award: AuctionResult(bid=award.bid, output={})))),
        (HandingOver, ((HandoffRequest, COMPLETED),)),
        (Reviewing, ((TaskRequest, DONE), (ReviewRequest, ReviewResult(verdict="approved")))),
    ],
    ids=["contract net", "handoff", "review"],
)
async def test_a_built_in_saga_survives_a_hundred_of_each_kind(saga: type[Any], kinds: tuple[Any, ...]) -> None:
    async with saga_app(saga).test(worker(talker := Talker(), *kinds)) as bus:
        assert (await bus.request(Wanted(), Finished, timeout_s=600)).text == "done"
        assert talker.sent == 4 * EACH * len(kinds)
        bus.assert_all_handled()


@pytest.mark.medium
async def test_the_workflow_engine_survives_a_hundred_of_each_kind() -> None:
    talker = Talker()
    names = "researcher@svc", "writer@svc"
    agents = [worker(talker, (ActRequest, ActInform(content={"text": "found"})), name=name) for name in names]
    async with workflow_engine().test(*agents) as bus:
        start = WorkflowStart(definition=SAMPLE, variables={"query": "message buses"})
        result = await bus.request(start, TaskResult, idempotency_key="w1", task_id="t-2", timeout_s=600)
        assert (result.status, talker.sent) == ("completed", 2 * 4 * EACH)
        bus.assert_all_handled()


@pytest.mark.medium
async def test_an_approval_survives_a_hundred_of_each_kind() -> None:
    app = App("asker@svc")

    @app.on(Asked, approval=Approval(by="human"))
    async def work(asked: Asked) -> Answered:
        return Answered(text="done")

    async with app.test(worker(talker := Talker(), (ApprovalRequest, None))) as bus:
        asking = bus.as_agent("planner@svc")
        await asking.publish(Asked(), ttl_s=3600)
        await bus.settle()
        (held,) = await bus.held()
        assert talker.sent == 4 * EACH
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        bus.assert_all_handled()
        assert bus.sent(Answered) == [Answered(text="done")]
