"""Which right a refused administrator lacks: one sentence that names it, to be handed to whoever grants rights.

Owns that sentence. Does not own what other failures mean (`faults`).
"""

from __future__ import annotations

from aiokafka import errors

from bus.errors import BusError, NotPermittedError
from bus.transports.kafka.faults import translated

__all__ = ["is_denial", "lacking", "refusal"]

_DENIALS = (errors.TopicAuthorizationFailedError, errors.GroupAuthorizationFailedError, errors.ClusterAuthorizationFailedError)


def is_denial(error: BaseException) -> bool:
    """Whether *error* is about rights."""
    return isinstance(error, _DENIALS)


def lacking(doing: str, right: str) -> NotPermittedError:
    """*right* is an operation and what it is on, as an ACL says it."""
    return NotPermittedError(f"{doing}: Kafka does not let this user do that; needed: {right}")


def refusal(error: BaseException, doing: str, right: str) -> BusError:
    """What a refusal by the brokers means; *right* is what they ask for where rights were the reason."""
    return lacking(doing, right) if is_denial(error) else translated(error, doing)
