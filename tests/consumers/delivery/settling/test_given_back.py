"""What a handler gives back is judged in its run: told by reason and pointer, and no paid step is lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sealbus import App, Context, Outgoing, RequestFailed, Retry, payload
from sealbus.errors import ContractError
from sealbus.trust import Authority
from tests.kit import Job


@payload("given.answer", version="1.0.0", performative="inform")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    text: str = ""
    number: float = 0.0
    anything: Any = None


BAD: dict[str, Any] = {
    "surrogate": Answer(text="a\ud83d b"),
    "nan": Answer(number=float("nan")),
    "large": Answer(text="x" * 2_000_000),
    "integer": Answer(anything=2**60),
    "bytes": Answer(anything={"k": object()}),
}
CALLS: list[int] = []


def paid() -> int:
    CALLS.append(1)
    return 7


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    CALLS.clear()


@pytest.mark.parametrize("name", BAD)
async def test_a_refused_answer_is_reported_without_its_content(name: str) -> None:
    app = App("given@tests", types=[Answer])

    @app.on(Job)
    async def handle(ask: Job) -> Answer:
        return BAD[name]

    async with app.test() as bus:
        with pytest.raises(RequestFailed, match=r"what its handler sends is refused: \w+ at /") as told:
            await bus.request(Job(), Answer)
        assert "xxx" not in str(told.value)
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("by", ["check", "send"])
async def test_a_handler_can_catch_and_correct_a_refused_answer(name: str, by: str) -> None:
    app = App("given@tests", types=[Answer])

    @app.on(Job)
    async def handle(ask: Job, context: Context) -> Answer:
        with pytest.raises(ContractError) as refused:
            (context.check if by == "check" else context.send)(BAD[name])
        return Answer(text=refused.value.pointer or "/")

    async with app.test() as bus:
        answer = await bus.request(Job(), Answer)
        assert answer.text.startswith("/")
        assert not bus.dead_letters


async def test_sending_more_authority_than_the_run_has_is_refused() -> None:
    app, refused = App("given@tests", types=[Answer]), list[str]()

    @app.on(Job)
    async def handle(ask: Job, context: Context) -> Answer:
        try:
            context.send(Answer(), authority=Authority(can_write=("*",)))
        except ContractError as error:
            refused.append(error.reason)
        return Answer(text="mended")

    async with app.test() as bus:
        await bus.request(Job(), Answer, authority=Authority(can_write=("docs/*",)))
    assert refused == ["unauthorized"]


async def test_a_refused_answer_loses_no_paid_step() -> None:
    app = App("given@tests", types=[Answer])

    @app.on(Job, dedup="always")
    async def handle(ask: Job, context: Context) -> Answer:
        number = await context.step("paid", paid)
        return Answer(number=float("nan")) if len(CALLS) == 1 and broken else Answer(number=number)

    broken = True
    async with app.test() as bus:
        await bus.publish(Job())
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]
        rows = await bus.workers[0].inbox.query("SELECT name FROM sealbus_steps", ())
        assert len(rows) == 1
    assert CALLS == [1]


async def test_a_declared_answer_of_none_is_refused_at_once() -> None:
    app = App("given@tests", types=[Answer])

    @app.on(Job, retry=Retry(attempts=5))
    async def handle(ask: Job) -> Answer:
        return None  # type: ignore[return-value]

    async with app.test() as bus:
        with pytest.raises(RequestFailed, match="returned no answer"):
            await bus.request(Job(), Answer)
        assert [(letter.reason, letter.attempts) for letter in bus.dead_letters] == [("rejected", 1)]


@pytest.mark.parametrize("returned", [None, [], Answer(text="x"), Outgoing(Answer())])
async def test_an_optional_answer_may_be_none(returned: Any) -> None:
    app = App("given@tests", types=[Answer])

    @app.on(Job)
    async def handle(ask: Job) -> Answer | Outgoing | list[Answer] | None:
        return returned

    async with app.test() as bus:
        await bus.publish(Job())
        await bus.settle()
        assert not bus.dead_letters
