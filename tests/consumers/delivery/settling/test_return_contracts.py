"""A handler answers in the form that its message asked for, or the requester is told that it did not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bus.payloads.rules import Has, Rule
from bus.vocabulary.auction import AuctionAward, AuctionBid, AuctionCall, AuctionResult
from bus.vocabulary.error import ErrorReported
from bus.vocabulary.handoff import HandoffCompleted, HandoffRequest
from bus.vocabulary.parts import ErrorInfo, Money, Ref, ReturnContract
from bus.vocabulary.task import (
    StatusUpdate,
    TaskAccepted,
    TaskClarification,
    TaskHandoff,
    TaskRejected,
    TaskRequest,
    TaskResult,
    TaskSpec,
)
from consumers.delivery.settling.return_contracts import is_in_range
from sealbus import App, Context, RequestFailed, payload

HASH = "sha256:" + "0" * 64


@payload("dossier.ready", version="1.2.0", rules=(Rule("a page needs a title", "/title", Has("title")),))
class Dossier(msgspec.Struct, frozen=True, kw_only=True):
    pages: int
    title: str | None = None


@payload("chat.message")
class Chat(msgspec.Struct, frozen=True, kw_only=True):
    text: str


@payload("own.request")
class OwnRequest(msgspec.Struct, frozen=True, kw_only=True):
    return_contract: str


@payload("plain.request")
class Plain(msgspec.Struct, frozen=True, kw_only=True):
    goal: str


@payload("plain.request")
class PlainWithContract(msgspec.Struct, frozen=True, kw_only=True):
    goal: str
    return_contract: ReturnContract


DOSSIER = Dossier(pages=3, title="t")
CONTRACT = ReturnContract(expected_message_type="dossier.ready", schema="dossier.ready@1")
TASK = TaskRequest(goal="g", return_contract=CONTRACT)


def answering(answer: Any, *handled: type[Any]) -> App:
    app = App("worker@svc", group="work", types=[Dossier, Chat, TaskResult, ErrorReported])
    for kind in handled or (TaskRequest,):

        async def handle(request: Any) -> Any:
            return answer

        handle.__annotations__ = {"request": kind, "return": None}
        app.on(kind)(handle)
    return app


async def fate(answer: Any, request: Any = TASK) -> tuple[str, str] | None:
    """What the letter of *request* says, which was answered with *answer*; None where there is none."""
    async with answering(answer, type(request)).test() as bus:
        await bus.publish(request, task_id="t-1")
        await bus.settle()
        letters = [(letter.reason, letter.pointer) for letter in bus.dead_letters]
    return letters[0] if letters else None


BREACH = ("rejected", "/data/return_contract")


def completed(**fields: Any) -> TaskResult:
    return TaskResult(status="completed", **fields)


def status(new: Any) -> StatusUpdate:
    return msgspec.convert(
        {"task_id": "t-1", "new_status": new, "timestamp": "2026-01-01T00:00:00Z"}, StatusUpdate, strict=False
    )


KEPT = {
    "the promised message": DOSSIER,
    "the promised message among others": [Chat(text="here"), DOSSIER],
    "a result with the promised output": completed(output={"pages": 1, "title": "t"}),
    "a result by reference": completed(artifacts=(Ref(uri="artifact://x"),)),
    "an acceptance": TaskAccepted(understood_goal="g"),
    "a rejection": TaskRejected(reason_code="UNSAFE", explanation="no"),
    "a question": TaskClarification(questions=("which?",)),
    "a failure": TaskResult(status="failed", error=ErrorInfo(code="TIMEOUT", message="late")),
    "a cancelled task": TaskResult(status="cancelled"),
    "progress": status("running"),
    "nothing yet": None,
}
BROKEN = {
    "another message": Chat(text="here"),
    "another message beside an acceptance": [TaskAccepted(understood_goal="g"), Chat(text="x")],
    "a result without output": completed(summary="done"),
    "a result with another output": completed(output={"pages": "many", "title": "t"}),
    "an output that breaks a rule": completed(output={"pages": 1}),
    "a state that says completed": status("completed"),
}


@pytest.mark.parametrize("name", KEPT)
async def test_a_contract_is_kept_by(name: str) -> None:
    assert await fate(KEPT[name]) is None


@pytest.mark.parametrize("name", BROKEN)
async def test_a_contract_is_broken_by(name: str) -> None:
    assert await fate(BROKEN[name]) == BREACH


async def test_a_wrong_answer_is_reported_instead_of_delivered() -> None:
    async with answering(Chat(text="here")).test() as bus:
        with pytest.raises(RequestFailed) as caught:
            await bus.request(TASK, Chat, task_id="t-1")
        assert bus.sent(Chat) == []
        (letter,) = bus.dead_letters
    assert caught.value.reason == "rejected"
    assert "asks for dossier.ready@1, and the answer is chat.message 1.0.0" in repr(letter)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [("dossier.ready@1", None), ("dossier.ready@1.2", None), ("dossier.ready@1.3", BREACH), ("dossier.ready@2", BREACH),
     ("dossier.ready@1.2.0", None), ("dossier.ready@1.2.1", BREACH), (None, None)],
)  # fmt: skip
async def test_the_answer_is_of_a_version_that_is_asked_for(schema: str | None, expected: Any) -> None:
    contract = ReturnContract(expected_message_type="dossier.ready", schema=schema)
    assert await fate(DOSSIER, TaskRequest(goal="g", return_contract=contract)) == expected


@pytest.mark.parametrize(
    ("version", "schema", "expected"),
    [("1.10.0", "t@1.9", True), ("1.9.0", "t@1.10", False), ("2.9.0", "t@1.1", False), ("10.0.0", "t@1", False)],
)
def test_versions_are_compared_as_numbers(version: str, schema: str, expected: bool) -> None:
    assert is_in_range(version, schema) is expected


async def test_an_output_of_a_type_that_is_not_known_here_is_not_judged() -> None:
    contract = ReturnContract(expected_message_type="unknown.type")
    assert await fate(completed(output={"x": 1}), TaskRequest(goal="g", return_contract=contract)) is None


@pytest.mark.parametrize("request_", [TaskRequest(goal="g"), OwnRequest(return_contract="soon")])
async def test_without_a_contract_any_answer_goes(request_: Any) -> None:
    assert await fate(Chat(text="here"), request_) is None


async def test_a_return_contract_unknown_to_the_local_type_is_ignored() -> None:
    async with answering(Chat(text="here"), Plain).test() as bus:
        await bus.publish(PlainWithContract(goal="g", return_contract=CONTRACT))
        await bus.settle()
        bus.assert_all_handled()


async def test_a_type_of_ones_own_may_have_a_contract() -> None:
    assert await fate(Chat(text="here"), PlainWithContract(goal="g", return_contract=CONTRACT)) == BREACH
    assert await fate(DOSSIER, PlainWithContract(goal="g", return_contract=CONTRACT)) is None


class TestHandoffs:
    REQUEST = HandoffRequest(
        handoff_id="h", original_goal="g", delegated_goal="d", acceptance_criteria=("c",), return_contract=CONTRACT
    )

    def closing(self, uri: str) -> HandoffCompleted:
        return HandoffCompleted(handoff_id="h", status="completed", summary="s", result_ref=Ref(uri=uri))

    async def test_the_message_that_closes_it_names_the_answer(self) -> None:
        assert await fate(self.closing(f"message:{HASH}"), self.REQUEST) is None
        assert await fate(self.closing("artifact://x"), self.REQUEST) == BREACH
        assert await fate([DOSSIER, self.closing("artifact://x")], self.REQUEST) is None

    async def test_a_failed_one_has_no_answer(self) -> None:
        failed = HandoffCompleted(handoff_id="h", status="failed", summary="s")
        assert await fate(failed, self.REQUEST) is None

    async def test_the_short_form_has_no_contract(self) -> None:
        short = TaskHandoff(
            task_id="t-1", from_agent="test@sealbus", to_agent="worker@svc", task_spec=TaskSpec(action="a", input={})
        )
        assert await fate(Chat(text="x"), short) is None


class TestAuctions:
    async def test_a_bid_does_not_fulfil_a_return_contract(self) -> None:
        call = AuctionCall(goal="g", return_contract=CONTRACT, bid_by_s=9, answer_within_s=9)
        bid = AuctionBid(cost=Money(amount="1", currency="EUR"), confidence=1.0, duration_s=1)
        assert await fate(bid, call) is None

    @pytest.mark.parametrize(("output", "expected"), [({"pages": 1, "title": "t"}, None), ({"x": 1}, BREACH)])
    async def test_the_result_of_the_winner_is_judged(self, output: Any, expected: Any) -> None:
        award = AuctionAward(bid=HASH, rank=1, goal="g", return_contract=CONTRACT)
        async with answering(AuctionResult(bid=HASH, output=output), AuctionAward).test() as bus:
            await bus.publish(award, task_id="t-1", idempotency_key="k")
            await bus.settle()
            letters = [(letter.reason, letter.pointer) for letter in bus.dead_letters]
        assert letters == ([] if expected is None else [expected])


async def test_the_promised_message_may_have_been_queued() -> None:
    app = App("worker@svc", group="work", types=[Dossier, Chat])

    @app.on(TaskRequest)
    async def handle(request: TaskRequest, context: Context) -> Chat:
        context.send(DOSSIER)
        return Chat(text="see there")

    async with app.test() as bus:
        await bus.publish(TASK, task_id="t-1")
        await bus.settle()
        bus.assert_all_handled()
        assert bus.sent(Dossier) == [DOSSIER]
