"""Each documented option of asks, sagas and approvals does what it says, from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from bus.vocabulary.approval import ApprovalRequest
from consumers.app.testing import TestBus
from consumers.processes.sagas.context import AskOptions
from sealbus import App, Approval
from sealbus.envelope import Agent
from sealbus.sagas import Saga, SagaContext, on_answer, on_failure, on_message, on_start, on_timer
from sealbus.trust import Authority, PolicyFile, Security
from tests.consumers.processes.sagas.saga_types import Cancelled, Offer, Order, Paid, Quote, QuoteRequest
from tests.kit import handling


class Seen(msgspec.Struct):
    phase: str = ""
    count: int = 0


def notes(bus: TestBus) -> list[str]:
    return [offer.note for offer in bus.sent(Offer)]


def app_of(saga: type[Saga[Any]]) -> App:
    app = App("shop@svc", types=[QuoteRequest, Offer])
    app.add(saga)
    return app


# Asks.

MARK = "01a2170d-dd9a-7c3d-87cb-e58d0291e8a3"
OPTIONS: dict[str, tuple[Any, Any]] = {
    "key": ("k-1", lambda message: message.routing.key),
    "priority": (7, lambda message: message.routing.priority),
    "task_id": ("t-1", lambda message: message.metadata.task_id),
    "parent_task_id": ("t-0", lambda message: message.metadata.parent_task_id),
    "run_id": ("r-1", lambda message: message.metadata.run_id),
    "intent": ("buy tea", lambda message: message.metadata.intent),
    "idempotency_key": ("i-1", lambda message: message.routing.idempotency_key),
    "authority": (Authority(can_execute=("tea.*",)), lambda message: message.metadata.authority),
    "security": (
        Security(data_classification="confidential"),
        lambda message: msgspec.structs.replace(message.metadata.security, trust_level=None),
    ),
    "critical_fields": (("/data/sku",), lambda message: message.metadata.critical_fields),
    "performative": ("query", lambda message: message.metadata.performative),
    "max_hops": (3, lambda message: message.routing.max_hops),
    "traceparent": (f"00-{'1' * 32}-{'2' * 16}-01", lambda message: message.metadata.traceparent),
    "rests_on": ((), lambda message: message.verification.parents[1:]),
}


class Asked:
    options: ClassVar[dict[str, Any]] = {}


class Asking(Saga[Seen], version="1.0.0"):
    @on_start(Order)
    async def placed(self, order: Order, context: SagaContext) -> None:
        context.ask("price", QuoteRequest(sku="tea"), to="a@svc", answer_by_s=60, **Asked.options)

    @on_answer("price", Quote)
    async def priced(self, quote: Quote, context: SagaContext) -> None: ...

    @on_failure("price")
    async def unpriced(self, context: SagaContext) -> None: ...


def test_every_option_of_an_ask_is_tried() -> None:
    assert set(OPTIONS) == set(AskOptions.__annotations__)


@pytest.mark.parametrize("name", OPTIONS)
async def test_an_option_of_an_ask_is_in_its_request(name: str) -> None:
    value, read = OPTIONS[name]
    Asked.options = {name: value}
    async with app_of(Asking).test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        (asked,) = bus.messages(QuoteRequest)
        found = read(asked)
        assert tuple(found) == value if isinstance(value, tuple) else found == value


class Roles(Saga[Seen], version="1.0.0"):
    @on_start(Order)
    async def placed(self, order: Order, context: SagaContext) -> None:
        context.ask("prices", QuoteRequest(sku="tea"), to=Agent(role="seller"), many=True, answer_by_s=60)

    @on_answer("prices", Quote)
    async def priced(self, quote: Quote, context: SagaContext) -> None:
        self.state.count += quote.cents

    @on_timer("prices")
    async def over(self, context: SagaContext) -> None:
        context.send(Offer(cents=self.state.count, note="all"))
        context.finish()


async def test_an_ask_of_a_role_takes_many_answers_until_its_time_is_over() -> None:
    def seller(name: str, cents: int) -> App:
        return handling(App(name, roles=["seller"]), QuoteRequest, Quote(cents=cents))

    async with app_of(Roles).test(seller("a@svc", 3), seller("b@svc", 4)) as bus:
        await bus.publish(Order(order_id="1"))
        await bus.advance(75)
        assert bus.sent(Offer) == [Offer(cents=7, note="all")]


# Events.


class Phased(Saga[Seen], version="1.0.0", max_steps=4, name="phased-by-name"):
    phases = {"placed": ("paid",), "paid": ("placed",)}  # noqa: RUF012 - as users write it

    @on_start(Order, key="/data/order_id")
    async def placed(self, order: Order, context: SagaContext) -> None:
        self.state.phase = "placed"

    @on_message(Paid, key="/data/order_id", missing="skip", at=("placed",))
    async def paid(self, paid: Paid, context: SagaContext) -> None:
        self.state.phase = "paid"
        context.send(Offer(cents=1, note="paid"))

    @on_message(Cancelled, key="/data/order_id", missing="dead")
    async def again(self, _: Cancelled, context: SagaContext) -> None:
        self.state.phase = "placed"


async def test_an_event_is_skipped_dead_or_waits_as_its_rule_says() -> None:
    async with app_of(Phased).test() as bus:
        await bus.publish(Paid(order_id="1"))
        await bus.publish(Cancelled(order_id="1"))
        await bus.settle()
        assert [(letter.message_type, letter.reason) for letter in bus.dead_letters] == [
            ("order.cancelled", "invalid_transition")
        ]
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        for _ in range(2):
            await bus.publish(Paid(order_id="1"))
            await bus.settle()
        # The second is legal in a phase that may still come.
        assert notes(bus) == ["paid"]
        await bus.publish(Cancelled(order_id="1"))
        await bus.advance(40)
        assert notes(bus) == ["paid", "paid"]


async def test_a_process_that_goes_in_circles_stops_at_its_most_steps() -> None:
    async with app_of(Phased).test() as bus:
        await bus.publish(Order(order_id="1"))
        await bus.settle()
        for _ in range(5):
            await bus.publish(Cancelled(order_id="1"))
            await bus.settle()
        assert await bus.database.fetch("SELECT version, saga FROM sealbus_processes") == [(4, "phased-by-name")]
        assert [letter.reason for letter in bus.dead_letters] == ["rejected", "rejected"]


# Approvals.

RULES = """
[[agents]]
id = "test@sealbus"
owner = "ops"

[[agents]]
id = "lead@acme"
kind = "human"
owner = "lead"

[[agents]]
id = "boss@acme"
kind = "human"
owner = "boss"

[[agents]]
id = "bot@svc"
owner = "bots"

[[rules]]
id = "everybody"
effect = "allow"
action = ["publish", "handle"]
types = "**"

[[rules]]
id = "approvers"
effect = "allow"
action = "approve"
agents = ["*@acme", "bot@svc"]
types = "**"
"""


def guarded(folder: Path, runs: list[str], **options: Any) -> App:
    path = folder / "policy.toml"
    path.write_text(RULES, "utf-8")
    path.chmod(0o600)
    return handling(
        App("deployer@svc", policy=PolicyFile(path)),
        Order,
        lambda order: runs.append(order.order_id),
        approval=Approval(**options),
    )


async def test_describe_and_reason_tell_people_what_is_asked(tmp_path: Path) -> None:
    options = {"describe": lambda order: f"order {order.order_id}", "reason": "orders cost money"}
    async with guarded(tmp_path, [], **options).test(keys=True) as bus:
        await bus.publish(Order(order_id="17"))
        await bus.settle()
        (asked,) = bus.sent(ApprovalRequest)
        assert (asked.action.description, asked.reason) == ("order 17", "orders cost money")


async def test_only_the_approvers_that_a_handler_names_decide(tmp_path: Path) -> None:
    runs: list[str] = []
    async with guarded(tmp_path, runs, approvers=["boss@acme"]).test(keys=True) as bus:
        await bus.publish(Order(order_id="17"))
        await bus.settle()
        (held,) = await bus.held()
        await bus.approve(held, by="lead@acme")
        await bus.settle()
        assert runs == []
        await bus.approve(held, by="boss@acme")
        await bus.settle()
        assert runs == ["17"]


async def test_a_quorum_of_a_handler_counts_people(tmp_path: Path) -> None:
    runs: list[str] = []
    async with guarded(tmp_path, runs, quorum=2).test(keys=True) as bus:
        await bus.publish(Order(order_id="17"))
        await bus.settle()
        (held,) = await bus.held()
        for name in ("lead@acme", "boss@acme"):
            assert runs == []
            await bus.approve(held, by=name)
            await bus.settle()
        assert runs == ["17"]


@pytest.mark.parametrize(("by", "ran"), [("human", []), ("agent", ["17"])])
async def test_an_agent_decides_where_the_handler_says_so(tmp_path: Path, by: str, ran: list[str]) -> None:
    runs: list[str] = []
    async with guarded(tmp_path, runs, by=by).test(keys=True) as bus:
        await bus.publish(Order(order_id="17"))
        await bus.settle()
        (held,) = await bus.held()
        await bus.approve(held, by="bot@svc")
        await bus.settle()
        assert runs == ran


def test_once_is_gone_and_step_has_it() -> None:
    with pytest.raises(TypeError, match="once"):
        Approval(once=True)  # type: ignore[call-arg]
