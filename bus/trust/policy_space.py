"""The space of all requests that policies tell apart, and the search for one with given answers in it. Pure, exact.

Owns the finite values of every fact, and the solver. Conditions are about one fact each, but for those about senders:
so the search first fixes the action and the parties, and what is left is a conjunction of clauses whose literals are
"this fact has one of these values". The answers of `bus.trust.decision` are said in such clauses.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from bus.errors import ConfigurationError
from bus.protocol.envelope import Performative
from bus.trust.decision import SHOWING_ACTIONS, index_of, strictest_need
from bus.trust.facts import INTERPRETERS, RISKS, AgentFacts, Request
from bus.trust.globs import compile_globs
from bus.trust.labels import (
    CLASSIFICATIONS,
    DEFAULT_CLASSIFICATION,
    LEAST_TRUSTED,
    LEVELS,
    SIDE_EFFECTS,
    rank_of_classification,
    rank_of_level,
)
from bus.trust.policy_atoms import representatives
from bus.trust.policy_index import Masks, PolicyIndex, bits_of
from bus.trust.policy_rules import PolicyRule, PolicyRules

__all__ = ["ANSWERS", "Answer", "Goal", "PolicyView", "RequestParties", "RequestSpace", "Scenario"]

Answer: TypeAlias = Literal["allow", "agent", "human", "deny"]
ANSWERS: Final[tuple[Answer, ...]] = ("allow", "agent", "human", "deny")
"""What a policy can answer, the laxest first; `agent` and `human` are needs."""

Literals: TypeAlias = list[tuple[int, int]]
"""Alternatives: the number of a fact, and the set of its values."""

_NAMESPACE: Final = "agents"
"""The example of a namespace, where any will do: that of the default settings."""
_MAX_NODES: Final = 200_000
_MAX_PARTIES: Final = 50_000
_MAX_CHAINS: Final = 5_000
_MAX_APPROVERS: Final = 10
_LIFT_LIMIT: Final = rank_of_level("trusted_tool_result")


class Scenario(NamedTuple):
    """A part of the space: the values left of each fact, and clauses of which each has to hold."""

    left: tuple[int, ...]
    clauses: tuple[Literals, ...] = ()


class RequestParties(NamedTuple):
    """Who asks, after whom."""

    actor: str | None
    via: tuple[str, ...]
    via_complete: bool


class _Fact(NamedTuple):
    name: str
    values: tuple[Any, ...]
    masks_of: Callable[[PolicyIndex, Any], Masks]


class PolicyView:
    """One policy over the values of the space: where each rule matches."""

    def __init__(self, index: PolicyIndex, facts: Sequence[_Fact]) -> None:
        self.index = index
        self._masks = [[fact.masks_of(index, value) for value in fact.values] for fact in facts]
        everyone = index.everyone
        self._always = [_meet((sure for sure, _ in masks), everyone) for masks in self._masks]
        self._known: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}

    def where(self, rule: int, *, sure: bool) -> tuple[tuple[int, int], ...]:
        """Return the facts that *rule* asks, with the values where it is true, or else where it is not false."""
        key = (rule, 0 if sure else 1)
        found = self._known.get(key)
        if found is None:
            bit = 1 << rule
            found = tuple(
                (fact, sum(1 << at for at, masks in enumerate(self._masks[fact]) if masks[key[1]] & bit))
                for fact, always in enumerate(self._always)
                if not always & bit
            )
            found = self._known[key] = tuple((fact, mask) for fact, mask in found if mask != self.full(fact))
        return found

    def full(self, fact: int) -> int:
        return (1 << len(self._masks[fact])) - 1

    def without(self, rule: int, *, sure: bool) -> Literals:
        """Return the alternatives by which *rule* is not true, or else is false."""
        return [(fact, self.full(fact) ^ mask) for fact, mask in self.where(rule, sure=sure)]


class World(NamedTuple):
    """One policy with action and parties fixed: the rules that may still be true, and those not yet false."""

    view: PolicyView
    action: str
    parties: RequestParties
    sure: int
    maybe: int

    def of(self, actor: str | None) -> World:
        """Return the world in which *actor* asks instead."""
        return _world(self.view, self.action, self.parties._replace(actor=actor))

    def row(self, agent: str | None) -> AgentFacts:
        return AgentFacts() if agent is None else self.view.index.policy.agent(agent)

    def matching(self, scenario: Scenario, rule: int, *, sure: bool) -> Scenario | None:
        """Return the part of *scenario* where *rule* is true, or else not false."""
        if not (self.sure if sure else self.maybe) >> rule & 1:
            return None
        left = list(scenario.left)
        for fact, mask in self.view.where(rule, sure=sure):
            left[fact] &= mask
            if not left[fact]:
                return None
        return Scenario(tuple(left), scenario.clauses)

    def without(self, scenario: Scenario, rules: int, *, sure: bool) -> Scenario:
        """Return the part of *scenario* where none of *rules* is true, or else none is not false."""
        live = rules & (self.sure if sure else self.maybe)
        clauses = tuple(self.view.without(rule, sure=sure) for rule in bits_of(live))
        return Scenario(scenario.left, (*scenario.clauses, *clauses))


Goal: TypeAlias = Callable[[Sequence[World], Scenario], Iterator[Scenario]]
"""Yields the parts of a scenario in which something holds of the worlds, one for each policy."""


class RequestSpace:
    """Every request that *policies* can tell apart.

        space.find(["publish"], [space.answers(0, {"allow"})])      # a Request that is allowed, or None

    *told_apart* are further globs, and values, to tell requests apart by, *preferred* texts to take as examples; both
    by the field of `Request`.
    """

    def __init__(
        self,
        policies: Sequence[PolicyRules],
        *,
        told_apart: Mapping[str, Sequence[Any]] | None = None,
        preferred: Mapping[str, Sequence[str]] | None = None,
        now_ms: int = 0,
    ) -> None:
        self._indices = [index_of(policy) for policy in policies]
        self._globs, self._preferred = told_apart or {}, preferred or {}
        self.facts = self._facts(now_ms)
        self.numbers = {fact.name: number for number, fact in enumerate(self.facts)}
        self.views = [PolicyView(index, self.facts) for index in self._indices]
        self.whole = Scenario(tuple((1 << len(fact.values)) - 1 for fact in self.facts))
        self._named = {field: compile_globs(self._globs.get(field, ())) for field in ("actor", "via")}
        self.agents = self._agents()
        self._parties: dict[bool, list[RequestParties]] = {}

    # What to look for.

    def restricted(self, name: str, fits: Callable[[Any], bool], scenario: Scenario | None = None) -> Scenario:
        """Return the part of *scenario* where the fact called *name* fits."""
        base = self.whole if scenario is None else scenario
        number = self.numbers[name]
        left = list(base.left)
        left[number] &= sum(1 << at for at, value in enumerate(self.facts[number].values) if fits(value))
        return Scenario(tuple(left), base.clauses)

    def find(
        self,
        actions: Iterable[str],
        goals: Sequence[Goal],
        *,
        within: Scenario | None = None,
        fits: Callable[[RequestParties], bool] = lambda _: True,
    ) -> Request | None:
        """Return a request of *within*, with parties that fit, for which all *goals* hold; None: there is none.

        Raises ConfigurationError where the rules are too entangled to say.
        """
        for action, parties in itertools.product(actions, self.parties("publish" in actions)):
            if fits(parties):
                found = self.find_at(action, parties, goals, self.whole if within is None else within)
                if found is not None:
                    return found
        return None

    def find_at(self, action: str, parties: RequestParties, goals: Sequence[Goal], within: Scenario) -> Request | None:
        """Return a request as `find` does, of this action and these parties."""
        worlds = [_world(view, action, parties) for view in self.views]
        if not all(within.left):
            return None
        for scenario in _all_of(goals, worlds, within):
            left = _solved(scenario)
            if left is not None:
                return self._request(action, parties, left)
        return None

    def same_at(self, action: str, parties: RequestParties) -> bool:
        """Tell whether all policies have the same live rules and facts of agents here, and so the same answers."""
        worlds = [_world(view, action, parties) for view in self.views]
        for agent in dict.fromkeys((parties.actor, *parties.via)):
            said = [_live(world if agent == parties.actor else world.of(agent), agent) for world in worlds]
            if any(one != said[0] for one in said):
                return False
        return True

    def answers(self, policy: int, wanted: Iterable[Answer]) -> Goal:
        """Return the goal that the policy of that number gives one of the *wanted* answers."""
        asked = tuple(wanted)

        def goal(worlds: Sequence[World], scenario: Scenario) -> Iterator[Scenario]:
            world = worlds[policy]
            for answer in asked:
                if answer == "allow":
                    yield from self._allowed(world, scenario)
                elif answer == "deny":
                    yield from self._denied(world, scenario)
                else:
                    yield from self._needing(world, scenario, answer)

        return goal

    def matches(self, policy: int, rule: int, *, sure: bool) -> Goal:
        """Return the goal that *rule* of that policy is true, or else not false."""

        def goal(worlds: Sequence[World], scenario: Scenario) -> Iterator[Scenario]:
            found = worlds[policy].matching(scenario, rule, sure=sure)
            if found is not None:
                yield found

        return goal

    def none_matches(self, policy: int, rules: int, *, sure: bool) -> Goal:
        """Return the goal that none of *rules*, a set of bits, is true, or else none is not false."""

        def goal(worlds: Sequence[World], scenario: Scenario) -> Iterator[Scenario]:
            yield worlds[policy].without(scenario, rules, sure=sure)

        return goal

    # The answers.

    def _allowed(self, world: World, scenario: Scenario) -> Iterator[Scenario]:
        index = world.view.index
        clean = world.without(scenario, index.denies | index.needs, sure=False)
        for rule in bits_of(world.sure & index.allows):
            found = world.matching(clean, rule, sure=True)
            if found is None:
                continue
            for within in self._within_limits(world, found):
                if index.for_interpreters >> rule & 1 or not _is_deputy(world):
                    yield within
                else:
                    yield from self._backed(world, within)

    def _needing(self, world: World, scenario: Scenario, answer: Answer) -> Iterator[Scenario]:
        index = world.view.index
        by_human = sum(1 << at for at in bits_of(index.needs) if index.rules[at].by == "human")
        excluded = index.denies | (by_human if answer == "agent" else 0)
        clean = world.without(scenario, excluded, sure=False)
        asked = by_human if answer == "human" else index.needs & ~by_human
        for rule in bits_of(world.maybe & asked):
            found = world.matching(clean, rule, sure=False)
            if found is not None:
                for within in self._within_limits(world, found):
                    yield from _with_approvers(world, within, _conflicts(world))

    def _denied(self, world: World, scenario: Scenario) -> Iterator[Scenario]:
        index = world.view.index
        for rule in bits_of(world.maybe & index.denies):
            found = world.matching(scenario, rule, sure=False)
            if found is not None:
                yield found
        yield from self._beyond_limits(world, scenario)
        if _is_deputy(world):
            without = world.without(scenario, index.for_interpreters, sure=True)
            yield from self._unbacked(world, without)
        for conflict in _conflicts(world):
            yield from _each_present(world, scenario, conflict)
        without = world.without(scenario, index.needs, sure=False)
        yield world.without(without, index.allows, sure=True)

    def _within_limits(self, world: World, scenario: Scenario) -> Iterator[Scenario]:
        row = world.row(world.parties.actor)
        if world.action in SHOWING_ACTIONS:
            highest = rank_of_classification(row.clearance)
            scenario = self.restricted("classification", lambda one: rank_of_classification(one) <= highest, scenario)
        if world.action != "lift":
            yield scenario
            return
        known = self.restricted("lift_to", lambda one: one is not None, scenario)
        yield self.restricted("lift_to", lambda one: not _instructs(one), known)
        if not row.model:
            yield self.restricted("level", lambda one: one != LEAST_TRUSTED, known)

    def _beyond_limits(self, world: World, scenario: Scenario) -> Iterator[Scenario]:
        row = world.row(world.parties.actor)
        if world.action in SHOWING_ACTIONS:
            highest = rank_of_classification(row.clearance)
            yield self.restricted("classification", lambda one: rank_of_classification(one) > highest, scenario)
        if world.action == "lift":
            yield self.restricted("lift_to", lambda one: one is None, scenario)
            high = self.restricted("lift_to", _instructs, scenario)
            yield high if row.model else self.restricted("level", lambda one: one == LEAST_TRUSTED, high)

    def _backed(self, world: World, scenario: Scenario) -> Iterator[Scenario]:
        """Yield where every sender behind an interpreter may publish it itself."""
        senders = world.parties.via
        if all(world.row(sender).interpreter for sender in senders):
            yield self.restricted("risk", lambda risk: risk == "low", scenario)
        elif world.parties.via_complete:
            yield from _all_of([_may_itself(sender) for sender in senders], [world], scenario)

    def _unbacked(self, world: World, scenario: Scenario) -> Iterator[Scenario]:
        senders = world.parties.via
        if all(world.row(sender).interpreter for sender in senders):
            yield self.restricted("risk", lambda risk: risk != "low", scenario)
            return
        if not world.parties.via_complete:
            yield scenario
            return
        index = world.view.index
        for other in map(world.of, senders):
            for rule in bits_of(other.maybe & (index.denies | index.needs)):
                found = other.matching(scenario, rule, sure=False)
                if found is not None:
                    yield found
            yield other.without(scenario, index.allows, sure=True)

    # The values.

    def _facts(self, now_ms: int) -> tuple[_Fact, ...]:
        indices = self._indices
        majors = sorted({int(str(one)) for one in self._values("major", lambda index: index.majors.values)})
        spoken = {str(one) for one in self._values("performative", lambda index: index.performatives.values)}
        unsaid = [word for word in get_args(Performative) if word not in spoken][:1]
        times = sorted({time for index in indices for time in index.times})
        tags = sorted({str(tag) for tag in self._values("tags", lambda index: index.tags)})
        level = ("user_request", *(one for one in LEVELS if one != "user_request"))
        classification = (DEFAULT_CLASSIFICATION, *(one for one in CLASSIFICATIONS if one != DEFAULT_CLASSIFICATION))
        return (
            _Fact("message_type", self._texts("message_type"), lambda index, value: index.types.of(value)),
            _Fact("group", (*self._texts("group"), None), lambda index, value: index.groups.of(value)),
            _Fact("signed", (True, False), lambda index, value: index.of_signed(value)),
            _Fact("level", level, lambda index, value: index.of_level(value)),
            _Fact("classification", classification, lambda index, value: index.of_classification(value)),
            _Fact("side_effect", (*SIDE_EFFECTS, None), lambda index, value: index.of_side_effect(value)),
            _Fact("first", (False, True), lambda index, value: index.of_first(value)),
            _Fact("namespace", self._texts("namespace"), lambda index, value: index.namespaces.of(value)),
            _Fact("resource", self._texts("resource"), lambda index, value: index.resources.of(value)),
            _Fact("major", (*majors, max(majors, default=0) + 1), lambda index, value: index.majors.of(value)),
            _Fact("performative", (*unsaid, *sorted(spoken), None), lambda index, value: index.performatives.of(value)),
            _Fact("algorithm", ("asymmetric", "shared", None), lambda index, value: index.of_algorithm(value)),
            _Fact("lift_to", (None, *LEVELS), lambda index, value: index.lifts.of(value)),
            _Fact("now_ms", _moments(times, now_ms), lambda index, value: index.of_time(value)),
            _Fact("risk", (*RISKS, None), lambda index, _: (index.everyone, index.everyone)),
            *(
                _Fact(f"tag {tag}", (False, True), lambda index, value, tag=tag: index.of_tag(tag, value))  # type: ignore[misc]
                for tag in tags
            ),
        )

    def _values(self, name: str, of: Callable[[PolicyIndex], Iterable[object]]) -> set[object]:
        return {value for index in self._indices for value in of(index)} | set(self._globs.get(name, ()))

    def _texts(self, name: str) -> tuple[str, ...]:
        condition, form = {
            "message_type": ("types", "type"),
            "group": ("groups", "segment"),
            "namespace": ("namespaces", "segment"),
            "resource": ("resources", "any"),
        }[name]
        globs = [glob for index in self._indices for glob in getattr(index, condition).globs]
        every = sorted({*globs, *self._globs.get(name, ())})
        preferred = self._preferred.get(name, (_NAMESPACE,) if name == "namespace" else ())
        return tuple(representatives(every, form, preferred))  # type: ignore[arg-type]

    def _agents(self) -> tuple[str, ...]:
        globs = {*INTERPRETERS, *self._globs.get("actor", ()), *self._globs.get("via", ())}
        for index in self._indices:
            globs |= {*index.agents.globs, *index.via.globs, *(row.id for row in index.policy.rows)}
        exact = sorted(glob for glob in globs if "*" not in glob)
        return tuple(representatives(sorted(globs), "id", [*self._preferred.get("actor", ()), *exact]))

    def parties(self, publishing: bool) -> list[RequestParties]:
        """Return the parties that the policies can tell apart."""
        if publishing not in self._parties:
            self._parties[publishing] = list(self._all_parties(publishing))
        return self._parties[publishing]

    def _all_parties(self, publishing: bool) -> Iterator[RequestParties]:
        seen: set[object] = set()
        asks_via = any(index.asks_via for index in self._indices) or bool(self._globs.get("via"))
        for actor in (*self.agents, None):
            deputy = publishing and any(self._is_interpreter(index, actor) for index in self._indices)
            senders = self._senders(actor, deputy) if asks_via or deputy else [()]
            for via, complete in itertools.product(senders, (True, False)):
                behind = frozenset(map(self._standing, via)) if deputy else None
                key = (self._said(actor, via, complete), behind)
                if key not in seen:
                    seen.add(key)
                    yield RequestParties(actor, via, complete)
                    if len(seen) > _MAX_PARTIES:
                        raise ConfigurationError("this policy has too many kinds of senders to analyse")

    def _said(self, actor: str | None, via: tuple[str, ...], complete: bool) -> object:
        """Return all that the rules, the limits and the further globs can say of the parties."""
        asked = tuple(
            (index.of_actor(actor), index.of_via(actor, via, complete), _limits(index, actor))
            for index in self._indices
        )
        named = frozenset(self._named["via"].match(sender) for sender in via)
        return asked, complete, named, None if actor is None else self._named["actor"].match(actor)

    def _class(self, actor: str | None, via: tuple[str, ...]) -> object:
        """Return what a chain says as a whole. What two chains say together follows from what each says."""
        alone = tuple(all(self._is_interpreter(index, sender) for sender in via) for index in self._indices)
        return self._said(actor, via, True), self._said(actor, via, False), alone

    def _classes(self, actor: str | None) -> Callable[[tuple[str, ...]], object]:
        """Return what tells the class of a chain behind *actor*, as a number.

        Senders of one kind are alike in all that a class can say, so a class is computed once for a chain of kinds.
        """
        numbers: dict[object, int] = {}
        known: dict[tuple[object, ...], int] = {}
        kinds: dict[object, int] = {}
        kind_of = {sender: kinds.setdefault(self._kind(actor, sender), len(kinds)) for sender in self.agents}

        def class_of(via: tuple[str, ...]) -> int:
            key = tuple([kind_of[sender] for sender in via])
            found = known.get(key)
            if found is None:
                found = known[key] = numbers.setdefault(self._class(actor, via), len(numbers))
            return found

        return class_of

    def _kind(self, actor: str | None, sender: str) -> object:
        """Return all of a sender that `_class` looks at."""
        asked = tuple(
            (index.via.of(sender), index.policy.agent(sender).owner) if index.asks_via else None
            for index in self._indices
        )
        alone = tuple(self._is_interpreter(index, sender) for index in self._indices)
        return asked, alone, sender == actor, self._named["via"].match(sender)

    def _standing(self, sender: str) -> object:
        """Return what a sender may do itself."""
        return tuple((index.of_actor(sender), self._is_interpreter(index, sender)) for index in self._indices)

    def _senders(self, actor: str | None, deputy: bool) -> list[tuple[str, ...]]:
        """Return chains of senders, shorter ones first: one for each class.

        Behind a *deputy* each sender has to stand for itself: then those to which each sender adds something, and for
        each class and sender one in which the sender is. A denial needs no more than one sender, and an allowance no
        more than those that add something.
        """
        class_of = self._classes(actor)
        standing_of = functools.cache(self._standing)
        members: dict[object, str] = {}
        for sender in self.agents:
            standing = standing_of(sender) if deputy else None
            members.setdefault((class_of((sender,)), sender == actor, standing), sender)
        found: dict[object, tuple[str, ...]] = {}
        covered: set[object] = set()

        def take(via: tuple[str, ...]) -> bool:
            said = class_of(via)
            standings = frozenset(map(standing_of, via)) if deputy else None
            if (said, standings) in found:
                return False
            if len(found) > _MAX_CHAINS:
                raise ConfigurationError("this policy has too many kinds of chains to analyse")
            found[said, standings] = via
            covered.update((said, standing) for standing in standings or ())
            return True

        take(())
        fresh: list[tuple[str, ...]] = [()]
        while fresh:
            longer = [(*via, sender) for via in fresh for sender in members.values() if sender not in via]
            fresh = [via for via in longer if class_of(via) != class_of(via[:-1]) and take(via)]
        if deputy:
            for via, sender in itertools.product(list(found.values()), members.values()):
                longest = (*via, sender)
                if sender not in via and (class_of(longest), standing_of(sender)) not in covered:
                    take(longest)
        return list(found.values())

    @staticmethod
    def _is_interpreter(index: PolicyIndex, actor: str | None) -> bool:
        return actor is not None and index.policy.agent(actor).interpreter

    def _request(self, action: str, parties: RequestParties, left: Sequence[int]) -> Request:
        values: dict[str, Any] = {}
        tags = set()
        for fact, mask in zip(self.facts, left, strict=True):
            value = fact.values[next(bits_of(mask))]
            if fact.name.startswith("tag "):
                if value:
                    tags.add(fact.name.removeprefix("tag "))
            else:
                values[fact.name] = value
        return Request(
            action=action,
            actor=parties.actor,
            via=parties.via,
            via_complete=parties.via_complete,
            tags=frozenset(tags),
            **values,
        )


def _world(view: PolicyView, action: str, parties: RequestParties) -> World:
    index = view.index
    sure = maybe = index.everyone
    for true, possible in (
        index.of_action(action),
        index.of_actor(parties.actor),
        index.of_via(parties.actor, parties.via, parties.via_complete),
    ):
        sure &= true
        maybe &= possible
    return World(view, action, parties, sure, maybe)


def _live(world: World, agent: str | None) -> object:
    """Return the rules that may be true when *agent* asks, those not yet false, and what the limits ask of it."""
    rules = world.view.index.rules
    sure, maybe = ({rules[at].id: rules[at] for at in bits_of(mask)} for mask in (world.sure, world.maybe))
    return sure, maybe, _limits(world.view.index, agent)


def _all_of(goals: Sequence[Goal], worlds: Sequence[World], scenario: Scenario) -> Iterator[Scenario]:
    if not goals:
        yield scenario
        return
    for part in goals[0](worlds, scenario):
        if all(part.left):
            yield from _all_of(goals[1:], worlds, part)


def _may_itself(sender: str) -> Goal:
    def goal(worlds: Sequence[World], scenario: Scenario) -> Iterator[Scenario]:
        world = worlds[0].of(sender)
        index = world.view.index
        clean = world.without(scenario, index.denies | index.needs, sure=False)
        for rule in bits_of(world.sure & index.allows):
            found = world.matching(clean, rule, sure=True)
            if found is not None:
                yield found

    return goal


def _is_deputy(world: World) -> bool:
    return world.action == "publish" and world.row(world.parties.actor).interpreter


def _instructs(level: str | None) -> bool:
    return level is not None and rank_of_level(level) < _LIFT_LIMIT


def _limits(index: PolicyIndex, actor: str | None) -> object:
    row = AgentFacts() if actor is None else index.policy.agent(actor)
    return row.clearance, row.model, row.interpreter


# Approvers of several rules.


def _conflicts(world: World) -> list[list[list[int]]]:
    """Return the least sets of lists of approvers that have nobody in common: for each list, the rules with it."""
    index = world.view.index
    lists: dict[tuple[str, ...], list[int]] = {}
    for rule in bits_of(world.maybe & index.needs):
        approvers = index.rules[rule].approvers
        if approvers is not None:
            lists.setdefault(tuple(sorted(approvers)), []).append(rule)
    if len(lists) < 2:  # noqa: PLR2004 - one list is in no conflict
        return []
    if len(lists) > _MAX_APPROVERS:
        raise ConfigurationError(f"more than {_MAX_APPROVERS} different lists of approvers are too many to analyse")
    found: list[frozenset[tuple[str, ...]]] = []
    for size in range(2, len(lists) + 1):
        for chosen in itertools.combinations(lists, size):
            if any(smaller <= frozenset(chosen) for smaller in found):
                continue
            if strictest_need([_first(index, lists[one]) for one in chosen]) is None:
                found.append(frozenset(chosen))
    return [[lists[one] for one in sorted(conflict)] for conflict in found]


def _first(index: PolicyIndex, rules: Sequence[int]) -> PolicyRule:
    return index.rules[rules[0]]


def _with_approvers(world: World, scenario: Scenario, conflicts: Sequence[list[list[int]]]) -> Iterator[Scenario]:
    """Yield where of each conflict one list is not asked for."""
    if not conflicts:
        yield scenario
        return
    for rules in conflicts[0]:
        without = world.without(scenario, sum(1 << rule for rule in rules), sure=False)
        yield from _with_approvers(world, without, conflicts[1:])


def _each_present(world: World, scenario: Scenario, conflict: Sequence[Sequence[int]]) -> Iterator[Scenario]:
    if not conflict:
        yield scenario
        return
    for rule in conflict[0]:
        found = world.matching(scenario, rule, sure=False)
        if found is not None:
            yield from _each_present(world, found, conflict[1:])


def _moments(times: Sequence[int], now_ms: int) -> tuple[int, ...]:
    if not times:
        return (now_ms,)
    periods = [times[0] - 1, *times]
    # The present comes first, as the example that one expects.
    return tuple(dict.fromkeys([now_ms, *periods]))


def _meet(masks: Iterable[int], everyone: int) -> int:
    meet = everyone
    for mask in masks:
        meet &= mask
    return meet


# The solver.


def _solved(scenario: Scenario) -> tuple[int, ...] | None:
    """Return values that satisfy every clause, or None: there are none."""
    nodes = itertools.count()

    def search(left: list[int], clauses: Sequence[Literals]) -> list[int] | None:
        if next(nodes) > _MAX_NODES:
            raise ConfigurationError("these rules are too entangled to analyse: ask about fewer types or agents")
        reduced = _propagated(left, clauses)
        if reduced is None:
            return None
        if not reduced:
            return left
        clause = min(reduced, key=len)
        fact, mask = clause[0]
        taken = list(left)
        taken[fact] &= mask
        found = search(taken, reduced)
        if found is not None:
            return found
        rest = list(left)
        rest[fact] &= ~mask
        return search(rest, reduced) if rest[fact] else None

    found = search(list(scenario.left), scenario.clauses)
    return None if found is None else tuple(found)


def _propagated(left: list[int], clauses: Sequence[Literals]) -> list[Literals] | None:
    """Narrow *left* by clauses with one way out; return those with several, or None: one has none."""
    while True:
        narrowed, open_clauses = False, []
        for clause in clauses:
            options = []
            for fact, mask in clause:
                common = left[fact] & mask
                if common == left[fact]:
                    break
                if common:
                    options.append((fact, mask))
            else:
                if not options:
                    return None
                if len(options) == 1:
                    fact, mask = options[0]
                    left[fact] &= mask
                    narrowed = True
                else:
                    open_clauses.append(options)
        if not narrowed:
            return open_clauses
        clauses = open_clauses
