"""Protocols as sagas: blackboard, subscriptions, handoff, iterated review, and a thousand auctions."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest

from bus.vocabulary.blackboard import (
    BlackboardConflict,
    BlackboardRead,
    BlackboardValue,
    BlackboardWrite,
    BlackboardWritten,
)
from bus.vocabulary.handoff import HandoffAccepted, HandoffCompleted, HandoffRejected, HandoffRequest
from bus.vocabulary.parts import Ref, ReturnContract, ReviewItem
from bus.vocabulary.review import ReviewRequest, ReviewResult
from bus.vocabulary.subscription import (
    SubscriptionCancel,
    SubscriptionEnded,
    SubscriptionNotice,
    SubscriptionOpen,
    SubscriptionOpened,
)
from bus.vocabulary.task import TaskRequest, TaskResult
from consumers.processes.conversations.blackboard import Blackboard
from consumers.processes.conversations.handoff import Handoff
from consumers.processes.conversations.review import IteratedReview
from consumers.processes.conversations.roles import PERFORMATIVES, ROLES, may_speak
from consumers.processes.conversations.subscriptions import Subscription
from sealbus import App, Reject, RequestFailed, payload
from sealbus.sagas import SagaContext, on_message, on_progress, on_start
from tests.kit import Asked


@payload("talk.ended", version="1.0.0")
class Ended(msgspec.Struct, frozen=True, kw_only=True):
    how: str


@payload("talk.price", version="1.0.0")
class Price(msgspec.Struct, frozen=True, kw_only=True):
    sku: str
    cents: int


@payload("talk.patch", version="1.0.0")
class Patch(msgspec.Struct, frozen=True, kw_only=True):
    diff: str


# Blackboard.


class Board(Blackboard, version="1.0.0", name="blackboard"):
    owners: ClassVar = {"open/": ("*@sealbus", "*@svc"), "mine/": ("me@svc",)}


def board() -> App:
    app = App("board@svc", types=[BlackboardWritten, BlackboardConflict, BlackboardValue])
    app.add(Board)
    return app


async def test_a_write_names_the_version_that_it_has_seen() -> None:
    async with board().test() as bus:
        write = BlackboardWrite(key="open/a", expected_version=0, value={"x": 1})
        written = await bus.request(write, BlackboardWritten, idempotency_key="1")
        assert written.version == 1
        conflict = await bus.request(write, BlackboardConflict, idempotency_key="2")
        assert (conflict.current_version, conflict.written_by) == (1, "test@sealbus")
        again = BlackboardWrite(key="open/a", expected_version=1, value={"x": 2}, keep_s=60)
        assert (await bus.request(again, BlackboardWritten, idempotency_key="3")).version == 2
        read = await bus.request(BlackboardRead(key="open/a", history=5), BlackboardValue)
        assert (read.version, read.value, read.written_by) == (2, {"x": 2}, "test@sealbus")
        assert [older["value"] for older in read.history] == [{"x": 1}]
        first = await bus.request(BlackboardRead(key="open/a", version=1), BlackboardValue)
        assert first.value == {"x": 1}
        await bus.advance(61)
        assert (await bus.request(BlackboardRead(key="open/a"), BlackboardValue)).value is msgspec.UNSET


async def test_an_unwritten_key_has_version_zero() -> None:
    async with board().test() as bus:
        assert (await bus.request(BlackboardRead(key="open/none"), BlackboardValue)).version == 0
        write = BlackboardWrite(key="open/none", expected_version=0, value=1)
        assert (await bus.request(write, BlackboardWritten, idempotency_key="1")).version == 1


async def test_owning_a_prefix_is_a_right() -> None:
    async with board().test() as bus:
        write = BlackboardWrite(key="mine/a", expected_version=0, value=1)
        with pytest.raises(RequestFailed, match="does not own"):
            await bus.request(write, BlackboardWritten, idempotency_key="1")
        assert (await bus.as_agent("me@svc").request(write, BlackboardWritten, idempotency_key="2")).version == 1


# Subscriptions.


class Prices(Subscription, version="1.0.0"):
    @on_message(Price, every=True, admits="anyone")
    async def changed(self, price: Price, context: SagaContext) -> None:
        if self.state.subject == price.sku:
            self.notify(context, {"cents": price.cents})


def source() -> App:
    app = App("prices@svc", types=[SubscriptionOpened, SubscriptionNotice, SubscriptionEnded])
    app.add(Prices)
    return app


async def test_who_has_subscribed_is_noticed_without_gaps_until_the_lease_is_over() -> None:
    async with source().test() as bus:
        await bus.publish(Price(sku="tea", cents=1))
        opened = await bus.request(
            SubscriptionOpen(subscription_id="s1", subject="tea", lease_s=60), SubscriptionOpened
        )
        assert opened.next_number == 0
        await bus.request(SubscriptionOpen(subscription_id="s2", subject="ink", lease_s=600), SubscriptionOpened)
        for cents in (2, 3):
            await bus.publish(Price(sku="tea", cents=cents))
            await bus.settle()
        await bus.advance(50)
        await bus.request(SubscriptionOpen(subscription_id="s1", subject="tea", lease_s=60), SubscriptionOpened)
        await bus.advance(50)
        assert not bus.sent(SubscriptionEnded)
        await bus.advance(20)
        assert [(notice.number, notice.content) for notice in bus.sent(SubscriptionNotice)] == [
            (0, {"cents": 2}),
            (1, {"cents": 3}),
        ]
        (ended,) = bus.sent(SubscriptionEnded)
        assert (ended.subscription_id, ended.reason_code, ended.last_number) == ("s1", "LEASE_OVER", 1)
        await bus.publish(SubscriptionCancel(subscription_id="s2"))
        await bus.settle()
        assert [each.reason_code for each in bus.sent(SubscriptionEnded)] == ["LEASE_OVER", "CANCELLED"]
        bus.assert_all_handled()


async def test_another_agent_can_neither_renew_nor_cancel_a_subscription() -> None:
    async with source().test() as bus:
        await bus.request(SubscriptionOpen(subscription_id="s1", subject="tea"), SubscriptionOpened)
        await bus.as_agent("stranger@svc").publish(SubscriptionCancel(subscription_id="s1"))
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["unauthorized"]
        assert not bus.sent(SubscriptionEnded)


# Handoff.


class Fixing(Handoff, version="1.0.0"):
    @on_start(Asked)
    async def wanted(self, _: Asked, context: SagaContext) -> None:
        request = HandoffRequest(
            handoff_id="h1",
            original_goal="fix",
            delegated_goal="fix",
            acceptance_criteria=("it works",),
            return_contract=ReturnContract(expected_message_type="talk.patch"),
        )
        self.hand_over(context, request, to="fixer@svc", within_s=600)

    @on_progress("handoff", Patch)
    async def patched(self, patch: Patch, context: SagaContext) -> None:
        self.keep(patch)

    async def handed_back(self, completed: HandoffCompleted, context: SagaContext) -> None:
        assert self.state.promised is not None
        context.answer(Ended(how=f"done {self.state.promised['diff']} by {self.state.delegatee}"))

    async def not_handed_back(self, why: str, context: SagaContext) -> None:
        context.answer(Ended(how=why))


def fixer(*said: Any) -> App:
    app = App("fixer@svc")

    @app.on(HandoffRequest)
    async def fix(_: HandoffRequest) -> list[Any]:
        if isinstance(said[0], Exception):
            raise said[0]
        return list(said)

    return app


REF = Ref(uri="message:x", sha256="sha256:" + "0" * 64)
COMPLETED = HandoffCompleted(handoff_id="h1", status="completed", result_ref=REF, summary="done")


@pytest.mark.parametrize(
    ("said", "how"),
    [
        ((HandoffAccepted(handoff_id="h1"), Patch(diff="+1"), COMPLETED), "done +1 by fixer@svc"),
        ((HandoffAccepted(handoff_id="h1"), COMPLETED), "unkept: no talk.patch came"),
        ((HandoffRejected(handoff_id="h1", reason_code="OVERLOADED", explanation="busy"),), "refused OVERLOADED"),
        ((HandoffCompleted(handoff_id="h1", status="failed", summary="no idea"),), "failed no idea"),
        ((Reject("not me"),), "refused rejected"),
    ],
)
async def test_a_handoff_is_held_to_its_contract(said: Any, how: str) -> None:
    app = App("lead@svc", types=[HandoffRequest, Ended])
    app.add(Fixing)
    # A fixer that has no contract of its own may leave out what it has promised.
    async with app.test(fixer(*said)) as bus:
        ended = await bus.request(Asked(), Ended, timeout_s=1000)
        assert ended.how == how or ended.how.startswith("refused rejected")


async def test_a_delegatee_that_is_silent_ends_the_handoff() -> None:
    app = App("lead@svc", types=[HandoffRequest, Ended])
    app.add(Fixing)
    async with app.test() as bus:
        assert (await bus.request(Asked(), Ended, timeout_s=1000)).how == "silent"


# Review.


class Writing(IteratedReview, version="1.0.0"):
    @on_start(Asked)
    async def wanted(self, wanted: Asked, context: SagaContext) -> None:
        self.begin(context, wanted.text, author="writer@svc", reviewer="critic@svc", rounds=3)

    async def approved(self, review: ReviewResult, context: SagaContext) -> None:
        context.answer(Ended(how=f"approved in round {self.state.round}"))

    async def abandoned(self, why: str, context: SagaContext) -> None:
        context.answer(Ended(how=why))


def writing(approved_in: int) -> tuple[App, App, App, list[Any]]:
    inputs: list[Any] = []
    lead, writer, critic = (
        App("lead@svc", types=[TaskRequest, ReviewRequest, Ended]),
        App("writer@svc"),
        App("critic@svc"),
    )
    lead.add(Writing)

    @writer.on(TaskRequest)
    async def write(task: TaskRequest) -> TaskResult:
        inputs.append(task.inputs)
        return TaskResult(status="completed", summary=f"draft {task.inputs['round']}")

    @critic.on(ReviewRequest)
    async def judge(request: ReviewRequest) -> ReviewResult:
        if request.round >= approved_in:
            return ReviewResult(verdict="approved")
        item = ReviewItem(severity="low", category="style", finding=f"remark {request.round}", blocking=True)
        return ReviewResult(verdict="changes_requested", items=(item,))

    return lead, writer, critic, inputs


async def test_a_draft_is_reviewed_until_it_is_approved() -> None:
    lead, writer, critic, inputs = writing(3)
    async with lead.test(writer, critic) as bus:
        assert (await bus.request(Asked(text="an article"), Ended, timeout_s=3000)).how == "approved in round 3"
        assert [each["remarks"] for each in inputs] == [[], ["remark 1"], ["remark 2"]]


async def test_a_draft_is_abandoned_after_the_last_round() -> None:
    lead, writer, critic, _ = writing(9)
    async with lead.test(writer, critic) as bus:
        assert (await bus.request(Asked(text="an article"), Ended, timeout_s=3000)).how == "not approved in 3 rounds"


async def test_an_author_who_is_gone_ends_the_review() -> None:
    lead, _, critic, _ = writing(1)
    async with lead.test(critic) as bus:
        assert (await bus.request(Asked(text="an article"), Ended, timeout_s=3000)).how == "the author: silent"


# Roles.


def test_every_role_speaks_with_known_performatives() -> None:
    assert all(words <= set(PERFORMATIVES) for words in ROLES.values())
    assert may_speak("critic", "reject")
    assert not may_speak("researcher", "request")
    assert not may_speak("nobody", "inform")
