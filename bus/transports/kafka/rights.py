"""Which right a refused administrator lacks: one sentence that names it, to be handed to whoever grants rights.

Owns that sentence. Does not own what other failures mean (`faults`).
"""

from __future__ import annotations

from bus.errors import BusError, NotPermittedError
from bus.transports.kafka.faults import is_denial, translated

__all__ = ["lacking", "refusal"]


def lacking(doing: str, right: str) -> NotPermittedError:
    """*right* is an operation and what it is on, as an ACL says it."""
    return NotPermittedError(f"{doing}: Kafka does not let this user do that; needed: {right}")


def refusal(error: BaseException, doing: str, right: str) -> BusError:
    """What a refusal by the brokers means; *right* is what they ask for where rights were the reason."""
    return lacking(doing, right) if is_denial(error) else translated(error, doing)
