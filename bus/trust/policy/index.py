"""The rules of a policy as sets of bits, one set for each value of a fact. Pure.

Owns what each condition means, in three values: for one fact, the rules whose condition on it is true, and those where
it is not false. A rule is a bit; bits are in the order of the rules' ids. A rule matches where its bit is in every set.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from bus.trust.labels import CLASSIFICATIONS, LEVELS, SIDE_EFFECTS, rank_of_classification, rank_of_level
from bus.trust.policy.facts import AgentFacts, Request
from bus.trust.policy.globs import compile_globs
from bus.trust.policy.rules import PolicyRule, PolicyRules

__all__ = ["Masks", "PolicyIndex", "bits_of"]

Masks = tuple[int, int]
"""The rules whose condition is true, and those where it is true or unknown."""

_MAX_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 256


def bits_of(mask: int) -> Iterator[int]:
    """Yield the places of the bits of *mask*, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _GlobCondition:
    """A condition of globs on a text."""

    def __init__(self, rules: Sequence[PolicyRule], globs_of: Callable[[PolicyRule], Sequence[str] | None]) -> None:
        self._all = (1 << len(rules)) - 1
        by_glob: dict[str, int] = {}
        self.free = 0
        for at, rule in enumerate(rules):
            globs = globs_of(rule)
            if globs is None:
                self.free |= 1 << at
            for glob in globs or ():
                by_glob[glob] = by_glob.get(glob, 0) | 1 << at
        self.globs = tuple(by_glob)
        self._masks = tuple(by_glob.values())
        self._matcher = compile_globs(self.globs)

    def of(self, text: str | None) -> Masks:
        if text is None:
            return self.free, self._all
        mask = self.free
        if self._masks:
            for index in self._matcher.match(text):
                mask |= self._masks[index]
        return mask, mask


class _WordCondition:
    """A condition on a fact with few values: a table from each of them to the rules that it meets."""

    def __init__(
        self, rules: Sequence[PolicyRule], values_of: Callable[[PolicyRule], Collection[object] | None]
    ) -> None:
        self._all = (1 << len(rules)) - 1
        self.free = 0
        self._table: dict[object, int] = {}
        for at, rule in enumerate(rules):
            values = values_of(rule)
            if values is None:
                self.free |= 1 << at
            for value in values or ():
                self._table[value] = self._table.get(value, 0) | 1 << at
        self.values = tuple(self._table)

    def of(self, value: object) -> Masks:
        if value is None:
            return self.free, self._all
        mask = self.free | self._table.get(value, 0)
        return mask, mask


class PolicyIndex:
    """The sets of one policy: `of_...(value)` gives those of one fact.

    index.of_level("untrusted_content")     # (true, true or unknown)
    """

    def __init__(self, policy: PolicyRules) -> None:
        self.policy = policy
        self.rules = tuple(sorted(policy.rules, key=lambda rule: rule.id))
        rules = self.rules
        self.everyone = (1 << len(rules)) - 1
        self.allows = self._where(lambda rule: rule.effect == "allow")
        self.denies = self._where(lambda rule: rule.effect == "deny")
        self.needs = self._where(lambda rule: rule.effect == "need")
        self.for_interpreters = self._where(lambda rule: rule.for_interpreter)
        self.types = _GlobCondition(rules, lambda rule: rule.types)
        self.agents = _GlobCondition(rules, lambda rule: rule.agents)
        self.groups = _GlobCondition(rules, lambda rule: rule.groups)
        self.namespaces = _GlobCondition(rules, lambda rule: rule.namespace)
        self.resources = _GlobCondition(rules, lambda rule: rule.resources)
        self.via = _GlobCondition(rules, lambda rule: rule.via_all)
        self.majors = _WordCondition(rules, lambda rule: rule.majors)
        self.performatives = _WordCondition(rules, lambda rule: rule.performatives)
        self.tools = _GlobCondition(rules, lambda rule: rule.tools)
        self.lifts = _WordCondition(rules, lambda rule: rule.lift_to)
        self._algorithms = _WordCondition(rules, lambda rule: _one(rule.algorithm))
        self._firsts = _WordCondition(rules, lambda rule: _one(rule.first))
        self._completes = _WordCondition(rules, lambda rule: _one(rule.via_complete))
        self._actions = _WordCondition(rules, lambda rule: rule.actions)
        self.asks_use = bool(self._actions.of("use")[0])
        self._levels = self._up_to(len(LEVELS), lambda rule: _rank(rule.trust_at_least, rank_of_level))
        self._classifications = self._up_to(
            len(CLASSIFICATIONS), lambda rule: _rank(rule.classification_at_most, rank_of_classification)
        )
        self._effects = dict(
            zip(
                SIDE_EFFECTS,
                self._up_to(len(SIDE_EFFECTS), lambda rule: _rank(rule.max_side_effect, SIDE_EFFECTS.index)),
                strict=True,
            )
        )
        self._effect_free = self._where(lambda rule: rule.max_side_effect is None)
        self._set_actor_conditions()
        self._set_owner_conditions()
        self._set_signed_conditions()
        self._set_tags()
        self._set_times()

    def _where(self, holds: Callable[[PolicyRule], bool]) -> int:
        return sum(1 << at for at, rule in enumerate(self.rules) if holds(rule))

    def _up_to(self, count: int, limit_of: Callable[[PolicyRule], int | None]) -> list[int]:
        """Return, for each rank below *count*, the rules whose limit it does not exceed."""
        limits = [limit_of(rule) for rule in self.rules]
        return [
            sum(1 << at for at, limit in enumerate(limits) if limit is None or rank <= limit) for rank in range(count)
        ]

    # Facts about the actor.

    def _set_actor_conditions(self) -> None:
        self._granted = [
            _WordCondition(self.rules, lambda rule: rule.capabilities),
            _WordCondition(self.rules, lambda rule: rule.roles),
            _WordCondition(self.rules, lambda rule: rule.actor_groups),
        ]
        self.actor_free = self.agents.free & self.everyone & ~self.for_interpreters
        for condition in self._granted:
            self.actor_free &= condition.free
        self._actors: dict[str, int] = {}

    def of_actor(self, actor: str | None) -> Masks:
        if actor is None:
            return self.actor_free, self.everyone
        mask = self._actors.get(actor)
        if mask is None:
            mask = self._actor_mask(actor, self.policy.agent(actor))
            if len(actor) <= _LONGEST_REMEMBERED:
                if len(self._actors) >= _MAX_REMEMBERED:
                    self._actors = {}
                self._actors[actor] = mask
        return mask, mask

    def _actor_mask(self, actor: str, row: AgentFacts) -> int:
        mask = self.agents.of(actor)[0]
        for condition, granted in zip(self._granted, (row.capabilities, row.roles, row.groups), strict=True):
            mask &= condition.free | _union(condition.of(name)[0] for name in granted)
        return mask if row.interpreter else mask & ~self.for_interpreters

    # Facts about the earlier senders.

    def _set_owner_conditions(self) -> None:
        self._different = self._where(lambda rule: rule.different_owner is True)
        self._same = self._where(lambda rule: rule.different_owner is False)
        self._owner_free = self.everyone & ~(self._different | self._same)
        self.asks_via = bool(self.via.globs or self._different or self._same)

    def of_via(self, actor: str | None, via: Sequence[str], complete: bool) -> Masks:
        sure, maybe = self._completes.of(complete)
        if not self.asks_via:
            return sure, maybe
        everyone = self.everyone
        for sender in via:
            everyone &= self.via.of(sender)[0]
        maybe &= everyone
        sure &= everyone if complete else everyone & self.via.free
        different = self._differs(actor, via, complete)
        if different is None:
            return sure & self._owner_free, maybe
        met = self._owner_free | (self._different if different else self._same)
        return sure & met, maybe & met

    def _differs(self, actor: str | None, via: Sequence[str], complete: bool) -> bool | None:
        """Return whether every earlier sender has another owner than *actor*; None if unknown."""
        if actor is None:
            return None
        owner = self.policy.agent(actor).owner
        others = [self.policy.agent(sender).owner for sender in via]
        if actor in via or (owner is not None and owner in others):
            return False
        return True if complete and owner is not None and None not in others else None

    # Facts about the message.

    def of_action(self, action: str) -> Masks:
        return self._actions.of(action)

    def of_level(self, level: str | None) -> Masks:
        if level is None:
            return self._levels[-1] & self._levels[0], self.everyone
        mask = self._levels[rank_of_level(level)]
        return mask, mask

    def of_classification(self, classification: str | None) -> Masks:
        if classification is None:
            return self._classifications[-1], self.everyone
        mask = self._classifications[rank_of_classification(classification)]
        return mask, mask

    def of_side_effect(self, effect: str | None) -> Masks:
        mask = self._effects.get(effect) if effect is not None else None
        return (self._effect_free, self.everyone) if mask is None else (mask, mask)

    def _set_signed_conditions(self) -> None:
        only_signed = self._where(lambda rule: rule.signed is True)
        only_unsigned = self._where(lambda rule: rule.signed is False)
        silent = self.everyone & ~(only_signed | only_unsigned)
        self._signed = silent | only_signed
        # An allow rule that does not speak of it does not allow what is unsigned.
        self._unsigned = (silent & ~self.allows) | only_unsigned

    def of_signed(self, signed: bool | None) -> Masks:
        if signed is None:
            return self._signed & self._unsigned, self.everyone
        mask = self._signed if signed else self._unsigned
        return mask, mask

    def of_algorithm(self, algorithm: str | None) -> Masks:
        return self._algorithms.of(algorithm)

    def of_first(self, first: bool | None) -> Masks:
        return self._firsts.of(first)

    def _set_tags(self) -> None:
        self._refused_by_tag: dict[str, int] = {}
        self._required_by_tag: dict[str, int] = {}
        for at, rule in enumerate(self.rules):
            for table, tags in ((self._refused_by_tag, rule.tags_none), (self._required_by_tag, rule.tags_all)):
                for tag in tags or ():
                    table[tag] = table.get(tag, 0) | 1 << at
        self.tags = tuple(sorted({*self._refused_by_tag, *self._required_by_tag}))
        self._named_tags = frozenset(self.tags)
        self._by_tags: dict[frozenset[str], int] = {}

    def of_tag(self, tag: str, present: bool) -> Masks:
        """Return the sets of one tag that rules name."""
        mask = self.everyone & ~(self._refused_by_tag if present else self._required_by_tag).get(tag, 0)
        return mask, mask

    def of_tags(self, tags: Collection[str] | None) -> Masks:
        if tags is None:
            free = self.everyone
            for tag in self.tags:
                free &= self.of_tag(tag, True)[0] & self.of_tag(tag, False)[0]
            return free, self.everyone
        present = self._named_tags.intersection(tags)
        mask = self._by_tags.get(present)
        if mask is None:
            mask = self.everyone
            for tag in self.tags:
                mask &= self.of_tag(tag, tag in present)[0]
            if len(self._by_tags) >= _MAX_REMEMBERED:
                self._by_tags = {}
            self._by_tags[present] = mask
        return mask, mask

    def _set_times(self) -> None:
        starts = {rule.not_before_ms for rule in self.rules} - {None}
        ends = {rule.not_after_ms + 1 for rule in self.rules if rule.not_after_ms is not None}
        self.times = sorted({time for time in starts if time is not None} | ends)
        self._by_time = [self._at(now) for now in [*self.times[:1], *self.times]] or [self.everyone]
        if self.times:
            self._by_time[0] = self._at(self.times[0] - 1)

    def _at(self, now: int) -> int:
        return self._where(
            lambda rule: (
                (rule.not_before_ms is None or rule.not_before_ms <= now)
                and (rule.not_after_ms is None or now <= rule.not_after_ms)
            )
        )

    def period(self, now_ms: int) -> int:
        """Return the number of the span of time in which nothing changes."""
        return bisect_right(self.times, now_ms) if self.times else 0

    def of_time(self, now_ms: int) -> Masks:
        mask = self._by_time[self.period(now_ms)]
        return mask, mask

    def by_fact(self, request: Request, actor: str | None) -> list[tuple[str, int, int]]:
        """Return the sets of every fact of *request*, asked by *actor*: its name, true, true or unknown."""
        requested = (
            ("action", self.of_action(request.action)),
            ("message_type", self.types.of(request.message_type)),
            ("actor", self.of_actor(actor)),
            ("group", self.groups.of(request.group)),
            ("signed", self.of_signed(request.signed)),
            ("level", self.of_level(request.level)),
            ("classification", self.of_classification(request.classification)),
            ("side_effect", self.of_side_effect(request.side_effect)),
            ("via", self.of_via(actor, request.via, request.via_complete)),
            ("tags", self.of_tags(request.tags)),
            ("first", self.of_first(request.first)),
            ("namespace", self.namespaces.of(request.namespace)),
            ("resource", self.resources.of(request.resource)),
            ("major", self.majors.of(request.major)),
            ("performative", self.performatives.of(request.performative)),
            ("algorithm", self.of_algorithm(request.algorithm)),
            ("lift_to", self.lifts.of(request.lift_to)),
            ("tool", self.tools.of(request.tool)),
            ("now_ms", self.of_time(request.now_ms)),
        )
        return [(name, sure, maybe) for name, (sure, maybe) in requested]


def _rank(word: str | None, rank_of: Callable[[str], int]) -> int | None:
    return None if word is None else rank_of(word)


def _one(value: object) -> tuple[object, ...] | None:
    return None if value is None else (value,)


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
