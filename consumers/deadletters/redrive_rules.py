"""Sending a dead letter back: whether, as what, and how fast. Pure.

Owns the decision about one letter, the record that goes to `<ns>._redrive.<group>`, what tells one death of a message
from another, and the size of the pieces in which letters are sent. Doing it is `consumers.deadletters.redrive`'s.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal, TypeAlias

import msgspec

from bus.gates import EXPIRY_TOLERANCE_MS
from bus.protocol import canonical
from bus.protocol.identifiers import is_namespace
from bus.protocol.timestamps import parse_ms
from bus.topics.names import redrive_topic
from bus.transports.base import NewRecord, Record
from consumers.deadletters.letter_state import LetterState, state_of, told_of
from consumers.deadletters.letters import DeadLetter
from consumers.deadletters.records import Control, is_origin, read_control, reappend

__all__ = [
    "Count",
    "RedrivenDeath",
    "Leave",
    "RedriveOrders",
    "Pace",
    "Park",
    "RedriveCounts",
    "Result",
    "Send",
    "Twin",
    "Verdict",
    "death_noted",
    "death_of",
    "death_told",
    "decide",
    "send_back",
]

Why = Literal["redriven", "purged", "parked", "stub", "no group", "expired", "unreadable origin", "unreachable"]

_FIRST_PIECE: Final = 10
_LARGEST_PIECE: Final = 500
# How often a second a rate is kept: pieces are as small as that needs.
_BEATS: Final = 5


class RedrivenDeath(msgspec.Struct, frozen=True):
    """One death of one message in one group: two letters that tell the same one are repetitions of an append.

    *origin* alone does not say which message: a topic that was deleted and made anew has every place a second time.
    """

    origin: str
    group: str
    count: int
    content: str

    @property
    def forms(self) -> tuple[RedrivenDeath, RedrivenDeath]:
        """It, and what states of older versions tell of it, which hold no content."""
        return self, msgspec.structs.replace(self, content="")


class RedriveOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator asked for besides the selection.

    *extend_ms* is the least lifetime that letters get from now on, 0 for none.
    """

    force: bool = False
    extend_ms: int = 0


class Send(msgspec.Struct, frozen=True):
    """It goes back; *extend_until_ms* is 0 where its own lifetime stands."""

    extend_until_ms: int = 0


class Park(msgspec.Struct, frozen=True):
    """It has been sent back often enough."""


class Twin(msgspec.Struct, frozen=True):
    """Another letter tells of the same death, and has been sent back."""


class Leave(msgspec.Struct, frozen=True):
    """Nothing is done to it."""

    why: Why


Verdict: TypeAlias = Send | Park | Twin | Leave


def death_of(letter: DeadLetter) -> RedrivenDeath:
    """Which death *letter* tells of."""
    return RedrivenDeath(letter.origin, letter.group, letter.redrive_count, letter.content)


def death_noted(state: LetterState) -> RedrivenDeath:
    """Which death the letter in *state* tells of; without content in a state of an older version."""
    return RedrivenDeath(state.origin, state.group, state.count, state.content)


def death_told(record: Record, group: str) -> RedrivenDeath:
    """Which death the *record* of the redrive topic of *group* undoes."""
    control = read_control(record)
    origin = f"{control.origin_topic}/{control.origin_partition}/{control.origin_offset}"
    return RedrivenDeath(origin, group, control.redrive_count - 1, canonical.digest(record.value or b""))


def decide(
    letter: DeadLetter, known: LetterState | None, orders: RedriveOrders, *, sent_ms: int | None, now_ms: int
) -> Verdict:
    """What shall become of *letter*; *sent_ms* says when a letter of the same death was sent back, if one was."""
    state = state_of(letter, known)
    if state in ("redriven", "purged"):
        return Leave("redriven" if state == "redriven" else "purged")
    if letter.is_stub:
        return Leave("stub")
    if not is_namespace(letter.group):
        return Leave("no group")
    if not is_origin(letter.topic, letter.record.topic):
        return Leave("unreadable origin")
    # Offsets reset by hand let the same record die anew, later than what was sent back.
    if sent_ms is not None and letter.failed_ms <= sent_ms:
        return Twin()
    if state == "parked" and not orders.force:
        told = told_of(letter, known)
        return Leave("parked") if told is not None and told.state == "parked" else Park()
    return _with_lifetime(letter, orders, now_ms)


def send_back(letter: DeadLetter, namespace: str, extend_until_ms: int) -> NewRecord:
    """The record that goes to the group *letter* died in: the original bytes and headers.

    Attempts are counted from the start again, and one redrive more.
    """
    original = msgspec.structs.replace(letter.record, headers=letter.headers)
    control = Control(
        letter.topic,
        letter.partition,
        letter.offset,
        first_failed_at_ms=letter.failed_ms,
        error=letter.error.partition(":")[0][:200],
        extend_until_ms=extend_until_ms,
        redrive_count=letter.redrive_count + 1,
    )
    return reappend(original, control, redrive_topic(namespace, letter.group))


class Pace(msgspec.Struct, kw_only=True):
    """How many letters go next: as many as the rate allows.

    Where failures are watched for, few at first and more while none is seen.
    """

    rate: float | None = None
    watchful: bool = False
    sent: int = 0
    failures: int = 0
    step: int = _FIRST_PIECE

    def next_piece(self) -> int:
        """At least one."""
        size = self.step if self.watchful else _LARGEST_PIECE
        return size if self.rate is None else max(1, min(size, int(self.rate / _BEATS)))

    def due_s(self) -> float:
        """How long after the start the next piece may go at the earliest."""
        return self.sent / self.rate if self.rate else 0.0

    def passed(self, count: int, failures: int) -> None:
        """A piece of *count* went, and *failures* letters of this redrive have died again so far."""
        self.sent += count
        self.step = _FIRST_PIECE if failures > self.failures else min(_LARGEST_PIECE, self.step * 2)
        self.failures = failures


def _with_lifetime(letter: DeadLetter, orders: RedriveOrders, now_ms: int) -> Verdict:
    expires_ms = parse_ms(letter.message.routing.expires_at) if letter.message is not None else None
    if expires_ms is None:
        return Send()
    until_ms = now_ms + orders.extend_ms
    if orders.extend_ms and expires_ms < until_ms:
        return Send(until_ms)
    return Leave("expired") if now_ms > expires_ms + EXPIRY_TOLERANCE_MS else Send()


class Count(msgspec.Struct, frozen=True):
    """What letters of a plan have in common: what becomes of them, and what they are.

    They are sent, parked or twins (`send`, `park`, `twin`), or left for a reason.
    """

    verdict: str
    reason: str
    message_type: str
    group: str


class RedriveCounts(msgspec.Struct, kw_only=True):
    """What a redrive would do now, in numbers."""

    counts: Counter[Count] = msgspec.field(default_factory=Counter)
    unresolved: int = 0
    """Letters that a run which was cut off was about to send: whether it did is found out when this one runs."""
    unended: list[str] = msgspec.field(default_factory=list)
    """Runs of which no end is written down."""
    unreachable: dict[str, str] = {}
    """By group, why it can't be sent anything back."""

    def total(self, *verdicts: str) -> int:
        """How many letters there are with one of *verdicts*."""
        return sum(number for count, number in self.counts.items() if count.verdict in verdicts)

    @property
    def groups(self) -> list[str]:
        """To whom letters would go."""
        return sorted({count.group for count in self.counts if count.verdict == "send"})


class Result(msgspec.Struct, kw_only=True):
    """What a redrive did.

    *outcome* is `finished`, `interrupted`, `stopped` (too many died again), `unread`, `withdrawn` (another is at work)
    or `failed`.
    """

    run: str
    outcome: str = "failed"
    sent: int = 0
    parked: int = 0
    twins: int = 0
    refused: int = 0
    failures: int = 0
    found: int = 0
    """Letters that an earlier run had sent without being able to say so."""
    left: int = 0
    """Letters of groups that can't be sent anything back."""
    unreachable: dict[str, str] = {}
    """By group, why."""
    rival: str = ""
    """The run for which this one withdrew."""
