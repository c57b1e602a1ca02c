"""Which calls are the same step: by `key=`, or by the function's qualified name and its arguments by value."""

from __future__ import annotations

import functools
import hashlib
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ContractError
from bus.protocol import canonical
from consumers.delivery.inbox.step_identity import code_of, step_id

HERE = __name__


async def think(prompt: Any, *more: Any, limit: int = 3, **options: Any) -> None: ...


async def search(prompt: Any) -> None: ...


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return call


def with_client(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function("client", *arguments)

    return call


@wrapped
def decorated(prompt: str) -> str:
    return prompt


@with_client
def injected(client: str, prompt: str) -> str:
    return client + prompt


@functools.lru_cache
def cached(prompt: str) -> str:
    return prompt


class Model:
    @staticmethod
    def alone(prompt: str) -> str:
        return prompt

    @classmethod
    def of_class(cls, prompt: str) -> str:
        return prompt

    def of_object(self, prompt: str) -> str:
        return prompt

    def __call__(self, prompt: str) -> str:
        return prompt


class Larger(Model):
    pass


class Asked(msgspec.Struct):
    text: str


@dataclass
class Booked:
    text: str


class Sent(pydantic.BaseModel):
    text: str


def digest(identity: Any) -> str:
    return hashlib.sha256(canonical.encode(identity)).hexdigest()[:32]


def test_an_id_is_the_name_and_the_hash_of_function_and_arguments_by_name() -> None:
    identity = [f"{HERE}.think", {"prompt": "a", "more": [], "limit": 3, "options": {}}]
    assert step_id("plan", think, ("a",)) == f"plan/{digest(identity)}"


def test_a_key_stands_for_function_and_arguments() -> None:
    expected = f"plan/{digest(['a', 1])}"
    assert step_id("plan", think, ("a",), key=["a", 1]) == expected
    assert step_id("plan", lambda: 1, key=["a", 1]) == expected


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), {"prompt": "a"}),
        (("a",), {"limit": 3}),
        ((), {"limit": 3, "prompt": "a"}),
    ],
)
def test_however_arguments_are_given_the_call_is_the_same(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    assert step_id("plan", think, arguments, named) == step_id("plan", think, ("a",))


@pytest.mark.parametrize(
    "call",
    [
        functools.partial(think, "a"),
        functools.partial(functools.partial(think, limit=3), "a"),
        functools.partial(functools.partial(think, limit=9), "a", limit=3),
        functools.partial(think, prompt="a"),
    ],
)
def test_the_arguments_of_a_partial_are_arguments(call: Any) -> None:
    assert step_id("plan", call) == step_id("plan", think, ("a",))


@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        (think, ("b",), {}),
        (think, ("a", "a"), {}),
        (think, ("a",), {"limit": 4}),
        (think, ("a",), {"other": 1}),
        (think, (["a"],), {}),
        (search, ("a",), {}),
    ],
)
def test_another_function_or_argument_is_another_call(
    function: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    assert step_id("plan", function, arguments, named) != step_id("plan", think, ("a",))


def test_another_name_is_another_step() -> None:
    assert step_id("plan", think, ("a",)) != step_id("other", think, ("a",))


def test_a_class_that_inherits_a_method_is_another_one() -> None:
    assert step_id("a", Model.of_class, ("x",)) != step_id("a", Larger.of_class, ("x",))
    assert step_id("a", Model.alone, ("x",)) == step_id("a", Larger.alone, ("x",))


@pytest.mark.parametrize("value", [Asked("a"), Booked("a"), Sent(text="a"), {"text": "a"}])
def test_arguments_of_every_form_count_by_their_values(value: Any) -> None:
    assert step_id("a", search, (value,)) == step_id("a", search, ({"text": "a"},))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (decorated, ("a",)),
        (injected, ("a",)),
        (cached, ("a",)),
        (Model.alone, ("a",)),
        (Model.of_class, ("a",)),
        (Model.of_object, (None, "a")),
        (Asked, ("a",)),
        (math.sqrt, (4,)),
        (str.upper, ("a",)),
        (operator.add, (1, 2)),
    ],
)
def test_what_its_module_has_under_its_name_needs_no_key(function: Any, arguments: tuple[Any, ...]) -> None:
    assert step_id("a", function, arguments) == step_id("a", function, arguments)
    assert step_id("a", function, arguments) != step_id("a", search, ("a",))


def nested(captured: Any = None) -> dict[str, Any]:
    async def plain(prompt: str) -> str:
        return prompt

    async def closure() -> Any:
        return captured

    async def defaults(prompt: Any = captured) -> Any:
        return prompt

    async def named(*, prompt: Any = captured) -> Any:
        return prompt

    class Local:
        @classmethod
        def of_class(cls) -> Any:
            return captured

    return locals()


def test_a_function_in_a_function_that_takes_nothing_from_it_needs_no_key() -> None:
    assert step_id("a", nested()["plain"], ("x",)) == step_id("a", nested()["plain"], ("x",))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda: 1, "a lambda has no name"),
        (lambda x=1: x, "a lambda has no name"),
        (nested("a")["closure"], "uses captured of where it is defined"),
        (nested("a")["defaults"], "has defaults, which may differ"),
        (nested("a")["named"], "has defaults, which may differ"),
        (nested("a")["Local"], "may hold anything"),
        (nested("a")["Local"].of_class, "belongs to a class that is created again"),
        (wrapped(search), "uses function of where it is defined"),
        (Model().of_object, "is a method of an object"),
        ([].append, "is a method of an object"),
        (Model(), "is an object that can be called"),
        (functools.partial(Model(), "a"), "is an object that can be called"),
        (functools.partial(lambda x: x, "a"), "a lambda has no name"),
        (operator.itemgetter(1), "is an object that can be called"),
    ],
)
def test_what_may_hold_anything_needs_a_key(function: Any, text: str) -> None:
    with pytest.raises(ContractError, match=text) as raised:
        step_id("a", function)
    assert "write functools.partial(f, x)" in str(raised.value)
    assert "say by key=..." in str(raised.value)
    assert step_id("a", function, key=1)


@pytest.mark.parametrize("argument", [object(), float("nan"), 2**60, "\ud83d", {(1, 2): 3}, search, [Model()]])
def test_an_argument_without_a_form_in_json_needs_a_key(argument: Any) -> None:
    with pytest.raises(ContractError, match=r"has no JSON form .*: say by key=\.\.\. which calls are the same"):
        step_id("a", search, (argument,))
    assert step_id("a", search, (argument,), key=1)


def test_a_key_without_a_form_in_json_is_refused() -> None:
    with pytest.raises(ContractError, match="the key of the step 'a' has no JSON form"):
        step_id("a", search, ("a",), key=object())


def test_arguments_that_the_function_does_not_take_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="missing a required argument"):
        step_id("a", search)


async def test_a_coroutine_is_no_function() -> None:
    coroutine = search("a")
    with pytest.raises(ContractError, match="give the function, and its arguments after it"):
        step_id("a", coroutine)
    await coroutine


@pytest.mark.parametrize("name", ["", "~a", "a" * 129, "a\nb", 1])
def test_a_name_is_a_short_line_of_text(name: Any) -> None:
    with pytest.raises(ContractError, match="illegal name of a step"):
        step_id(name, search, ("a",))


def test_functions_of_one_name_have_codes_of_their_own() -> None:
    assert code_of(functools.partial(nested()["plain"], "a")) == code_of(nested()["plain"])
    assert code_of(nested()["plain"]) != code_of(nested()["defaults"])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=2), below, max_size=3),
    max_leaves=5,
)


@given(_JSON, _JSON)
def test_two_calls_have_one_id_where_their_arguments_are_the_same_json(one: Any, two: Any) -> None:
    same = canonical.encode(one) == canonical.encode(two)
    assert (step_id("a", search, (one,)) == step_id("a", search, (two,))) == same
