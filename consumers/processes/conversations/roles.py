"""Roles and the performatives that each may use (seed 003), as data for policies and checks.

The policy grants a role to agent ids; the role that a message claims for its sender is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, get_args

from bus.protocol.envelope import Performative

__all__ = ["PERFORMATIVES", "ROLES", "may_speak"]

PERFORMATIVES: Final[tuple[str, ...]] = get_args(Performative)
"""The eleven of seed 003; a query changes nothing."""

_ANSWERS: Final = frozenset({"inform", "error"})
ROLES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "planner": _ANSWERS | {"request", "propose", "query", "cancel", "call_for_proposal"},
        "researcher": _ANSWERS | {"query", "reject"},
        "writer": _ANSWERS | {"propose", "query", "reject"},
        "executor": _ANSWERS | {"accept", "reject", "confirm"},
        "critic": _ANSWERS | {"accept", "reject", "query"},
        "approver": _ANSWERS | {"accept", "reject", "propose"},
        "auditor": _ANSWERS | {"query", "subscribe"},
        "router": _ANSWERS | {"request", "reject", "query"},
        "legal": _ANSWERS | {"accept", "reject", "query"},
        "safety": _ANSWERS | {"reject", "cancel", "query"},
        "finalizer": _ANSWERS | {"confirm", "reject"},
        "orchestrator": frozenset(PERFORMATIVES),
    }
)
"""Role -> the performatives that suffice for its part."""


def may_speak(role: str, performative: str) -> bool:
    """Return whether *performative* belongs to *role*; an unknown role has none."""
    return performative in ROLES.get(role, frozenset())
