"""Judging a history by the invariants of the fault tests.

Owns what each invariant means. Pure: it reads no file and no clock, and each rule has a history in `test_checker` that
violates it.

    I1  every accepted message ends handled, dead or expired, as its kind must end, and lies where its receipt says I2
    nothing is handled, answered or in the log that nobody published I3  with the inbox, effects per idempotency key <=
    1, but for those whose worker died between effect and result; in its transaction always 1 I4  no message is both
    handled and dead, unless an operator sent it back I5  no commit passes an unsettled record, none goes back I6
    effects of one key happen in the order of the log: in strict types always, in ordered ones where nothing left its
    lane I7  no handler sees what is expired or was altered I8  the lag is gone within the time for healing SAME
    what goes under one id always has the same bytes ANSWERS   with the inbox, repetitions of a message are answered
    with the very same bytes; what is handled is answered REJECTED  what was refused at the door is not in the log EARLY
    no retry runs before its time JOURNAL   what an operator sent back is written down to the end, and went back once
    EXIT      a worker that was asked to stop says truthfully whether it cut a handler
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import msgspec
from harness import effects, endings, redrives, settling
from harness.history import History
from harness.messages import behaviour_of

__all__ = ["RULES", "Judgement", "Violation", "judge"]

_SHOWN = 3


class Violation(msgspec.Struct, frozen=True):
    """One breach: which invariant, and what it is about."""

    invariant: str
    text: str


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """All breaches, and the counts that the tables show."""

    violations: tuple[Violation, ...]
    counts: dict[str, int]


Rule = Callable[[History], Iterator[str]]


def judge(history: History) -> Judgement:
    """Judge *history* by every rule."""
    found = []
    for name, rule in RULES.items():
        texts = list(rule(history))
        found += [Violation(name, text) for text in texts[:_SHOWN]]
        if len(texts) > _SHOWN:
            found.append(Violation(name, f"and {len(texts) - _SHOWN} more"))
    return Judgement(violations=tuple(found), counts=_counts(history))


def healed(history: History) -> Iterator[str]:
    """I8."""
    if history.lag is None or history.lag > 0:
        count = "nobody knows how many" if history.lag is None else history.lag
        yield f"{count} records were not settled when the time for healing was over"


def same_bytes(history: History) -> Iterator[str]:
    """SAME."""
    contents: dict[str, set[str]] = defaultdict(set)
    for entry in history.entries:
        if "sb-dlq-stub" not in entry.headers:
            contents[entry.message_id].add(entry.content)
    for name, found in contents.items():
        if len(found) > 1:
            yield f"{len(found)} different contents go under the id {name}"


def answered(history: History) -> Iterator[str]:
    """ANSWERS."""
    answers: dict[str, set[str]] = defaultdict(set)
    said: dict[str, set[str]] = defaultdict(set)
    for entry in history.entries:
        if entry.kind in ("message", "reply") and entry.causation_id:
            answers[entry.causation_id].add(entry.content)
            said[entry.causation_id].add(entry.said)
    by_key: dict[str, set[str]] = defaultdict(set)
    handled = {run.message_id for run in history.runs if run.kind == "effect"}
    answered_keys = {
        published.intent.idempotency_key for name, published in history.published.items() if name in answers
    }
    for name, published in history.published.items():
        intent = published.intent
        if behaviour_of(intent.behaviour).word != "answer" or intent.forged:
            continue
        if (
            name in handled
            and name not in answers
            and not (intent.idempotency_key and intent.idempotency_key in answered_keys)
        ):
            yield f"{name} was handled and its answer is nowhere"
        by_key[intent.idempotency_key or name] |= said.get(name, set())
        if history.inbox and len(found := answers.get(name, set())) > 1:
            yield f"{name} was answered with {len(found)} different messages"
    if history.inbox:
        # Another request under the same key is answered to its own id, with what the first one was told.
        for key, found in by_key.items():
            if len(found) > 1:
                yield f"key {key} was answered with {len(found)} different contents"


RULES: dict[str, Rule] = {
    "I1": endings.ends,
    "I2": endings.known,
    "I3": effects.once,
    "I4": endings.one_end,
    "I5": settling.passed,
    "I6": effects.in_order,
    "I7": effects.fit_to_see,
    "I8": healed,
    "SAME": same_bytes,
    "ANSWERS": answered,
    "REJECTED": endings.refused,
    "EARLY": effects.in_time,
    "JOURNAL": redrives.complete,
    "EXIT": effects.truthful,
}


def _counts(history: History) -> dict[str, int]:
    published = list(history.published.values())
    handled = Counter(run.message_id for run in history.runs if run.kind == "effect")
    by_key = Counter(run.idempotency_key for run in history.runs if run.kind == "effect" and run.idempotency_key)
    return {
        "accepted": sum(each.accepted for each in published),
        "unknown": sum(not each.accepted and not each.certainly_absent for each in published),
        "rejected": sum(each.certainly_absent for each in published),
        "handled": len(handled),
        "dead": len(endings.dead(history)),
        "repeated": handled.total() - len(handled),
        "redone": sum(count - 1 for count in by_key.values()),
        "double effects": sum(1 for _ in effects.once(history)),
        "lost": sum("has no end" in text or "where nothing lies" in text for text in endings.ends(history)),
        "phantom": sum(1 for _ in endings.known(history)),
        "order violations": sum(1 for _ in effects.in_order(history)),
        "commits": len(history.commits),
        "judged": settling.judged(history),
    }
