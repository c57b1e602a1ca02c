"""Find what is foolish in a well-formed policy. Pure, exact.

Owns the findings: rules that never match, that others leave nothing, that contradict; names that nobody has; rows of
the table that differ on one agent; approvals that nobody can give.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Literal

import msgspec

from bus.errors import ConfigurationError
from bus.nearest import nearest
from bus.trust.decision import index_of
from bus.trust.facts import INTERPRETERS, SENDING_ACTIONS, AgentFacts
from bus.trust.globs import common_text, compile_globs
from bus.trust.policy_index import PolicyIndex, bits_of
from bus.trust.policy_rules import PolicyRule, PolicyRules
from bus.trust.policy_space import RequestSpace

__all__ = ["FINDING_CODES", "PolicyFinding", "check_policy"]

FINDING_CODES: Final = (
    "never",
    "shadowed",
    "redundant",
    "contradiction",
    "absent-fact",
    "unknown-type",
    "unknown-agent",
    "unknown-name",
    "ambiguous-agent",
    "nobody-approves",
    "no-threshold",
)
"""The last is about an app: the command adds it."""


class PolicyFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding about the rule, the row of the table, or the type called *place*."""

    code: str
    place: str
    text: str
    level: Literal["warning", "note"] = "warning"
    """A note fails nothing."""


def check_policy(rules: PolicyRules, *, types: Collection[str] = ()) -> list[PolicyFinding]:
    """Return what is foolish in *rules*; *types* are the known message types, none: types are not looked at.

    Raises ConfigurationError where the rules are too entangled to analyse.
    """
    return [*_names(rules, types), *_rows(rules), *_approvals(rules), *_Reach(rules).findings()]


class _Reach:
    """Which rules can decide anything."""

    def __init__(self, rules: PolicyRules) -> None:
        self._index: PolicyIndex = index_of(rules)
        self._space = RequestSpace([rules])

    def findings(self) -> Iterator[PolicyFinding]:
        for at, rule in enumerate(self._index.rules):
            found = self._of(at, rule)
            if found is not None:
                code, text = found
                yield PolicyFinding(code=code, place=f"rule {rule.id}", text=text)

    def _of(self, at: int, rule: PolicyRule) -> tuple[str, str] | None:
        index = self._index
        twin = self._twin(rule)
        if twin is not None:
            return "contradiction", f"says of the same requests the opposite of {twin}, which wins: take one out"
        if not self._reaches(at, rule, 0):
            return "never", "can never match: its conditions exclude each other, or no agent meets them"
        stronger = {"allow": index.denies | index.needs, "need": index.denies, "deny": 0}[rule.effect]
        if not self._reaches(at, rule, stronger):
            return "shadowed", f"never decides: {self._named(at, rule, stronger)} come first wherever it matches"
        same = {"allow": index.allows, "need": 0, "deny": index.denies}[rule.effect] & ~(1 << at)
        if rule.for_interpreter or rule.instructions_from is not None:
            return None
        if not self._reaches(at, rule, same):
            return "redundant", f"changes nothing: {self._named(at, rule, same)} say the same wherever it matches"
        return None

    def _reaches(self, at: int, rule: PolicyRule, others: int) -> bool:
        """Tell whether *rule* matches somewhere where none of *others* does."""
        sure = rule.effect == "allow"
        goals = [
            self._space.matches(0, at, sure=sure),
            self._space.none_matches(0, others & ~self._index.allows, sure=False),
        ]
        goals.append(self._space.none_matches(0, others & self._index.allows, sure=True))
        return self._space.find(rule.actions, goals) is not None

    def _named(self, at: int, rule: PolicyRule, others: int) -> str:
        alone = [self._index.rules[one].id for one in bits_of(others) if not self._reaches(at, rule, 1 << one)]
        return ", ".join(alone) if alone else "several rules together"

    def _twin(self, rule: PolicyRule) -> str | None:
        if rule.effect != "allow":
            return None
        return next(
            (
                other.id
                for at in bits_of(self._index.denies)
                if _conditions(other := self._index.rules[at]) == _conditions(rule)
            ),
            None,
        )


def _conditions(rule: PolicyRule) -> PolicyRule:
    return msgspec.structs.replace(rule, id="", effect="allow", actions=tuple(sorted(rule.actions)))


def _names(rules: PolicyRules, types: Collection[str]) -> Iterator[PolicyFinding]:
    for rule in rules.rules:
        for glob in rule.types or ():
            if types and not any(map(compile_globs([glob]).match, types)):
                text = f"types: {glob} is no known message type{nearest(glob, types)}"
                yield PolicyFinding(code="unknown-type", place=f"rule {rule.id}", text=text)
        sending = sorted(set(rule.actions) & set(SENDING_ACTIONS))
        if rule.groups is not None and sending:
            what = "never matches it" if rule.effect == "allow" else "matches all of it"
            text = f"groups: no group takes part in {', '.join(sending)}, so the rule {what}"
            yield PolicyFinding(code="absent-fact", place=f"rule {rule.id}", text=text)
        if rules.rows:
            yield from _agents(rules, rule)
    yield from _granted(rules)


def _agents(rules: PolicyRules, rule: PolicyRule) -> Iterator[PolicyFinding]:
    listed = [*(row.id for row in rules.rows), *INTERPRETERS]
    for key, globs in (("agents", rule.agents), ("via_all", rule.via_all), ("approvers", rule.approvers)):
        for glob in globs or ():
            if common_text([[glob], listed]) is None:
                text = f"{key}: {glob} is no agent of the table{nearest(glob, listed)}"
                yield PolicyFinding(code="unknown-agent", place=f"rule {rule.id}", text=text)


def _granted(rules: PolicyRules) -> Iterator[PolicyFinding]:
    granted: tuple[
        tuple[str, Callable[[AgentFacts], frozenset[str]], Callable[[PolicyRule], Sequence[str] | None]], ...
    ]
    granted = (
        ("capabilities", lambda row: row.capabilities, lambda rule: rule.capabilities),
        ("roles", lambda row: row.roles, lambda rule: rule.roles),
        ("actor_groups", lambda row: row.groups, lambda rule: rule.actor_groups),
    )
    for key, given_to, asked_by in granted:
        given = {name for row in rules.rows for name in given_to(row)}
        for rule in rules.rules:
            for name in asked_by(rule) or ():
                if name not in given:
                    text = f"{key}: no agent has {name}{nearest(name, given)}"
                    yield PolicyFinding(code="unknown-name", place=f"rule {rule.id}", text=text)


def _rows(rules: PolicyRules) -> Iterator[PolicyFinding]:
    patterns = [row for row in rules.rows if "*" in row.id]
    for first, second in itertools.combinations(patterns, 2):
        if msgspec.structs.replace(first, id=second.id) == second:
            continue
        try:
            text = common_text([[first.id], [second.id]])
        except ConfigurationError:
            continue
        if text is not None:
            yield PolicyFinding(
                code="ambiguous-agent",
                place=f"agent {first.id}",
                text=f"differs from {second.id} on agents that both match, such as {text}: the strictest facts count",
            )


def _approvals(rules: PolicyRules) -> Iterator[PolicyFinding]:
    humans = [row for row in rules.rows if row.kind == "human"]
    for rule in rules.rules:
        if rule.effect != "need" or rule.by != "human":
            continue
        matcher = compile_globs(rule.approvers or ("**",))
        owners = {row.owner or row.id for row in humans if matcher.match(row.id)}
        if len(owners) < rule.quorum:
            text = f"asks for {rule.quorum} humans of different owners to approve, and the table has {len(owners)}"
            yield PolicyFinding(code="nobody-approves", place=f"rule {rule.id}", text=text)
