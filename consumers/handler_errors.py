"""Handler errors: endings of a handler that are no decision of its own.

It was cut, overran its deadline, or raised something that is no Exception.
"""

from __future__ import annotations

__all__ = ["HandlerCutError", "HandlerGoneError", "HandlerTimeoutError"]


class HandlerGoneError(Exception):
    """The handler ended by something that is no Exception.

    It awaited a cancelled task, asked the process to exit, or panicked.
    """


class HandlerCutError(Exception):
    """The handler was cancelled because its partition or the worker goes away."""


class HandlerTimeoutError(Exception):
    """The handler overran its deadline and was cancelled."""
