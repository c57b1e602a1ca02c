"""The publisher's journal: what it was about to publish and what became of it, each line durable before the next step.

Owns the lines and reading them back after any death. An intent without an outcome counts as unknown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

__all__ = ["Intent", "Journal", "Outcome", "Published", "published_in", "unfinished_in"]


class Intent(msgspec.Struct, frozen=True, kw_only=True, tag="intent"):
    """*message_id* is about to be published: *value* are its bytes, *content* their hash. *forged*: they were altered
    after sealing."""

    message_id: str
    message_type: str
    idempotency_key: str
    lane: str
    number: int
    behaviour: str
    value: str
    content: str
    expires_ms: int
    at_ms: float
    reply_to: str = ""
    forged: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """What a publish of *message_id* was answered with: `accepted`, `rejected` or `unknown`."""

    message_id: str
    outcome: str
    topic: str = ""
    partition: int = -1
    offset: int = -1
    text: str = ""
    at_ms: float = 0.0


class Published(msgspec.Struct, frozen=True):
    """One message id and every answer that its publishes got."""

    intent: Intent
    outcomes: tuple[Outcome, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether at least one publish of it was acknowledged."""
        return any(outcome.outcome == "accepted" for outcome in self.outcomes)

    @property
    def certainly_absent(self) -> bool:
        """Whether every publish of it was refused."""
        return bool(self.outcomes) and all(outcome.outcome == "rejected" for outcome in self.outcomes)


class Journal:
    """A journal as its publisher writes it; an earlier part of it stays."""

    def __init__(self, path: Path) -> None:
        # A death may have cut the last line short; what comes next must not stand on it.
        cut = path.exists() and _last_byte(path) not in {b"", b"\n"}
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._encode = msgspec.json.Encoder().encode
        if cut:
            os.write(self._file, b"\n")

    def write(self, entries: Sequence[Intent | Outcome]) -> None:
        """Write *entries*; they are durable when this returns."""
        if entries:
            os.write(self._file, b"".join(self._encode(entry) + b"\n" for entry in entries))
            os.fdatasync(self._file)

    def close(self) -> None:
        """Release the file."""
        os.close(self._file)


def published_in(path: Path) -> dict[str, Published]:
    """Message id -> what the journal says about it, in order of the intents. A last line that was cut short is not
    there."""
    intents: dict[str, Intent] = {}
    outcomes: dict[str, list[Outcome]] = {}
    for entry in _entries_in(path):
        if isinstance(entry, Intent):
            intents[entry.message_id] = entry
        else:
            outcomes.setdefault(entry.message_id, []).append(entry)
    return {name: Published(intent, tuple(outcomes.get(name, ()))) for name, intent in intents.items()}


def unfinished_in(path: Path) -> tuple[list[Intent], set[int]]:
    """The intents of which nobody knows what became of them, and the number of every intent; what is finished takes no
    memory."""
    intents: dict[str, Intent] = {}
    doubtful: set[str] = set()
    numbers: set[int] = set()
    for entry in _entries_in(path):
        if isinstance(entry, Intent):
            intents[entry.message_id] = entry
            numbers.add(entry.number)
        elif entry.outcome == "accepted" or (entry.outcome == "rejected" and entry.message_id not in doubtful):
            intents.pop(entry.message_id, None)
        else:
            doubtful.add(entry.message_id)
    return list(intents.values()), numbers


def _entries_in(path: Path) -> Iterator[Intent | Outcome]:
    if not path.exists():
        return
    decode = msgspec.json.Decoder(Intent | Outcome).decode
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                yield decode(line)
            except msgspec.DecodeError:
                # A death in the middle of a write cut this line short.
                continue


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read(1)
