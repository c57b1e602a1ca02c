"""`app.test()` is production: what is off is said, and failures show where and when."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from bus.errors import BusError
from consumers.app import testing
from sealbus import App, Context, Retry, payload
from sealbus.trust import PolicyFile


@payload("made.order", performative="request")
class Order(msgspec.Struct, frozen=True, kw_only=True):
    sku: str = "tea"


@payload("made.answer", performative="inform")
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    n: int = 1


@payload("made.question", performative="request")
class Question(msgspec.Struct, frozen=True, kw_only=True):
    text: str = "why?"


def line_of(function: object, words: str) -> int:
    lines, start = inspect.getsourcelines(function)
    return start + next(number for number, line in enumerate(lines) if words in line)


def helper(order: Order) -> int:
    return len(order.sku) + order.missing  # type: ignore[attr-defined]


def failing() -> App:
    app = App("clerk@svc")

    @app.on(Order, retry=Retry(attempts=3, base_s=60))
    async def take(order: Order, context: Context) -> None:
        helper(order)

    return app


async def test_a_programming_error_that_waits_for_its_retry_fails_the_test_with_its_place() -> None:
    async with failing().test() as bus:
        await bus.publish(Order())
        await bus.settle()
        with pytest.raises(AssertionError) as caught:
            bus.assert_all_handled()
    assert f"test_production.py:{line_of(helper, 'missing')} in helper" in str(caught.value)
    assert "AttributeError" in str(caught.value)
    assert isinstance(caught.value.__cause__, AttributeError)


async def test_a_dead_letter_of_a_programming_error_shows_its_place() -> None:
    async with failing().test() as bus:
        await bus.publish(Order())
        await bus.advance(1000)
        with pytest.raises(AssertionError, match="a dead letter") as caught:
            bus.assert_all_handled()
    assert f"test_production.py:{line_of(helper, 'missing')} in helper" in str(caught.value)


async def test_an_outage_that_waits_for_its_retry_fails_no_test() -> None:
    app, attempts = App("clerk@svc"), []

    @app.on(Order, retry=Retry(attempts=3, base_s=60))
    async def take(order: Order) -> None:
        attempts.append(order)
        if len(attempts) < 3:
            raise ConnectionError("away")

    async with app.test() as bus:
        await bus.publish(Order())
        await bus.settle()
        bus.assert_all_handled()
        await bus.advance(1000)
        bus.assert_all_handled()
    assert len(attempts) == 3


async def test_an_expired_message_names_the_clock_of_the_test() -> None:
    app = App("clerk@svc")

    @app.on(Order, retry=Retry(attempts=9, base_s=100))
    async def take(order: Order) -> None:
        raise ConnectionError("away")

    async with app.test() as bus:
        await bus.publish(Order(), ttl_s=10)
        await bus.advance(3600)
        with pytest.raises(
            AssertionError, match=r"the test's clock shows 2026-01-01T01:00:00\.000Z.*advance"
        ) as caught:
            bus.assert_all_handled()
    assert "would outlive the message" in str(caught.value)


async def test_a_message_that_expired_in_the_queue_names_the_clock_of_the_test() -> None:
    async with failing().test() as bus:
        await bus.publish(Order(), ttl_s=10)
        bus.clock.advance(60)
        await bus.settle()
        with pytest.raises(AssertionError, match=r"(?s)expired.*the test's clock shows 2026-01-01T00:01:00"):
            bus.assert_all_handled()


async def test_a_time_by_the_real_clock_is_refused_with_the_time_of_the_test() -> None:
    async with failing().test() as bus:
        with pytest.raises(BusError, match=r"the test's clock shows 2026-01-01T00:00:00\.000Z"):
            await bus.publish(Order(), at=datetime(2031, 1, 1, tzinfo=UTC))
        with pytest.raises(BusError, match="the test's clock shows"):
            await bus.as_agent("planner@svc").publish(
                Order(), at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=400)
            )


async def test_a_request_that_times_out_names_the_clock() -> None:
    app = App("clerk@svc")

    @app.on(Order)
    async def take(order: Order) -> None:
        return None

    async with app.test() as bus:
        with pytest.raises(TimeoutError, match=r"the test's clock shows 2026-01-01T00:00:05"):
            await bus.request(Order(), Answer, timeout_s=5)


async def test_what_is_off_is_said_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    monkeypatch.setattr(testing, "_told", set())
    monkeypatch.setattr(testing._log, "warning", lambda _, **fields: said.append(fields["detail"]), raising=False)
    for _ in range(2):
        async with failing().test() as bus:
            assert any(line.startswith("signatures are off: no keys") for line in bus.off)
    assert [line for line in said if "signatures" in line] == [
        "app.test(): signatures are off: no keys (app.test(keys=True) gives each agent one)"
    ]
    assert any("policy is off" in line for line in said)


async def test_with_keys_signatures_are_on() -> None:
    async with failing().test(keys=True) as bus:
        assert not any("signatures" in line for line in bus.off)


async def test_a_project_with_keys_signs_in_its_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SEALBUS_TRUST__KEYS", str(tmp_path / "not_here"))
    app, seen = App("clerk@svc"), []

    @app.on(Order)
    async def take(order: Order, context: Context) -> None:
        seen.append(context.message.verification.signature)

    async with app.test() as bus:
        await bus.publish(Order())
        await bus.settle()
        bus.assert_all_handled()
        assert not any("signatures" in line for line in bus.off)
    assert seen[0] is not None


async def test_limits_of_the_settings_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEALBUS_PUBLISH__TTL_S", "30s")
    monkeypatch.setenv("SEALBUS_PUBLISH__MAX_TTL_S", "60s")
    async with failing().test() as bus:
        with pytest.raises(BusError):
            await bus.publish(Order(), ttl_s=3600)


async def test_what_keeps_a_worker_from_starting_is_said() -> None:
    @payload("made.payment", performative="request", risk="high")
    class Pay(msgspec.Struct, frozen=True, kw_only=True):
        cents: int

    app = App("payer@svc")

    @app.on(Pay)
    async def pay(payment: Pay) -> None:
        return None

    async with app.test() as bus:
        assert any("does not start: made.payment can change things, but no policy is set" in line for line in bus.off)


async def test_a_played_agent_may_have_the_id_that_the_policy_knows(tmp_path: Path) -> None:
    rules = "".join(
        f'[[agents]]\nid = "{agent}"\n\n[[rules]]\nid = "r{number}"\neffect = "allow"\n'
        f'action = ["publish", "handle"]\nagents = "{agent}"\ntypes = "made.*"\n\n'
        for number, agent in enumerate(("desk@svc", "clerk@svc", "test@sealbus"))
    )
    (tmp_path / "policy.toml").write_text(rules)
    (tmp_path / "policy.toml").chmod(0o600)
    app = App("desk@svc", policy=PolicyFile(tmp_path / "policy.toml"))

    @app.on(Question)
    async def forward(question: Question, context: Context) -> None:
        await context.request(Order(), Answer, timeout_s=5)

    async with app.test(keys=True) as bus:
        clerk = bus.fake(Order, returns=Answer(), agent="clerk@svc")
        await bus.publish(Question())
        await bus.settle()
        bus.assert_all_handled()
        assert clerk.received == [Order()]
