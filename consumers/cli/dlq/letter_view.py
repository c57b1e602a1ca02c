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
from consumers.cli.io.printing import raw_json
from consumers.deadletters.diagnosis import Diagnosis
from consumers.deadletters.letter_state import LetterState, Step, state_of
from consumers.deadletters.letters import DeadLetter

__all__ = ["as_json", "as_text", "row"]


def row(letter: DeadLetter, known: LetterState | None) -> dict[str, object]:
    """Return the letter as one JSON object for a list."""
    return {
        "place": letter.place,
        "state": state_of(letter, known),
        "reason": letter.reason,
        "gate": letter.gate,
        "error": letter.error,
        "pointer": letter.pointer,
        "group": letter.group,
        "attempts": letter.attempts,
        "failed_at": letter.failed_at,
        "origin": {"topic": letter.topic, "partition": letter.partition, "offset": letter.offset},
        "redrive_count": letter.redrive_count,
        "stub": letter.is_stub,
        "message_id": letter.message.message_id if letter.message else None,
        "message_type": letter.message.message_type if letter.message else None,
        "sender": letter.message.metadata.sender.id if letter.message else None,
    }


def as_json(
    letter: DeadLetter,
    known: LetterState | None,
    history: Sequence[tuple[str, Step]],
    finding: Diagnosis,
    registry: Registry,
) -> object:
    """Return the letter as one JSON object with all details."""
    value = raw_json(letter.record.value or b"")
    return {
        **row(letter, known),
        "history": [{"place": location, **msgspec.to_builtins(step)} for location, step in history],
        "finding": finding,
        "expected": finding.expected,
        "found": finding.found,
        "nearest": finding.nearest,
        "advice": list(_advice(letter, registry)),
        "headers": {name: value.decode("utf-8", "backslashreplace") for name, value in letter.record.headers},
        **(
            {"value": value}
            if value is not None
            else {"value_base64": base64.b64encode(letter.record.value or b"").decode()}
        ),
    }


def as_text(
    letter: DeadLetter,
    known: LetterState | None,
    history: Sequence[tuple[str, Step]],
    finding: Diagnosis,
    registry: Registry,
) -> Iterator[str]:
    """Return the letter as lines of text."""
    about = {
        "place": letter.place,
        "state": state_of(letter, known),
        "reason": f"{letter.reason or '-'} (gate {letter.gate or '-'})",
        "pointer": letter.pointer,
        "expected": finding.expected,
        "found": finding.found,
        "group": letter.group,
        "attempts": str(letter.attempts),
        "redrives": str(letter.redrive_count) if letter.redrive_count else "",
        "died": letter.failed_at,
        "came from": letter.origin,
    }
    if letter.message is not None:
        metadata = letter.message.metadata
        about |= {
            "message": metadata.message_id,
            "type": f"{metadata.message_type} {metadata.schema_version}",
            "sender": metadata.sender.id or "",
            "sealed at": metadata.timestamp,
            "expires at": letter.message.routing.expires_at,
            "conversation": metadata.conversation_id,
        }
    yield from (f"{name + ':':<14}{printable(text)}" for name, text in about.items() if text)
    yield from _block("error", printable(letter.error, keep="\n"))
    if finding.reason and (finding.reason, finding.pointer) != (letter.reason, letter.pointer):
        yield f"{'today:':<14}{printable(f'{finding.reason} (gate {finding.gate}) {finding.pointer}')}"
    yield from (f"{'advice:':<14}{printable(line)}" for line in [*_advice(letter, registry), finding.nearest] if line)
    yield from _block("history", "\n".join(_step_text(letter, location, step) for location, step in history))
    yield from _block(
        "headers", "\n".join(f"{printable(name)}: {printable(preview(value))}" for name, value in letter.headers)
    )
    yield from _block(*_content(letter))


def _step_text(letter: DeadLetter, location: str, step: Step) -> str:
    parts = [step.at, step.action, f"by {step.by}", f"run {step.run}"]
    parts += [f"until {step.extend_until}"] if step.extend_until else []
    parts += [f"(an earlier letter of the message, {location})"] if location != letter.place else []
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
        yield "it can't be sent back: its bytes were too large to keep"
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
