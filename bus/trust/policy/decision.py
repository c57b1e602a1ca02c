"""Decide by a policy: allow, deny, or require an approval. Pure and total.

Owns the meaning of a policy. With an unknown or absent fact, an allow rule does not match, and a deny or need rule
matches. A deny overrides a need, and a need overrides an allow; without any matching rule the request is denied. Of
several needs the strictest counts. The order of rules is irrelevant. An exception during the decision denies the
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal
from weakref import WeakKeyDictionary

import msgspec

from bus.errors import ConfigurationError
from bus.trust.labels import INSTRUCTING, LEAST_TRUSTED, LEVELS, rank_of_classification, rank_of_level
from bus.trust.policy.facts import AgentFacts, Request
from bus.trust.policy.globs import common_text, compile_globs
from bus.trust.policy.index import PolicyIndex, bits_of
from bus.trust.policy.rules import PolicyRule, PolicyRules

__all__ = [
    "Allow",
    "PolicyDecision",
    "Deny",
    "NeedsApproval",
    "RuleVerdict",
    "admits",
    "decide_request",
    "explain_decision",
    "index_of",
    "instruction_level",
]

_SHOWING_ACTIONS: Final = ("handle", "read", "approve")
"""Actions that show a message to the actor: its clearance has to reach the classification."""
_LIFT_LIMIT: Final = "trusted_tool_result"
_MAX_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 256
_MAX_REMEMBERED_FACTS: Final = 20


class Allow(msgspec.Struct, frozen=True):
    """It is allowed, by the rule *rule*."""

    rule: str


class Deny(msgspec.Struct, frozen=True):
    """It is denied, by the rule *rule*; `no-match`: no rule allows it.

    *differing* are the facts (fields of `Request`) in which the nearest allow rule differs, or, of a deny rule, those
    that are unknown and therefore count as met.
    """

    rule: str
    differing: tuple[str, ...] = ()


class NeedsApproval(msgspec.Struct, frozen=True):
    """By *rule* the request needs approvals of *quorum* different owners first.

    An approver must match a glob of every list in *approvers*. With *same_owner*, an owner of a sender may approve,
    too.
    """

    rule: str
    by: Literal["agent", "human"]
    approvers: tuple[tuple[str, ...], ...]
    quorum: int
    same_owner: bool

    def admits(self, approver: str) -> bool:
        """Tell whether *approver* is among those who may approve."""
        return admits(self.approvers, approver)


PolicyDecision = Allow | Deny | NeedsApproval


def admits(approvers: Sequence[tuple[str, ...]], agent_id: str) -> bool:
    """Tell whether *agent_id* matches a glob of every list in *approvers*."""
    return all(compile_globs(globs).match(agent_id) for globs in approvers)


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one rule about a request: whether it matches, and the facts that contradict it or are unknown."""

    rule: str
    effect: str
    matches: bool
    failed: tuple[str, ...]
    unknown: tuple[str, ...]


def decide_request(rules: PolicyRules, request: Request) -> PolicyDecision:
    """Decide *request* by *rules*; any request has an answer, and nothing is raised.

    match decide(rules, request):
        case Allow(rule): ...
        case Deny(rule, differing): ...
        case NeedsApproval(rule, by, approvers, quorum, same_owner): ...
    """
    try:
        return _deciders_of(rules).decide(request)
    except Exception:  # noqa: BLE001 - whatever goes wrong, nothing is granted
        return Deny("error")


def explain_decision(rules: PolicyRules, request: Request) -> list[RuleVerdict]:
    """Return the verdict of each rule about *request*, in the order of their ids."""
    index = index_of(rules)
    facts = index.by_fact(request, request.actor)
    verdicts = []
    for at, rule in enumerate(index.rules):
        bit = 1 << at
        failed = tuple(name for name, _, maybe in facts if not maybe & bit)
        unknown = tuple(name for name, sure, maybe in facts if maybe & bit and not sure & bit)
        matches = not failed and (not unknown or rule.effect != "allow")
        verdicts.append(RuleVerdict(rule=rule.id, effect=rule.effect, matches=matches, failed=failed, unknown=unknown))
    return verdicts


def instruction_level(rules: PolicyRules, request: Request) -> str:
    """Return the least trusted level from which a directive message may instruct its handler.

    `user_request`, or what the rules with `instructions_from` that match *request* (action `handle`) lower it to.
    """
    index = index_of(rules)
    matching = index.allows
    for _, sure, _ in index.by_fact(request, request.actor):
        matching &= sure
    ranks = [rank_of_level(INSTRUCTING)]
    ranks += [rank_of_level(level) for at in bits_of(matching) if (level := index.rules[at].instructions_from)]
    return LEVELS[max(ranks)]


def index_of(rules: PolicyRules) -> PolicyIndex:
    """Return the index of *rules*, made once."""
    return _deciders_of(rules).index


def _limit_of(policy: PolicyRules, request: Request) -> Deny | None:
    """Return the denial that no rule can lift: of a clearance too low, or of a lift too high."""
    actor = request.actor
    row = AgentFacts() if actor is None else policy.agent(actor)
    if request.action in _SHOWING_ACTIONS and rank_of_classification(request.classification) > rank_of_classification(
        row.clearance
    ):
        return Deny("clearance", ("classification",))
    if request.action == "lift":
        if request.lift_to is None:
            return Deny("lift-limit", ("lift_to",))
        if rank_of_level(request.lift_to) < rank_of_level(_LIFT_LIMIT) and (
            row.model or rank_of_level(request.level) == rank_of_level(LEAST_TRUSTED)
        ):
            return Deny("lift-limit", ("lift_to",))
    return None


def _strictest_need(needs: Sequence[PolicyRule]) -> NeedsApproval | None:
    """Return the need that satisfies every rule of *needs*; None if no agent could approve it."""
    strictest = min(needs, key=lambda rule: (rule.by != "human", -rule.quorum, rule.id))
    approvers = tuple(sorted({tuple(sorted(rule.approvers)) for rule in needs if rule.approvers is not None}))
    if len(approvers) > 1 and not _has_common(approvers):
        return None
    return NeedsApproval(
        rule=strictest.id,
        by=strictest.by,
        approvers=approvers,
        quorum=max(rule.quorum for rule in needs),
        same_owner=all(rule.same_owner for rule in needs),
    )


def _has_common(approvers: Sequence[tuple[str, ...]]) -> bool:
    try:
        return common_text(approvers) is not None
    except ConfigurationError:
        return False


class _Decider:
    """Decides by one policy, with a bounded cache of decisions."""

    def __init__(self, policy: PolicyRules) -> None:
        self.index = PolicyIndex(policy)
        self._policy = policy
        self._known: dict[tuple[object, ...], PolicyDecision] = {}
        self._needs: dict[int, PolicyDecision] = {}

    def decide(self, request: Request) -> PolicyDecision:
        key = self._key(request)
        found = self._known.get(key) if key is not None else None
        if found is None:
            found = self._decided(request)
            if key is not None:
                if len(self._known) >= _MAX_REMEMBERED:
                    self._known = {}
                self._known[key] = found
        return found

    def _key(self, request: Request) -> tuple[object, ...] | None:
        texts = (request.actor, request.message_type, request.namespace, request.group, request.resource, request.tool)
        others = (request.side_effect, request.level, request.classification, request.performative, request.lift_to)
        if len(request.via) > _MAX_REMEMBERED_FACTS or len(request.tags) > _MAX_REMEMBERED_FACTS:
            return None
        for text in (*texts, *others, *request.via, *request.tags):
            if text is not None and len(text) > _LONGEST_REMEMBERED:
                return None
        return (
            request.action,
            texts,
            others,
            # Python takes 1, 1.0 and True for one: kinds are part of the key.
            (type(request.major), request.major),
            request.tags,
            (type(request.signed), request.signed),
            request.algorithm,
            request.via,
            (type(request.via_complete), request.via_complete),
            (type(request.first), request.first),
            self.index.period(request.now_ms),
            request.risk,
        )

    def _decided(self, request: Request) -> PolicyDecision:
        found, by_interpreter = self._by_rules(request, request.actor)
        if isinstance(found, Deny):
            return found
        limited = _limit_of(self._policy, request)
        if limited is not None:
            return limited
        alone = request.action != "publish" or by_interpreter or request.actor is None
        if alone or not self._policy.agent(request.actor or "").interpreter or self._is_deputy(request):
            return found
        return Deny("interpreter", ("via",))

    def _is_deputy(self, request: Request) -> bool:
        """Tell whether every earlier sender may publish the message itself that an interpreter publishes."""
        if all(self._policy.agent(sender).interpreter for sender in request.via):
            # Nobody stands behind it.
            return request.risk == "low"
        return request.via_complete is True and all(
            isinstance(self._by_rules(request, sender)[0], Allow) for sender in request.via
        )

    def _by_rules(self, request: Request, actor: str | None) -> tuple[PolicyDecision, bool]:
        """Return the decision of the rules, and whether a rule for interpreters is among those that allow it."""
        index = self.index
        facts = index.by_fact(request, actor)
        sure = maybe = index.everyone
        for _, true, possible in facts:
            sure &= true
            maybe &= possible
        if denied := maybe & index.denies:
            first = denied & -denied
            unknown = tuple(name for name, true, _ in facts if not true & first)
            return Deny(index.rules[first.bit_length() - 1].id, unknown), False
        if needed := maybe & index.needs:
            return self._needed(needed), False
        if allowed := sure & index.allows:
            special = allowed & index.for_interpreters
            chosen = special or allowed
            return Allow(index.rules[next(bits_of(chosen))].id), bool(special)
        return Deny("no-match", _differing(index.allows, facts)), False

    def _needed(self, needed: int) -> PolicyDecision:
        found = self._needs.get(needed)
        if found is None:
            found = _strictest_need([self.index.rules[at] for at in bits_of(needed)]) or Deny("no-approver")
            if len(self._needs) >= _MAX_REMEMBERED:
                self._needs = {}
            self._needs[needed] = found
        return found


def _differing(candidates: int, facts: Sequence[tuple[str, int, int]]) -> tuple[str, ...]:
    """Return the facts in which the nearest of *candidates* differs; candidates without any are skipped."""
    differing = []
    for name, true, _ in facts:
        left = candidates & true
        if left:
            candidates = left
        else:
            differing.append(name)
    return tuple(differing)


_DECIDERS: Final[WeakKeyDictionary[PolicyRules, _Decider]] = WeakKeyDictionary()


def _deciders_of(policy: PolicyRules) -> _Decider:
    decider = _DECIDERS.get(policy)
    if decider is None:
        # Two threads may make it at once; either is right.
        decider = _DECIDERS[policy] = _Decider(policy)
    return decider
