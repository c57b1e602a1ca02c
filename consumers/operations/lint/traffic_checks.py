"""Anti-patterns in recorded messages: what schemas allow and agents should not do.

Owns looking at one message at a time, and what is only seen over many. Keeps counts and a few distinct values for each
type, never messages. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from bus.protocol.sealing import Message
from bus.telemetry.terminal import printable
from consumers.operations.lint.findings import LintFinding, finding

__all__ = ["TrafficLint"]

_MAX_CONTEXT_BYTES: Final = 65_536
_MAX_OUTPUT_BYTES: Final = 65_536
_MAX_VALUES: Final = 64
_MANY_STATES: Final = 12
_MANY_MESSAGES: Final = 20
_LONG_PROSE: Final = 2_000
_API: Final = frozenset(
    {"headers", "status_code", "choices", "usage", "request_id", "x-request-id", "cookies", "config"}
)
_STATUS: Final = ("status", "state", "new_status")
_MAX_LOCATIONS: Final = 5


class TrafficLint:
    """Checks the messages of a log, and returns its findings at the end."""

    def __init__(self) -> None:
        self.messages = 0
        self._found: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._states: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._recipients: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._types: Counter[str] = Counter()

    def look(self, message: Message, location: str) -> None:
        """Check *message* at *location*."""
        self.messages += 1
        name = message.message_type
        self._types[name] += 1
        recipient = message.metadata.recipient
        self._recipients[name][recipient.id if recipient is not None and recipient.id is not None else ""] += 1
        try:
            data = msgspec.json.decode(message.data)
        except (msgspec.DecodeError, RecursionError):
            return
        if isinstance(data, dict):
            for check, what in self._about(name, data):
                self._note(check, name, what, location)

    def findings(self) -> Iterator[LintFinding]:
        """Yield one finding for each thing and type, with its first places and how often it was seen."""
        for key, locations in self._found.items():
            check, name, what = key
            more = f"; {self._counts[key]} messages" if self._counts[key] > 1 else ""
            yield finding(check, locations[0], f"{name}: {what}{more}")
        for (name, field), values in self._states.items():
            if len(values) > _MANY_STATES and self._types[name] >= _MANY_MESSAGES:
                shown = ", ".join(sorted(values)[:_MAX_LOCATIONS])
                yield finding("free-form-status", f"{name}/{field}", f"{len(values)} different values: {shown}, ...")
        for name, recipients in self._recipients.items():
            total = self._types[name]
            ((agent, count),) = recipients.most_common(1)
            if agent and count == total and total >= _MANY_MESSAGES:
                yield finding("hard-coded-recipient", name, f"all {total} messages are for {printable(agent)}")
        if len(self._types) == 1 and self.messages >= _MANY_MESSAGES * 5:
            name = next(iter(self._types))
            yield finding("generic-type", name, f"all {self.messages} messages are of one type")

    def _note(self, check: str, name: str, what: str, location: str) -> None:
        key = check, name, what
        self._counts[key] += 1
        if len(self._found[key]) < _MAX_LOCATIONS:
            self._found[key].append(location)

    def _about(self, name: str, data: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for field in _STATUS:
            if isinstance(value := data.get(field), str) and len(self._states[name, field]) <= _MAX_VALUES:
                self._states[name, field].add(printable(value[:40]))
        yield from _errors(data)
        yield from _output(data)
        yield from _context(data)
        if "approval" in name and "reason" in data and not str(data["reason"] or "").strip():
            yield "approval-without-reason", "the reason is empty"
        texts = [value for value in data.values() if isinstance(value, str)]
        if len(data) == 1 and texts and len(texts[0]) > _LONG_PROSE:
            yield "prose-as-protocol", f"{next(iter(data))} is the only field, {len(texts[0])} characters long"
        if len(data) > 40:  # noqa: PLR2004 - as for types
            yield "too-many-fields", "more than 40 flat fields"
        for field in ("state_ref", "subject_ref", "diff_ref"):
            if isinstance(ref := data.get(field), dict) and "sha256" not in ref:
                yield "ref-without-hash", f"{field} has no sha256"


def _errors(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    error = data.get("error")
    if isinstance(error, str) and error:
        yield "error-without-code", "error is a text alone"
    elif isinstance(error, dict) and error and not any("code" in str(key) for key in error):
        yield "error-without-code", "error has no code"


def _output(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for field in ("output", "result", "response"):
        value = data.get(field)
        if isinstance(value, dict) and len(_API & {str(key).lower() for key in value}) > 1:
            yield "raw-output", f"{field} looks like the response of an API"
        elif value is not None and len(msgspec.json.encode(value)) > _MAX_OUTPUT_BYTES:
            yield "raw-output", f"{field} takes more than 64 KiB"


def _context(data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for field in ("context", "history", "messages", "transcript"):
        value = data.get(field)
        if value is None:
            continue
        turns = [value, *value.values()] if isinstance(value, dict) else [value]
        if any(isinstance(item, list) and len(item) > 1 and all(_is_turn(turn) for turn in item) for item in turns):
            yield "context-dumping", f"{field} has the turns of a chat"
        elif len(msgspec.json.encode(value)) > _MAX_CONTEXT_BYTES:
            yield "context-dumping", f"{field} takes more than 64 KiB"


def _is_turn(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and "content" in value
