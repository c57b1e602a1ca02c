"""Find mistakes in a well-formed policy. Pure.

Owns the findings: rules that never match, that are covered by another, or that contradict; unknown names; table rows
that disagree about an agent; approvals that no agent can give. There are no false findings, but not every mistake is
found.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from bus.errors import ConfigurationError
from bus.nearest import nearest
from bus.protocol.authority_globs import first_outside
from bus.trust.labels import SIDE_EFFECTS, rank_of_classification, rank_of_level
from bus.trust.policy.facts import INTERPRETERS, SENDING_ACTIONS, UNUSED_ACTIONS, AgentFacts
from bus.trust.policy.globs import common_text, compile_globs
from bus.trust.policy.rules import PolicyRule, PolicyRules

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
    """One finding about the rule, the row of the table, or the type at *place*."""

    code: str
    place: str
    text: str
    level: Literal["warning", "note"] = "warning"
    """A note fails nothing."""


def check_policy(rules: PolicyRules, *, types: Collection[str] = ()) -> list[PolicyFinding]:
    """Return what is foolish in *rules*; *types* are the known message types, none: types are not looked at.

    Rules are compared in pairs: that several together leave another nothing is not seen.
    """
    return [*_names(rules, types), *_rows(rules), *_approvals(rules), *_reach(rules)]


def _reach(rules: PolicyRules) -> Iterator[PolicyFinding]:
    """Yield a finding for each rule that cannot decide anything, or that one other rule leaves nothing."""
    listed = sorted(rules.rules, key=lambda rule: rule.id)
    for rule in listed:
        found = _unreached(rule, rules.rows, [other for other in listed if other is not rule])
        if found is not None:
            code, text = found
            yield PolicyFinding(code=code, place=f"rule {rule.id}", text=text)


def _unreached(rule: PolicyRule, rows: Sequence[AgentFacts], others: Sequence[PolicyRule]) -> tuple[str, str] | None:
    if rule.effect == "allow":
        for other in others:
            if other.effect == "deny" and _conditions(other) == _conditions(rule):
                return (
                    "contradiction",
                    f"contradicts {other.id} for the same requests, and {other.id} wins: remove one",
                )
    if set(rule.tags_all or ()) & set(rule.tags_none or ()) or not _has_agent(rule, rows):
        return "never", "can never match: its conditions exclude each other, or no agent meets them"
    covering = [other for other in others if _covers(other, rule)]
    stronger = [other.id for other in covering if _STRENGTH[other.effect] > _STRENGTH[rule.effect]]
    if stronger:
        return "shadowed", f"never decides: {', '.join(stronger)} come first wherever it matches"
    same = [other.id for other in covering if other.effect == rule.effect != "need"]
    if same and not rule.for_interpreter and rule.instructions_from is None:
        return "redundant", f"changes nothing: {', '.join(same)} decide the same wherever it matches"
    return None


def _conditions(rule: PolicyRule) -> PolicyRule:
    return msgspec.structs.replace(rule, id="", effect="allow", actions=tuple(sorted(rule.actions)))


def _has_agent(rule: PolicyRule, rows: Sequence[AgentFacts]) -> bool:
    """Return whether a row fulfils an allow rule's conditions on the actor; for other rules the actor may be
    unknown."""
    requested = (rule.capabilities, rule.roles, rule.actor_groups)
    if rule.effect != "allow" or requested == (None, None, None):
        return True
    return any(
        all(names is None or provided & set(names) for names, provided in zip(requested, _granted_by(row), strict=True))
        and _may_be(rule.agents, row.id)
        for row in rows
    )


def _granted_by(row: AgentFacts) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    return row.capabilities, row.roles, row.groups


def _may_be(globs: Sequence[str] | None, agent: str) -> bool:
    try:
        return globs is None or common_text([globs, [agent]]) is not None
    except ConfigurationError:
        return True


def _covers(outer: PolicyRule, inner: PolicyRule) -> bool:
    """Tell whether *outer* matches wherever *inner* does, by their conditions on each fact alone."""
    return (
        all(_is_within(getattr(inner, name), getattr(outer, name), included) for name, included in _WITHIN.items())
        and (inner.for_interpreter or not outer.for_interpreter)
        and _signings(inner) <= _signings(outer)
    )


def _signings(rule: PolicyRule) -> set[bool]:
    # An allow rule that does not speak of it is about signed messages.
    stated = True if rule.signed is None and rule.effect == "allow" else rule.signed
    return {True, False} if stated is None else {stated}


def _is_within(inner: Any, outer: Any, included: Callable[[Any, Any], bool]) -> bool:
    return outer is None or (inner is not None and included(inner, outer))


def _are_globs_within(inner: Sequence[str], outer: Sequence[str]) -> bool:
    return first_outside(inner, outer) is None


def _are_words_within(inner: Sequence[object], outer: Sequence[object]) -> bool:
    return set(inner) <= set(outer)


def _have_words_of(inner: Sequence[str], outer: Sequence[str]) -> bool:
    return set(outer) <= set(inner)


def _up_to(rank_of: Callable[[str], int]) -> Callable[[str, str], bool]:
    return lambda inner, outer: rank_of(inner) <= rank_of(outer)


_STRENGTH: Final = {"allow": 0, "need": 1, "deny": 2}
_WITHIN: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    **dict.fromkeys(
        ("actions", "capabilities", "roles", "actor_groups", "majors", "performatives", "lift_to"), _are_words_within
    ),
    **dict.fromkeys(("tags_all", "tags_none"), _have_words_of),
    **dict.fromkeys(("algorithm", "via_complete", "different_owner", "first"), operator.eq),
    "trust_at_least": _up_to(rank_of_level),
    "classification_at_most": _up_to(rank_of_classification),
    "max_side_effect": _up_to(SIDE_EFFECTS.index),
    "not_before_ms": operator.ge,
    "not_after_ms": operator.le,
    **dict.fromkeys(("agents", "types", "groups", "resources", "tools", "namespace", "via_all"), _are_globs_within),
}
"""Condition -> whether one value of it is within another: what meets the first meets the second."""


def _names(rules: PolicyRules, types: Collection[str]) -> Iterator[PolicyFinding]:
    for rule in rules.rules:
        for glob in rule.types or ():
            if types and not any(map(compile_globs([glob]).match, types)):
                text = f"types: {glob} is not a known message type{nearest(glob, types)}"
                yield PolicyFinding(code="unknown-type", place=f"rule {rule.id}", text=text)
        if unused := sorted(set(rule.actions) & UNUSED_ACTIONS):
            text = f"actions: nothing asks about {', '.join(unused)} yet, so the rule decides nothing there"
            yield PolicyFinding(code="not-asked", place=f"rule {rule.id}", text=text, level="note")
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
                text = f"{key}: {glob} is not an agent of the table{nearest(glob, listed)}"
                yield PolicyFinding(code="unknown-agent", place=f"rule {rule.id}", text=text)


def _granted(rules: PolicyRules) -> Iterator[PolicyFinding]:
    for at, key in enumerate(("capabilities", "roles", "actor_groups")):
        provided = {name for row in rules.rows for name in _granted_by(row)[at]}
        for rule in rules.rules:
            for name in getattr(rule, key) or ():
                if name not in provided:
                    text = f"{key}: no agent has {name}{nearest(name, provided)}"
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
