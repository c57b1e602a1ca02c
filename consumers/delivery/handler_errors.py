"""Handler errors: involuntary ends of a handler, and the outcome of several errors at once.

A handler was cancelled, overran its deadline, or raised something other than an Exception. Of several errors in an
exception group, `decision_in` selects the one that decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bus.errors import BusError, ContractError, DependencyDown, HandlerError, Reject, RetryLater
from producers.outcomes import PublishRejected

__all__ = [
    "AnswerMissingError",
    "GaveUpError",
    "HandlerCutError",
    "HandlerGoneError",
    "HandlerTimeoutError",
    "LifespanError",
    "RunHeld",
    "TaskCancelled",
    "breach_of",
    "decision_in",
    "is_decision",
    "leaves_of",
]


class LifespanError(BusError):
    """A lifespan of an App failed while it was opened; `__cause__` is its error."""


class HandlerGoneError(Exception):
    """The handler ended by something that is no Exception.

    It awaited a cancelled task, asked the process to exit, or panicked.
    """


class HandlerCutError(Exception):
    """The handler was cancelled because its partition or the worker goes away."""


class GaveUpError(Exception):
    """The partition was revoked while a request was being repeated: its next owner settles the message."""


class TaskCancelled(Reject):
    """The requester has cancelled the task that the handler works on.

        if context.cancelled:
            raise TaskCancelled("stopped half way")

    The message is settled as skipped, nothing is repeated, and its requester is told with code CANCELLED.
    """

    def __init__(self, text: str = "CANCELLED") -> None:
        super().__init__(text)


class RunHeld(BaseException):
    """The run ends here: its message waits for a decision, and a later run goes on with the kept steps.

    No Exception, so that `except Exception` lets it pass. A handler that catches it all the same is not believed: the
    run ends as held whatever it returns or raises afterwards.
    """

    def __init__(self) -> None:
        super().__init__("the run is held until a decision: let this pass")


class AnswerMissingError(ContractError):
    """The handler is declared to return an answer, and has returned None."""

    def __init__(self) -> None:
        super().__init__("its handler returned no answer, and declares one", "/data", "schema_violation")


class HandlerTimeoutError(Exception):
    """The handler overran its deadline and was cancelled."""


def decision_in(error: Exception) -> Exception:
    """Return the error that decides about the message of a run which *error* has ended.

    A group, also a nested one, decides as its most decisive member would alone: the partition has gone, TaskCancelled,
    Reject, the bus's own errors (refused for good before retriable), DependencyDown, RetryLater, any other. A group of
    several others is returned as it is.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [leaf for leaf in leaves_of(error) if isinstance(leaf, Exception)]
    if not leaves:
        return error
    decisive = min(leaves, key=_rank)
    return decisive if len(leaves) == 1 or _rank(decisive) < _ANY_OTHER else error


def is_decision(error: Exception) -> bool:
    """Return whether *error* is a decision about the message, unlike errors of the handler's own code."""
    return _rank(error) < _ANY_OTHER


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in *error*, a group of any depth, in their order; *error* itself if it is not a group."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from leaves_of(each)


def breach_of(error: BaseException) -> ContractError | None:
    """Return the ContractError behind *error*: a payload or option that receivers refuse; None for a log failure."""
    cause = error.__cause__ if isinstance(error, PublishRejected) else error
    return cause if isinstance(cause, ContractError) else None


_ANY_OTHER: Final = 7


def _rank(error: Exception) -> int:
    """Return the place of *error* in the order of decisions: a smaller one decides."""
    match error:
        case HandlerCutError() | GaveUpError():
            return 0
        case TaskCancelled():
            return 1
        case Reject():
            return 2
        case DependencyDown():
            return 5
        case RetryLater():
            return 6
        case BusError() if not isinstance(error, HandlerError):
            return 3 if breach_of(error) is not None else 4
        case _:
            return _ANY_OTHER
