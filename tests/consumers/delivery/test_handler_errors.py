"""Decisions in groups: what comes together decides as its most decisive member would alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.delivery.handler_errors import GaveUpError, decision_in, leaves_of
from sealbus import App, DependencyDown, PublishRejected, PublishUnknown, Reject, Retry, RetryLater
from sealbus.errors import ContractError, InboxError, MissingSetting, TaskCancelled
from tests.kit import Job, handling

ORDER: list[Any] = [
    GaveUpError,
    TaskCancelled,
    lambda: Reject("no"),
    lambda: ContractError("is wrong"),
    lambda: InboxError("away"),
    lambda: DependencyDown("billing"),
    lambda: RetryLater("soon"),
    lambda: ValueError("other"),
]
"""Most decisive first."""


def nested(leaves: list[Exception], depth: int) -> Exception:
    group: Exception = ExceptionGroup("together", leaves)
    for _ in range(depth):
        group = ExceptionGroup("around", [ValueError("beside"), group])
    return group


@given(st.lists(st.integers(0, len(ORDER) - 1), min_size=1, max_size=6), st.integers(0, 3))
def test_a_group_decides_as_its_most_decisive_member(places: list[int], depth: int) -> None:
    leaves = [ORDER[place]() for place in places]
    decided = decision_in(nested(leaves, depth))
    if min(places) == len(ORDER) - 1:
        assert isinstance(decided, ExceptionGroup | ValueError)
    else:
        assert decided is leaves[places.index(min(places))]


@given(st.integers(0, len(ORDER) - 1))
def test_what_is_raised_plainly_decides_itself(place: int) -> None:
    error = ORDER[place]()
    assert decision_in(error) is error
    assert list(leaves_of(error)) == [error]


def test_a_group_of_one_is_that_one() -> None:
    error = KeyError("x")
    assert decision_in(ExceptionGroup("one", [ExceptionGroup("inner", [error])])) is error


def test_a_missing_setting_counts_as_a_dependency_that_is_down() -> None:
    missing = MissingSetting("KEY", "is not set")
    assert decision_in(ExceptionGroup("two", [RetryLater(), missing])) is missing


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize(
    ("error", "reason", "runs"),
    [
        (Reject("no"), "rejected", 1),
        (ContractError("is wrong", "/data"), "rejected", 1),
        (RetryLater("soon"), "retries_exhausted", 3),
        (OSError("away"), "retries_exhausted", 3),
        (TypeError("a mistake"), "retries_exhausted", 2),
    ],
)
async def test_a_run_that_ends_by_a_group_ends_as_if_its_decision_were_raised_plainly(
    error: Exception, reason: str, runs: int, depth: int
) -> None:
    app, ran = App("group@tests"), list[int]()

    @app.on(Job, retry=Retry(attempts=3, base_s=0.01))
    async def handle(_: Job) -> None:
        ran.append(1)
        if depth == 0:
            raise error
        group: Exception = ExceptionGroup("together", [error])
        for _ in range(depth - 1):
            group = ExceptionGroup("around", [group])
        raise group

    async with app.test() as bus:
        await bus.publish(Job())
        await bus.advance(30)
        assert [letter.reason for letter in bus.dead_letters] == [reason]
    assert len(ran) == runs


async def test_a_dependency_that_is_down_is_waited_for_also_from_a_group() -> None:
    app, ran = App("group@tests"), list[int]()

    @app.on(Job)
    async def handle(_: Job) -> None:
        ran.append(1)
        if len(ran) < 4:
            raise ExceptionGroup("two", [DependencyDown("billing"), RetryLater("soon")])

    async with app.test() as bus:
        await bus.publish(Job())
        await bus.advance(600)
        assert not bus.dead_letters
    assert len(ran) == 4


async def test_an_exception_group_is_judged_by_its_ordinary_exceptions() -> None:
    app = handling(App("group@tests"), Job, BaseExceptionGroup("two", [KeyboardInterrupt(), Reject("no")]))
    async with app.test() as bus:
        await bus.publish(Job())
        await bus.settle()
        assert [letter.reason for letter in bus.dead_letters] == ["rejected"]


def test_an_unknown_publish_is_the_buss_own_error_before_a_dependency() -> None:
    rejected = PublishRejected("refused", ContractError("is wrong"))
    assert decision_in(ExceptionGroup("two", [DependencyDown("x"), rejected])) is rejected
    assert PublishUnknown.retriable


@pytest.mark.parametrize(
    ("retry", "error", "runs", "reason"),
    [
        (Retry(attempts=4, base_s=0.01, never=(ValueError,)), ValueError("x"), 1, "rejected"),
        (Retry(attempts=4, base_s=0.01, only=(OSError,)), ValueError("x"), 1, "rejected"),
        (Retry(attempts=4, base_s=0.01, only=(OSError,)), ConnectionError("x"), 4, "retries_exhausted"),
        (Retry(attempts=4, base_s=0.01, only=(TypeError,)), TypeError("x"), 4, "retries_exhausted"),
        (Retry(attempts=4, base_s=0.01, only=(OSError,)), RetryLater("x"), 4, "retries_exhausted"),
        (Retry(attempts=4, base_s=0.01), NameError("x"), 2, "retries_exhausted"),
        (Retry(attempts=1, base_s=0.01), NameError("x"), 1, "retries_exhausted"),
    ],
)
async def test_a_retry_lists_repeated_and_never_repeated_errors(
    retry: Retry, error: Exception, runs: int, reason: str
) -> None:
    app, ran = App("group@tests"), list[int]()

    @app.on(Job, retry=retry)
    async def handle(_: Job) -> None:
        ran.append(1)
        raise error

    async with app.test() as bus:
        await bus.publish(Job())
        await bus.advance(30)
        assert [letter.reason for letter in bus.dead_letters] == [reason]
    assert len(ran) == runs


@pytest.mark.parametrize("wrong", [{"only": ValueError}, {"never": [ValueError]}, {"only": (1,)}])
def test_only_and_never_are_tuples_of_exceptions(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a tuple of exception classes"):
        Retry(**wrong)


def test_a_message_carries_no_classes() -> None:
    with pytest.raises(ValueError, match="work in a handler's retry"):
        Retry(never=(ValueError,)).policy()
