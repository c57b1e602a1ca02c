"""The verdict on a message and its causes, for people."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bus.telemetry.terminal import printable
from bus.telemetry.terminal_json import table_lines
from consumers.operations.lineage.ancestry import Ancestry, Hop

__all__ = ["VerifiedCauses", "cause_lines"]


class VerifiedCauses(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a message in the log and its causes."""

    message_id: str
    valid: bool
    signatures_checked: bool
    unknown_before: int | None
    """Causes before the first stored one; None: unknown."""
    first_invalid: Hop | None
    causes: tuple[Hop, ...]


def _name(hop: Hop) -> str:
    number = "the cause" if hop.number is None else f"cause {hop.number}"
    return f"{number} {printable(hop.message_id)}" if hop.message_id else number


def cause_lines(found: Ancestry, *, has_keys: bool) -> Iterator[str]:
    """Yield the causes as a table, and the first invalid one in words."""
    if found.unknown is None or found.unknown:
        count = "an unknown number of" if found.unknown is None else str(found.unknown)
        yield f"{count} causes before the first stored one are not in the log"
    yield from table_lines(
        ("CAUSE", "VERDICT", "MESSAGE", "TYPE", "SENDER", "KEY", "LOCATION"),
        [
            (
                "-" if hop.number is None else hop.number,
                hop.kind or hop.state,
                hop.message_id or "-",
                hop.message_type or "-",
                hop.sender or "-",
                hop.kid or "-",
                hop.place or "-",
            )
            for hop in found.hops
        ],
    )
    for hop in found.hops:
        for note in hop.notes:
            yield f"note: {_name(hop)}: {printable(note)}"
    invalid = found.blamed
    if invalid is None:
        valid = sum(hop.state == "valid" for hop in found.hops)
        yield f"valid: {valid} of {len(found.hops)} stored messages, each caused by the one before"
        return
    yield f"{_name(invalid)} is invalid: {invalid.kind}: {printable(invalid.detail)}"
    if invalid.differs:
        yield f"  differs in: {', '.join(invalid.differs)}"
    signer = "not signed"
    if invalid.kid:
        signer = f"names key {printable(invalid.kid)}" + ("" if has_keys else " (no trusted keys to check it)")
    yield f"  sender: {printable(invalid.sender) or 'unknown'}; {signer}"
