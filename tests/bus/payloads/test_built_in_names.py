"""The name of a built-in type is taken on purpose, or not at all."""

from __future__ import annotations

import msgspec
import pytest

from bus.payloads.built_in_names import BUILT_IN_NAMES
from bus.vocabulary import BUILT_IN
from sealbus import App, payload
from sealbus.errors import ContractError


class Own(msgspec.Struct, frozen=True, kw_only=True):
    question: str


def test_the_names_are_those_of_the_vocabulary() -> None:
    assert BUILT_IN.names() == BUILT_IN_NAMES


@pytest.mark.parametrize("name", ["research.request", "task.request"])
def test_a_class_does_not_take_the_name_of_a_built_in_type(name: str) -> None:
    with pytest.raises(ContractError) as caught:
        payload(name)(Own)
    error = str(caught.value)
    assert f"@payload({name!r}) is the name of a built-in type" in error
    assert "choose a name of your own, such as 'desk.request'" in error
    assert "overrides=True" in error


async def test_a_class_that_overrides_is_the_type_of_its_app() -> None:
    @payload("research.request", overrides=True)
    class Research(msgspec.Struct, frozen=True, kw_only=True):
        question: str

    app, seen = App("desk@svc"), []

    @app.on(Research)
    async def read(research: Research) -> None:
        seen.append(research)

    async with app.test() as bus:
        await bus.publish(Research(question="why?"))
        await bus.settle()
        bus.assert_all_handled()
    assert seen == [Research(question="why?")]


def test_overriding_what_is_not_built_in_is_a_misspelled_name() -> None:
    with pytest.raises(ContractError, match="no built-in type has this name"):
        payload("reserch.request", overrides=True)(Own)
