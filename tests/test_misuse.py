"""Mistakes of users: each is named where it is made, none of them ends a worker or reaches the log."""

from __future__ import annotations

import functools
import math
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from bus.transports import open_transport
from sealbus import App, Context, PublishRejected, Retry, RetryLater, connect, payload
from sealbus.errors import ConfigurationError
from tests.kit import Job


@payload("progress.made", risk="low")
class Progress(msgspec.Struct, frozen=True):
    percent: int = 0


class _Name(str):
    """Such as a string of numpy."""

    __slots__ = ()


@pytest.mark.parametrize("after_s", ["soon", 10**400, timedelta(seconds=5), math.nan])
async def test_retry_later_with_a_wrong_delay_does_not_end_the_worker(after_s: Any) -> None:
    app = App("worker@svc")

    @app.on(Job, retry=Retry(attempts=2, base_s=0.01))
    async def handle(task: Job) -> None:
        raise RetryLater(after_s=after_s)

    async with app.test() as bus:
        await bus.publish(Job())
        await bus.settle()
        await bus.advance(1)
        assert [letter.reason for letter in bus.dead_letters] == ["retries_exhausted"]


class RateLimited(RetryLater):
    """Of a handler's author who does not call the constructor."""

    def __init__(self, response: object) -> None:
        self.response = response


async def test_a_retry_later_of_the_users_own_class_is_tried_again_by_the_policy() -> None:
    app, runs = App("worker@svc"), []

    @app.on(Job, retry=Retry(base_s=0.01))
    async def handle(task: Job, context: Context) -> None:
        runs.append(context.attempt)
        if context.attempt == 1:
            raise RateLimited(None)

    async with app.test() as bus:
        await bus.publish(Job())
        await bus.advance(1)
        assert (runs, bus.dead_letters) == ([1, 2], [])


def test_an_invalid_retry_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(ConfigurationError, match=r"write retry=Retry\(attempts=5\)"):
        App("worker@svc").on(Job, retry=wrong)


def test_roles_given_as_one_text_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="roles"):
        App("worker@svc", roles="reviewer")


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_s": math.nan},
        {"cap_s": math.nan},
        {"attempts": math.nan},
        {"attempts": "3"},
        {"attempts": True},
        {"attempts": None},
        {"base_s": "1"},
        {"cap_s": timedelta(seconds=5)},
        {"backoff": 2},
    ],
)
def test_retry_refuses_a_non_number_by_field_name(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises((TypeError, ValueError)) as caught:
        Retry(**wrong)
    assert str(caught.value).startswith(f"Retry needs {name} to be ")
    assert str(caught.value).endswith(f"; found {type(value).__name__} {value!r}")


def test_a_handler_with_a_further_required_argument_is_refused() -> None:
    async def handle(task: Job, *, database: object) -> None: ...

    with pytest.raises(ConfigurationError, match="database"):
        App("worker@svc").on(Job)(handle)


async def test_a_partial_may_be_a_handler() -> None:
    app = App("worker@svc")

    async def handle(task: Job, *, database: list[Job]) -> None:
        database.append(task)

    database: list[Job] = []
    app.on(Job)(functools.partial(handle, database=database))
    async with app.test() as bus:
        await bus.publish(Job(1))
        await bus.settle()
    assert database == [Job(1)]


@pytest.mark.parametrize("option", ["to", "key", "task_id", "message_id"])
async def test_a_text_of_another_class_is_refused_by_name(option: str) -> None:
    async with connect("memory://", agent="a@svc") as bus:
        with pytest.raises(PublishRejected, match=option):
            await bus.publish(Job(), **{option: _Name("x")})


async def test_what_send_now_sent_is_seen_by_the_test() -> None:
    app = App("worker@svc")

    @app.on(Job)
    async def handle(task: Job, context: Context) -> None:
        await context.send_now(Progress(percent=10))

    async with app.test() as bus:
        await bus.publish(Job())
        await bus.settle()
        assert bus.sent(Progress) == [Progress(percent=10)]
        assert [message.message_type for message in bus.messages(Progress)] == ["progress.made"]


@pytest.mark.parametrize("url", ["sqlite:///a%00b"])
def test_a_log_that_cannot_be_is_a_matter_of_configuration(url: str) -> None:
    with pytest.raises(ConfigurationError):
        open_transport(url)
