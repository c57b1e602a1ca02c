"""One `except` for whatever a request ends with, and errors that say what is wrong in attributes, too."""

from __future__ import annotations

from typing import Any

import msgspec
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
    UnexpectedReply,
    connect,
    payload,
)


@payload("tea.asked")
class Ask(msgspec.Struct, frozen=True):
    cups: int = 1


@payload("tea.given")
class Tea(msgspec.Struct, frozen=True):
    cups: int = 1


@pytest.mark.parametrize("kind", [PublishRejected, PublishUnknown, RequestTimedOut, RequestFailed, UnexpectedReply])
def test_whatever_a_request_ends_with_is_a_request_error(kind: type[BusError]) -> None:
    assert issubclass(kind, RequestError)
    assert issubclass(kind, PublishError) == (kind in {PublishRejected, PublishUnknown})


async def test_a_request_that_cannot_be_sent_and_one_without_an_answer_are_request_errors() -> None:
    wrong: Any = "two"
    async with connect("memory://", agent="guest@svc") as bus:
        with pytest.raises(RequestError) as refused:
            await bus.request(Ask(cups=wrong), Tea)
        with pytest.raises(RequestError) as late:
            await bus.request(Ask(), Tea, timeout_s=0.05)
    assert isinstance(refused.value, PublishRejected)
    assert refused.value.request is None
    assert late.value.request is not None
    assert late.value.request.message_type == "tea.asked"


async def test_a_request_that_timed_out_is_a_timeout_of_python_too() -> None:
    async with connect("memory://", agent="guest@svc") as bus:
        with pytest.raises(TimeoutError, match=r"tea\.asked .* was accepted and not answered within 0\.05 s"):
            await bus.request(Ask(), Tea, timeout_s=0.05)


async def test_a_request_that_died_is_a_request_error_with_the_reason() -> None:
    app = App("waiter@svc", types=[Tea])

    @app.on(Ask)
    async def serve(ask: Ask) -> Tea:
        raise Reject("no tea after six")

    async with app.test() as bus:
        with pytest.raises(RequestError) as caught:
            await bus.request(Ask(), Tea, timeout_s=5)
    assert isinstance(caught.value, RequestFailed)
    assert caught.value.reason == "rejected"


async def test_a_refused_publish_has_field_and_reason() -> None:
    wrong: Any = "two"
    async with connect("memory://", agent="guest@svc") as bus:
        with pytest.raises(PublishRejected) as field:
            await bus.publish(Ask(cups=wrong))
        with pytest.raises(PublishRejected) as option:
            await bus.publish(Ask(), ttl_s=-1)
    assert (field.value.pointer, field.value.reason) == ("/data/cups", "schema_violation")
    assert option.value.pointer == "ttl_s"


def test_a_refusal_by_the_log_has_neither_field_nor_reason() -> None:
    error = PublishRejected("not in the log", BusError("it is full"))
    assert (error.pointer, error.reason) == ("", "")
