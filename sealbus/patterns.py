"""Patterns of conversations: sagas to derive from, for auctions, shared notes, handoffs, reviews and subscriptions.

    from sealbus.patterns import ContractNet

A subclass says what opens the conversation, and what to do with the outcome. Page: `docs/how-to/long-work.md`.
"""

from __future__ import annotations

from consumers.processes.conversations.blackboard import Blackboard
from consumers.processes.conversations.contract_net import ContractNet
from consumers.processes.conversations.handoff import Handoff
from consumers.processes.conversations.review import IteratedReview
from consumers.processes.conversations.subscriptions import Subscription

__all__ = [
    "Blackboard",
    "ContractNet",
    "Handoff",
    "IteratedReview",
    "Subscription",
]
