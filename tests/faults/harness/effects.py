"""Rules about what handlers did: I3, I6, I7, EARLY and EXIT.

Owns which repetitions of an effect are excused: those whose worker died before the result could be durable. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from harness.history import History
from harness.ledger import Run
from harness.messages import behaviour_of

__all__ = ["fit_to_see", "in_order", "in_time", "once", "truthful"]

EXPIRY_TOLERANCE_MS = 5_000
SLACK_MS = 5.0
"""Clocks that are compared count whole milliseconds, and a row is written a moment after what it says."""
IN_FLIGHT_MS = 6_000.0
"""How long before a violent end an effect may lie whose result did not become durable any more: for five seconds a
writer waits for a lock, and again and again while another worker stands still that may hold it."""
LATE_MS = 3_000.0
"""How long behind a violent end, for one that was only halted."""


def once(history: History) -> Iterator[str]:
    """I3."""
    if not history.inbox:
        return
    yield from _paid_once(history)
    effects: dict[str, list[float]] = defaultdict(list)
    workers: dict[str, list[int]] = defaultdict(list)
    for run in history.runs:
        if run.kind == "effect" and run.idempotency_key:
            effects[run.idempotency_key].append(run.at_ms)
            workers[run.idempotency_key].append(run.pid)
    for key, times in effects.items():
        if len(times) == 1:
            continue
        excused = sum(_cut_short(history, pid, at_ms) for pid, at_ms in zip(workers[key], times, strict=True))
        if len(times) - excused > 1:
            yield f"key {key} had {len(times)} effects, {excused} of them cut short before their result was durable"


def _paid_once(history: History) -> Iterator[str]:
    """An effect that shares the inbox's transaction happens once: here no death excuses anything."""
    handled = {run.idempotency_key for run in history.runs if run.kind == "effect"}
    owed = {
        p.intent.idempotency_key
        for p in history.published.values()
        if behaviour_of(p.intent.behaviour).word in ("pay", "slowpay", "deafpay") and not p.intent.forged
    }
    for key in sorted(owed | history.payments.keys()):
        paid = history.payments.get(key, 0)
        if paid > 1 or (paid == 0 and key in handled):
            yield f"key {key} had {paid} effects in the inbox's own transaction"


def in_order(history: History) -> Iterator[str]:
    """I6."""
    offsets: dict[str, tuple[str, int, int]] = {}
    for entry in history.entries:
        if entry.kind == "message":
            offsets.setdefault(entry.message_id, entry.place)
    troubled = {entry.message_id for entry in history.entries if entry.kind in ("retry", "redrive")}
    # What an operator sends back comes when it comes.
    sent_back = {entry.message_id for entry in history.entries if entry.kind == "redrive"}
    spoiled = {(p.intent.message_type, p.intent.lane) for name, p in history.published.items() if name in troubled}
    last: dict[tuple[str, str, int], tuple[int, str]] = {}
    seen: set[str] = set()
    for run in history.runs:
        lane = (run.message_type, run.lane)
        if (
            run.kind != "effect"
            or run.message_id in seen
            or run.message_id in sent_back
            or run.message_id not in offsets
        ):
            continue
        if run.message_type not in history.strict and (run.message_type not in history.ordered or lane in spoiled):
            continue
        seen.add(run.message_id)
        _, partition, offset = offsets[run.message_id]
        before, name = last.get((*lane, partition), (-1, ""))
        if offset < before:
            late = f"{run.message_id} (offset {offset}) came after {name} (offset {before})"
            yield f"key {run.lane} of {run.message_type}: {late}"
        else:
            last[*lane, partition] = offset, run.message_id


def fit_to_see(history: History) -> Iterator[str]:
    """I7."""
    genuine = {published.intent.message_id: published.intent for published in history.published.values()}
    for run in history.runs:
        if (
            not history.redriven
            and run.kind != "failed"
            and run.at_ms > run.expires_ms + EXPIRY_TOLERANCE_MS + SLACK_MS
            and not _began_in_time(history, run)
        ):
            yield f"{run.message_id} was handled {(run.at_ms - run.expires_ms) / 1000:.1f} s after it had expired"
        intent = genuine.get(run.message_id)
        if intent is not None and (intent.forged or intent.content != run.content):
            yield f"{run.message_id} was handled with bytes that were altered after sealing"


def in_time(history: History) -> Iterator[str]:
    """EARLY."""
    failed: dict[tuple[str, int], float] = {}
    for run in history.runs:
        intent = history.published[run.message_id].intent if run.message_id in history.published else None
        if intent is None or behaviour_of(intent.behaviour).word not in ("tier", "never"):
            continue
        before_ms = failed.get((run.message_id, run.attempt - 1))
        if before_ms is not None and run.at_ms < before_ms + history.tier_s * 1000 - SLACK_MS:
            after_s = (run.at_ms - before_ms) / 1000
            waited = f"{after_s:.2f} s after the one before, not {history.tier_s:g}"
            yield f"{run.message_id}: attempt {run.attempt} came {waited}"
        if run.kind == "failed":
            failed.setdefault((run.message_id, run.attempt), run.at_ms)


def truthful(history: History) -> Iterator[str]:
    """EXIT."""
    cuts = [run for run in history.runs if run.kind == "cut"]
    for life in history.lives:
        if life.code is None or life.violent or life.asked_ms is None:
            continue
        cut = [run.message_id for run in cuts if run.pid == life.pid and run.at_ms >= life.asked_ms]
        if life.code == 0 and cut:
            yield f"worker {life.worker} ended with code 0 and had cut {len(cut)} handlers, such as {cut[0]}"


def _cut_short(history: History, pid: int, at_ms: float) -> bool:
    return any(
        at_ms <= end.ended_ms + LATE_MS
        and end.ended_ms - at_ms <= IN_FLIGHT_MS + _halted_ms(history, pid, at_ms, end.ended_ms)
        for end in history.lives
        if end.pid == pid and end.violent
    )


def _halted_ms(history: History, but: int, since_ms: float, until_ms: float) -> float:
    """How much of this time other workers stood still."""
    # Both ends of standing still are noted.
    moments = sorted(
        (life.pid, life.ended_ms) for life in history.lives if life.violent and life.code is None and life.pid != but
    )
    return sum(
        max(0.0, min(end_ms, until_ms) - max(start_ms, since_ms))
        for (pid, start_ms), (other, end_ms) in zip(moments[::2], moments[1::2], strict=False)
        if pid == other
    )


def _began_in_time(history: History, run: Run) -> bool:
    """A handler that was let in in time may take its own time."""
    return any(
        other.kind == "began"
        and (other.message_id, other.pid) == (run.message_id, run.pid)
        and other.at_ms <= run.expires_ms + EXPIRY_TOLERANCE_MS
        for other in history.runs
    )
