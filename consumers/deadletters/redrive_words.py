"""The plan and the result of a redrive, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from bus.protocol.reasons import FORGED
from bus.telemetry.terminal import printable
from consumers.deadletters.redrive_rules import RedriveCounts, RedriveResult

__all__ = [
    "VERDICT_WORDS",
    "LetterCount",
    "counted_letters",
    "forged_lines",
    "result_lines",
    "unchanged_lines",
    "unreachable_lines",
]


VERDICT_WORDS: Final = {
    "redrive": "redriven",
    "park": "parked",
    "close": "a copy of another one",
    "redriven": "left: redriven already",
    "dismissed": "left: dismissed",
    "parked": "left: parked, only --force sends it",
    "stub": "left: its bytes were too large to keep",
    "no group": "left: it names no group",
    "unreadable origin": "left: it names no origin",
    "unreachable": "left: its group has no redrive topic",
    "expired": "left: expired, --extend DURATION gives it time",
    "decided by its bytes": "left: a redrive cannot change it",
}


_ACTIONS: Final = {"send": "redrive", "park": "park", "twin": "close"}


class LetterCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters of one reason, type and group would be treated alike."""

    action: str
    """redrive, park, close, leave or dismiss."""
    why: str = ""
    """Why it is left alone."""
    reason: str
    type: str
    group: str
    dead_letters: int


def counted_letters(plan: RedriveCounts) -> list[LetterCount]:
    """Return a row for each kind of dead letter of *plan*, the most frequent first."""
    return [
        LetterCount(
            action=_ACTIONS.get(count.verdict, "leave"),
            why="" if count.verdict in _ACTIONS else count.verdict,
            reason=count.reason,
            type=count.message_type,
            group=count.group,
            dead_letters=letters,
        )
        for count, letters in sorted(plan.counts.items(), key=lambda item: -item[1])
    ]


def _by_reason(plan: RedriveCounts, verdict: str) -> Counter[str]:
    """Return the letters of *plan* that have *verdict*, by the reason of their death."""
    found = Counter[str]()
    for count, letters in plan.counts.items():
        if count.verdict == verdict:
            found[count.reason] += letters
    return found


def forged_lines(plan: RedriveCounts) -> Iterator[str]:
    """Yield how many letters would be sent whose messages may be forged, though a key or a setting may be at fault."""
    if sent := Counter({reason: letters for reason, letters in _by_reason(plan, "send").items() if reason in FORGED}):
        named = ", ".join(f"{letters} {reason}" for reason, letters in sent.most_common())
        yield f"hint: {named} may be forged: send them only if a key or a setting here was wrong, and is corrected"


def unchanged_lines(plan: RedriveCounts) -> Iterator[str]:
    """Yield how many letters a redrive leaves because the same bytes would fail again, and what closes them."""
    if left := _by_reason(plan, "decided by its bytes"):
        named = ", ".join(f"{letters} {reason}" for reason, letters in left.most_common())
        options = " ".join(f"--reason {reason}" for reason, _ in left.most_common())
        yield (
            f"{left.total()} left: a redrive cannot change {named}: the same bytes would be refused again. Find their "
            f"sender, then `sealbus dlq dismiss {options}`; --force sends them all the same"
        )


def result_lines(result: RedriveResult, plan: RedriveCounts) -> Iterator[str]:
    parts = {
        "redriven": result.sent,
        "redriven by an earlier run": result.found,
        "parked": result.parked,
        "copies of others": result.twins,
        "too large for the redrive topic": result.refused,
        "handled": result.sent - result.failures if result.is_settled else 0,
        "failed again": result.failures,
        "left: their group has no redrive topic": result.left,
    }
    text = ", ".join(f"{number} {what}" for what, number in parts.items() if number or what == "redriven")
    yield f"{text}; {result.outcome}, run {result.run}"
    hints = {
        "withdrawn": f"redrive {printable(result.rival)} is still at work: wait for it or stop it, then run this again",
        "interrupted": "run the same command again to continue",
        "stopped": "`sealbus dlq list --state open` shows what failed again",
        "unread": "the group has not read what was sent: start a worker, then run this again",
    }
    if result.outcome in hints:
        yield f"hint: {hints[result.outcome]}"
    yield from unreachable_lines(result.unreachable)
    yield from unchanged_lines(plan)
    done = sum((result.sent, result.parked, result.twins, result.refused, result.found, result.left))
    gone = plan.meant + plan.total("unreachable") - done
    if result.outcome == "finished" and gone > 0:
        yield (
            f"hint: {gone} matching dead letters are gone: deleted by retention (topics.deadletter_retention_s), or "
            "redriven or dismissed by another operator"
        )


def unreachable_lines(unreachable: Mapping[str, str]) -> Iterator[str]:
    for group, why in unreachable.items():
        yield (
            f"error: group {printable(group)} has no redrive topic: {printable(why)}. Run `sealbus topic apply`; if "
            f"the group no longer exists: `sealbus dlq dismiss --group {printable(group)}`"
        )
