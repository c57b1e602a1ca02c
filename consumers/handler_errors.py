"""Handler errors: endings of a handler that are no decision of its own, and a lifespan that could not be opened.

A handler was cut, overran its deadline, or raised something that is no Exception.
"""

from __future__ import annotations

from bus.errors import BusError, Reject

__all__ = ["HandlerCutError", "HandlerGoneError", "HandlerTimeoutError", "LifespanError", "TaskCancelled"]


class LifespanError(BusError):
    """A lifespan of an App failed while it was opened; `__cause__` is its error."""


class HandlerGoneError(Exception):
    """The handler ended by something that is no Exception.

    It awaited a cancelled task, asked the process to exit, or panicked.
    """


class HandlerCutError(Exception):
    """The handler was cancelled because its partition or the worker goes away."""


class TaskCancelled(Reject):
    """The requester has cancelled the task that the handler works on."""

    def __init__(self, text: str = "CANCELLED") -> None:
        super().__init__(text)


class HandlerTimeoutError(Exception):
    """The handler overran its deadline and was cancelled."""
