"""One message for people: its envelope, what became of it and why, how far it is trusted, and what the audit has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from bus.telemetry.terminal import printable
from bus.telemetry.terminal_json import details
from consumers.operations.survey.explanation import Explanation
from consumers.operations.survey.group_verdicts import group_sentences
from consumers.operations.survey.look_up import LookUp
from consumers.operations.survey.trust_view import TrustView

__all__ = ["ShownMessage", "audit_lines", "message_lines"]


_MAX_SHOWN: Final = 2_000


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message; of a part that was not asked for, None."""

    message_id: str
    locations: tuple[str, ...]
    """Where its records are; empty: the log no longer has it."""
    envelope: dict[str, Any] | None = None
    outcome: Explanation | None = None
    trust: tuple[TrustView, ...] | None = None
    """One per different message with this id."""
    audit: tuple[dict[str, Any], ...] | None = None
    """What the audit has, of a message that the log no longer has."""


def message_lines(shown: ShownMessage, found: LookUp, faults: dict[str, str]) -> Iterator[str]:
    for location in shown.locations:
        yield printable(f"{location}{f'  invalid: {faults[location]}' if location in faults else ''}")
    if shown.envelope is not None:
        yield from _envelope_lines(shown.envelope)
    if shown.outcome is not None:
        yield from _outcome_lines(shown.outcome, found)
    for number, view in enumerate(shown.trust or ()):
        yield "trust:" if number == 0 else "trust of another message with the same id:"
        yield from (f"  {line}" for line in _trust_lines(view))


def _envelope_lines(envelope: dict[str, Any]) -> Iterator[str]:
    for name in ("metadata", "routing"):
        yield f"{name}:"
        for key, value in envelope[name].items():
            if value is not None:
                text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                yield f"  {key + ':':<18}{printable(text)}"
    yield "data:"
    yield printable(msgspec.json.format(msgspec.json.encode(envelope["data"]), indent=2).decode(), keep="\n")


def _outcome_lines(outcome: Explanation, found: LookUp) -> Iterator[str]:
    yield "outcome:"
    yield f"  {printable(outcome.text)}"
    if outcome.passes:
        yield f"  would have passed: {printable(outcome.passes)}"
    if outcome.cure:
        yield f"  fix: {printable(outcome.cure)}"
    for sentence in group_sentences(found.groups, until=found.until):
        yield f"  group {printable(sentence)}"


def _trust_lines(view: TrustView) -> Iterator[str]:
    yield from details({"sender": view.sender or "-", "signed by": view.signed_by or "not signed"}, width=16)
    if not view.valid:
        yield from details({"invalid": f"{view.reason}: {view.detail}", "location": view.location}, width=16)
    else:
        authority = "; ".join(f"{name}: {_listed(value)}" for name, value in view.authority.items())
        about = {
            "level": view.level,
            "classification": view.classification,
            "tags": ", ".join(view.tags),
            "authority": authority or "not limited",
            "lowered by": "" if view.lowered_by else "nothing",
        }
        yield from details(about, width=16)
        for number, step in enumerate(view.lowered_by, 1):
            yield f"lowered by {number}:   {printable(step)}"
    if not view.signatures_checked:
        yield "note: no trusted keys were given, so the sender is not verified, and the level is only a claim"


def audit_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the rows of the audit about a message that is deleted from the log."""
    for row in rows:
        for key, value in row.items():
            if value not in ("", None, [], {}):
                text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                yield f"  {printable(key) + ':':<18}{printable(text)[:_MAX_SHOWN]}"
        yield ""


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
