"""What is put around handlers and given to them, and handlers declared in several files."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, get_args

import msgspec
import pytest

from bus.errors import UnknownTypeError
from bus.protocol.envelope import Performative
from consumers.delivery.declaration import Handling
from consumers.delivery.handler_errors import LifespanError
from sealbus import App, Context, Outgoing, Reject, Router, payload
from sealbus.errors import ConfigurationError
from tests.kit import Order, handling


@payload("order.booked")
class Booked(msgspec.Struct, frozen=True, kw_only=True):
    sku: str


@payload("order.cancelled")
class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    sku: str = "tea"


class Pool:
    def __init__(self) -> None:
        self.is_open = True


def noted(notes: list[str], name: str) -> Callable[[Handling], Handling]:
    def around(following: Handling) -> Handling:
        async def handler(payload: Any, context: Context) -> Any:
            notes.append(f"{name} before {context.message.message_type}")
            try:
                return await following(payload, context)
            finally:
                notes.append(f"{name} after")

        return handler

    return around


async def test_middleware_is_put_around_each_handler_the_first_one_outermost() -> None:
    notes: list[str] = []
    app = App("shop@svc", middleware=[noted(notes, "outer"), noted(notes, "inner")])

    @app.on(Order)
    async def book(order: Order) -> Booked:
        notes.append("book")
        return Booked(sku=order.sku)

    async with app.test() as bus:
        await bus.publish(Order())
        await bus.settle()
        assert bus.sent(Booked) == [Booked(sku="tea")]
    assert notes == ["outer before order.placed", "inner before order.placed", "book", "inner after", "outer after"]


async def test_middleware_can_change_input_and_result_of_a_handler() -> None:
    def doubled(following: Handling) -> Handling:
        async def handler(payload: Any, context: Context) -> Any:
            answer = await following(Order(sku=payload.sku * 2), context)
            return Outgoing(answer, key="chosen")

        return handler

    app = App("shop@svc", middleware=[doubled])

    @app.on(Order)
    async def book(order: Order) -> Booked:
        return Booked(sku=order.sku)

    async with app.test() as bus:
        await bus.publish(Order())
        await bus.settle()
        (message,) = bus.messages(Booked)
        assert (bus.sent(Booked), message.routing.key) == ([Booked(sku="teatea")], "chosen")


async def test_middleware_that_raises_decides_as_a_handler_does() -> None:
    def closed(_: Handling) -> Handling:
        async def handler(payload: Any, context: Context) -> Any:
            raise Reject("the shop is closed")

        return handler

    app = handling(App("shop@svc", middleware=[closed]), Order)
    async with app.test() as bus:
        await bus.publish(Order())
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]


async def test_middleware_that_returns_nothing_is_refused_when_the_worker_is_made() -> None:
    app = handling(App("shop@svc", middleware=[lambda _: None]), Order)  # type: ignore[list-item, return-value]
    with pytest.raises(ConfigurationError, match="takes the next handler and returns"):
        async with app.test():
            pass


async def test_a_lifespan_is_open_while_handlers_run_and_is_given_by_name() -> None:
    app, pools, seen = App("shop@svc"), [], []

    @app.lifespan
    async def database() -> AsyncIterator[Pool]:
        pools.append(Pool())
        yield pools[0]
        pools[0].is_open = False

    @app.on(Order, provide={"pool": database})
    async def book(order: Order, context: Context, *, pool: Pool) -> None:
        seen.append((pool, pool.is_open, context.attempt))

    async with app.test() as bus:
        await bus.publish(Order())
        await bus.settle()
        bus.assert_all_handled()
    assert seen == [(pools[0], True, 1)]
    assert not pools[0].is_open


async def test_a_test_replaces_a_lifespan_by_a_value() -> None:
    app, seen = App("shop@svc"), []

    @app.lifespan
    @asynccontextmanager
    async def database() -> AsyncIterator[str]:
        raise AssertionError("the real one is not opened")
        yield ""

    @app.on(Order, provide={"pool": database})
    async def book(order: Order, pool: str) -> None:
        seen.append(pool)

    async with app.test(provide={database: "fake"}) as bus:
        await bus.publish(Order())
        await bus.settle()
    assert seen == ["fake"]


async def test_lifespans_are_closed_backwards_also_when_a_later_one_fails() -> None:
    app, notes = App("shop@svc"), []

    @app.lifespan
    async def first() -> AsyncIterator[None]:
        notes.append("first opened")
        yield
        notes.append("first closed")

    @app.lifespan
    async def second() -> AsyncIterator[None]:
        raise OSError("no database")
        yield

    with pytest.raises(LifespanError, match=rf"second failed: OSError: no database \({__file__}:\d+\)"):
        async with app.test():
            pass
    assert notes == ["first opened"]  # a generator that is left by an error does not go on after its yield


async def test_functions_are_called_for_each_run_and_values_are_given_as_they_are() -> None:
    app, seen = App("shop@svc"), []

    def attempt(context: Context) -> int:
        return context.attempt

    async def currency() -> str:
        return "EUR"

    async def unit() -> AsyncIterator[str]:
        seen.append("begun")
        yield "unit"
        seen.append("ended")

    @app.on(Order, provide={"attempt": attempt, "currency": currency, "unit": unit, "rate": 3})
    async def book(order: Order, *, attempt: int, currency: str, unit: str, rate: int) -> None:
        seen.append((attempt, currency, unit, rate))

    async with app.test() as bus:
        await bus.publish(Order())
        await bus.settle()
        bus.assert_all_handled()
    assert seen == ["begun", (1, "EUR", "unit", 3), "ended"]


async def test_a_blocking_handler_is_provided_for_too() -> None:
    app, seen = App("shop@svc", middleware=[noted([], "m")]), []

    @app.on(Order, blocking=True, provide={"rate": functools.partial(int, "7")})
    def book(order: Order, rate: int) -> None:
        seen.append(rate)

    async with app.test() as bus:
        await bus.publish(Order())
        await bus.settle()
        bus.assert_all_handled()
    assert seen == [7]


async def test_an_app_handles_what_other_files_declare_inside_its_own_middleware() -> None:
    notes: list[str] = []
    orders, cancellations = Router(middleware=[noted(notes, "orders")]), Router()
    app = App("shop@svc", middleware=[noted(notes, "app")])
    app.include(orders)
    app.include(cancellations)

    @orders.on(Order)
    async def book(order: Order) -> Booked:
        return Booked(sku=order.sku)

    @cancellations.on(Cancelled)
    async def cancel(cancelled: Cancelled) -> None:
        notes.append("cancel")

    async with app.test() as bus:
        await bus.publish(Order())
        await bus.settle()
        assert bus.sent(Booked) == [Booked(sku="tea")]
        assert notes == ["app before order.placed", "orders before order.placed", "orders after", "app after"]
        await bus.publish(Cancelled())
        await bus.settle()
        assert "cancel" in notes


def test_a_type_has_one_handler_wherever_it_is_declared() -> None:
    one, other, app = Router(), Router(), App("shop@svc")

    @one.on(Order)
    async def book(order: Order) -> None: ...

    @other.on(Order)
    async def book_too(order: Order) -> None: ...

    app.include(one)
    with pytest.raises(ConfigurationError, match=r"order.placed has a handler already: .*book.* and .*book_too"):
        app.include(other)
    with pytest.raises(ConfigurationError, match=r"order.placed has a handler already"):
        app.on(Order)


@pytest.mark.parametrize("included", [App("other@svc"), "orders", None])
def test_only_handlers_are_included(included: Any) -> None:
    with pytest.raises(ConfigurationError, match="include takes a Router"):
        App("shop@svc").include(included)


async def test_the_answer_to_a_request_keeps_its_options_and_goes_to_the_requester() -> None:
    app = App("shop@svc")

    @app.on(Order)
    async def book(order: Order) -> Outgoing:
        return Outgoing(Booked(sku=order.sku), ttl_s=5)

    @app.on(Cancelled)
    async def cancel(cancelled: Cancelled) -> Outgoing:
        return Outgoing(Booked(sku=cancelled.sku), to="somebody@else")

    async with app.test() as bus:
        assert await bus.request(Order(), Booked) == Booked(sku="tea")
        await bus.publish(Cancelled())
        await bus.settle()
        assert bus.messages(Booked)[-1].metadata.recipient is not None
        with pytest.raises(Exception, match="what its handler sends is refused: malformed at to"):
            await bus.request(Cancelled(), Booked)
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]


async def _right(order: Order, context: Context) -> None: ...
async def _swapped(context: Context, order: Order) -> None: ...
async def _of_another(order: Booked) -> None: ...
async def _bare(order) -> None: ...
async def _bare_context(order: Order, context) -> None: ...
async def _no_return(order: Order): ...
async def _dict(order: Order) -> dict[str, int]: ...  # type: ignore[empty-body]
async def _text(order: Order) -> list[str]: ...  # type: ignore[empty-body]
async def _two(order: Order, other: Booked) -> None: ...
async def _three(order: Order, context: Context, more: int) -> None: ...
async def _none() -> None: ...
async def _needs(order: Order, *, pool: Pool) -> None: ...
async def _yields(order: Order) -> AsyncIterator[Booked]:
    yield Booked(sku="")


class Unmarked(msgspec.Struct):
    pass


async def _unmarked(order: Order) -> Unmarked: ...  # type: ignore[empty-body]
def _ordinary(order: Order) -> None: ...


@pytest.mark.parametrize(
    ("function", "cure"),
    [
        (_swapped, r"the payload comes first, then the context: write `\(order: Order, context: Context\)`"),
        (_of_another, r"_of_another handles Order \(order.placed\), and 'order' is annotated as Booked"),
        (_bare, "annotate its payload: write `order: Order`"),
        (_bare_context, "annotate its context: write `context: Context`"),
        (_no_return, "annotate the return type.*-> None"),
        (_dict, r"returns dict\[str, int\]: a handler returns a payload"),
        (_text, "returns str: a handler returns a payload"),
        (_two, "second argument is the context, and 'other' is annotated as Booked"),
        (_three, r"takes 3 arguments.*provide="),
        (_none, "takes 0 arguments"),
        (_needs, "needs 'pool', and nothing gives it: add provide="),
        (_yields, r"yields: .*context.send"),
        (_unmarked, r"returns Unmarked, which is not marked with @payload"),
        (_ordinary, "write `async def`, or blocking=True"),
        (3, "is not a function"),
    ],
)
def test_a_handler_is_checked_when_it_is_declared(function: Any, cure: str) -> None:
    with pytest.raises(ConfigurationError, match=cure):
        App("shop@svc").on(Order)(function)


def test_a_blocking_coroutine_and_an_argument_that_nobody_takes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="a coroutine function: leave blocking=True out"):
        App("shop@svc").on(Order, blocking=True)(_right)  # type: ignore[type-var]
    with pytest.raises(
        ConfigurationError, match="provide names 'pol', which _needs does not take; it takes order, pool"
    ):
        App("shop@svc").on(Order, provide={"pol": 1})(_needs)


async def _struct(order: msgspec.Struct) -> None: ...
async def _union(order: Order | Booked, context: Context | None = None) -> Booked | None: ...
async def _anything(order: Any, context: Any) -> Any: ...
async def _later(order: Order) -> NotThereYet: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "function", [_right, _struct, _union, _anything, _later, functools.partial(_needs, pool=Pool())]
)
def test_handlers_with_wide_or_unresolved_annotations_are_accepted(function: Any) -> None:
    App("shop@svc").on(Order)(function)


def _sync_with() -> None:
    with App("shop@svc").test():  # type: ignore[attr-defined]
        pass


@pytest.mark.parametrize(
    ("mistake", "cure"),
    [
        (lambda: App("shop@svc", middleware=_right), r"write middleware=\[_right\]"),
        (lambda: App("shop@svc", middleware=[3]), r"functions \(next\) -> handler, and holds 3"),  # type: ignore[list-item]
        (lambda: App("shop@svc", types=Order), r"write types=\[Order\]"),
        (lambda: App("shop@svc", types=[int]), "int is not a payload"),
        (lambda: App("shop@svc").on(Order, order="keys"), "the nearest is key"),  # type: ignore[call-overload]
        (lambda: App("shop@svc").on(Order, provide=["pool"]), "map names to values, as in provide="),  # type: ignore[call-overload]
        (lambda: App("shop@svc").on(Order, timeout_s="5s"), "not seconds"),  # type: ignore[call-overload]
        (lambda: App("shop@svc").on(Order, retry=5), r"write retry=Retry\(attempts=5\)"),  # type: ignore[call-overload]
        (lambda: App("shop@svc").test({"bus.url": "memory://"}), r"write app.test\(other, settings=...\)"),
        (lambda: App("shop@svc").running("memory://", "other"), r"write app.running\(url, other\)"),
        (_sync_with, r"app.test\(\) needs `async with`"),
        (lambda: App("shop@svc").test().request, r"no 'request' yet: .*write `async with app.test\(\) as bus:`"),  # type: ignore[attr-defined]
        (lambda: App("shop@svc").running().publish, r"write `async with app.running\(...\) as bus:`"),  # type: ignore[attr-defined]
        (lambda: App("shop@svc").test().__await__(), r"write `async with app.test\(\) as bus:`"),  # type: ignore[attr-defined]
        (lambda: App("shop@svc").tool(_right), r"without parentheses: write @app.tool\(\)"),
        (lambda: App("shop@svc").every(_right), r"write @app.every\(minutes=5\)"),
        (lambda: Router().on(_right), r"pass the class itself, such as @app.on\(MyPayload\)"),  # type: ignore[call-overload]
        (lambda: App(None), r"such as App\('researcher@svc'\)"),
    ],
)
def test_a_mistake_is_told_with_its_cure(mistake: Callable[[], object], cure: str) -> None:
    with pytest.raises((ConfigurationError, TypeError, AttributeError, UnknownTypeError), match=cure):
        mistake()


@pytest.mark.parametrize("level", ["platform_policy", "task_instruction", "user_request"])
@pytest.mark.parametrize("performative", [None, *get_args(Performative)])
def test_a_threshold_is_refused_for_a_type_that_only_informs(performative: Any, level: str) -> None:
    told = payload("order.told", performative=performative)(msgspec.defstruct("Told", []))

    def declare() -> None:
        @Router().on(told, instructions_from=level)
        async def handle(_: Any) -> None: ...

    if performative in ("inform", "confirm", "reject", "error"):
        with pytest.raises(ConfigurationError, match=r"only informs, at every level.*performative='request'.*leave"):
            declare()
    else:
        declare()
