"""Random policies and requests, and an evaluator that knows nothing of bits and automata."""

from __future__ import annotations

import random
from typing import Any

from bus.trust.labels import CLASSIFICATIONS, LEVELS, SIDE_EFFECTS
from bus.trust.policy.decision import Allow, Deny, NeedsApproval, PolicyDecision
from bus.trust.policy.facts import ACTIONS, AgentFacts, Request
from bus.trust.policy.rules import PolicyRule, PolicyRules

AGENTS = ("ann@home", "bob@home", "web@svc", "deploy@svc", "gateway@sealbus", "x.y@svc")
AGENT_GLOBS = ("**", "*@svc", "*@home", "web@svc", "deploy@svc", "ann@home", "x.*@svc")
TYPES = ("task.request", "task.result", "command.request", "pr.create.request")
TYPE_GLOBS = ("**", "task.*", "*.request", "**.request", "command.request")
TAGS = ("pii", "eu", "test")
CAPABILITIES = ("deploy", "read")
NOW = 1_000


def some(pick: random.Random, values: Any, most: int = 2) -> tuple[Any, ...]:
    return tuple(pick.sample(list(values), pick.randint(1, min(most, len(values)))))


def policy_of(pick: random.Random, count: int = 6, *, held_only: bool = False) -> PolicyRules:
    rows = []
    for agent in pick.sample(AGENTS, 4):
        row: dict[str, Any] = {"id": agent, "listed": True, "owner": pick.choice([None, "o1", "o2"])}
        row["model"] = pick.random() < 0.5
        row["interpreter"] = pick.random() < 0.2 or agent.endswith("@sealbus")
        row["clearance"] = pick.choice(CLASSIFICATIONS[1:])
        row["kind"] = pick.choice(["human", "agent", "service"])
        for name, words in (("capabilities", CAPABILITIES), ("roles", ("lead",)), ("groups", ("team",))):
            row[name] = frozenset(word for word in words if pick.random() < 0.5)
        rows.append(AgentFacts(**row))
    if pick.random() < 0.5:
        rows.append(
            AgentFacts(id="*@svc", capabilities=frozenset(CAPABILITIES[:1]), owner="o3", model=False, listed=True)
        )
    return PolicyRules(name="test", sha256="", rows=rows, rules=[rule_of(pick, at, held_only) for at in range(count)])


def rule_of(pick: random.Random, at: int, held_only: bool) -> PolicyRule:
    effect = pick.choice(["allow", "allow", "allow", "deny", "need"])
    held = ("handle", "redrive") if held_only else ("handle", "redrive", "publish")
    actions = held if effect == "need" else ACTIONS
    said: dict[str, Any] = {
        "id": f"r{pick.randrange(100):02}-{at}",
        "effect": effect,
        "actions": some(pick, actions, 3),
    }
    conditions: dict[str, Any] = {
        "agents": lambda: some(pick, AGENT_GLOBS),
        "capabilities": lambda: some(pick, CAPABILITIES, 1),
        "roles": lambda: ("lead",),
        "actor_groups": lambda: ("team",),
        "types": lambda: some(pick, TYPE_GLOBS),
        "majors": lambda: some(pick, (1, 2)),
        "groups": lambda: some(pick, ("main", "m*", "other")),
        "resources": lambda: some(pick, ("", "src/**", "src/*", "*.md")),
        "performatives": lambda: some(pick, ("request", "inform")),
        "lift_to": lambda: some(pick, LEVELS),
        "namespace": lambda: some(pick, ("prod", "dev*", "**")),
        "signed": lambda: pick.random() < 0.5,
        "algorithm": lambda: pick.choice(["asymmetric", "shared"]),
        "trust_at_least": lambda: pick.choice(LEVELS),
        "classification_at_most": lambda: pick.choice(CLASSIFICATIONS),
        "max_side_effect": lambda: pick.choice(SIDE_EFFECTS),
        "tags_all": lambda: some(pick, TAGS),
        "tags_none": lambda: some(pick, TAGS),
        "via_all": lambda: some(pick, AGENT_GLOBS),
        "via_complete": lambda: pick.random() < 0.5,
        "different_owner": lambda: pick.random() < 0.7,
        "first": lambda: pick.random() < 0.5,
        "not_before_ms": lambda: pick.choice([NOW - 1, NOW, NOW + 1]),
        "not_after_ms": lambda: pick.choice([NOW - 1, NOW, NOW + 1]),
    }
    for name in pick.sample(sorted(conditions), pick.choice([0, 1, 1, 2, 3])):
        said[name] = conditions[name]()
    if effect == "allow" and pick.random() < 0.1:
        said["for_interpreter"] = True
    if effect == "need":
        said |= {"by": pick.choice(["human", "agent"]), "quorum": pick.randint(1, 3), "same_owner": pick.random() < 0.5}
        if pick.random() < 0.6:
            said["approvers"] = some(pick, AGENT_GLOBS)
    return PolicyRule(**said)


def request_of(pick: random.Random) -> Request:
    def maybe(value: Any) -> Any:
        return None if pick.random() < 0.15 else value

    signed = pick.random() < 0.8
    return Request(
        action=pick.choice([*ACTIONS, "publish", "handle", "handle"]),
        actor=maybe(pick.choice([*AGENTS, "nobody@else"])),
        message_type=pick.choice(TYPES),
        major=pick.choice([1, 2, 3]),
        namespace=pick.choice(["prod", "dev-1", "other"]),
        group=maybe(pick.choice(["main", "other"])),
        resource=pick.choice(["", "src/a", "src/a/b", "x.md"]),
        side_effect=maybe(pick.choice(SIDE_EFFECTS)),
        level=pick.choice([*LEVELS, "unheard of"]),
        classification=pick.choice([*CLASSIFICATIONS, "unheard of"]),
        tags=frozenset(tag for tag in TAGS if pick.random() < 0.3),
        signed=signed,
        algorithm=maybe(pick.choice(["asymmetric", "shared"])) if signed else None,
        via=tuple(pick.sample(AGENTS, pick.choice([0, 0, 1, 2]))),
        via_complete=pick.random() < 0.8,
        first=pick.random() < 0.5,
        performative=maybe(pick.choice(["request", "inform"])),
        lift_to=maybe(pick.choice(LEVELS)),
        now_ms=NOW,
        risk=pick.choice([None, "low", "medium", "high"]),
    )


# The evaluator.

Truth = bool | None


def matches_glob(glob: str, text: str) -> bool:
    if not glob:
        return not text
    if glob.startswith("**"):
        return any(matches_glob(glob[2:], text[at:]) for at in range(len(text) + 1))
    if glob.startswith("*"):
        for at in range(len(text) + 1):
            if set(text[:at]) & set("/"):
                return False
            if matches_glob(glob[1:], text[at:]):
                return True
        return False
    return text[:1] == glob[0] and matches_glob(glob[1:], text[1:])


def any_glob(globs: Any, text: str | None) -> Truth:
    return None if text is None else any(matches_glob(glob, text) for glob in globs)


def all_of(truths: list[Truth]) -> Truth:
    return False if False in truths else None if None in truths else True


def rank(scale: tuple[str, ...], word: str) -> int:
    return scale.index(word) if word in scale else len(scale) - 1


def different_owner(policy: PolicyRules, request: Request, actor: str | None) -> Truth:
    if actor is None:
        return None
    mine = policy.agent(actor).owner
    each: list[Truth] = [None if mine is None else True]
    for sender in request.via:
        theirs = policy.agent(sender).owner
        if sender == actor:
            each.append(False)
        else:
            each.append(None if mine is None or theirs is None else mine != theirs)
    if not request.via_complete:
        each.append(None)
    return all_of(each)


def truths_of(policy: PolicyRules, rule: PolicyRule, request: Request, actor: str | None) -> list[Truth]:  # noqa: C901, PLR0912
    row = None if actor is None else policy.agent(actor)
    found: list[Truth] = [request.action in rule.actions]
    if rule.agents is not None:
        found.append(any_glob(rule.agents, actor))
    for wanted, name in ((rule.capabilities, "capabilities"), (rule.roles, "roles"), (rule.actor_groups, "groups")):
        if wanted is not None:
            found.append(None if row is None else bool(set(wanted) & getattr(row, name)))
    if rule.for_interpreter:
        found.append(None if row is None else row.interpreter)
    for globs, text in (
        (rule.types, request.message_type),
        (rule.groups, request.group),
        (rule.resources, request.resource),
        (rule.namespace, request.namespace),
    ):
        if globs is not None:
            found.append(any_glob(globs, text))
    for words, word in (
        (rule.majors, request.major),
        (rule.performatives, request.performative),
        (rule.lift_to, request.lift_to),
    ):
        if words is not None:
            found.append(None if word is None else word in words)
    for wanted_value, value in (
        (rule.algorithm, request.algorithm),
        (rule.first, request.first),
        (rule.via_complete, request.via_complete),
        (rule.signed, request.signed),
    ):
        if wanted_value is not None:
            found.append(None if value is None else value == wanted_value)
    if rule.effect == "allow" and not request.signed and rule.signed is not False:
        found.append(False)
    if rule.trust_at_least is not None:
        found.append(rank(LEVELS, request.level) <= rank(LEVELS, rule.trust_at_least))
    if rule.classification_at_most is not None:
        limit = rank(CLASSIFICATIONS, rule.classification_at_most)
        found.append(rank(CLASSIFICATIONS, request.classification) <= limit)
    if rule.max_side_effect is not None:
        effect = request.side_effect
        known = effect in SIDE_EFFECTS
        found.append(SIDE_EFFECTS.index(effect or "") <= SIDE_EFFECTS.index(rule.max_side_effect) if known else None)
    if rule.tags_all is not None:
        found.append(set(rule.tags_all) <= request.tags)
    if rule.tags_none is not None:
        found.append(not set(rule.tags_none) & request.tags)
    if rule.via_all is not None:
        found += [any_glob(rule.via_all, sender) for sender in request.via]
        found.append(True if request.via_complete else None)
    if rule.different_owner is not None:
        different = different_owner(policy, request, actor)
        found.append(different if different is None else different == rule.different_owner)
    if rule.not_before_ms is not None:
        found.append(rule.not_before_ms <= request.now_ms)
    if rule.not_after_ms is not None:
        found.append(request.now_ms <= rule.not_after_ms)
    return found


def matching(policy: PolicyRules, request: Request, actor: str | None) -> list[PolicyRule]:
    found = []
    for rule in policy.rules:
        truth = all_of(truths_of(policy, rule, request, actor))
        if truth is True or (truth is None and rule.effect != "allow"):
            found.append(rule)
    return found


APPROVER_TEXTS = (*AGENTS, "q@svc", "q@home", "q", "x.q@svc", "q.q@q")


def by_rules(policy: PolicyRules, request: Request, actor: str | None) -> tuple[str, Any]:
    """The kind of the answer, and what it says."""
    found = matching(policy, request, actor)
    denies = sorted(rule.id for rule in found if rule.effect == "deny")
    needs = [rule for rule in found if rule.effect == "need"]
    allows = sorted(found, key=lambda rule: (not rule.for_interpreter, rule.id))
    allows = [rule for rule in allows if rule.effect == "allow"]
    if denies:
        return "deny", denies[0]
    if needs:
        lists = [rule.approvers for rule in needs if rule.approvers is not None]
        if not any(all(any_glob(globs, text) for globs in lists) for text in APPROVER_TEXTS):
            return "deny", "no-approver"
        by = "human" if any(rule.by == "human" for rule in needs) else "agent"
        return by, (
            max(rule.quorum for rule in needs),
            all(rule.same_owner for rule in needs),
            frozenset(map(frozenset, lists)),
        )
    if allows:
        return "allow", (allows[0].id, allows[0].for_interpreter)
    return "deny", "no-match"


def expected(policy: PolicyRules, request: Request) -> tuple[str, Any]:
    actor = request.actor
    row = AgentFacts() if actor is None else policy.agent(actor)
    kind, what = by_rules(policy, request, actor)
    if kind == "deny":
        return kind, what
    shown = request.action in ("handle", "read", "approve")
    if shown and rank(CLASSIFICATIONS, request.classification) > rank(CLASSIFICATIONS, row.clearance):
        return "deny", "clearance"
    if request.action == "lift":
        if request.lift_to is None:
            return "deny", "lift-limit"
        untrusted = request.level not in LEVELS[:-1]
        if rank(LEVELS, request.lift_to) < LEVELS.index("trusted_tool_result") and (row.model or untrusted):
            return "deny", "lift-limit"
    if request.action == "publish" and row.interpreter and not (kind == "allow" and what[1]):
        behind = [sender for sender in request.via if not policy.agent(sender).interpreter]
        if not behind and request.risk != "low":
            return "deny", "interpreter"
        if behind and not (
            request.via_complete and all(by_rules(policy, request, sender)[0] == "allow" for sender in request.via)
        ):
            return "deny", "interpreter"
    return (kind, what[0]) if kind == "allow" else (kind, what)


def answered(decision: PolicyDecision) -> tuple[str, Any]:
    match decision:
        case Allow(rule):
            return "allow", rule
        case Deny(rule):
            return "deny", rule
        case NeedsApproval():
            approvers = frozenset(map(frozenset, decision.approvers))
            return decision.by, (decision.quorum, decision.same_owner, approvers)
