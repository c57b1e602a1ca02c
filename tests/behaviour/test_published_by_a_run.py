"""What a run publishes is caused by its message; what asks somebody to act runs once where senders are proven."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bus.protocol import sealing
from bus.settings.loading import load
from bus.settings.schema import Settings
from sealbus import (
    App,
    Bus,
    Context,
    Outgoing,
    PublishRejected,
    Receipt,
    Reject,
    RequestFailed,
    RequestTimedOut,
    payload,
)
from sealbus.envelope import Agent
from sealbus.errors import ContractError
from sealbus.outbox import Outbox
from sealbus.trust import PolicyFile, Security
from tests.kit import handling


@payload("run.order", version="1.0.0", performative="request")
class Order(msgspec.Struct):
    sku: str


@payload("run.booked", version="1.0.0", performative="inform")
class Booked(msgspec.Struct):
    sku: str


@payload("run.page", version="1.0.0", performative="query")
class Page(msgspec.Struct):
    url: str


def settings(**flags: object) -> Settings:
    return load(flags={"trust.high_risk": "run.order"} | flags, env={}, file=None).settings


async def test_the_handled_message_is_the_cause_of_publishes_in_a_handler() -> None:
    found: list[Bus] = []
    app = App("shop@svc")

    @app.on(Order)
    async def book(order: Order) -> None:
        await found[0].publish(Booked(sku=order.sku))
        await found[0].publish(Booked(sku="apart"), detached=True)

    async with app.test() as bus:
        shop = bus.as_agent("shop@svc")
        found.append(Bus(shop.publisher, bus.transport))
        await bus.publish(Order(sku="tea"), security=Security(trust_level="user_request"))
        await bus.settle()
        bus.assert_all_handled()
        apart, inside = sorted(bus.messages(Booked), key=lambda message: message.metadata.hops)
        assert (inside.metadata.hops, apart.metadata.hops) == (1, 0)
        assert inside.metadata.causation_id is not None
        await found[0].requests.close()


async def test_another_agents_bus_begins_a_conversation_at_the_level_of_the_run() -> None:
    found: list[Bus] = []
    app = App("shop@svc")

    @app.on(Order)
    async def book(order: Order, context: Context) -> None:
        context.taint("untrusted_content", "a page")
        await found[0].publish(Booked(sku=order.sku))

    async with app.test(App("other@svc")) as bus:
        found.append(Bus(bus.as_agent("other@svc").publisher, bus.transport))
        await bus.publish(Order(sku="tea"))
        await bus.settle()
        bus.assert_all_handled()
        (message,) = bus.messages(Booked)
        assert message.metadata.hops == 0
        assert message.metadata.security == Security(trust_level="untrusted_content")
        await found[0].requests.close()


async def test_a_signed_request_that_is_appended_again_runs_once() -> None:
    runs: list[str] = []
    app = handling(App("shop@svc"), Order, lambda order: runs.append(order.sku))
    async with app.test(keys=True) as bus:
        sealed = bus.as_agent("planner@svc").publisher.sealer.seal(Outgoing(Order(sku="tea")))
        for _ in range(3):
            await bus.transport.append([sealed.record], timeout_s=5)
            await bus.settle()
        assert runs == ["tea"]


async def test_a_setting_raises_the_risk_of_a_type() -> None:
    app = handling(App("shop@svc"), Order)
    async with app.test(settings=settings()) as bus:
        with pytest.raises(PublishRejected, match="high risk"):
            await bus.publish(Order(sku="tea"))
    async with app.test(settings=settings(), keys=True) as bus:
        await bus.publish(Order(sku="tea"))
        await bus.settle()
        bus.assert_all_handled()


POLICY = """
[[agents]]
id = "planner@svc"
trust_ceiling = "user_request"
[[agents]]
id = "shop@svc"
roles = ["seller"]
[[agents]]
id = "thief@svc"
[[rules]]
id = "all-publish"
effect = "allow"
action = "publish"
types = ["run.*"]
[[rules]]
id = "shop-handles"
effect = "allow"
action = "handle"
agents = ["shop@svc", "planner@svc"]
types = ["run.*"]
"""


@pytest.fixture
def policy(tmp_path: Path) -> PolicyFile:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    return PolicyFile(file)


async def test_answers_go_to_the_sender_only(policy: PolicyFile) -> None:
    app = App("shop@svc", policy=policy)

    @app.on(Order)
    async def book(order: Order) -> Booked:
        return Booked(sku=order.sku)

    async with app.test() as bus:
        theirs = bus.as_agent("thief@svc").requests.topic
        with pytest.raises(PublishRejected) as caught:
            await bus.as_agent("planner@svc").publish(Order(sku="tea"), reply_to=theirs)
        assert isinstance(caught.value.__cause__, ContractError)
        assert caught.value.__cause__.pointer == "/routing/reply_to"


async def test_a_request_without_recipient_is_answered_by_an_allowed_agent(policy: PolicyFile) -> None:
    thief = App("thief@svc", policy=policy)
    heard: list[str] = []
    shop = App("shop@svc", policy=policy, roles=["seller"])

    @shop.on(Order)
    async def book(order: Order) -> Booked:
        heard.append(order.sku)
        return Booked(sku=order.sku)

    async with shop.test(thief) as bus:
        planner = bus.as_agent("planner@svc")
        assert (await planner.request(Order(sku="tea"), Booked, to=Agent(role="seller"))).sku == "tea"

    other = handling(App("thief@svc", policy=policy, roles=["seller"]), Order, Booked(sku="stolen"))
    async with other.test() as bus:
        with pytest.raises((RequestTimedOut, PublishRejected)):
            await bus.as_agent("planner@svc").request(Order(sku="tea"), Booked, to=Agent(role="seller"), timeout_s=5)


async def test_a_requester_gets_a_death_report_without_a_policy_rule(policy: PolicyFile) -> None:
    app = handling(App("shop@svc", policy=policy), Order, Reject("sold out"))
    async with app.test() as bus:
        with pytest.raises(RequestFailed) as caught:
            await bus.as_agent("planner@svc").request(Order(sku="tea"), Booked, to="shop@svc", timeout_s=5)
        assert caught.value.reason == "rejected"


async def test_an_answer_that_the_policy_forbids_is_a_dead_letter_and_not_a_loop(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY.replace('types = ["run.*"]', 'types = ["run.order"]', 1))
    app = App("shop@svc", policy=PolicyFile(file))

    @app.on(Order)
    async def book(order: Order) -> Booked:
        return Booked(sku=order.sku)

    async with app.test() as bus:
        with pytest.raises(RequestFailed):
            await bus.as_agent("planner@svc").request(Order(sku="tea"), Booked, to="shop@svc", timeout_s=5)
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]


async def test_publish_many_and_the_outbox_in_a_handler_go_on_with_its_message() -> None:
    found: list[Bus] = []
    rows: list[bytes] = []
    outbox = Outbox("shop@svc", env={})
    app = App("shop@svc")

    @app.on(Order)
    async def book(order: Order, context: Context) -> None:
        context.taint("untrusted_content", "a page")
        async for outcome in found[0].publish_many([Booked(sku="many")]):
            assert isinstance(outcome, Receipt)
        rows.append(outbox.seal(Booked(sku="outbox")).value)

    async with app.test() as bus:
        found.append(Bus(bus.as_agent("shop@svc").publisher, bus.transport))
        await bus.publish(Order(sku="tea"))
        await bus.settle()
        bus.assert_all_handled()
        (many,) = bus.messages(Booked)
        for message in (many, sealing.parse(rows[0])):
            assert message.metadata.hops == 1
            assert message.metadata.security == Security(trust_level="untrusted_content")
        await found[0].requests.close()


async def test_an_answer_read_through_another_bus_lowers_the_trust_of_the_run() -> None:
    found: list[Bus] = []
    levels: list[str] = []
    app, web = App("shop@svc"), App("web@svc")

    @web.on(Page)
    async def read(page: Page) -> Outgoing:
        return Outgoing(Booked(sku="injected"), security=Security(trust_level="untrusted_content"))

    @app.on(Order)
    async def book(order: Order, context: Context) -> None:
        await found[0].request(Page(url="x"), Booked, timeout_s=5)
        levels.append(context.labels.level)

    async with app.test(web) as bus:
        found.append(Bus(bus.as_agent("other@svc").publisher, bus.transport))
        played = bus.as_agent("other@svc")
        played.requests = found[0].requests
        await bus.publish(Order(sku="tea"))
        await bus.settle()
        bus.assert_all_handled()
        assert levels == ["untrusted_content"]
