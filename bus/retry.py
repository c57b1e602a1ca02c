"""Retry: how often and how soon a failed run is repeated. A value that handlers and messages give.

Owns its fields, their checks, and the form in which a message carries it. `consumers.delivery.resilience.retry` decides
by it.
"""

from __future__ import annotations

import math
from typing import Final, get_args

import msgspec

from bus.errors import EventLoopError
from bus.protocol.envelope import BackoffKind, RetryPolicy

__all__ = ["PROGRAM_ERRORS", "Retry", "asked_by"]

PROGRAM_ERRORS: Final = (
    TypeError,
    NameError,
    AttributeError,
    ImportError,
    SyntaxError,
    AssertionError,
    NotImplementedError,
    EventLoopError,
)
"""Errors that the same code raises again: a run that ended by one is repeated once, in case another version runs it."""

_BACKOFFS: Final = get_args(BackoffKind)


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Number and delay of repetitions of a failed run, for a handler or for a message.

        @app.on(Order, retry=Retry(attempts=5, base_s=1, cap_s=60))
        async def book(order: Order) -> None: ...

        await bus.publish(Order(sku="tea"), retry=Retry(attempts=2))

    At most *attempts* runs (1: no repetition). The wait before a repetition is *base_s* seconds ("constant"), grows by
    *base_s* each time ("linear"), or doubles each time ("exponential"), up to *cap_s* seconds; a fifth of it is random.

    Exceptions in *never* are not repeated: the message is dead-lettered at once as `rejected`. With *only*, no other
    exceptions are repeated, except those of the bus and a timeout. Programming errors (TypeError, NameError and the
    like: `PROGRAM_ERRORS`) are repeated once, unless *only* names them, because the same code usually fails again.

        @app.on(Order, retry=Retry(only=(ConnectionError, TimeoutError)))

    The retry of a message can only shorten that of its handler: fewer runs and shorter waits. It has at most 100
    attempts, and neither *only* nor *never*. Raises TypeError and ValueError, which name the argument.
    """

    attempts: int = 5
    backoff: BackoffKind = "exponential"
    base_s: float = 0.2
    cap_s: float = 300.0
    only: tuple[type[Exception], ...] = ()
    never: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts.__class__ is not int:
            raise TypeError(_found("attempts", self.attempts, "a whole number of runs, such as 5"))
        if self.attempts < 1:
            raise ValueError(_found("attempts", self.attempts, "at least 1, the first run"))
        if self.backoff not in _BACKOFFS:
            raise ValueError(_found("backoff", self.backoff, f"one of {', '.join(_BACKOFFS)}"))
        for name, seconds in (("base_s", self.base_s), ("cap_s", self.cap_s)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise TypeError(_found(name, seconds, "seconds, such as 0.5"))
            if not 0 <= seconds <= math.inf:
                raise ValueError(_found(name, seconds, "seconds, 0 or more"))
        for name, classes in (("only", self.only), ("never", self.never)):
            if not isinstance(classes, tuple) or not all(
                isinstance(each, type) and issubclass(each, Exception) for each in classes
            ):
                raise TypeError(_found(name, classes, "a tuple of exception classes, such as (ConnectionError,)"))
        if self.cap_s < self.base_s:
            raise ValueError(_found("cap_s", self.cap_s, f"at least base_s, which is {self.base_s:g}"))

    def policy(self) -> RetryPolicy:
        """Return the form in which a message carries it; the rules of the envelope judge its ranges.

        Raises ValueError for classes of exceptions, which a message cannot carry.
        """
        if self.only or self.never:
            raise ValueError("only= and never= work in a handler's retry alone; a message carries attempts and delays")
        max_s = 2**53 / 1000 - 1
        return RetryPolicy(
            backoff=self.backoff,
            base_ms=round(min(self.base_s, max_s) * 1000),
            cap_ms=round(min(self.cap_s, max_s) * 1000),
            max_attempts=self.attempts,
        )


def asked_by(policy: RetryPolicy) -> Retry:
    """Convert *policy*, the form that a message carries, to a Retry."""
    return Retry(
        attempts=policy.max_attempts, backoff=policy.backoff, base_s=policy.base_ms / 1000, cap_s=policy.cap_ms / 1000
    )


def _found(name: str, found: object, expected: str) -> str:
    return f"Retry needs {name} to be {expected}; found {type(found).__name__} {found!r}"
