"""Lint and doctor name an app that asks types it handles itself, where a limit cannot hold what then waits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bus.errors import ContractError
from bus.settings.loading import load
from consumers.operations.lint.app_checks import lint_app
from consumers.operations.lint.nested_requests import asked_types, limits_that_cannot_hold
from consumers.operations.survey.doctor import check_limits
from sealbus import App, Context, payload
from tests.kit import Done


@payload("nest.outer", version="1.0.0", performative="request")
class Outer(msgspec.Struct, frozen=True, kw_only=True): ...


@payload("nest.inner", version="1.0.0", performative="request")
class Inner(msgspec.Struct, frozen=True, kw_only=True): ...


def worker(**limits: Any) -> Any:
    return load(flags={f"worker.{name}": value for name, value in limits.items()}, env={}, file=None).settings.worker


def app_of(*, handles_inner: bool, order: Any = "key") -> App:
    app = App("nest@tests", types=[Done])

    @app.on(Outer)
    async def outer(asked: Outer, context: Context) -> Done:
        return await context.request(Inner(), Done, timeout_s=5)

    if handles_inner:

        @app.on(Inner, order=order)
        async def inner(asked: Inner) -> Done:
            return Done()

    return app


def test_what_a_handler_asks_is_read_in_its_source() -> None:
    declaration = app_of(handles_inner=True).declaration
    assert asked_types(declaration.subscriptions["nest.outer"]) == {"nest.inner"}
    assert asked_types(declaration.subscriptions["nest.inner"]) == frozenset()


@pytest.mark.parametrize(
    ("handles_inner", "limits", "order", "said"),
    [
        (True, {}, "key", ()),
        (True, {"concurrency": 8, "max_waiting": 4}, "key", ("no more than 4 may wait",)),
        (True, {}, "key_strict", ("order='key_strict'",)),
        (True, {"concurrency": 8, "max_waiting": 4}, "key_strict", ("no more than 4 may wait", "order='key_strict'")),
        (False, {"concurrency": 8, "max_waiting": 4}, "key", ()),
    ],
)
def test_limits_that_cannot_hold_are_named(
    handles_inner: bool, limits: dict[str, int], order: str, said: tuple[str, ...]
) -> None:
    declaration = app_of(handles_inner=handles_inner, order=order).declaration
    found = list(limits_that_cannot_hold(declaration, worker(**limits)))
    assert len(found) == len(said)
    assert all(text in one for text, one in zip(said, found, strict=True))
    linted = list(lint_app(declaration, own=lambda _: True, worker=worker(**limits)))
    assert len([one for one in linted if one.check == "asks-itself"]) == len(said)
    checked = list(check_limits(declaration, worker(**limits)))
    assert [each.state for each in checked] == (["fault"] * len(said) or ["ok"])


@payload("nest.twice", performative="inform")
class First(msgspec.Struct, frozen=True):
    text: str = ""


@payload("nest.twice", performative="inform")
class Second(msgspec.Struct, frozen=True):
    count: int = 0


@payload("nest.twice", version="2.0.0", performative="inform")
class Newer(msgspec.Struct, frozen=True):
    count: int = 0


def test_a_class_with_name_and_version_of_a_handled_one_is_named() -> None:
    app = App("nest@tests")

    @app.on(First)
    async def first(told: First) -> None: ...

    found = [each.what for each in lint_app(app.declaration, own=lambda _: True) if each.check == "name-taken-twice"]
    assert found == [f"nest.twice 1.0.0 is {__name__}.First and {__name__}.Second"]


def test_two_registered_classes_of_one_name_are_refused_with_their_modules() -> None:
    with pytest.raises(ContractError, match=rf"{__name__}.First and by {__name__}.Second"):
        _ = App("nest@tests", types=[First, Second]).registry
