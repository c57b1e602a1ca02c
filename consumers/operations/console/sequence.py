"""Sequence: a conversation as lanes of its parties over time: arrows, what each was doing, and what became of it. Pure.

The timeline tells sender, recipient, cause and marks of each message. A party works from the message that it got until
the last one that it made of it. Texts of messages are untrusted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from bus.protocol.timestamps import parse_ms
from consumers.operations.audit.conversations import about_of
from consumers.operations.audit.spending import spent_in
from consumers.operations.console.pictures import Arrow, LaneWork, TimeBar
from consumers.operations.lineage.timeline import Timeline, TimelineEvent

__all__ = ["StateMark", "PartyTime", "ConversationSequence", "SequenceRow", "gist_of", "sequence_of"]

_MAX_LANES: Final = 8
_OTHERS: Final = "others"
_MAX_GIST: Final = 160
_LEAST_MS: Final = 50
_AGAIN_S: Final = 1.0
"""A message that was handled sooner after it was put off did not try for long."""
_ASKS, _CLOSES = "approval.request", "approval.closed"
_QUESTION, _BESIDE = "task.clarification", frozenset({"approval", "status", "wait", "agent", "usage"})


class StateMark(msgspec.Struct, frozen=True):
    """What became of a message, as a state and a word."""

    kind: str
    word: str


class SequenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a sequence."""

    event: TimelineEvent
    at_ms: int
    after_s: float
    """Since the first message."""
    gist: str
    marks: tuple[StateMark, ...]
    took_s: float | None
    """Until the last message that the recipient made of it; None: it made none."""
    tokens: float
    arrow: Arrow
    targets: tuple[str, ...]
    """The parties that it went to, as far as that is known."""


class PartyTime(msgspec.Struct, frozen=True, kw_only=True):
    """When one party worked, tried again or waited."""

    name: str
    bars: tuple[TimeBar, ...]
    description: str


class ConversationSequence(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as a drawing."""

    lanes: tuple[str, ...]
    rows: tuple[SequenceRow, ...]
    work: tuple[LaneWork, ...]
    times: tuple[PartyTime, ...]
    begin_ms: int
    end_ms: int
    dead: int
    refused: int
    waiting: int
    """Messages that are not settled yet."""
    held: TimelineEvent | None
    """The request for an approval that is open."""
    asked: TimelineEvent | None
    """A worker's question that nobody has answered."""
    tokens: float
    cost: float
    work_s: float
    """How long somebody was at work; what several did at once counts once."""

    @property
    def state(self) -> StateMark:
        """What the conversation does now."""
        if self.held is not None:
            return StateMark("held", "waits for a person")
        if self.asked is not None:
            return StateMark("held", "waits for an answer")
        if self.dead:
            return StateMark("dead", "has a dead letter" if self.dead == 1 else f"has {self.dead} dead letters")
        if self.refused:
            return StateMark("dead", "has a message that does not verify")
        if self.waiting:
            return StateMark("retry", "waits")
        return StateMark("ok", "nothing waits")


def sequence_of(
    timeline: Timeline,
    data: Mapping[str, Any],
    now_ms: int,
    *,
    open_dead: Collection[str] | None = None,
    waits: Mapping[str, str] = MappingProxyType({}),
    offers: Collection[str] = (),
) -> ConversationSequence:
    """Return the drawing of *timeline*; *data* are the payloads by message id, with secrets masked.

    *open_dead* are the ids whose dead letters are open, None: not looked at; *waits* tells by id why a message is not
    settled yet; *offers* are the ids of requests and offers, in which a cost is not spent yet.
    """
    drawing = _Drawing(timeline.events, now_ms)
    for event in timeline.events:
        marks = _marks(event, is_held=drawing.held is event, open_dead=open_dead)
        if event.message_id in waits:
            marks = (*marks, StateMark("retry", "waits"))
        drawing.add(event, marks, data.get(event.message_id), is_offer=event.message_id in offers)
    return drawing.finished(sum(event.message_id in waits for event in timeline.events))


class _Drawing:
    """A sequence while its rows are added in the order of time."""

    def __init__(self, events: Sequence[TimelineEvent], now_ms: int) -> None:
        self.held = _held(events)
        self._events = events
        self._moments = {event.number: parse_ms(event.timestamp) or now_ms for event in events}
        self._begin_ms = min(self._moments.values(), default=now_ms)
        ends_ms = [*self._moments.values(), *([now_ms] if self.held is not None else [])]
        self._end_ms = max(max(ends_ms, default=now_ms), self._begin_ms + 1)
        self._made: dict[int, list[TimelineEvent]] = {}
        """By number of a cause, what was made of it."""
        for event in events:
            self._made.setdefault(event.cause, []).append(event)
        self._targets = {event.number: _targets(event, self._made.get(event.number, ())) for event in events}
        self._lanes = _lanes(events, self._targets)
        self._numbers = {name: number for number, name in enumerate(self._lanes)}
        self._rows: list[SequenceRow] = []
        self._work: list[LaneWork] = []
        self._bars: dict[str, list[TimeBar]] = {}
        self._dead = self._refused = 0
        self._tokens = self._cost = 0.0
        self._worked: list[tuple[int, int]] = []
        """When somebody was at work."""

    def add(self, event: TimelineEvent, marks: tuple[StateMark, ...], data: Any, *, is_offer: bool) -> None:
        """Add the row of *event*."""
        is_dead = any(each.word == "dead" for each in marks)
        is_refused = any(each.word.startswith("refused") for each in marks)
        self._dead, self._refused = self._dead + is_dead, self._refused + is_refused
        tokens, cost = (0.0, 0.0) if is_offer else _spent(data)
        self._tokens, self._cost = self._tokens + tokens, self._cost + cost
        targets, at_ms = self._targets[event.number], self._moments[event.number]
        spent_s = [found for target in targets if (found := self._add_work(event, marks, target)) is not None]
        if is_dead or is_refused:
            for target in targets or (event.sender,):
                self._bar(target, "ill", at_ms, at_ms)
        if self.held is event:
            self._work.append(LaneWork(self._lane(event.sender), event.number, self._events[-1].number, "wait"))
            self._bar(event.sender, "idle", at_ms, self._end_ms)
        kind = "forged" if is_refused else "dead" if is_dead else "hold" if self.held is event else ""
        source = self._lane(event.sender)
        drawn = dict.fromkeys(self._lane(each) for each in targets)
        self._rows.append(
            SequenceRow(
                event=event,
                at_ms=at_ms,
                after_s=(at_ms - self._begin_ms) / 1000,
                gist=gist_of(data),
                marks=marks,
                took_s=max(spent_s, default=None),
                tokens=tokens,
                arrow=Arrow(source, tuple(each for each in drawn if each != source), kind),
                targets=targets,
            )
        )

    def finished(self, waiting: int) -> ConversationSequence:
        """Return the drawing."""
        return ConversationSequence(
            lanes=self._lanes,
            rows=tuple(self._rows),
            work=tuple(self._work),
            times=tuple(
                PartyTime(name=name, bars=tuple(bars), description=_described(bars))
                for name in self._lanes
                if (bars := self._bars.get(name))
            ),
            begin_ms=self._begin_ms,
            end_ms=self._end_ms,
            dead=self._dead,
            refused=self._refused,
            waiting=waiting,
            held=self.held,
            asked=_unanswered(self._events),
            tokens=self._tokens,
            cost=self._cost,
            work_s=_covered_s(self._worked),
        )

    def _add_work(self, event: TimelineEvent, marks: Sequence[StateMark], target: str) -> float | None:
        """Draw what *target* did with *event*; return for how long, None where it made nothing of it."""
        answers = [each for each in self._made.get(event.number, ()) if each.sender == target]
        if not answers:
            return None
        begin_ms, last = self._moments[event.number], max(answers, key=lambda each: self._moments[each.number])
        end_ms = self._moments[last.number]
        seconds = max(0.0, (end_ms - begin_ms) / 1000)
        # A person decides; that is no work of the conversation.
        is_person = event.message_type == _ASKS
        if not is_person:
            self._worked.append((begin_ms, end_ms))
        self._work.append(LaneWork(self._lane(target), event.number, last.number, "wait" if is_person else "work"))
        is_again = any(each.word == "tried again" for each in marks) and seconds >= _AGAIN_S
        kind = "idle" if is_person else "again" if is_again else "do"
        self._bar(target, kind, begin_ms, max(end_ms, begin_ms + _LEAST_MS))
        return seconds

    def _bar(self, party: str, kind: str, begin_ms: int, end_ms: int) -> None:
        whole = self._end_ms - self._begin_ms
        x, width = 100 * (begin_ms - self._begin_ms) / whole, 100 * (end_ms - begin_ms) / whole
        self._bars.setdefault(party, []).append(TimeBar(kind, x, width))

    def _lane(self, name: str) -> int:
        return self._numbers.get(name, len(self._lanes) - 1)


def _covered_s(spans: Iterable[tuple[int, int]]) -> float:
    """Return the seconds that *spans* of milliseconds cover together."""
    covered_ms, until_ms = 0, 0
    for begin_ms, end_ms in sorted(spans):
        covered_ms += max(0, end_ms - max(begin_ms, until_ms))
        until_ms = max(until_ms, end_ms)
    return covered_ms / 1000


def gist_of(data: Any) -> str:
    """Return what a payload is about, in a line: as the audit names its conversation, else all of it as JSON, cut."""
    if found := about_of(data):
        return found
    return "" if data is None or data == {} else msgspec.json.encode(data).decode()[:_MAX_GIST]


def _targets(event: TimelineEvent, effects: Sequence[TimelineEvent]) -> tuple[str, ...]:
    """Return the parties that took *event*: the recipient it names, and whoever made another message of it."""
    named = (event.recipient,) if event.recipient and not event.recipient.startswith("role:") else ()
    senders = (each.sender for each in effects if each.sender != event.sender or event.recipient == event.sender)
    return tuple(dict.fromkeys((*named, *senders)))


def _lanes(events: Sequence[TimelineEvent], targets: Mapping[int, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the parties in the order in which they appear; of many, those with most messages."""
    counts, order = Counter[str](), dict[str, None]()
    for event in events:
        for name in (event.sender, *targets[event.number]):
            counts[name] += 1
            order[name] = None
    if len(order) <= _MAX_LANES:
        return tuple(order) or (_OTHERS,)
    kept = {name for name, _ in counts.most_common(_MAX_LANES - 1)}
    return (*(name for name in order if name in kept), _OTHERS)


def _held(events: Sequence[TimelineEvent]) -> TimelineEvent | None:
    """Return the newest request for an approval that no later message closes."""
    asks = [event for event in events if event.message_type == _ASKS]
    closes = [event for event in events if event.message_type == _CLOSES]
    for ask in reversed(asks):
        if not any(close.cause == ask.number or close.number > ask.number for close in closes):
            return ask
    return None


def _unanswered(events: Sequence[TimelineEvent]) -> TimelineEvent | None:
    """Return the newest question of a worker, where nothing but what is said on the way came after it."""
    for event in reversed(events):
        if event.message_type == _QUESTION:
            return event
        if event.message_type.partition(".")[0] not in _BESIDE:
            return None
    return None


def _marks(event: TimelineEvent, *, is_held: bool, open_dead: Collection[str] | None) -> tuple[StateMark, ...]:
    found = dict[str, StateMark]()
    for text in event.marks:
        head, _, rest = text.partition(" ")
        if head == "dead" and (open_dead is None or event.message_id in open_dead):
            mark = StateMark("dead", "dead")
        elif head == "dead":
            # Its dead letter was sent back or dismissed.
            mark = StateMark("off", "had died")
        elif head.startswith("wrong"):
            mark = StateMark("dead", f"refused: {rest}"[:80])
        elif head == "retried":
            mark = StateMark("retry", "tried again")
        elif head == "redriven":
            mark = StateMark("retry", "sent again")
        else:
            mark = StateMark("hint", text[:80])
        found[mark.word] = mark
    if is_held:
        found["open"] = StateMark("held", "open")
    return tuple(found.values())


def _spent(data: Any) -> tuple[float, float]:
    """Return the tokens and the cost that a payload reports."""
    if not isinstance(data, dict):
        return 0.0, 0.0
    usage = data.get("usage")
    spent = spent_in(data | usage if isinstance(usage, dict) else data)
    return float(spent.tokens_in + spent.tokens_out), spent.cost


def _described(bars: Sequence[TimeBar]) -> str:
    words = {
        "do": "at work",
        "again": "tried again",
        "ill": "something died or was refused",
        "idle": "waits for a person",
    }
    counts = Counter(bar.kind for bar in bars)
    return ", ".join(f"{words[kind]} {count} times" if count > 1 else words[kind] for kind, count in counts.items())
