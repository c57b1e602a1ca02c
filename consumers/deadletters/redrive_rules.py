"""Redrive rules: whether a dead letter is sent back, as what record, and how fast. Pure.

Owns the decision about one letter, the record for `<ns>._redrive.<group>`, the identity of one death of a message, and
the size of batches. Carrying it out is in `consumers.deadletters.redrive`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, Literal, TypeAlias

import msgspec

from bus.gates import EXPIRY_TOLERANCE_MS
from bus.protocol import canonical
from bus.protocol.identifiers import is_namespace
from bus.protocol.reasons import DECIDED_BY_BYTES
from bus.protocol.timestamps import parse_ms
from bus.topics.names import redrive_topic
from bus.transports.base import NewRecord, Record
from consumers.deadletters.letter_state import LetterState, known_state_of, state_of
from consumers.deadletters.letters import DeadLetter, LetterFacts
from consumers.deadletters.records import Control, is_origin, read_control, reappend

__all__ = [
    "RedriveCount",
    "RedrivenDeath",
    "Leave",
    "RedriveOrders",
    "RateLimit",
    "Park",
    "RedriveCounts",
    "RedriveResult",
    "Send",
    "StepAnswer",
    "Twin",
    "RedriveVerdict",
    "death_noted",
    "death_of",
    "death_told",
    "decide_redrive",
    "send_back",
]

Why = Literal[
    "redriven",
    "dismissed",
    "parked",
    "stub",
    "no group",
    "expired",
    "unreadable origin",
    "unreachable",
    "decided by its bytes",
]

_FIRST_PIECE: Final = 10
_LARGEST_PIECE: Final = 500
# How often a second a rate is kept: pieces are as small as that needs.
_BEATS: Final = 5


class RedrivenDeath(msgspec.Struct, frozen=True):
    """One death of one message in one group; two letters of the same death repeat one append.

    *origin* alone does not identify the message: in a recreated topic every location occurs a second time.
    """

    origin: str
    group: str
    count: int
    content: str

    @property
    def forms(self) -> tuple[RedrivenDeath, RedrivenDeath]:
        """This death, and its form in states of older versions, without content."""
        return self, msgspec.structs.replace(self, content="")


class RedriveOrders(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a redrive besides the selection.

    *extend_ms* is the least lifetime of letters from now on, 0 for none.
    """

    force: bool = False
    extend_ms: int = 0
    answer: StepAnswer | None = None


class StepAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator says about the step in doubt of one letter."""

    answer: Literal["done", "again"]
    step: str | None = None
    """Its id; None: the only one."""
    result: Any = None
    """With done: what it returned, as a JSON value."""


class Send(msgspec.Struct, frozen=True):
    """Redrive the letter; *extend_until_ms* is 0 if its own lifetime is unchanged."""

    extend_until_ms: int = 0


class Park(msgspec.Struct, frozen=True):
    """Park it: it was sent back often enough."""


class Twin(msgspec.Struct, frozen=True):
    """Another letter of the same death was redriven."""


class Leave(msgspec.Struct, frozen=True):
    """Leave it as it is."""

    why: Why


RedriveVerdict: TypeAlias = Send | Park | Twin | Leave


def death_of(letter: LetterFacts) -> RedrivenDeath:
    """Return the death that *letter* records."""
    return RedrivenDeath(letter.origin, letter.group, letter.redrive_count, letter.content)


def death_noted(state: LetterState) -> RedrivenDeath:
    """Return the death of the letter in *state*; without content in a state of an older version."""
    return RedrivenDeath(state.origin, state.group, state.count, state.content)


def death_told(record: Record, group: str) -> RedrivenDeath:
    """Return the death that *record*, of the redrive topic of *group*, undoes."""
    control = read_control(record)
    origin = f"{control.origin_topic}/{control.origin_partition}/{control.origin_offset}"
    return RedrivenDeath(origin, group, control.redrive_count - 1, canonical.digest(record.value or b""))


def decide_redrive(
    letter: DeadLetter, known: LetterState | None, orders: RedriveOrders, *, sent_ms: int | None, now_ms: int
) -> RedriveVerdict:
    """Decide about *letter*; *sent_ms* is when a letter of the same death was redriven, None for never."""
    state = state_of(letter, known)
    if state in ("redriven", "dismissed"):
        return Leave("redriven" if state == "redriven" else "dismissed")
    if letter.is_stub:
        return Leave("stub")
    if not is_namespace(letter.group):
        return Leave("no group")
    if not is_origin(letter.topic, letter.record.topic):
        return Leave("unreadable origin")
    if letter.reason in DECIDED_BY_BYTES and not orders.force:
        return Leave("decided by its bytes")
    # Offsets reset by hand let the same record die again, later than what was sent back.
    if sent_ms is not None and letter.failed_ms <= sent_ms:
        return Twin()
    if state == "parked" and not orders.force:
        known_state = known_state_of(letter, known)
        return Leave("parked") if known_state is not None and known_state.state == "parked" else Park()
    return _with_lifetime(letter, orders, now_ms)


def send_back(letter: DeadLetter, namespace: str, extend_until_ms: int, order: bytes = b"") -> NewRecord:
    """Return the record for the group that *letter* died in: the original bytes and headers.

    Attempts start again at one, and the redrive count grows by one. *order* is the sealed order that allows an extended
    lifetime.
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
        order=order,
    )
    return reappend(original, control, redrive_topic(namespace, letter.group))


class RateLimit(msgspec.Struct, kw_only=True):
    """The number of letters to send next, as the rate allows.

    With *watchful* it starts small, grows while no new failure is seen, and starts again after one.
    """

    rate: float | None = None
    watchful: bool = False
    sent: int = 0
    failures: int = 0
    step: int = _FIRST_PIECE

    def next_piece(self) -> int:
        """Return the size of the next piece, at least one."""
        size = self.step if self.watchful else _LARGEST_PIECE
        return size if self.rate is None else max(1, min(size, int(self.rate / _BEATS)))

    def due_s(self) -> float:
        """Return the earliest time of the next piece, in seconds after the start."""
        return self.sent / self.rate if self.rate else 0.0

    def passed(self, count: int, failures: int) -> None:
        """Record that *count* letters were sent, and that *failures* of this redrive have died again so far."""
        self.sent += count
        self.step = _FIRST_PIECE if failures > self.failures else min(_LARGEST_PIECE, self.step * 2)
        self.failures = failures


def _with_lifetime(letter: DeadLetter, orders: RedriveOrders, now_ms: int) -> RedriveVerdict:
    expires_ms = parse_ms(letter.message.routing.expires_at) if letter.message is not None else None
    if expires_ms is None:
        return Send()
    until_ms = now_ms + orders.extend_ms
    if orders.extend_ms and expires_ms < until_ms:
        return Send(until_ms)
    return Leave("expired") if now_ms > expires_ms + EXPIRY_TOLERANCE_MS else Send()


class RedriveCount(msgspec.Struct, frozen=True):
    """A count of letters in a plan with the same verdict, type, reason and group.

    The verdict is `send`, `park`, `twin`, or the reason why they are left alone.
    """

    verdict: str
    reason: str
    message_type: str
    group: str


class RedriveCounts(msgspec.Struct, kw_only=True):
    """The effect of a redrive if it ran now, in numbers."""

    counts: Counter[RedriveCount] = msgspec.field(default_factory=Counter)
    unresolved: int = 0
    """Letters that a run was about to send when it was cut off; this run finds out whether it did."""
    unended: list[str] = msgspec.field(default_factory=list)
    """Runs without a noted end."""
    unreachable: dict[str, str] = {}
    """By group, why no dead letter can be redriven to it."""

    def total(self, *verdicts: str) -> int:
        """Return how many letters have one of *verdicts*."""
        return sum(number for count, number in self.counts.items() if count.verdict in verdicts)

    @property
    def meant(self) -> int:
        """The number of letters that would change."""
        return self.total("send", "park", "twin")

    @property
    def groups(self) -> list[str]:
        """The groups to which letters would go."""
        return sorted({count.group for count in self.counts if count.verdict == "send"})


class RedriveResult(msgspec.Struct, kw_only=True):
    """The result of a redrive.

    *outcome* is `finished`, `interrupted`, `stopped` (too many died again), `unread`, `withdrawn` (another run works)
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
    """Letters that an earlier run had sent without noting it."""
    left: int = 0
    """Letters of groups whose redrive topic is missing or not permitted."""
    unreachable: dict[str, str] = {}
    """By group, why."""
    is_settled: bool = False
    """Whether the groups have settled all redriven messages: known only if the run waits for it."""
    rival: str = ""
    """The run for which this one withdrew."""
