"""I5: no commit passes a record that was not settled when it was made, and none goes back.

Owns what counts as settled: an effect in the ledger (and its answer in the log), a retry record, a dead letter, or,
with the inbox, an earlier effect under the same key or an earlier letter of the same message. Where the log has one
order of all appends it decides; else times do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from harness.history import Commit, Entry, History
from harness.messages import behaviour_of

__all__ = ["judged", "passed"]

_SLACK_MS = 5.0
_NEVER = float("inf")


def passed(history: History) -> Iterator[str]:
    """What is wrong with each commit."""
    records = _by_partition(history)
    evidence = _Evidence(history)
    highest: dict[tuple[str, int], int] = {}
    for commit in history.commits:
        place = commit.topic, commit.partition
        before = highest.get(place, -1)
        if commit.offset < before:
            yield f"the commit of {commit.topic}/{commit.partition} went back from {before} to {commit.offset}"
            continue
        highest[place] = commit.offset
        for entry in _between(records.get(place, []), before, commit.offset):
            if not evidence.settled(entry, commit):
                where = f"{commit.topic}/{commit.partition}"
                yield f"the commit of {where} to {commit.offset} passed {entry.message_id} at {entry.offset}, unsettled"


def judged(history: History) -> int:
    """How many (commit, record passed by it) have been looked at."""
    records = _by_partition(history)
    highest: dict[tuple[str, int], int] = {}
    count = 0
    for commit in history.commits:
        place = commit.topic, commit.partition
        before = highest.get(place, -1)
        highest[place] = max(before, commit.offset)
        count += len(_between(records.get(place, []), before, commit.offset))
    return count


def _by_partition(history: History) -> dict[tuple[str, int], list[Entry]]:
    records: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in history.entries:
        if entry.kind in ("message", "retry", "redrive"):
            records[entry.topic, entry.partition].append(entry)
    for entries in records.values():
        entries.sort(key=_offset)
    return records


def _between(records: list[Entry], first: int, end: int) -> list[Entry]:
    """Those from offset *first* on and before *end*; *records* are in order."""
    return records[bisect_left(records, first, key=_offset) : bisect_left(records, end, key=_offset)]


def _offset(entry: Entry) -> int:
    return entry.offset


class _Evidence:
    """When each message, and each place, was settled at the earliest."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._effects: dict[str, float] = {}
        self._keys: dict[str, float] = {}
        self._moves: dict[tuple[str, int, int], list[Entry]] = defaultdict(list)
        self._letters: dict[str, list[Entry]] = defaultdict(list)
        self._answers: dict[str, list[Entry]] = defaultdict(list)
        for run in history.runs:
            if run.kind == "effect":
                self._effects.setdefault(run.message_id, run.at_ms)
                if run.idempotency_key:
                    self._keys.setdefault(run.idempotency_key, run.at_ms)
        for entry in history.entries:
            if entry.kind in ("retry", "dlq"):
                self._moves[entry.origin].append(entry)
                if entry.kind == "dlq":
                    self._letters[entry.message_id].append(entry)
            elif entry.causation_id:
                self._answers[entry.causation_id].append(entry)

    def settled(self, entry: Entry, commit: Commit) -> bool:
        """Whether *entry* was settled when *commit* was made."""
        published = self._history.published.get(entry.message_id)
        at_ms = self._effects.get(entry.message_id, _NEVER)
        if self._history.inbox and published is not None:
            at_ms = min(at_ms, self._keys.get(published.intent.idempotency_key, _NEVER))
        if at_ms <= commit.at_ms + _SLACK_MS:
            return self._is_answered(entry, commit)
        # A retry record and a dead letter name the place of the first read; a later tier's record is settled by one
        # that came after it.
        origin = entry.place if entry.kind == "message" else entry.origin
        if any(
            _after(move, entry) and _before(move, commit) and self._is_told(move, commit)
            for move in self._moves.get(origin, ())
        ):
            return True
        # With the inbox a message dies once: what repeats it ends as it did, by a letter that names the first place.
        # A redrive runs again, so that an earlier letter says nothing of it.
        return (
            self._history.inbox
            and entry.kind == "message"
            and any(
                _before(letter, commit) and self._is_told(letter, commit)
                for letter in self._letters.get(entry.message_id, ())
            )
        )

    def _is_told(self, move: Entry, commit: Commit) -> bool:
        """Whether the requester of a message that died has been told, where there is one."""
        published = self._history.published.get(move.message_id)
        if move.kind != "dlq" or published is None or not published.intent.reply_to or published.intent.forged:
            return True
        return any(
            answer.kind == "reply" and _before(answer, commit) for answer in self._answers.get(move.message_id, ())
        )

    def _is_answered(self, entry: Entry, commit: Commit) -> bool:
        published = self._history.published.get(entry.message_id)
        if published is None or behaviour_of(published.intent.behaviour).word != "answer":
            return True
        if self._history.inbox and published.intent.idempotency_key:
            # A stored answer carries the id of the message that was handled first.
            return True
        return any(_before(answer, commit) for answer in self._answers.get(entry.message_id, ()))


def _before(entry: Entry, commit: Commit) -> bool:
    if entry.order >= 0 and commit.order >= 0:
        return entry.order <= commit.order
    return entry.at_ms <= commit.at_ms + _SLACK_MS


def _after(move: Entry, entry: Entry) -> bool:
    if move.place == entry.place:
        return False
    if move.order >= 0 and entry.order >= 0:
        return move.order > entry.order
    return move.at_ms >= entry.at_ms - _SLACK_MS
