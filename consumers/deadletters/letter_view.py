"""The display of one dead letter, as text and as JSON.

Owns the layout; `consumers.deadletters.diagnosis` runs the gates on it again. All foreign text is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import msgspec

from bus.errors import ContractError
from bus.payloads.payload_types import Registry
from bus.telemetry.terminal import preview, printable
from bus.telemetry.terminal_json import details, raw_json
from consumers.deadletters.diagnosis import Diagnosis
from consumers.deadletters.letter_state import LetterState, Step, state_of
from consumers.deadletters.letters import DeadLetter

__all__ = ["LetterDetails", "LetterRow", "letter_details", "letter_lines", "letter_row"]


class LetterRow(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter of a list."""

    location: str
    state: str
    reason: str
    check: str
    """The check that refused it."""
    error: str
    pointer: str
    """The field that was refused."""
    group: str
    attempts: int
    failed_at: str
    origin: str
    """The location where the message was first read."""
    redrives: int
    is_stub: bool
    """Whether its bytes were too large to keep."""
    message_id: str | None
    type: str | None
    sender: str | None


class LetterStep(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the history: what an operator did, when and why."""

    location: str
    at: str
    action: str
    by: str
    run: str
    why: str
    extend_until: str


class LetterDetails(LetterRow, frozen=True, kw_only=True, omit_defaults=True):
    """One dead letter with all details."""

    history: tuple[LetterStep, ...] = ()
    today: Diagnosis
    """How the checks judge the stored bytes now."""
    expected: str = ""
    found: str = ""
    nearest: str = ""
    advice: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    value: msgspec.Raw | None = None
    value_base64: str | None = None


def letter_row(letter: DeadLetter, known: LetterState | None) -> LetterRow:
    """Return the row of *letter*."""
    message = letter.message
    return LetterRow(
        location=letter.place,
        state=state_of(letter, known),
        reason=letter.reason,
        check=letter.gate,
        error=letter.error,
        pointer=letter.pointer,
        group=letter.group,
        attempts=letter.attempts,
        failed_at=letter.failed_at,
        origin=letter.origin,
        redrives=letter.redrive_count,
        is_stub=letter.is_stub,
        message_id=message.message_id if message else None,
        type=message.message_type if message else None,
        sender=message.metadata.sender.id if message else None,
    )


def letter_details(
    letter: DeadLetter,
    known: LetterState | None,
    history: Sequence[tuple[str, Step]],
    finding: Diagnosis,
    registry: Registry,
) -> LetterDetails:
    """Return everything there is to know of *letter*."""
    value = raw_json(letter.record.value or b"")
    return LetterDetails(
        **msgspec.structs.asdict(letter_row(letter, known)),
        history=tuple(LetterStep(location=location, **msgspec.structs.asdict(step)) for location, step in history),
        today=finding,
        expected=finding.expected,
        found=finding.found,
        nearest=finding.nearest,
        advice=tuple(_advice(letter, registry)),
        headers={name: value.decode("utf-8", "backslashreplace") for name, value in letter.record.headers},
        value=value,
        value_base64=None if value is not None else base64.b64encode(letter.record.value or b"").decode(),
    )


def letter_lines(
    letter: DeadLetter,
    known: LetterState | None,
    history: Sequence[tuple[str, Step]],
    finding: Diagnosis,
    registry: Registry,
) -> Iterator[str]:
    """Return *letter* as lines of text."""
    about: dict[str, object] = {
        "location": letter.place,
        "state": state_of(letter, known),
        "reason": f"{letter.reason or '-'} (check {letter.gate or '-'})",
        "field": letter.pointer,
        "expected": finding.expected,
        "found": finding.found,
        "group": letter.group,
        "attempts": str(letter.attempts),
        "redrives": str(letter.redrive_count) if letter.redrive_count else "",
        "failed at": letter.failed_at,
        "first read": letter.origin,
    }
    if letter.message is not None:
        metadata = letter.message.metadata
        about |= {
            "message": metadata.message_id,
            "type": f"{metadata.message_type} {metadata.schema_version}",
            "sender": metadata.sender.id or "",
            "published at": metadata.timestamp,
            "expires at": letter.message.routing.expires_at,
            "conversation": metadata.conversation_id,
        }
    yield from details(about)
    yield from _block("error", printable(letter.error, keep="\n"))
    if finding.reason and (finding.reason, finding.pointer) != (letter.reason, letter.pointer):
        yield from details({"today": f"{finding.reason} (check {finding.gate}) {finding.pointer}"})
    for line in [*_advice(letter, registry), finding.nearest]:
        yield from details({"advice": line})
    yield from _block("history", "\n".join(_step_text(letter, location, step) for location, step in history))
    yield from _block(
        "headers", "\n".join(f"{printable(name)}: {printable(preview(value))}" for name, value in letter.headers)
    )
    yield from _block(*_content(letter))


def _step_text(letter: DeadLetter, location: str, step: Step) -> str:
    parts = [step.at, step.action, f"by {step.by}", f"run {step.run}"]
    parts += [f"until {step.extend_until}"] if step.extend_until else []
    parts += [f"(an earlier dead letter of the message, {location})"] if location != letter.place else []
    parts += [f"because {step.why}"] if step.why else []
    return printable("  ".join(parts))


def _content(letter: DeadLetter) -> tuple[str, str]:
    if letter.message is not None:
        return "data", printable(msgspec.json.format(letter.message.data, indent=2).decode(), keep="\n")
    value = letter.record.value or b""
    heading = (
        "stub of a record that was too large to keep"
        if letter.is_stub
        else f"value, {len(value)} bytes that are not a message"
    )
    return heading, preview(value)


def _block(heading: str, text: str) -> Iterator[str]:
    if text:
        yield f"{heading}:"
        yield from (f"  {line}" for line in text.split("\n"))


def _advice(letter: DeadLetter, registry: Registry) -> Iterator[str]:
    """Return what an operator can do, and how today's version of the type judges the payload."""
    if letter.is_stub:
        yield "it cannot be redriven: its bytes were too large to keep"
    kind = registry.get(letter.message.message_type) if letter.message is not None else None
    if letter.message is None or letter.gate != "schema":
        return
    if kind is None:
        yield f"{letter.message.message_type} is an unknown type: name its app with --app MODULE:APP to check it"
        return
    try:
        kind.open(letter.message)
    except ContractError as error:
        yield f"{error.pointer}: {error.text}"
    else:
        yield f"{kind.name} {kind.version} accepts this message now"
