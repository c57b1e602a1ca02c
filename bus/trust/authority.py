"""Authority: the permissions that a message gives its receiver, which only narrow along a chain. Pure.

Owns inclusion and narrowing of `metadata.authority` (design part two section 14, security S3). From cause to effect,
lists of permissions shrink as languages of globs, lists of prohibitions grow, and the side effect becomes milder. A
member that is left out is inherited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.errors import ContractError
from bus.protocol.authority_globs import first_outside
from bus.protocol.envelope import Authority
from bus.protocol.envelope_rules import check_globs
from bus.trust.labels import SIDE_EFFECTS

__all__ = ["Granted", "exceeding_member", "members_of", "narrowed", "received_authority", "to_authority"]

Granted = Mapping[str, Any]
"""An authority by member; a missing member is not limited."""

_ALLOWING: Final = ("can_execute", "can_read", "can_write")
_FORBIDDING: Final = ("cannot_execute", "requires_human_approval")
_POINTER: Final = "/metadata/authority"


def received_authority(statements: list[Granted | None]) -> Granted:
    """Return what a message allows whose chain and own statement carry *statements*, oldest first.

    Raises ContractError (`unauthorized`) that names the first link, and its member, that allows more than the one
    before.
    """
    granted: dict[str, Any] = {}
    for index, stated in enumerate(statements):
        if stated is None:
            continue
        found = exceeding_member(stated, granted)
        if found is not None:
            whose = "the message" if index == len(statements) - 1 else f"link {index}"
            member, text = found
            raise ContractError(
                f"{whose} has more authority than its cause: {member} {text}", f"{_POINTER}/{member}", "unauthorized"
            )
        granted = _folded(granted, stated)
    return granted


def exceeding_member(requested: Granted, granted: Granted) -> tuple[str, str] | None:
    """Return the first member of *requested* that is not included in *granted*, and what exceeds it; None if all are.

    Members that forbid may be left shorter by a careless sender: they are joined, and exceed nothing.
    """
    for member in _ALLOWING:
        if member in requested and member in granted:
            glob = first_outside(requested[member], granted[member])
            if glob is not None:
                return member, f"{glob!r} is not within {list(granted[member])}"
    if "max_side_effect" in requested and "max_side_effect" in granted:
        wanted, ceiling = requested["max_side_effect"], granted["max_side_effect"]
        if _rank(wanted) > _rank(ceiling):
            return "max_side_effect", f"{wanted!r} is more than {ceiling!r}"
    if (
        "decision_right" in requested
        and "decision_right" in granted
        and requested["decision_right"] != granted["decision_right"]
    ):
        return "decision_right", f"{requested['decision_right']!r} is not {granted['decision_right']!r}"
    return None


def narrowed(requested: Authority | None, granted: Granted) -> Authority | None:
    """Return the authority of a message whose sender requests *requested* and has received *granted*.

    Missing members are inherited, and prohibitions are joined. Raises ContractError for invalid globs (`malformed`),
    and for a request beyond the grant (`unauthorized`).
    """
    wanted = members_of(requested)
    if requested is not None:
        check_globs(requested, _POINTER)
    found = exceeding_member(wanted, granted)
    if found is not None:
        member, text = found
        raise ContractError(
            f"a message gives no more than its cause gave: {text}", f"{_POINTER}/{member}", "unauthorized"
        )
    return to_authority(_folded(granted, wanted))


def to_authority(granted: Granted) -> Authority | None:
    """Return *granted* as the member of an envelope; None if it is empty."""
    if not granted:
        return None
    return msgspec.convert({name: value for name, value in granted.items() if name in _MEMBERS}, Authority)


def _folded(granted: Granted, stated: Granted) -> dict[str, Any]:
    joined = {**granted, **stated}
    for member in _FORBIDDING:
        if member in granted and member in stated:
            joined[member] = tuple(dict.fromkeys([*granted[member], *stated[member]]))
    return joined


_MEMBERS: Final = (*_ALLOWING, *_FORBIDDING, "decision_right", "max_side_effect")


def members_of(authority: Authority | None) -> Granted:
    """Return the members of *authority*."""
    provided: dict[str, Any] = {} if authority is None else msgspec.structs.asdict(authority)
    return {name: value for name, value in provided.items() if value is not None}


def _rank(word: Any) -> int:
    """Return the rank of a side effect. An unknown word ranks as "none", because a claim can only lower it."""
    return SIDE_EFFECTS.index(word) if word in SIDE_EFFECTS else 0
