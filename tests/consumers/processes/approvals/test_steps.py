"""Approved steps: a run that waits for a person in its middle, as an application sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bus.vocabulary.bus import ApprovalClosed
from bus.vocabulary.parts import Ref
from bus.vocabulary.task import StatusUpdate, TaskCancel
from consumers.app.testing import TestBus
from consumers.deadletters.journal import Journal, prepare_journal
from consumers.deadletters.redrive import Redrive
from consumers.deadletters.redrive_rules import RedriveOrders, StepAnswer
from consumers.deadletters.selection import Selection
from consumers.delivery.inbox.step_call import StepCall
from consumers.processes.approvals import step_desk
from consumers.processes.approvals.service import ApprovalService
from sealbus import App, Approval, BlockingContext, Context, RetryLater, payload
from sealbus.errors import ApprovalRefused, ConfigurationError, ContractError, NotDone, StepInDoubt


@payload("steps.work", version="1.0.0", performative="request")
class Work(msgspec.Struct, frozen=True, kw_only=True):
    goal: str


@payload("steps.worked", version="1.0.0", performative="inform")
class Worked(msgspec.Struct, frozen=True, kw_only=True):
    summary: str


@payload("steps.ask", version="1.0.0", performative="request")
class Ask(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("steps.answered", version="1.0.0", performative="inform")
class Answered(msgspec.Struct, frozen=True, kw_only=True):
    text: str


CALLS: list[str] = []
HUMAN = Approval(by="human")


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


async def think(goal: str) -> dict[str, str]:
    CALLS.append(f"think {goal}")
    return {"branch": f"for-{goal}"}


async def push(branch: str) -> str:
    CALLS.append(f"push {branch}")
    return f"https://forge/{branch}"


async def pay(cents: int) -> str:
    CALLS.append(f"pay {cents}")
    return f"paid {cents}"


Run = Callable[[Work, Context], Any]


def app_of(run: Run, **options: Any) -> App:
    app = App("desk@svc")

    @app.on(Work, asks=True, **options)
    async def work(request: Work, context: Context) -> Worked:
        return Worked(summary=str(await run(request, context)))

    return app


async def plan_and_push(request: Work, context: Context) -> str:
    plan = await context.step("plan", think, request.goal)
    url: str = await context.step("push", push, plan["branch"], approve=HUMAN)
    return url


def reasons(bus: TestBus) -> list[str]:
    return [letter.reason for letter in bus.dead_letters]


async def begun(bus: TestBus, **options: Any) -> None:
    await bus.publish(Work(goal="it"), **options)
    await bus.settle()


async def test_a_step_waits_for_a_person_and_runs_with_what_was_agreed() -> None:
    async with app_of(plan_and_push).test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        assert (held.tool, held.arguments) == ("push", {"branch": "for-it"})
        assert held.action["data"] == {"goal": "it"}
        assert CALLS == ["think it"]
        assert [update.new_status for update in bus.sent(StatusUpdate)] == ["waiting_for_approval"]
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert CALLS == ["think it", "push for-it"]
        assert bus.sent(Worked) == [Worked(summary="https://forge/for-it")]
        assert [closed.state for closed in bus.sent(ApprovalClosed)] == ["approved", "consumed"]
        assert await bus.held() == []
        bus.assert_all_handled()


async def test_a_refused_step_is_told_to_the_handler() -> None:
    async def run(request: Work, context: Context) -> str:
        try:
            return await plan_and_push(request, context)
        except ApprovalRefused as error:
            return f"{error.reason}: {error}"

    async with app_of(run).test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        await bus.reject(held, by="lead@acme", reason="not today")
        await bus.settle()
        assert CALLS == ["think it"]
        (worked,) = bus.sent(Worked)
        assert worked.summary == "approval_rejected: it was rejected by lead@acme: not today"


async def test_an_uncaught_refusal_ends_the_message_by_its_reason() -> None:
    async with app_of(plan_and_push).test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        await bus.reject(held, by="lead@acme", reason="no")
        await bus.settle()
        assert reasons(bus) == ["approval_rejected"]


async def test_silence_refuses_the_step() -> None:
    async def run(request: Work, context: Context) -> str:
        return str(await context.step("push", push, "b", approve=Approval(timeout_s=600)))

    async with app_of(run).test() as bus:
        await begun(bus)
        await bus.advance(602)
        assert reasons(bus) == ["approval_timeout"]
        assert CALLS == []


async def test_a_handler_that_swallows_everything_is_held_all_the_same() -> None:
    async def run(request: Work, context: Context) -> str:
        try:
            return await plan_and_push(request, context)
        except BaseException:  # noqa: BLE001 - a handler that believes it knows better
            with contextlib.suppress(BaseException):
                context.send(Worked(summary="sent in between"))
            return "done without"

    async with app_of(run).test() as bus:
        await begun(bus)
        assert bus.sent(Worked) == []
        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert [each.summary for each in bus.sent(Worked)] == ["https://forge/for-it"]


async def test_other_tasks_of_a_held_run_end_before_it_is_stored() -> None:
    ended: list[str] = []

    async def beside() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("beside")

    async def run(request: Work, context: Context) -> str:
        task = asyncio.create_task(beside())
        await asyncio.sleep(0)
        url = await plan_and_push(request, context)
        task.cancel()
        return url

    async with app_of(run).test() as bus:
        await begun(bus)
        assert ended == ["beside"]
        assert len(await bus.held()) == 1


async def test_only_the_handlers_own_task_may_ask() -> None:
    async def run(request: Work, context: Context) -> str:
        results = await asyncio.gather(
            context.step("pay", pay, 5), context.step("push", push, "b", approve=HUMAN), return_exceptions=True
        )
        return type(results[1]).__name__

    async with app_of(run).test() as bus:
        await begun(bus)
        assert [each.summary for each in bus.sent(Worked)] == ["ContractError"]


async def test_three_approvals_of_one_message_wake_it_in_their_order() -> None:
    async def run(request: Work, context: Context) -> str:
        paid = [await context.step("pay", pay, cents, approve=HUMAN) for cents in (1, 2, 3)]
        return ", ".join(paid)

    async with app_of(run).test() as bus:
        await begun(bus)
        for cents in (1, 2, 3):
            (held,) = await bus.held()
            assert held.arguments == {"cents": cents}
            await bus.approve(held, by="lead@acme")
            await bus.settle()
        assert CALLS == ["pay 1", "pay 2", "pay 3"]
        assert len(bus.sent(Worked)) == 1


async def test_a_step_whose_arguments_change_asks_again() -> None:
    clock = iter((5, 5, 500, 500, 500))

    async def run(request: Work, context: Context) -> str:
        return str(await context.step("pay", pay, next(clock), approve=HUMAN))

    async with app_of(run).test() as bus:
        await begun(bus)
        (first,) = await bus.held()
        await bus.reject(first, by="lead@acme", reason="no")
        await bus.settle()
        assert reasons(bus) == ["approval_rejected"]
        assert CALLS == []


async def test_with_a_key_of_its_own_a_step_asks_again_for_other_arguments() -> None:
    amounts = iter((5, 500, 500))

    async def run(request: Work, context: Context) -> str:
        return str(await context.step("pay", pay, next(amounts), approve=HUMAN, key="the payment"))

    async with app_of(run).test() as bus:
        await begun(bus)
        (first,) = await bus.held()
        assert first.arguments == {"cents": 5}
        await bus.approve(first, by="lead@acme")
        await bus.settle()
        (second,) = await bus.held()
        assert second.arguments == {"cents": 500}
        await bus.approve(second, by="lead@acme")
        await bus.settle()
        assert CALLS == ["pay 500"]


async def test_a_blocking_handler_asks_from_its_own_thread() -> None:
    app = App("desk@svc")

    @app.on(Work, asks=True, blocking=True)
    def work(request: Work, context: BlockingContext) -> Worked:
        return Worked(summary=context.step("push", push, request.goal, approve=HUMAN))

    async with app.test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert CALLS == ["push it"]
        assert len(bus.sent(Worked)) == 1


async def test_an_effect_that_is_no_function_is_approved_too() -> None:
    async def run(request: Work, context: Context) -> str:
        given = await context.approve("shell", {"command": "make deploy"}, Approval(takes_conditions=True))
        return f"{given.decided_by[0]} {given.conditions}"

    async with app_of(run).test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        assert (held.tool, held.arguments) == ("shell", {"command": "make deploy"})
        await bus.approve(held, by="lead@acme", conditions=["after six"])
        await bus.settle()
        assert [each.summary for each in bus.sent(Worked)] == ["lead@acme ('after six',)"]
        assert [closed.state for closed in bus.sent(ApprovalClosed)] == ["approved", "consumed"]


# Steps that must not run twice.


async def test_a_step_in_doubt_ends_the_message_once() -> None:
    async def charge(cents: int) -> str:
        CALLS.append(f"charge {cents}")
        raise RetryLater("the connection broke")

    async def run(request: Work, context: Context) -> str:
        return str(await context.step("charge", charge, 5, once=True, key="c"))

    async with app_of(run).test() as bus:
        await begun(bus)
        await bus.advance(60)
        assert CALLS == ["charge 5"]
        assert reasons(bus) == ["effect_in_doubt"]


async def test_a_look_up_answers_for_a_step_in_doubt() -> None:
    async def charge(cents: int) -> str:
        CALLS.append(f"charge {cents}")
        raise RetryLater("the connection broke")

    async def find(cents: int) -> str:
        CALLS.append(f"find {cents}")
        return "charged before"

    async def run(request: Work, context: Context) -> str:
        return str(await context.step("charge", charge, 5, once=True, reconcile=find, key="c"))

    async with app_of(run).test() as bus:
        await begun(bus)
        await bus.advance(60)
        assert CALLS == ["charge 5", "find 5"]
        assert [each.summary for each in bus.sent(Worked)] == ["charged before"]


async def test_a_look_up_that_finds_nothing_lets_the_step_run() -> None:
    outcomes = iter(("broken", "charged"))

    async def charge(cents: int) -> str:
        CALLS.append(f"charge {cents}")
        if (outcome := next(outcomes)) == "broken":
            raise RetryLater(outcome)
        return outcome

    async def find(cents: int) -> str:
        raise NotDone("no such charge")

    async def run(request: Work, context: Context) -> str:
        return str(await context.step("charge", charge, 5, once=True, reconcile=find, key="c"))

    async with app_of(run).test() as bus:
        await begun(bus)
        await bus.advance(60)
        assert CALLS == ["charge 5", "charge 5"]
        assert [each.summary for each in bus.sent(Worked)] == ["charged"]


async def test_a_step_that_says_it_did_nothing_may_run_again() -> None:
    outcomes = iter(("away", "charged"))

    async def charge() -> str:
        CALLS.append("charge")
        if (outcome := next(outcomes)) == "away":
            raise NotDone(outcome)
        return outcome

    async def run(request: Work, context: Context) -> str:
        try:
            return str(await context.step("charge", charge, once=True, key="c", approve=HUMAN))
        except NotDone as error:
            raise RetryLater(str(error)) from error

    async with app_of(run).test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        await bus.advance(60)
        assert CALLS == ["charge", "charge"]
        assert [each.summary for each in bus.sent(Worked)] == ["charged"]
        assert await bus.held() == []


async def test_an_approved_step_that_failed_runs_again_under_the_same_approval() -> None:
    outcomes = iter(("broken", "pushed"))

    async def flaky(branch: str) -> str:
        CALLS.append(f"push {branch}")
        if (outcome := next(outcomes)) == "broken":
            raise RetryLater(outcome)
        return outcome

    async def run(request: Work, context: Context) -> str:
        return str(await context.step("push", flaky, "b", approve=HUMAN, key="p"))

    async with app_of(run).test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        await bus.advance(60)
        assert CALLS == ["push b", "push b"]
        assert [each.summary for each in bus.sent(Worked)] == ["pushed"]


async def test_a_look_up_may_not_know_either() -> None:
    async def charge() -> str:
        raise RetryLater("broken")

    async def find() -> str:
        raise StepInDoubt("the provider does not say")

    async def run(request: Work, context: Context) -> str:
        return str(await context.step("charge", charge, once=True, reconcile=find, key="c"))

    async with app_of(run).test() as bus:
        await begun(bus)
        await bus.advance(60)
        assert reasons(bus) == ["effect_in_doubt"]


# Limits and mistakes.


async def test_a_message_may_ask_for_sixteen_approvals() -> None:
    async def run(request: Work, context: Context) -> str:
        for number in range(20):
            try:
                await context.step("pay", pay, number, approve=HUMAN)
            except ApprovalRefused as error:
                if error.reason == "too_many":
                    return f"{number} {error.reason}"
        return "all"

    async with app_of(run).test() as bus:
        await begun(bus)
        while held := await bus.held():
            for each in held:
                await bus.reject(each, by="lead@acme", reason="no")
            await bus.settle()
        assert [each.summary for each in bus.sent(Worked)] == ["16 too_many"]


async def test_large_arguments_are_shown_as_an_artifact_and_run_whole() -> None:
    async def run(request: Work, context: Context) -> str:
        return str(len(await context.step("push", push, "x" * 9000, approve=HUMAN)))

    async with app_of(run).test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        ref = msgspec.convert(held.arguments["artifact"], Ref)
        assert msgspec.json.decode(await bus.artifacts.open(ref)) == {"branch": "x" * 9000}
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert [f"push {'x' * 9000}"] == CALLS


async def test_large_arguments_without_an_artifact_store_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_desk, "has_artifacts", lambda _: False)

    async def run(request: Work, context: Context) -> str:
        try:
            return str(await context.step("push", push, "x" * 9000, approve=HUMAN))
        except ApprovalRefused as error:
            return error.reason

    async with app_of(run).test() as bus:
        await begun(bus)
        assert [each.summary for each in bus.sent(Worked)] == ["too_large"]


async def test_a_message_that_lives_too_short_gets_no_approval() -> None:
    async with app_of(plan_and_push).test() as bus:
        await begun(bus, ttl_s=45)
        assert reasons(bus) == ["approval_timeout"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"approve": HUMAN, "name": "a step"}, "illegal name"),
        ({"reconcile": push}, "once=True"),
        ({"approve": HUMAN, "function": lambda branch: branch}, "lambda"),
        ({"approve": HUMAN, "branch": object()}, "JSON form"),
    ],
)
async def test_bad_input_is_refused_before_anything_is_asked(options: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"name": "push", "function": push, "branch": "b", **options}
    name, function, branch = given.pop("name"), given.pop("function"), given.pop("branch")

    async def run(request: Work, context: Context) -> str:
        with pytest.raises(ContractError, match=said):
            await context.step(name, function, branch, **given)
        return "refused"

    async with app_of(run).test() as bus:
        await begun(bus)
        assert [each.summary for each in bus.sent(Worked)] == ["refused"]
        assert await bus.held() == []


async def test_a_handler_that_does_not_say_so_may_not_ask() -> None:
    app = App("desk@svc")

    @app.on(Work, dedup="always")
    async def work(request: Work, context: Context) -> Worked:
        with pytest.raises(ContractError, match="asks=True"):
            await context.step("push", push, "b", approve=HUMAN)
        return Worked(summary="refused")

    async with app.test(keys=True) as bus:
        await begun(bus)
        assert len(bus.sent(Worked)) == 1


def test_asking_and_strict_order_contradict_each_other() -> None:
    with pytest.raises(ConfigurationError, match="key_strict"):
        App("desk@svc").on(Work, asks=True, order="key_strict")


async def test_an_approval_after_a_transaction_was_opened_is_refused() -> None:
    async def run(request: Work, context: Context) -> str:
        await context.transaction()
        with pytest.raises(ContractError, match="after the decision"):
            await context.step("push", push, "b", approve=HUMAN)
        return "refused"

    async with app_of(run).test() as bus:
        await begun(bus)
        assert [each.summary for each in bus.sent(Worked)] == ["refused"]


async def test_a_large_result_is_kept_in_several_rows() -> None:
    async def read() -> str:
        CALLS.append("read")
        return "x" * 1_000_000

    async def run(request: Work, context: Context) -> str:
        text = await context.step("read", read, key="r")
        await context.step("push", push, "b", approve=HUMAN)
        return str(len(text))

    async with app_of(run).test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert CALLS == ["read", "push b"]
        assert [each.summary for each in bus.sent(Worked)] == ["1000000"]


# Policy.

RULES = """
[[agents]]
id = "test@sealbus"
trust_ceiling = "user_request"

[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"

[[rules]]
id = "everybody"
effect = "allow"
action = ["publish", "handle"]

[[rules]]
id = "approvers"
effect = "allow"
action = "approve"
agents = "*@acme"
"""


def policy_of(folder: Path, rules: str) -> Any:
    from sealbus.trust import PolicyFile

    path = folder / "policy.toml"
    path.write_text(RULES + rules, "utf-8")
    path.chmod(0o600)
    return PolicyFile(path)


async def test_a_policy_forbids_a_tool_by_its_name(tmp_path: Path) -> None:
    rules = '[[rules]]\nid = "tools"\neffect = "allow"\naction = "use"\ntools = ["read*"]\n'
    app = App("desk@svc", policy=policy_of(tmp_path, rules))

    @app.on(Work, asks=True)
    async def work(request: Work, context: Context) -> Worked:
        try:
            await context.step("push", push, "b", approve=HUMAN)
        except ApprovalRefused as error:
            return Worked(summary=error.reason)
        return Worked(summary="pushed")

    async with app.test() as bus:
        await begun(bus)
        assert [each.summary for each in bus.sent(Worked)] == ["unauthorized"]
        assert await bus.held() == []


async def test_a_policy_forbids_a_tool_in_a_handler_that_may_not_ask_either(tmp_path: Path) -> None:
    rules = '[[rules]]\nid = "tools"\neffect = "allow"\naction = "use"\ntools = ["read*"]\n'
    app = App("desk@svc", policy=policy_of(tmp_path, rules))

    @app.on(Work, dedup="always")
    async def work(request: Work, context: Context) -> Worked:
        try:
            await context.take_step(StepCall(name="push", function=push, arguments=("b",), is_tool=True))
        except ApprovalRefused as error:
            return Worked(summary=error.reason)
        return Worked(summary="pushed")

    async with app.test() as bus:
        await begun(bus)
        assert [each.summary for each in bus.sent(Worked)] == ["unauthorized"]
        assert CALLS == []


async def test_a_policy_demands_more_approvers_for_a_tool(tmp_path: Path) -> None:
    rules = (
        '[[rules]]\nid = "two"\neffect = "need"\naction = "use"\ntools = "push"\n'
        'require_approval = "human"\nquorum = 2\n'
    )
    app = App("desk@svc", policy=policy_of(tmp_path, rules))

    @app.on(Work, asks=True)
    async def work(request: Work, context: Context) -> Worked:
        return Worked(summary=await context.step("push", push, "b", approve=Approval(by="agent")))

    async with app.test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert CALLS == []
        assert len(await bus.held()) == 1


async def test_a_run_that_goes_on_tells_that_its_approval_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    sending = ApprovalService.send

    async def killed_before(service: ApprovalService, records: Any) -> None:
        told.append(1)
        if len(told) > 1:
            await sending(service, records)

    async def broken_once(branch: str) -> str:
        CALLS.append(f"push {branch}")
        if len(CALLS) == 1:
            raise RetryLater("the worker is gone")
        return branch

    async def run(request: Work, context: Context) -> str:
        return str(await context.step("push", broken_once, "b", key="push", approve=HUMAN))

    monkeypatch.setattr(ApprovalService, "send", killed_before)
    async with app_of(run).test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.advance(60)
        assert [closed.state for closed in bus.sent(ApprovalClosed)] == ["approved", "consumed"]


# What an operator says about a step in doubt.


def charging(outcomes: list[str]) -> App:
    async def charge(cents: int) -> str:
        CALLS.append(f"charge {cents}")
        if (outcome := outcomes.pop(0)) == "broken":
            raise RetryLater(outcome)
        return outcome

    async def run(request: Work, context: Context) -> str:
        return str(await context.step("charge", charge, 5, once=True, key="c"))

    return app_of(run)


async def redriven(bus: TestBus, answer: StepAnswer) -> None:
    settings = bus.as_agent("ops@acme").publisher.settings
    orders = RedriveOrders(answer=answer)
    places = frozenset(letter.place for letter in bus.dead_letters[-1:])
    sealer = bus.as_agent("ops@acme").publisher.sealer
    await prepare_journal(bus.transport, settings)
    journal = Journal(bus.transport, settings, bus.clock, verb="redrive", why="looked into the ledger")
    run = Redrive(bus.transport, settings, bus.clock, Selection(places=places), orders, journal=journal, sealer=sealer)
    await run.run(stop=asyncio.Event())
    await bus.settle()


async def test_an_operator_says_what_a_step_in_doubt_returned() -> None:
    async with charging(["broken"]).test() as bus:
        await begun(bus)
        await bus.advance(60)
        assert reasons(bus) == ["effect_in_doubt"]
        await redriven(bus, StepAnswer(answer="done", result="invoice 17"))
        assert CALLS == ["charge 5"]
        assert [each.summary for each in bus.sent(Worked)] == ["invoice 17"]


async def test_an_operator_lets_a_step_in_doubt_be_called_again_once() -> None:
    async with charging(["broken", "broken", "charged"]).test() as bus:
        await begun(bus)
        await bus.advance(60)
        await redriven(bus, StepAnswer(answer="again"))
        await bus.advance(60)
        assert CALLS == ["charge 5", "charge 5"]
        assert reasons(bus) == ["effect_in_doubt", "effect_in_doubt"]
        await redriven(bus, StepAnswer(answer="again"))
        await bus.advance(60)
        assert [each.summary for each in bus.sent(Worked)] == ["charged"]


async def test_a_letter_sent_back_without_an_answer_dies_again() -> None:
    async with charging(["broken"]).test() as bus:
        await begun(bus)
        await bus.advance(60)
        await redriven(bus, StepAnswer(answer="done", result="x", step="other/0"))
        await bus.advance(60)
        assert CALLS == ["charge 5"]
        assert reasons(bus) == ["effect_in_doubt", "effect_in_doubt"]


async def test_an_answer_of_somebody_who_may_not_redrive_says_so_in_the_new_letter(tmp_path: Path) -> None:
    async def charge(cents: int) -> str:
        CALLS.append(f"charge {cents}")
        raise RetryLater("broken")

    app = App("desk@svc", policy=policy_of(tmp_path, '[[rules]]\nid = "no"\neffect = "deny"\naction = "redrive"\n'))

    @app.on(Work, asks=True)
    async def work(request: Work, context: Context) -> Worked:
        return Worked(summary=str(await context.step("charge", charge, 5, once=True, key="c")))

    async with app.test() as bus:
        await begun(bus)
        await bus.advance(60)
        await redriven(bus, StepAnswer(answer="done", result="x"))
        await bus.advance(60)
        assert CALLS == ["charge 5"]
        assert reasons(bus) == ["effect_in_doubt", "effect_in_doubt"]
        assert "the answer that came with the redrive is refused" in bus.dead_letters[-1].error


async def test_several_approvals_asked_for_at_once_wake_the_message_once() -> None:
    calls = [StepCall(name="pay", function=pay, arguments=(cents,), approve=HUMAN) for cents in (1, 2, 3)]
    runs: list[int] = []

    async def run(request: Work, context: Context) -> str:
        runs.append(1)
        await context.ask_for(calls)
        return ", ".join([str(await context.take_step(call)) for call in calls])

    async with app_of(run).test() as bus:
        await begun(bus)
        held = await bus.held()
        assert len(held) == 3
        for each in held:
            await bus.approve(each, by="lead@acme")
        await bus.settle()
        assert len(runs) == 2
        assert CALLS == ["pay 1", "pay 2", "pay 3"]
        assert len(bus.sent(Worked)) == 1


# What a run sends before it waits.


async def test_a_question_that_a_run_asks_again_is_worked_on_once() -> None:
    worked: list[str] = []
    helper = App("helper@svc")

    @helper.on(Ask)
    async def answer(ask: Ask) -> Answered:
        worked.append(ask.text)
        return Answered(text=f"re: {ask.text}")

    async def run(request: Work, context: Context) -> str:
        said = [(await context.request(Ask(text=text), Answered, to="helper@svc")).text for text in ("a", "a", "b")]
        for cents in (1, 2, 3):
            await context.step("pay", pay, cents, approve=HUMAN)
        return ", ".join(said)

    async with app_of(run).test(helper) as bus:
        await begun(bus)
        for _ in range(3):
            (held,) = await bus.held()
            await bus.approve(held, by="lead@acme")
            await bus.settle()
        # Two equal questions of one run are two; the same run anew asks none of them anew.
        assert worked == ["a", "a", "b"]
        assert [each.summary for each in bus.sent(Worked)] == ["re: a, re: a, re: b"]


async def test_what_a_run_sends_at_once_keeps_its_id_when_the_run_begins_anew() -> None:
    async def run(request: Work, context: Context) -> str:
        await context.send_now(Answered(text="early"))
        return str(await context.step("pay", pay, 1, approve=HUMAN))

    async with app_of(run).test() as bus:
        await begun(bus)
        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert len({message.message_id for message in bus.messages(Answered)}) == 1


async def test_a_cancelled_request_of_a_task_waits_for_nobody_any_more() -> None:
    async with app_of(plan_and_push).test() as bus:
        asking = asyncio.create_task(bus.request(Work(goal="it"), Worked, task_id="t1", timeout_s=600))
        while not bus.sent(StatusUpdate):
            await asyncio.sleep(0.01)
            await bus._collect()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        for _ in range(100):
            await bus.settle()
            if not await bus.held():
                break
            await asyncio.sleep(0.01)
        assert await bus.held() == []
        (closed,) = bus.sent(ApprovalClosed)
        assert (closed.state, closed.decided_by) == ("expired", ())
        assert CALLS == ["think it"]


async def test_a_cancelled_request_leaves_the_rest_of_its_task_alone() -> None:
    async with app_of(plan_and_push).test() as bus:
        one = await bus.publish(Work(goal="one"), task_id="t1")
        await bus.publish(Work(goal="two"), task_id="t1")
        await bus.settle()
        await bus.publish(TaskCancel(reason_code="NOT_NEEDED"), task_id=one.message_id, parent_task_id="t1")
        await bus.settle()
        assert [held.action["data"] for held in await bus.held()] == [{"goal": "two"}]


async def test_nobody_is_asked_about_a_task_that_was_cancelled_meanwhile() -> None:
    async def run(request: Work, context: Context) -> str:
        try:
            return await plan_and_push(request, context)
        finally:
            await bus.publish(TaskCancel(reason_code="NOT_NEEDED"), task_id="t1")

    async with app_of(run).test() as bus:
        await begun(bus, task_id="t1")
        assert await bus.held() == []
        assert bus.sent(ApprovalClosed) == []
        bus.assert_all_handled()
