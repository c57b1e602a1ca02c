"""One `except` for whatever a request ends with, and errors that say what is wrong in attributes, too."""

from __future__ import annotations

from typing import Any

import pytest

from sealbus import (
    App,
    BusError,
    PublishError,
    PublishRejected,
    PublishUnknown,
    Reject,
    RequestError,
    RequestFailed,
    RequestTimedOut,
    connect,
)
from sealbus.errors import UnexpectedReply
from tests.kit import Done, Job, handling


@pytest.mark.parametrize("kind", [PublishRejected, PublishUnknown, RequestTimedOut, RequestFailed, UnexpectedReply])
def test_whatever_a_request_ends_with_is_a_request_error(kind: type[BusError]) -> None:
    assert issubclass(kind, RequestError)
    assert issubclass(kind, PublishError) == (kind in {PublishRejected, PublishUnknown})


async def test_a_request_that_cannot_be_sent_and_one_without_an_answer_are_request_errors() -> None:
    wrong: Any = "two"
    async with connect("memory://", agent="guest@svc") as bus:
        with pytest.raises(RequestError) as refused:
            await bus.request(Job(number=wrong), Done)
        with pytest.raises(RequestError) as late:
            await bus.request(Job(), Done, timeout_s=1)
    assert isinstance(refused.value, PublishRejected)
    assert refused.value.request is None
    assert late.value.request is not None
    assert late.value.request.message_type == "job.asked"


async def test_a_request_that_timed_out_is_a_timeout_of_python_too() -> None:
    async with connect("memory://", agent="guest@svc") as bus:
        with pytest.raises(TimeoutError, match=r"job\.asked .* was accepted and not answered within 1 s"):
            await bus.request(Job(), Done, timeout_s=1)


async def test_a_request_that_died_is_a_request_error_with_the_reason() -> None:
    app = handling(App("waiter@svc", types=[Done]), Job, Reject("no tea after six"))
    async with app.test() as bus:
        with pytest.raises(RequestError) as caught:
            await bus.request(Job(), Done, timeout_s=5)
    assert isinstance(caught.value, RequestFailed)
    assert caught.value.reason == "rejected"


async def test_a_refused_publish_has_field_and_reason() -> None:
    wrong: Any = "two"
    async with connect("memory://", agent="guest@svc") as bus:
        with pytest.raises(PublishRejected) as field:
            await bus.publish(Job(number=wrong))
        with pytest.raises(PublishRejected) as option:
            await bus.publish(Job(), ttl_s=-1)
    assert (field.value.pointer, field.value.reason) == ("/data/number", "schema_violation")
    assert option.value.pointer == "ttl_s"


def test_a_refusal_by_the_log_has_neither_field_nor_reason() -> None:
    error = PublishRejected("not in the log", BusError("it is full"))
    assert (error.pointer, error.reason) == ("", "")
