"""The history of a process: its steps and waits over time, bounded, kept after the end."""

from __future__ import annotations

import msgspec
import pytest

from consumers.app.testing import TestBus
from consumers.processes.sagas.ending import end_process
from consumers.processes.sagas.history import (
    MAX_HISTORY,
    ProcessHistory,
    ProcessPart,
    StepTaking,
    history_after,
    history_in,
    interrupted,
)
from sealbus import App, Reject
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_start, on_timer
from tests.consumers.processes.sagas.saga_types import Offer, Order, Quote, QuoteRequest


class Bought(msgspec.Struct):
    seen: int = 0


class Buying(Saga[Bought], version="1.0.0"):
    @on_start(Order, key="/data/order_id")
    async def placed(self, order: Order, context: SagaContext) -> None:
        context.ask("price", QuoteRequest(sku="tea"), to=["a@svc", "b@svc"], answer_by_s=60)
        context.timer("reminder", after_s=10)
        context.timer("late", after_s=10_000)

    @on_timer("reminder")
    async def reminded(self, context: SagaContext) -> None:
        self.state.seen += 1

    @on_timer("late")
    async def given_up(self, context: SagaContext) -> None:
        context.finish()

    @on_answer("price", Quote)
    async def priced(self, quote: Quote, context: SagaContext) -> None:
        context.answer(Offer(cents=quote.cents))
        context.finish()

    @on_failure("price")
    async def unpriced(self, context: SagaContext) -> None:
        context.finish("failed", "nobody sells")


def shop() -> App:
    app = App("shop@svc", types=[QuoteRequest, Offer])
    app.add(Buying)
    return app


def seller(name: str, answer: Quote | Reject) -> App:
    app = App(name)

    @app.on(QuoteRequest)
    async def quote(_: QuoteRequest) -> Quote:
        if isinstance(answer, Reject):
            raise answer
        return answer

    return app


def names(history: ProcessHistory) -> list[tuple[str, str, str, str]]:
    return [(each.name, each.kind, each.outcome, each.agent) for each in history.parts]


async def stored(bus: TestBus) -> ProcessHistory:
    ((state,),) = await bus.database.fetch("SELECT state FROM sealbus_processes")
    return history_in(bytes(state))


async def test_an_ended_process_keeps_its_steps_and_waits() -> None:
    async with shop().test(seller("a@svc", Reject("sold out")), seller("b@svc", Quote(cents=7))) as bus:
        await bus.request(Order(order_id="1"), Offer, timeout_s=100)
        history = await stored(bus)
    assert names(history) == [
        ("placed", "step", "done", ""),
        ("price", "request", "refused", "a@svc"),
        ("reminder", "timer", "ended", ""),
        ("late", "timer", "ended", ""),
        ("price", "request", "answered", "b@svc"),
        ("priced", "step", "done", ""),
    ]
    assert all(each.end_ms is not None and each.start_ms <= each.end_ms for each in history.parts)


async def test_an_open_process_shows_what_is_under_way() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.advance(11)
        history = await stored(bus)
    assert names(history) == [
        ("placed", "step", "done", ""),
        ("price", "request", "", "a@svc"),
        ("reminder", "timer", "due", ""),
        ("late", "timer", "", ""),
        ("reminded", "step", "done", ""),
    ]
    reminder = history.parts[2]
    assert reminder.end_ms is not None
    assert 10_000 <= reminder.end_ms - reminder.start_ms <= 12_000
    assert history.parts[1].end_ms is None


async def test_a_silent_agent_is_told_from_one_that_refuses() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.advance(200)
        history = await stored(bus)
    assert [each for each in names(history) if each[1] == "request"] == [
        ("price", "request", "silent", "a@svc"),
        ("price", "request", "silent", "b@svc"),
    ]


async def test_a_process_that_an_operator_ends_keeps_its_history_and_what_is_named() -> None:
    async with shop().test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        steps = bus.workers[0].steps
        assert steps is not None
        (process,) = await steps.store.processes()
        now_ms = process.changed_ms + 5
        assert await end_process(steps.store, process, "gone", keep_ms=60_000, now_ms=now_ms, keeps=("seen",))
        (ended,) = await steps.store.processes()
    assert ended.status == "finished"
    assert msgspec.json.decode(ended.state)["data"] == {"seen": 0}
    assert names(history_in(ended.state))[:2] == [
        ("placed", "step", "done", ""),
        ("price", "request", "ended", "a@svc"),
    ]


def test_the_oldest_parts_that_are_over_make_room() -> None:
    armed = StepTaking(method="begin", at_ms=0, armed={"long": ("request", "a@svc")})
    history = history_after(ProcessHistory(), armed)
    for number in range(1, 500):
        history = history_after(history, StepTaking(method=f"m{number}", at_ms=number))
    assert len(history.parts) == MAX_HISTORY
    assert history.parts[0] == ProcessPart("long", "request", 0, agent="a@svc")
    assert history.parts[-1].name == "m499"
    assert history.forgotten == 501 - MAX_HISTORY


def test_very_many_open_waits_are_bounded() -> None:
    armed = {f"wait{number}": ("timer", "") for number in range(500)}
    history = history_after(ProcessHistory(), StepTaking(method="begin", at_ms=0, armed=armed))
    assert (len(history.parts), history.forgotten) == (MAX_HISTORY, 501 - MAX_HISTORY)


def test_a_wait_that_begins_again_ends_the_one_before() -> None:
    history = history_after(ProcessHistory(), StepTaking(method="", at_ms=1, armed={"again": ("timer", "")}))
    history = history_after(history, StepTaking(method="", at_ms=5, armed={"again": ("timer", "")}))
    assert history.parts == (
        ProcessPart("again", "timer", 1, 5, "replaced"),
        ProcessPart("again", "timer", 5),
    )


def test_a_clock_that_goes_back_makes_no_part_shorter_than_nothing() -> None:
    history = history_after(ProcessHistory(), StepTaking(method="", at_ms=9, armed={"w": ("timer", "")}))
    assert interrupted(history, 3).parts == (ProcessPart("w", "timer", 9, 9, "ended"),)


@pytest.mark.parametrize(
    "state", [b"", b"{}", b'{"data":{"a":1},"ending":{"outcome":"completed"}}', b"not json", b'{"history":7}', b"[]"]
)
def test_rows_of_older_code_have_no_history(state: bytes) -> None:
    assert history_in(state) == ProcessHistory()


def test_a_history_of_newer_code_is_read() -> None:
    state = b'{"history":{"parts":[["n","dance",1,2,"won","a@svc",{"new":1}]],"mood":1}}'
    assert history_in(state).parts == (ProcessPart("n", "dance", 1, 2, "won", "a@svc"),)
