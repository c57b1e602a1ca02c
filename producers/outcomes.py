"""What can become of a publish or a request: a `Receipt`, or one of these errors.

Owns the outcomes of producers; `bus.errors` draws the tree they belong to. `PublishRejected` is certainly not in the
log, `PublishUnknown` may be, and what was accepted and not answered is a `RequestError`.
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


class PublishRejected(PublishError):  # noqa: N818 - the contract's word (design section 9)
    """Certainly not in the log; *cause* (also `__cause__`) says why."""

    def __init__(self, text: str, cause: BusError | None = None) -> None:
        super().__init__(text)
        self.__cause__ = cause


class PublishUnknown(PublishError):  # noqa: N818 - the contract's word (design section 9)
    """May be in the log. `message` is the sealed message: resend the same bytes, never a new one."""

    retriable = True

    def __init__(self, text: str, message: Message, cause: BusError | None = None) -> None:
        super().__init__(text)
        self.message = message
        self.__cause__ = cause


class RequestError(BusError):
    """A request that is in the log and did not end with the answer that was asked for. `request` is the sealed request.

    One that is not in the log, or may not be, is a PublishRejected or PublishUnknown.
    """

    def __init__(self, text: str, request: Message) -> None:
        super().__init__(text)
        self.request = request


class RequestTimedOut(RequestError):  # noqa: N818 - beside PublishRejected
    """No answer by the deadline. The request was accepted.

    Nobody handles such requests, they are slow, or the handler returned nothing.
    """

    retriable = True


class RequestFailed(RequestError):  # noqa: N818 - beside PublishRejected
    """`error.reported` came instead of an answer.

    *reason* is the dead letter's, *reporter* the agent that says so, *message* the sealed report.
    """

    def __init__(self, text: str, request: Message, message: Message, *, reason: str, reporter: str) -> None:
        super().__init__(text, request)
        self.message = message
        self.reason = reason
        self.reporter = reporter


class UnexpectedReply(RequestError):  # noqa: N818 - beside PublishRejected
    """The answer is of another type: *expected* and *found* are message types, *message* is the sealed answer."""

    def __init__(self, request: Message, message: Message, expected: str) -> None:
        found = message.message_type
        super().__init__(f"{request.message_type} was answered with {found}, expected {expected}", request)
        self.message = message
        self.expected = expected
        self.found = found


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The message is durably in the log, here."""

    message_id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


Result: TypeAlias = Receipt | PublishRejected | PublishUnknown
