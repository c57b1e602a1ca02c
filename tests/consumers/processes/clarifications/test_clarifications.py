"""Questions to the requester in the middle of a run, as an application sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bus.protocol import sealing
from bus.protocol.envelope import Authority, Security
from bus.vocabulary.task import StatusUpdate, TaskClarification, TaskClarified
from consumers.app.testing import TestBus
from producers.sealing.options import Outgoing
from producers.sealing.seal_request import SealRequest
from sealbus import App, BlockingContext, Context, RequestFailed, payload
from sealbus.errors import ClarificationMissing, ContractError
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_progress, on_start


@payload("asking.work", version="1.0.0", performative="request")
class Work(msgspec.Struct, frozen=True, kw_only=True):
    goal: str


@payload("asking.worked", version="1.0.0", performative="inform")
class Worked(msgspec.Struct, frozen=True, kw_only=True):
    summary: str


CALLS: list[str] = []
Run = Callable[[Work, Context], Any]


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


async def think(goal: str) -> str:
    CALLS.append(f"think {goal}")
    return f"plan of {goal}"


def app_of(run: Run, *, asks: bool = True) -> App:
    app = App("desk@svc")

    @app.on(Work, asks=asks)
    async def work(request: Work, context: Context) -> Worked:
        return Worked(summary=str(await run(request, context)))

    return app


async def ask_for_a_branch(request: Work, context: Context) -> str:
    plan = await context.step("plan", think, request.goal)
    said = await context.clarify(["Which branch?"], options=["main", "dev"])
    return f"{plan} on {said.answers[0]} {dict(said.inputs) or ''}".strip()


async def test_the_answer_comes_back_and_the_run_goes_on_with_its_steps() -> None:
    async with app_of(ask_for_a_branch).test() as bus:
        task = await bus.submit(Work(goal="it"), to="desk@svc")
        await bus.settle()
        (asked,) = await bus.asked()
        assert (asked.questions, asked.options) == (("Which branch?",), ("main", "dev"))
        assert await bus.held() == []
        assert bus.sent(Worked) == []
        await bus.answer(asked, ["dev"], inputs={"depth": 1})
        await bus.settle()
        assert (await task.result(Worked)).summary == "plan of it on dev {'depth': 1}"
        assert CALLS == ["think it"]
        assert await bus.asked() == []
        bus.assert_all_handled()


async def asked_by(bus: TestBus, goal: str = "it", **options: Any) -> Any:
    task = await bus.submit(Work(goal=goal), to="desk@svc", **options)
    await bus.settle()
    return task


def reasons(bus: TestBus) -> list[str]:
    return [letter.reason for letter in bus.dead_letters]


async def test_the_task_answers_for_itself() -> None:
    async with app_of(ask_for_a_branch).test() as bus:
        task = await asked_by(bus)
        question = await task.question()
        assert question is not None
        assert question.payload == TaskClarification(questions=("Which branch?",), options=("main", "dev"))
        assert question.message.metadata.task_id == task.id
        await task.answer(["dev"])
        await bus.settle()
        assert (await task.result(Worked)).summary == "plan of it on dev"


async def test_an_answer_lives_as_long_as_its_question() -> None:
    async with app_of(ask_for_a_branch).test() as bus:
        task = await asked_by(bus)
        question = await task.question()
        assert question is not None
        await bus.advance(20_000)
        await task.answer(["main"])
        await bus.settle()
        assert (await task.result(Worked)).summary == "plan of it on main"


async def test_nothing_is_answered_where_nothing_is_asked() -> None:
    async def run(request: Work, context: Context) -> str:
        return "done"

    async with app_of(run).test() as bus:
        task = await asked_by(bus)
        with pytest.raises(ContractError, match="has asked nothing"):
            await task.answer(["dev"])


async def test_each_question_has_one_answer() -> None:
    async with app_of(ask_for_a_branch).test() as bus:
        task = await asked_by(bus)
        with pytest.raises(ContractError, match="give a list of 1"):
            await task.answer(["dev", "main"])
        (asked,) = await bus.asked()
        await bus.answer(asked, ["dev", "main"])
        await bus.settle()
        assert reasons(bus) == ["semantic_violation"]
        assert len(await bus.asked()) == 1


@pytest.mark.parametrize("keys", [True, False])
async def test_the_answer_of_another_agent_is_refused(keys: bool) -> None:
    async with app_of(ask_for_a_branch).test(keys=keys) as bus:
        task = await asked_by(bus)
        (asked,) = await bus.asked()
        await bus.answer(asked, ["dev"], by="thief@evil")
        await bus.settle()
        assert reasons(bus) == ["proof_invalid"]
        assert bus.sent(Worked) == []
        await task.answer(["main"])
        await bus.settle()
        assert [each.summary for each in bus.sent(Worked)] == ["plan of it on main"]


@pytest.mark.parametrize("sender", ["thief@evil", "test@sealbus"])
async def test_what_names_a_question_and_does_not_rest_on_it_is_no_answer(sender: str) -> None:
    async with app_of(ask_for_a_branch).test() as bus:
        await asked_by(bus)
        (asked,) = await bus.asked()
        question = sealing.parse(asked.question)
        draft = Outgoing(
            TaskClarified(answers=("dev",)), to="desk@svc", correlation_id=question.message_id, task_id="any"
        )
        publisher = bus.as_agent(sender).publisher
        await publisher.send(publisher.sealer.seal(draft, SealRequest(topic=question.routing.reply_to)))
        await bus.settle()
        assert reasons(bus) == ["unauthorized"]
        assert len(await bus.asked()) == 1


async def test_a_second_answer_changes_nothing() -> None:
    async with app_of(ask_for_a_branch).test() as bus:
        task = await asked_by(bus)
        (asked,) = await bus.asked()
        await task.answer(["dev"])
        await bus.answer(asked, ["main"])
        await bus.settle()
        await bus.answer(asked, ["main"])
        await bus.settle()
        assert [each.summary for each in bus.sent(Worked)] == ["plan of it on dev"]
        bus.assert_all_handled()


async def test_silence_is_told_to_the_handler() -> None:
    async def run(request: Work, context: Context) -> str:
        try:
            await context.clarify(["Which branch?"], timeout_s=600)
        except ClarificationMissing as error:
            return error.reason
        return "answered"

    async with app_of(run).test() as bus:
        await asked_by(bus)
        await bus.advance(602)
        assert [each.summary for each in bus.sent(Worked)] == ["timeout"]


async def test_silence_that_nobody_catches_ends_the_message() -> None:
    async with app_of(ask_for_a_branch).test() as bus:
        await asked_by(bus, ttl_s=3600)
        await bus.advance(3580)
        assert reasons(bus) == ["rejected"]
        assert "CLARIFICATION_MISSING: test@sealbus was asked" in bus.dead_letters[0].error


async def test_a_requester_that_takes_no_progress_cannot_be_asked() -> None:
    async def run(request: Work, context: Context) -> str:
        try:
            await context.clarify(["Which branch?"])
        except ContractError as error:
            return error.pointer
        return "answered"

    async with app_of(run).test() as bus:
        await bus.publish(Work(goal="it"))
        await bus.settle()
        assert [each.summary for each in bus.sent(Worked)] == ["/routing/accepts_progress"]
        assert (await bus.request(Work(goal="it"), Worked, to="desk@svc")).summary == "/routing/accepts_progress"


async def test_a_handler_that_does_not_declare_it_may_not_ask() -> None:
    async def run(request: Work, context: Context) -> str:
        try:
            await context.clarify(["Which branch?"])
        except ContractError as error:
            return error.text
        return "answered"

    async with app_of(run, asks=False).test() as bus:
        await asked_by(bus, idempotency_key="k")
        assert "declare the handler with asks=True" in bus.sent(Worked)[0].summary


@pytest.mark.parametrize("questions", [[], ["?"] * 9, "Which?", [""], [1]])
async def test_what_is_no_list_of_one_to_eight_questions_is_refused(questions: Any) -> None:
    async def run(request: Work, context: Context) -> str:
        try:
            await context.clarify(questions)
        except ContractError as error:
            return error.pointer
        return "answered"

    async with app_of(run).test() as bus:
        await asked_by(bus)
        assert [each.summary for each in bus.sent(Worked)] == ["questions"]
        assert await bus.asked() == []


async def test_a_message_with_little_time_left_asks_nobody() -> None:
    async with app_of(ask_for_a_branch).test() as bus:
        await asked_by(bus, ttl_s=50)
        assert reasons(bus) == ["rejected"]
        assert bus.sent(TaskClarification) == []


async def test_one_message_asks_sixteen_times_at_most() -> None:
    async def run(request: Work, context: Context) -> str:
        try:
            for number in range(17):
                await context.clarify([f"{number}?"])
        except ClarificationMissing as error:
            return error.reason
        return "all"

    async with app_of(run).test() as bus:
        task = await asked_by(bus)
        for number in range(16):
            await task.answer([str(number)])
            await bus.settle()
        assert [each.summary for each in bus.sent(Worked)] == ["too_many"]


async def test_two_questions_are_asked_one_after_the_other_and_each_once() -> None:
    async def run(request: Work, context: Context) -> str:
        first = await context.clarify(["Which branch?"])
        second = await context.clarify(["Which branch?"], key="again")
        return f"{first.answers[0]} {second.answers[0]}"

    async with app_of(run).test() as bus:
        task = await asked_by(bus)
        for branch in ("dev", "main"):
            await task.answer([branch])
            await bus.settle()
        assert [each.summary for each in bus.sent(Worked)] == ["dev main"]
        assert len(bus.sent(TaskClarification)) == 2


async def test_what_follows_has_the_level_of_the_answer() -> None:
    async def run(request: Work, context: Context) -> str:
        before = context.labels.level
        await context.clarify(["Which branch?"])
        return f"{before} {context.labels.level}"

    async with app_of(run).test() as bus:
        task = await asked_by(bus)
        event = await task.question()
        assert event is not None
        question = event.message
        draft = Outgoing(
            TaskClarified(answers=("dev",)), to="desk@svc", security=Security(trust_level="model_generated")
        )
        sealed = bus.publisher.sealer.seal(
            draft, SealRequest(cause=question, answers=True, topic=question.routing.reply_to)
        )
        await bus.publisher.send(sealed)
        await bus.settle()
        assert [each.summary for each in bus.sent(Worked)] == ["user_request model_generated"]
        (worked,) = bus.messages(Worked)
        assert worked.metadata.security is not None
        assert worked.metadata.security.trust_level == "model_generated"
        assert worked.verification.parents is not None
        assert worked.verification.parents[1:] == (sealed.message.seal,)


async def test_a_question_passes_no_authority_on() -> None:
    async with app_of(ask_for_a_branch).test() as bus:
        task = await asked_by(bus, authority=Authority(can_write=("repo/*",), can_read=("repo/*",)))
        (question,) = bus.messages(TaskClarification)
        assert question.metadata.authority == Authority(can_write=(), can_execute=(), can_read=("repo/*",))
        await task.answer(["dev"])
        await bus.settle()
        assert len(bus.sent(Worked)) == 1


async def test_a_cancelled_task_is_asked_no_more() -> None:
    async with app_of(ask_for_a_branch).test() as bus:
        task = await asked_by(bus)
        await task.cancel()
        await bus.settle()
        assert await bus.asked() == []
        with pytest.raises(RequestFailed, match="CANCELLED"):
            await task.result(Worked)
        assert reasons(bus) == []


async def test_a_blocking_handler_asks_from_its_own_thread() -> None:
    app = App("desk@svc")

    @app.on(Work, asks=True, blocking=True)
    def work(request: Work, context: BlockingContext) -> Worked:
        return Worked(summary=context.clarify(["Which branch?"]).answers[0])

    async with app.test() as bus:
        task = await asked_by(bus)
        await task.answer(["dev"])
        await bus.settle()
        assert [each.summary for each in bus.sent(Worked)] == ["dev"]


async def test_only_the_handlers_own_task_may_ask() -> None:
    async def run(request: Work, context: Context) -> str:
        found = await asyncio.gather(context.clarify(["Which?"]), return_exceptions=True)
        return type(found[0]).__name__

    async with app_of(run).test() as bus:
        await asked_by(bus)
        assert [each.summary for each in bus.sent(Worked)] == ["ContractError"]


# A saga that asks, and is asked back.


@payload("asking.order", version="1.0.0", performative="request")
class Order(msgspec.Struct, frozen=True, kw_only=True):
    goal: str


class NoState(msgspec.Struct):
    pass


ENDS: list[Any] = []


def silent_saga() -> App:
    class Ordering(Saga[NoState], version="1.0.0"):
        @on_start(Order)
        async def ordered(self, order: Order, context: SagaContext) -> None:
            context.ask("work", Work(goal=order.goal), to="desk@svc", answer_by_s=3600)

        @on_progress("work", StatusUpdate)
        async def shown(self, update: StatusUpdate, context: SagaContext) -> None:
            pass

        @on_answer("work", Worked)
        async def done(self, worked: Worked, context: SagaContext) -> None:
            ENDS.append(worked.summary)
            context.finish()

        @on_failure("work")
        async def failed(self, context: SagaContext) -> None:
            ENDS.append(context.failure)
            context.finish()

    app = App("orders@svc")
    app.add(Ordering)
    return app


def answering_saga() -> App:
    class Answering(Saga[NoState], version="1.0.0"):
        @on_start(Order)
        async def ordered(self, order: Order, context: SagaContext) -> None:
            context.ask("work", Work(goal=order.goal), to="desk@svc", answer_by_s=3600)

        @on_progress("work", TaskClarification)
        async def asked(self, question: TaskClarification, context: SagaContext) -> None:
            context.answer_question([question.options[1]])

        @on_answer("work", Worked)
        async def done(self, worked: Worked, context: SagaContext) -> None:
            ENDS.append(worked.summary)
            context.finish()

        @on_failure("work")
        async def failed(self, context: SagaContext) -> None:
            ENDS.append(context.failure)
            context.finish()

    app = App("orders@svc")
    app.add(Answering)
    return app


async def test_an_ask_of_a_saga_without_a_method_for_questions_ends_as_refused() -> None:
    ENDS.clear()
    async with silent_saga().test(app_of(ask_for_a_branch)) as bus:
        await bus.publish(Order(goal="it"))
        await bus.settle()
        (failure,) = ENDS
        assert (failure.kind, failure.reason) == ("refused", "clarification_needed")
        assert (failure.text, failure.by) == ("Which branch?", "desk@svc")
        bus.assert_all_handled()


async def test_a_saga_answers_in_its_method_for_questions() -> None:
    ENDS.clear()
    async with answering_saga().test(app_of(ask_for_a_branch)) as bus:
        await bus.publish(Order(goal="it"))
        await bus.settle()
        assert ENDS == ["plan of it on dev"]
        bus.assert_all_handled()
