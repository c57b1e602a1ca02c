"""Asking several agents in turn: the next one after a refusal, an error report, or no answer within an equal share of
time.

Owns which agent to ask next and for how long. More than one agent may do the work, because an agent without answer may
have finished before it lost its connection. So the idempotency key is the same for all, for effects that use it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from bus.errors import ContractError
from producers.outcomes import PublishRejected, PublishUnknown, RequestFailed, RequestTimedOut

__all__ = ["GRACE_S", "addressees_of", "ask_in_turn"]

_Reply_co = TypeVar("_Reply_co", covariant=True)
_Reply = TypeVar("_Reply")

GRACE_S: Final = 10.0
"""How long after the end of its share the next agent is asked: clocks differ, and two must not work at once."""
_PASSED_OVER: Final = "unauthorized"


class AskOne(Protocol[_Reply_co]):
    """Asks one agent."""

    async def __call__(self, to: str, share_s: float, grace_s: float, key: str, /) -> _Reply_co:
        """Ask *to*; the request lives for *share_s* seconds, and its answer is awaited for *grace_s* more."""


def addressees_of(options: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the agents of a request to several; None for a request to one agent or without recipient.

    Raises PublishRejected for an empty list, or one with other items than ids.
    """
    to = options.get("to")
    if not isinstance(to, list | tuple):
        return None
    if not to or not all(isinstance(each, str) for each in to):
        error = ContractError("several addressees are a list of agent ids, such as ['first@svc', 'second@svc']", "to")
        raise PublishRejected(f"refused before sending: {error}", error)
    return tuple(dict.fromkeys(to))


async def ask_in_turn(ask: AskOne[_Reply], to: Sequence[str], *, timeout_s: float, key: str | None = None) -> _Reply:
    """Return the first answer of *to*, each of whom has an equal share of *timeout_s* seconds.

    A silent agent costs GRACE_S more. An agent that may not see the message is passed over. Raises what the last one
    ended with.
    """
    share_s = timeout_s / len(to)
    key = key or f"turn-{os.urandom(16).hex()}"
    for agent in to[:-1]:
        try:
            return await ask(agent, share_s, GRACE_S, key)
        except (RequestFailed, RequestTimedOut, PublishUnknown):
            continue
        except PublishRejected as error:
            if error.reason != _PASSED_OVER:
                raise
    return await ask(to[-1], share_s, 0.0, key)
