"""Compare two policies: which requests are answered otherwise. Pure, exact.

Owns the classes of changed requests: one for each action, actor, type and pair of answers, with an example.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from bus.trust.decision import Decision, decide
from bus.trust.facts import ACTIONS, Request
from bus.trust.policy_cases import answer_of, simplest
from bus.trust.policy_rules import PolicyRules
from bus.trust.policy_space import ANSWERS, Answer, RequestParties, RequestSpace

__all__ = ["PolicyChange", "PolicyDifference", "compare_policies"]

MAX_CHANGES: Final = 200


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True):
    """A class of requests whose answer changes from *before* to *after*, with an example."""

    before: Answer
    after: Answer
    example: Request
    old: Decision
    new: Decision


class PolicyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What changes between two policies.

    *changes* are the classes, *complete* tells whether those are all of them. *added*, *removed* and *edited* are ids
    of rules and of rows of the table; those of rows begin with `agent `. An approval may be asked of others, or of
    more, without another answer: then only the rule is edited.
    """

    changes: tuple[PolicyChange, ...]
    complete: bool
    added: tuple[str, ...]
    removed: tuple[str, ...]
    edited: tuple[str, ...]


def compare_policies(
    old: PolicyRules, new: PolicyRules, *, types: Sequence[str] = (), now_ms: int = 0
) -> PolicyDifference:
    """Return what is answered otherwise by *new*; *types* are message types to take as examples.

    Raises ConfigurationError where the rules are too entangled to compare.
    """
    listed = [row.id for row in (*old.rows, *new.rows) if "*" not in row.id]
    space = RequestSpace(
        [old, new], preferred={"message_type": list(types), "actor": list(dict.fromkeys(listed))}, now_ms=now_ms
    )
    before, after = _parts(old), _parts(new)
    found: list[PolicyChange] = []
    if before != after:
        found = [
            PolicyChange(
                before=first, after=second, example=request, old=decide(old, request), new=decide(new, request)
            )
            for first, second, request in itertools.islice(_simple(old, new, space), MAX_CHANGES + 1)
        ]
    return PolicyDifference(
        changes=tuple(found[:MAX_CHANGES]),
        complete=len(found) <= MAX_CHANGES,
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        edited=tuple(sorted(name for name in before.keys() & after.keys() if before[name] != after[name])),
    )


def _parts(policy: PolicyRules) -> dict[str, object]:
    return {rule.id: rule for rule in policy.rules} | {f"agent {row.id}": row for row in policy.rows}


def _simple(old: PolicyRules, new: PolicyRules, space: RequestSpace) -> Iterator[tuple[Answer, Answer, Request]]:
    for before, after, request in _changed(space):

        def holds(one: Request, pair: tuple[Answer, Answer] = (before, after)) -> bool:
            return (answer_of(decide(old, one)), answer_of(decide(new, one))) == pair

        yield before, after, simplest(request, holds)


def _changed(space: RequestSpace) -> Iterator[tuple[Answer, Answer, Request]]:
    seen: dict[tuple[str, str | None, Answer, Answer], set[str]] = {}
    for action in ACTIONS:
        for parties in space.parties(action == "publish"):
            if space.same_at(action, parties):
                continue
            for pair in itertools.permutations(ANSWERS, 2):
                reported = seen.setdefault((action, parties.actor, *pair), set())
                yield from _of_types(space, action, parties, pair, reported)


def _of_types(
    space: RequestSpace, action: str, parties: RequestParties, pair: tuple[Answer, Answer], reported: set[str]
) -> Iterator[tuple[Answer, Answer, Request]]:
    """Yield one change for each type that is not yet in *reported*."""
    goals = [space.answers(policy, [answer]) for policy, answer in enumerate(pair)]
    while True:
        within = space.restricted("message_type", lambda name: name not in reported)
        request = space.find_at(action, parties, goals, within)
        if request is None:
            return
        reported.add(request.message_type)
        yield *pair, request
