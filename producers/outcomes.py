"""The outcomes of a publish or a request: a `Receipt`, or one of these errors.

Owns the outcomes of producers; `bus.errors` shows their place in the error tree. `PublishRejected` is certainly not in
the log, `PublishUnknown` may be. A `RequestError` was accepted and got no proper answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from bus.errors import BusError

if TYPE_CHECKING:
    from bus.protocol.sealing import Message

__all__ = [
    "PublishError",
    "PublishRejected",
    "PublishUnknown",
    "Receipt",
    "RequestError",
    "RequestFailed",
    "RequestTimedOut",
    "Result",
    "UnexpectedReply",
]


class PublishError(BusError):
    """A publish that ended without a receipt."""


class PublishRejected(PublishError):  # noqa: N818 - the contract's word
    """The message is certainly not in the log; *cause* (also `__cause__`) is the reason."""

    def __init__(self, text: str, cause: BusError | None = None) -> None:
        super().__init__(text)
        self.__cause__ = cause


class PublishUnknown(PublishError):  # noqa: N818 - the contract's word
    """The message may be in the log. `message` is the sealed message: resend the same bytes, never a new message."""

    retriable = True

    def __init__(self, text: str, message: Message, cause: BusError | None = None) -> None:
        super().__init__(text)
        self.message = message
        self.__cause__ = cause


class RequestError(BusError):
    """A request that is in the log and did not end with the requested answer; `request` is the sealed request.

    One that is not in the log, or may not be, is a PublishRejected or PublishUnknown.
    """

    def __init__(self, text: str, request: Message) -> None:
        super().__init__(text)
        self.request = request


class RequestTimedOut(RequestError):  # noqa: N818 - beside PublishRejected
    """No answer came by the deadline, although the request was accepted.

    No worker handles such requests, the workers are slow, or the handler returned None.
    """

    retriable = True


class RequestFailed(RequestError):  # noqa: N818 - beside PublishRejected
    """An `error.reported` came instead of an answer.

    *reason* is the dead letter's, *reporter* the reporting agent, *message* the sealed report.
    """

    def __init__(self, text: str, request: Message, message: Message, *, reason: str, reporter: str) -> None:
        super().__init__(text, request)
        self.message = message
        self.reason = reason
        self.reporter = reporter


class UnexpectedReply(RequestError):  # noqa: N818 - beside PublishRejected
    """An answer of another type: *expected* and *found* are message types, *message* is the sealed answer."""

    def __init__(self, request: Message, message: Message, expected: str) -> None:
        found = message.message_type
        super().__init__(f"{request.message_type} was answered with {found}, expected {expected}", request)
        self.message = message
        self.expected = expected
        self.found = found


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The place in the log where the message is durable."""

    message_id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


Result: TypeAlias = Receipt | PublishRejected | PublishUnknown
