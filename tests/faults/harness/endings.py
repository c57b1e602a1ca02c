"""Rules about how messages end: I1, I2, I4 and REJECTED.

Owns what each kind of message must end as. What they mean together is `checker`'s. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec
from harness.history import History
from harness.messages import behaviour_of

__all__ = ["dead", "ends", "known", "one_end", "refused"]

_ENDS = {
    "ok": "handled",
    "answer": "handled",
    "lane": "handled",
    "tier": "handled",
    "slow": "handled",
    "block": "handled",
    "pay": "handled",
    "slowpay": "handled",
    "deafpay": "handled",
    "reject": "rejected",
    "crash": "crash_loop",
    "late": "expired",
    "until": "handled",
    "never": "retries_exhausted",
}


def ends(history: History) -> Iterator[str]:
    """I1."""
    done = _handled_contents(history)
    deaths = dead(history)
    present = {entry.message_id for entry in history.entries if entry.kind == "message"}
    places = {entry.place: entry.message_id for entry in history.entries}
    for name, published in history.published.items():
        for outcome in published.outcomes:
            there = places.get((outcome.topic, outcome.partition, outcome.offset))
            if outcome.outcome == "accepted" and there != name:
                place = f"{outcome.topic}/{outcome.partition}/{outcome.offset}"
                yield f"{name} was accepted at {place}, where {there or 'nothing'} lies"
        if not (published.accepted or name in present):
            continue
        intent = published.intent
        expected = "hash_mismatch" if intent.forged else _ENDS[behaviour_of(intent.behaviour).word]
        handled = name in done.ids or (history.inbox and intent.idempotency_key in done.keys)
        if not handled and name not in deaths:
            yield f"{name} ({intent.behaviour}) was accepted and has no end"
        elif (
            expected == "handled" and not handled and not (deaths[name] <= {"expired"} and _could_expire(history, name))
        ):
            yield f"{name} ({intent.behaviour}) died as {', '.join(sorted(deaths[name]))}"
        elif expected != "handled" and expected not in deaths.get(name, ()):
            ended = "handled" if handled else ", ".join(sorted(deaths[name]))
            yield f"{name} ({intent.behaviour}) ended {ended} instead of {expected}"


def known(history: History) -> Iterator[str]:
    """I2."""
    answers = {entry.message_id for entry in history.entries if entry.causation_id in history.published}
    for entry in history.entries:
        if entry.message_id not in history.published and entry.message_id not in answers:
            yield f"{entry.message_id} in {entry.topic}/{entry.partition}/{entry.offset} was published by nobody"
    present = {entry.message_id for entry in history.entries if entry.kind == "message"}
    for run in history.runs:
        published = history.published.get(run.message_id)
        if published is None or run.message_id not in present:
            yield f"{run.message_id} was handled and is not in the log"


def one_end(history: History) -> Iterator[str]:
    """I4."""
    if history.redriven:
        return
    done = {run.message_id for run in history.runs if run.kind == "effect"}
    deaths = dead(history)
    for name in sorted(done & deaths.keys()):
        if deaths[name] <= {"expired"} and not history.inbox:
            # Handled, then repeated after a death when its time was over: without an inbox nobody knows.
            continue
        yield f"{name} was handled and is dead as well ({', '.join(sorted(deaths[name]))})"


def refused(history: History) -> Iterator[str]:
    """REJECTED."""
    for entry in history.entries:
        published = history.published.get(entry.message_id)
        if published is not None and published.certainly_absent:
            place = f"{entry.topic}/{entry.partition}/{entry.offset}"
            yield f"{entry.message_id} was refused at the door and lies in {place}"


class _Handled(msgspec.Struct, frozen=True):
    ids: frozenset[str]
    keys: frozenset[str]


def _handled_contents(history: History) -> _Handled:
    effects = [run for run in history.runs if run.kind == "effect"]
    return _Handled(
        frozenset(run.message_id for run in effects),
        frozenset(run.idempotency_key for run in effects if run.idempotency_key),
    )


def dead(history: History) -> dict[str, set[str]]:
    """Message id -> the reasons it died of."""
    deaths: dict[str, set[str]] = defaultdict(set)
    for entry in history.entries:
        if entry.kind == "dlq":
            deaths[entry.message_id].add(entry.headers.get("sb-dlq-reason", ""))
    return dict(deaths)


def _could_expire(history: History, name: str) -> bool:
    expires_ms = history.published[name].intent.expires_ms
    return any(
        entry.message_id == name and entry.kind == "dlq" and entry.at_ms >= expires_ms for entry in history.entries
    )
