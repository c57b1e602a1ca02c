"""Protocols between agents, as sagas: each file begins with its table of transitions, and the class follows it.

A class here is a base: a subclass says what opens it, and what to do with the outcome.

    from sealbus.patterns import ContractNet

    class Freight(ContractNet, version="1.0.0"):
        @on_start(Wanted)
        async def wanted(self, wanted, context):
            self.call_for_bids(context, words.AuctionCall(...))

`roles` is seed 003's table of who may speak how.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from consumers.processes.conversations.blackboard import Blackboard as Blackboard
    from consumers.processes.conversations.contract_net import ContractNet as ContractNet
    from consumers.processes.conversations.handoff import Handoff as Handoff
    from consumers.processes.conversations.review import IteratedReview as IteratedReview
    from consumers.processes.conversations.subscriptions import Subscription as Subscription

_MODULES: Final = MappingProxyType(
    {
        "Blackboard": "blackboard",
        "ContractNet": "contract_net",
        "Handoff": "handoff",
        "IteratedReview": "review",
        "Subscription": "subscriptions",
    }
)


def __getattr__(name: str) -> Any:
    """Import a protocol when it is asked for: each brings a family of the vocabulary."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return found
