"""Which deliveries a run under way waits for, and which of them are part of the run that has their key. Pure.

A run that asks another agent waits until the answer comes. What it asked, and what that asks in turn, must not wait
behind it: neither for a slot, nor in its lane.
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
    """Tell whether a run waits for the answer to *delivery*: it was asked by a message, and is answered to an agent.

    What a saga asks is answered to a mailbox, and nothing stands still until then.
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
    """Tell whether *message* may come from *ancestor* by causes that it does not name.

    A chain names all of them. Without one (low risk), or with one that is full, the conversation and the hops are all
    there is to go by. Letting pass what is no descendant costs the order of one key; holding up what is one costs
    the run.
    """
    chain = message.verification.proof_chain
    if chain is not None and len(chain) < _MAX_LINKS:
        return False
    apart = message.metadata.hops - ancestor.metadata.hops
    return apart > 1 and message.metadata.conversation_id == ancestor.metadata.conversation_id
