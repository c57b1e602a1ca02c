"""A checker that cannot fail proves nothing: for each rule a history that violates it, and one next to it that does
not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from harness.checker import RULES, judge
from harness.history import Commit, Entry, History, Life, Note
from harness.journal import Intent, Outcome, Published
from harness.ledger import Run

TOPIC = "faults.fault.task"
RETRY = "faults._retry.fault-test.2s"


def intent(name: str, **changes: Any) -> Intent:
    fields = {
        "message_id": name,
        "message_type": "fault.task",
        "idempotency_key": f"key-{name}",
        "lane": "k1",
        "number": 1,
        "behaviour": "ok",
        "value": "",
        "content": f"bytes-{name}",
        "expires_ms": 100_000,
        "at_ms": 0.0,
    }
    return Intent(**{**fields, **changes})


def published(name: str, offset: int, outcome: str = "accepted", **changes: Any) -> Published:
    return Published(
        intent(name, **changes), (Outcome(message_id=name, outcome=outcome, topic=TOPIC, partition=0, offset=offset),)
    )


def entry(name: str, offset: int, **changes: Any) -> Entry:
    fields = {
        "topic": TOPIC,
        "kind": "message",
        "partition": 0,
        "offset": offset,
        "at_ms": 1000.0 + offset,
        "message_id": name,
        "content": f"bytes-{name}",
    }
    return Entry(**{**fields, **changes})


def letter(name: str, offset: int, reason: str, at_ms: float = 2000.0) -> Entry:
    headers = {
        "__dlq.errors.topic": TOPIC,
        "__dlq.errors.partition": "0",
        "__dlq.errors.offset": str(offset),
        "sb-dlq-reason": reason,
    }
    return entry(name, 50 + offset, topic=f"{TOPIC}.dlq", kind="dlq", at_ms=at_ms, headers=headers)


def run(order: int, name: str, **changes: Any) -> Run:
    fields = {
        "order": order,
        "at_ms": 1400.0 + 100 * order,
        "worker": "w1",
        "pid": 1,
        "kind": "effect",
        "message_type": "fault.task",
        "message_id": name,
        "idempotency_key": f"key-{name}",
        "lane": "k1",
        "number": 1,
        "attempt": 1,
        "expires_ms": 100_000,
        "content": f"bytes-{name}",
    }
    return Run(**{**fields, **changes})


def commit(offset: int, at_ms: float = 3000.0, **changes: Any) -> Commit:
    return Commit(**{"topic": TOPIC, "partition": 0, "offset": offset, "at_ms": at_ms, **changes})


def history(
    messages: Sequence[Published] = (),
    entries: Sequence[Entry] = (),
    runs: Sequence[Run] = (),
    commits: Sequence[Commit] = (),
    **more: Any,
) -> History:
    known = {each.intent.message_id: each for each in messages}
    return History(
        published=known, entries=entries, runs=runs, commits=commits, ordered=frozenset({"fault.task"}), **more
    )


GOOD = history(
    [published("a", 0), published("b", 1), published("c", 2, behaviour="reject"), published("d", 3, "unknown")],
    [entry("a", 0), entry("b", 1), entry("c", 2), letter("c", 2, "rejected")],
    [run(1, "a"), run(2, "b")],
    [commit(1, 1501.0), commit(3, 3000.0)],
)


def broken(invariants: History) -> set[str]:
    return {violation.invariant for violation in judge(invariants).violations}


def changed(**changes: Any) -> History:
    return msgspec.structs.replace(GOOD, **changes)


def with_(name: str, more: Sequence[Any]) -> History:
    return changed(**{name: [*getattr(GOOD, name), *more]})


def publishing(*more: Published, entries: Sequence[Entry] = (), runs: Sequence[Run] = (), **changes: Any) -> History:
    return changed(
        published=dict(GOOD.published) | {each.intent.message_id: each for each in more},
        entries=[*GOOD.entries, *entries],
        runs=[*GOOD.runs, *runs],
        **changes,
    )


ANSWER = [
    published("q", 4, behaviour="answer", idempotency_key="kq"),
    published("r", 5, behaviour="answer", idempotency_key="kq"),
]
ASKED = [entry("q", 4), entry("r", 5)]


def answer(offset: int, cause: str, content: str, said: str = "the same") -> Entry:
    topic = "faults.fault.answer"
    return entry(f"answer-{content}", offset, topic=topic, causation_id=cause, content=content, said=said)


def back(name: str, offset: int, at: int) -> Entry:
    headers = {
        "sb-origin-topic": TOPIC,
        "sb-origin-partition": "0",
        "sb-origin-offset": str(offset),
        "sb-redrive-count": "1",
    }
    return entry(name, at, topic="faults._redrive.fault-test", kind="redrive", headers=headers)


def written(offset: int, *actions: str) -> Note:
    told = {
        "state": "redriven" if actions[-1:] == ("redriven",) else "open",
        "steps": [{"action": action} for action in actions],
    }
    return Note(topic="faults._deadletters", key=f"{TOPIC}.dlq/0/{50 + offset}", told=told)


def sent_back(*actions: str, times: int = 1, ended: bool = True) -> History:
    """The letter of `c` goes back, and *actions* are the steps that are written down about it."""
    events = ["redrive.started", *(["redrive.ended"] if ended else [])]
    return changed(
        entries=[*GOOD.entries, *(back("c", 2, at) for at in range(times))],
        runs=[*GOOD.runs, run(3, "c")],
        published=dict(GOOD.published) | {"c": published("c", 2, behaviour="until")},
        redriven=True,
        notes=[
            *(Note(topic="faults._audit", key="r", told={"event": event, "run": "r"}) for event in events),
            *([written(2, *actions)] if actions else []),
        ],
    )


VIOLATING = {
    "I1: an accepted message has no end": ("I1", changed(runs=[run(1, "a")])),
    "I1: a receipt names a place where nothing lies": (
        "I1",
        publishing(published("x", 70), entries=[entry("x", 71)], runs=[run(3, "x")]),
    ),
    "I1: a sound message died": (
        "I1",
        changed(runs=[run(2, "b")], entries=[*GOOD.entries, letter("a", 0, "retries_exhausted")]),
    ),
    "I1: what had to be refused was handled": (
        "I1",
        publishing(published("x", 4, behaviour="reject"), entries=[entry("x", 4)], runs=[run(3, "x")]),
    ),
    "I1: an unknown one that is in the log has no end": ("I1", with_("entries", [entry("d", 3)])),
    "I2: a message that nobody published is handled": ("I2", with_("runs", [run(3, "ghost")])),
    "I2: a message that nobody published is in the log": ("I2", with_("entries", [entry("ghost", 9)])),
    "I3: two effects under one key": ("I3", changed(runs=[*GOOD.runs, run(3, "a")], inbox=True)),
    "I3: two effects in the inbox's own transaction": ("I3", changed(payments={"key-a": 2}, inbox=True)),
    "I3: none in the inbox's own transaction": (
        "I3",
        publishing(published("p", 4, behaviour="pay"), entries=[entry("p", 4)], runs=[run(3, "p")], inbox=True),
    ),
    "I4: handled and dead": ("I4", with_("entries", [letter("b", 1, "rejected")])),
    "I5: a commit passes a message before its effect": ("I5", changed(commits=[commit(2, 1501.0)])),
    "I5: a commit passes a message before its dead letter": ("I5", changed(commits=[commit(3, 1900.0)])),
    "I5: a commit goes back": ("I5", with_("commits", [commit(1)])),
    "I5: the order of the log decides where there is one": (
        "I5",
        changed(
            entries=[
                entry("c", 2, order=1),
                msgspec.structs.replace(letter("c", 2, "rejected", at_ms=0.0), order=9),
                entry("a", 0),
                entry("b", 1),
            ],
            commits=[commit(3, order=8)],
        ),
    ),
    "I5: a retry tier is passed before its message has moved on": (
        "I5",
        publishing(
            published("t", 4, behaviour="tier:2"),
            entries=[
                entry("t", 4),
                entry(
                    "t",
                    7,
                    topic=RETRY,
                    kind="retry",
                    at_ms=1600.0,
                    headers={"sb-origin-topic": TOPIC, "sb-origin-partition": "0", "sb-origin-offset": "4"},
                ),
            ],
            runs=[run(3, "t", kind="failed", at_ms=1590.0), run(4, "t", attempt=2, at_ms=9000.0)],
            commits=[*GOOD.commits, commit(8, 5000.0, topic=RETRY)],
        ),
    ),
    "I5: an answer was not in the log yet": (
        "I5",
        publishing(
            *ANSWER[:1],
            entries=[entry("q", 4), answer(1, "q", "x")],
            runs=[run(3, "q", at_ms=900.0)],
            commits=[commit(5, 1000.5)],
        ),
    ),
    "I5: without the inbox a repetition of the dead needs its own letter": (
        "I5",
        changed(entries=[*GOOD.entries, entry("c", 3)], commits=[*GOOD.commits, commit(4, 9000.0)]),
    ),
    "I6: effects of a key in the wrong order": ("I6", changed(runs=[run(1, "b"), run(2, "a")])),
    "I7: an expired message is handled": ("I7", changed(runs=[run(1, "a", expires_ms=-5000), run(2, "b")])),
    "I7: altered bytes are handled": ("I7", changed(runs=[run(1, "a", content="other"), run(2, "b")])),
    "I8: something is left": ("I8", changed(lag=1)),
    "I8: nobody knows": ("I8", changed(lag=None)),
    "SAME: two contents under one id": ("SAME", with_("entries", [entry("a", 9, content="other")])),
    "ANSWERS: fresh bytes for a repetition": (
        "ANSWERS",
        publishing(
            *ANSWER,
            entries=[*ASKED, answer(1, "q", "x"), answer(2, "q", "y")],
            runs=[run(3, "q", idempotency_key="kq")],
            inbox=True,
        ),
    ),
    "ANSWERS: another content for a repetition": (
        "ANSWERS",
        publishing(
            *ANSWER,
            entries=[*ASKED, answer(1, "q", "x"), answer(2, "r", "y", "other")],
            runs=[run(3, "q", idempotency_key="kq")],
            inbox=True,
        ),
    ),
    "ANSWERS: handled and never answered": (
        "ANSWERS",
        publishing(ANSWER[0], entries=ASKED[:1], runs=[run(3, "q", idempotency_key="kq")]),
    ),
    "REJECTED: refused and in the log": (
        "REJECTED",
        publishing(published("x", 4, "rejected"), entries=[entry("x", 4)], runs=[run(3, "x")]),
    ),
    "EARLY: a retry before its time": (
        "EARLY",
        publishing(
            published("t", 4, behaviour="tier:1"),
            entries=[entry("t", 4)],
            runs=[run(3, "t", kind="failed", at_ms=1600.0), run(4, "t", attempt=2, at_ms=3500.0)],
        ),
    ),
    "JOURNAL: a letter goes back twice": ("JOURNAL", sent_back("sending", "redriven", times=2)),
    "JOURNAL: nobody says what became of a letter": ("JOURNAL", sent_back("sending")),
    "JOURNAL: a letter went back and the journal does not know it": ("JOURNAL", sent_back()),
    "JOURNAL: a letter did not go back and the journal says it did": (
        "JOURNAL",
        sent_back("sending", "redriven", times=0),
    ),
    "JOURNAL: a run has no end": ("JOURNAL", sent_back("sending", "redriven", ended=False)),
    "EXIT: a handler was cut and the code is 0": (
        "EXIT",
        publishing(
            published("s", 4, behaviour="slow:5"),
            entries=[entry("s", 4)],
            runs=[run(3, "s", kind="cut", at_ms=2000.0), run(4, "s", pid=2)],
            lives=[Life(worker="w1", pid=1, ended_ms=2100.0, violent=False, code=0, asked_ms=1900.0)],
        ),
    ),
}

SOUND = {
    "the good history": GOOD,
    "a repetition of an effect in the right order": with_("runs", [run(3, "a"), run(4, "b")]),
    "with the inbox, an effect whose worker died before its result was durable": changed(
        runs=[run(1, "a", pid=7), run(2, "b"), run(3, "a")],
        inbox=True,
        lives=[Life(worker="w", pid=7, ended_ms=1600.0, violent=True)],
    ),
    "with the inbox, an effect whose worker died while another one that stood still kept the inbox locked": changed(
        runs=[run(1, "a", pid=7), run(2, "b"), run(3, "a")],
        inbox=True,
        lives=[
            Life(worker="w2", pid=8, ended_ms=2000.0, violent=True),
            Life(worker="w2", pid=8, ended_ms=9000.0, violent=True),
            Life(worker="w", pid=7, ended_ms=10_000.0, violent=True, code=-9),
        ],
    ),
    "with the inbox, a repetition under another id that is not run": publishing(
        published("a2", 4, idempotency_key="key-a"),
        entries=[entry("a2", 4)],
        commits=[*GOOD.commits, commit(5)],
        inbox=True,
    ),
    "with the inbox, a repetition of a message that is dead": changed(
        entries=[*GOOD.entries, entry("c", 3)], commits=[*GOOD.commits, commit(4, 9000.0)], inbox=True
    ),
    "order is not promised once a message has left its lane": publishing(
        published("t", 4, behaviour="tier:1"),
        entries=[entry("t", 4), entry("t", 7, topic=RETRY, kind="retry", at_ms=1600.0)],
        runs=[run(3, "t", kind="failed", at_ms=1500.0), run(4, "t", attempt=2, at_ms=4500.0)],
    ),
    "an operator sent a dead letter back": sent_back("sending", "redriven"),
    "a dead letter that was sent back comes after later messages of its key, in a strict type too": changed(
        strict=frozenset({"fault.task"}),
        redriven=True,
        runs=[run(1, "b"), run(2, "a")],
        commits=[commit(3)],
        entries=[*GOOD.entries, letter("a", 0, "rejected"), back("a", 0, 60)],
        notes=[written(0, "sending", "redriven")],
    ),
    "stored answers": publishing(
        *ANSWER,
        entries=[*ASKED, answer(1, "q", "x"), answer(2, "q", "x")],
        runs=[run(3, "q", idempotency_key="kq")],
        inbox=True,
    ),
}


@pytest.mark.parametrize("name", VIOLATING)
def test_a_violating_history_is_caught_by_its_rule(name: str) -> None:
    invariant, found = VIOLATING[name]
    assert invariant in broken(found)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_history_passes_every_rule(name: str) -> None:
    assert judge(SOUND[name]).violations == ()


def test_every_rule_has_a_history_that_violates_it() -> None:
    assert {invariant for invariant, _ in VIOLATING.values()} == set(RULES)


def test_the_counts_are_those_of_the_table() -> None:
    counts = judge(GOOD).counts
    assert (counts["accepted"], counts["unknown"], counts["handled"], counts["dead"], counts["lost"]) == (3, 1, 2, 1, 0)
    assert (counts["commits"], counts["judged"]) == (2, 3)
    assert judge(changed(runs=[run(1, "a")])).counts["lost"] == 1
