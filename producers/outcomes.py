"""The outcomes of a publish or a request: a `Receipt`, or one of these errors.

Owns the outcomes of producers; `bus.errors` shows their place in the error tree. `PublishRejected` is certainly not in
the log, `PublishUnknown` may be. Whatever else a request ends with is in the log and got no proper answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from bus.errors import BusError, ContractError, KeyRefusedError

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


class RequestError(BusError):
    """A request that ended without its answer, for whatever reason.

        try:
            quote = await bus.request(QuoteRequest(sku="tea"), Quote, timeout_s=5)
        except RequestError as error:
            print("no quote:", error)

    Not sent (`PublishRejected`), perhaps sent (`PublishUnknown`), sent and not answered (`RequestTimedOut`), died
    (`RequestFailed`), or answered with something else (`UnexpectedReply`).
    """

    request: Message | None = None
    """The sealed request, where it is certainly in the log."""


class PublishError(RequestError):
    """A publish that ended without a receipt.

        try:
            await bus.publish(Order(sku="tea"))
        except PublishError as error:
            print("not published, or not for certain:", error)

    It is a RequestError because a request begins with a publish.
    """


class PublishRejected(PublishError):  # noqa: N818 - the contract's word
    """The message is certainly not in the log.

        except PublishRejected as error:
            print(error.pointer, error.reason)      # "/data/cents", "schema_violation"

    `__cause__` is the error of the contract or the log; its `retriable` shows whether repeating the call can help.
    """

    def __init__(self, text: str, cause: BusError | None = None) -> None:
        super().__init__(text)
        self.__cause__ = cause
        self.reason = cause.reason if isinstance(cause, ContractError | KeyRefusedError) else ""
        """The contract's reason, as in dead letters; empty if the log refused the message."""
        self.pointer = cause.pointer if isinstance(cause, ContractError | KeyRefusedError) else ""
        """The field (JSON pointer) or the option at fault; empty if there is none."""


class PublishUnknown(PublishError):  # noqa: N818 - the contract's word
    """The message may be in the log: send the same bytes again, never a new message.

        except PublishUnknown as error:
            receipt = await bus.resend(error.message)

    `resend` is safe to repeat: receivers recognize the message's id.
    """

    retriable = True

    def __init__(self, text: str, message: Message, cause: BusError | None = None) -> None:
        super().__init__(text)
        self.message = message
        """The sealed message."""
        self.__cause__ = cause


class _UnansweredError(RequestError):
    """A request that is in the log and did not end with the requested answer."""

    request: Message

    def __init__(self, text: str, request: Message) -> None:
        super().__init__(text)
        self.request = request


class RequestTimedOut(_UnansweredError, TimeoutError):  # noqa: N818 - beside PublishRejected
    """No answer came by the deadline, although the request was accepted; also a `TimeoutError` of Python.

        except TimeoutError:
            ...      # as for any other call that took too long

    No worker handles such requests, the workers are slow, or the handler returned None.
    """

    retriable = True


class RequestFailed(_UnansweredError):  # noqa: N818 - beside PublishRejected
    """The request died, or its handler gave it up: an `error.reported` came instead of an answer.

        except RequestFailed as error:
            print(error.reason, error.reporter)      # "rejected", "pricing@svc"

    *reason* is the dead letter's, *reporter* the reporting agent, *message* the sealed report.
    """

    def __init__(self, text: str, request: Message, message: Message, *, reason: str, reporter: str) -> None:
        super().__init__(text, request)
        self.message = message
        self.reason = reason
        self.reporter = reporter


class UnexpectedReply(_UnansweredError):  # noqa: N818 - beside PublishRejected
    """An answer of another type came.

        except UnexpectedReply as error:
            print(f"asked for {error.expected}, got {error.found}")

    *expected* and *found* are message types, *message* is the sealed answer.
    """

    def __init__(self, request: Message, message: Message, expected: str) -> None:
        found = message.message_type
        super().__init__(f"{request.message_type} was answered with {found}, expected {expected}", request)
        self.message = message
        self.expected = expected
        self.found = found


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The place in the log where the message is durable.

        receipt = await bus.publish(Order(sku="tea"))
        print(f"{receipt.topic}/{receipt.partition}/{receipt.offset}", receipt.message_id)

    *timestamp_ms* is the log's time of appending, in milliseconds since 1970.
    """

    message_id: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


Result: TypeAlias = Receipt | PublishRejected | PublishUnknown
