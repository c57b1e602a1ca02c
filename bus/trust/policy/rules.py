"""The rules of a policy and its table of agents, as values. Pure.

Owns their form, and which row of the table speaks for an agent. `bus.trust.policy.file` reads them from TOML,
`bus.trust.policy.decision` decides by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from bus.protocol.envelope import Authority
from bus.trust.labels import CLASSIFICATIONS, LEVELS, SIDE_EFFECTS, rank_of_classification, rank_of_level
from bus.trust.policy.facts import INTERPRETERS, AgentFacts
from bus.trust.policy.globs import compile_globs

__all__ = ["RESERVED_IDS", "PolicyRule", "PolicyRules"]

RESERVED_IDS: Final = ("no-match", "no-policy", "error", "clearance", "lift-limit", "interpreter", "no-approver")
"""Ids of decisions that no rule of a file makes."""

_MAX_REMEMBERED: Final = 4096
_LONGEST_REMEMBERED: Final = 256


class PolicyRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: a conjunction of conditions and an effect. A condition that is None is absent.

    One match in a list of globs or words fulfils the condition; *tags_all* and *via_all* need all of them. *by*,
    *approvers*, *quorum* and *same_owner* belong to the effect `need`; without approvers, every agent with the right to
    approve may do so.
    """

    id: str
    effect: Literal["allow", "deny", "need"]
    actions: tuple[str, ...]
    agents: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] | None = None
    roles: tuple[str, ...] | None = None
    actor_groups: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None
    majors: tuple[int, ...] | None = None
    groups: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    performatives: tuple[str, ...] | None = None
    lift_to: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    namespace: tuple[str, ...] | None = None
    signed: bool | None = None
    algorithm: Literal["asymmetric", "shared"] | None = None
    trust_at_least: str | None = None
    classification_at_most: str | None = None
    max_side_effect: str | None = None
    tags_all: tuple[str, ...] | None = None
    tags_none: tuple[str, ...] | None = None
    via_all: tuple[str, ...] | None = None
    via_complete: bool | None = None
    different_owner: bool | None = None
    first: bool | None = None
    not_before_ms: int | None = None
    not_after_ms: int | None = None
    for_interpreter: bool = False
    instructions_from: str | None = None
    by: Literal["agent", "human"] = "human"
    approvers: tuple[str, ...] | None = None
    quorum: int = 1
    same_owner: bool = False


class PolicyRules:
    """A policy: its rules and its table, with the hash of the bytes that they were read from. Immutable.

    rules = parse_policy(path.read_bytes(), name=str(path))
    rules.agent("deployer@svc").capabilities
    """

    __slots__ = ("__weakref__", "_by_id", "_known", "_matcher", "_patterns", "name", "rows", "rules", "sha256")

    def __init__(self, *, name: str, sha256: str, rows: Sequence[AgentFacts], rules: Sequence[PolicyRule]) -> None:
        self.name = name
        self.sha256 = sha256
        self.rows = tuple(rows)
        self.rules = tuple(rules)
        self._by_id = {row.id: row for row in self.rows if "*" not in row.id}
        self._patterns = [row for row in self.rows if "*" in row.id]
        self._matcher = compile_globs([row.id for row in self._patterns])
        self._known: dict[str, AgentFacts] = {}

    def agent(self, agent_id: str) -> AgentFacts:
        """Return the facts about *agent_id*.

        If the agent has a row of its own, only that counts. Otherwise the rows with matching globs count, and of each
        fact the strictest value. Without any row, the defaults of `AgentFacts` apply. The bus's own interpreters are
        always interpreters.
        """
        found = self._known.get(agent_id)
        if found is None:
            found = self._found(agent_id)
            if len(agent_id) <= _LONGEST_REMEMBERED:
                if len(self._known) >= _MAX_REMEMBERED:
                    self._known = {}
                self._known[agent_id] = found
        return found

    def instructions_from(self, message_type: str, group: str) -> str | None:
        """Return the level to which rules lower the threshold of instructions of this type in *group*, else None.

        Only rules without another condition count: `bus.trust.policy.decision.instruction_level` judges the others,
        too.
        """
        ranks = [
            rank_of_level(rule.instructions_from)
            for rule in self.rules
            if rule.instructions_from is not None
            and _is_plain(rule)
            and compile_globs(rule.types or ()).match(message_type)
            and compile_globs(rule.groups or ()).match(group)
        ]
        return LEVELS[max(ranks)] if ranks else None

    def _found(self, agent_id: str) -> AgentFacts:
        row = self._by_id.get(agent_id)
        if row is None:
            matching = [self._patterns[at] for at in sorted(self._matcher.match(agent_id))]
            row = _strictest(matching) if matching else AgentFacts()
        if agent_id in INTERPRETERS and not row.interpreter:
            row = msgspec.structs.replace(row, interpreter=True)
        return row


def _is_plain(rule: PolicyRule) -> bool:
    plain = PolicyRule(
        id=rule.id,
        effect=rule.effect,
        actions=rule.actions,
        types=rule.types,
        groups=rule.groups,
        instructions_from=rule.instructions_from,
    )
    return plain == rule


def _strictest(rows: Sequence[AgentFacts]) -> AgentFacts:
    first = rows[0]
    if len(rows) == 1:
        return first
    owners, kinds = {row.owner for row in rows}, {row.kind for row in rows}
    return AgentFacts(
        id=first.id,
        kind=first.kind if len(kinds) == 1 else "agent",
        owner=first.owner if len(owners) == 1 else None,
        capabilities=frozenset.intersection(*(row.capabilities for row in rows)),
        roles=frozenset.intersection(*(row.roles for row in rows)),
        groups=frozenset.intersection(*(row.groups for row in rows)),
        trust_ceiling=LEVELS[max(rank_of_level(row.trust_ceiling) for row in rows)],
        classification_floor=CLASSIFICATIONS[max(rank_of_classification(row.classification_floor) for row in rows)],
        clearance=CLASSIFICATIONS[min(rank_of_classification(row.clearance) for row in rows)],
        model=any(row.model for row in rows),
        interpreter=any(row.interpreter for row in rows),
        authority=_narrowest([row.authority for row in rows]),
        listed=True,
    )


def _narrowest(authorities: Sequence[Authority | None]) -> Authority | None:
    """Return an authority that each of *authorities* includes; None sets no limit."""
    stated = [authority for authority in authorities if authority is not None]
    if not stated:
        return None
    effects = [authority.max_side_effect for authority in stated if authority.max_side_effect is not None]
    rights = {authority.decision_right for authority in stated}
    return Authority(
        can_read=_common([authority.can_read for authority in stated]),
        can_write=_common([authority.can_write for authority in stated]),
        can_execute=_common([authority.can_execute for authority in stated]),
        cannot_execute=_joined([authority.cannot_execute for authority in stated]),
        requires_human_approval=_joined([authority.requires_human_approval for authority in stated]),
        max_side_effect=min(effects, key=_effect_rank) if effects else None,
        decision_right=stated[0].decision_right if len(rights) == 1 else None,
    )


def _effect_rank(effect: str) -> int:
    # An unknown word grants nothing.
    return SIDE_EFFECTS.index(effect) if effect in SIDE_EFFECTS else 0


def _common(lists: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    stated = [globs for globs in lists if globs is not None]
    return tuple(glob for glob in stated[0] if all(glob in globs for globs in stated)) if stated else None


def _joined(lists: Sequence[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    stated = [globs for globs in lists if globs is not None]
    return tuple(sorted({glob for globs in stated for glob in globs})) if stated else None
