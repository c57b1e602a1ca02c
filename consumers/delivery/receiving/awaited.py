"""Awaited deliveries: those that a current run waits for, and those that are part of the run that has their key. Pure.

A run that sends a request to another agent waits for the answer. The request, and requests that it causes, must not
wait behind the run: neither for a slot, nor in its lane.
"""

from __future__ import annotations

from typing import Final

from bus.protocol.sealing import Message
from consumers.delivery.state.delivery import Accepted, Delivery

__all__ = ["descends_from", "is_awaited"]

_REPLY: Final = "._reply."
_MAX_LINKS: Final = 16
"""A chain with so many links may have lost its oldest."""


def is_awaited(delivery: Delivery) -> bool:
    """Return whether a run waits for the answer to *delivery*: it has a cause, and an agent's reply topic as address.

    The reply address of a saga's request is a mailbox, and no run waits for it.
    """
    message = delivery.message
    if message is None or not message.metadata.hops or not isinstance(delivery, Accepted):
        return False
    reply_to = message.routing.reply_to
    return reply_to is not None and _REPLY in reply_to


def descends_from(delivery: Delivery, before: Delivery) -> bool:
    """Tell whether *delivery* was asked by the run of *before*, or by what that has asked."""
    message, ancestor = delivery.message, before.message
    if message is None or ancestor is None or message.metadata.hops <= ancestor.metadata.hops:
        return False
    return ancestor.message_id in _known_causes(message) or _may_descend(message, ancestor)


def _known_causes(message: Message) -> set[str | None]:
    links = message.verification.proof_chain or ()
    return {message.metadata.causation_id, *(link.statement.message_id for link in links)}


def _may_descend(message: Message, ancestor: Message) -> bool:
    """Return whether *message* may descend from *ancestor* through causes that it does not name.

    A complete chain names all causes. Without a chain (low risk), or with a truncated one, only conversation and hops
    can be compared. A wrong True costs the order of one key; a wrong False blocks the run.
    """
    chain = message.verification.proof_chain
    if chain is not None and len(chain) < _MAX_LINKS:
        return False
    apart = message.metadata.hops - ancestor.metadata.hops
    return apart > 1 and message.metadata.conversation_id == ancestor.metadata.conversation_id
