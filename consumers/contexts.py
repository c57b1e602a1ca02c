"""What the context of a run is made of.

Owns which of a worker's parts a handler reaches through its `Context`, and that the inbox's transaction is there only for a run that holds a
claim. Does not own what a handler may do with them (`context`).
"""

from __future__ import annotations

from functools import partial

from bus.clock import Clock
from bus.sealing import Message
from consumers.claims import Claims
from consumers.context import Context
from consumers.delivery import Delivery, Hold
from producers.publisher import Publisher
from producers.requests import Requests

__all__ = ["Contexts"]


class Contexts:
    """Makes one for each run that takes one."""

    def __init__(self, *, publisher: Publisher, requests: Requests, clock: Clock, claims: Claims | None) -> None:
        self._publisher = publisher
        self._requests = requests
        self._clock = clock
        self._claims = claims

    def of(self, message: Message, delivery: Delivery, deadline_s: float, hold: Hold | None) -> Context:
        """The context of a run of *delivery*, which has *message*, until *deadline_s* of the clock."""
        return Context(
            message,
            attempt=delivery.control.attempt + 1,
            deadline_s=deadline_s,
            publisher=self._publisher,
            requests=self._requests,
            clock=self._clock,
            begin=None if hold is None or self._claims is None else partial(self._claims.begin, hold, delivery.partition),
            has_inbox=self._claims is not None,
        )
