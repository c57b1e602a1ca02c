"""What a policy decides, against an evaluator that is written another way; and that any request has an answer."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_model import AGENTS, answered, expected, policy_of, request_of

from bus.trust.policy.decision import Allow, Deny, NeedsApproval, decide_request, explain_decision, instruction_level
from bus.trust.policy.facts import Request
from bus.trust.policy.file import parse_policy
from bus.trust.policy.rules import PolicyRules

ORDINARY = Request(
    action="publish",
    actor="planner@svc",
    message_type="task.request",
    major=1,
    namespace="prod",
    group=None,
    side_effect="none",
    level="user_request",
    classification="internal",
    tags=frozenset(),
    signed=True,
    algorithm="asymmetric",
    via=(),
    via_complete=True,
    first=True,
    performative="request",
    lift_to=None,
    now_ms=0,
    risk="medium",
)


def changed(**facts: Any) -> Request:
    return msgspec.structs.replace(ORDINARY, **facts)


def policy(text: str) -> PolicyRules:
    return parse_policy(text, name="policy.toml")


def compare(seed: int, policies: int, requests: int) -> None:
    pick = random.Random(seed)
    kinds = set()
    for _ in range(policies):
        rules = policy_of(pick, pick.randint(1, 12))
        for _ in range(requests):
            request = request_of(pick)
            decision = decide_request(rules, request)
            assert answered(decision) == expected(rules, request), (rules.rules, request)
            kinds.add(answered(decision)[0])
    assert kinds == {"allow", "deny", "human", "agent"}


@pytest.mark.medium
def test_decide_agrees_with_the_reference_evaluator() -> None:
    compare(1, 1_000, 20)


@pytest.mark.slow  # a hundred thousand cases
def test_decide_agrees_with_the_reference_evaluator_on_many_cases() -> None:
    compare(2, 2_000, 50)


def test_the_order_of_rules_means_nothing() -> None:
    pick = random.Random(3)
    for _ in range(200):
        rules = policy_of(pick, 8)
        other = PolicyRules(name="", sha256="", rows=rules.rows[::-1], rules=rules.rules[::-1])
        for _ in range(10):
            request = request_of(pick)
            assert decide_request(rules, request) == decide_request(other, request)


HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.binary(),
    st.lists(st.text()),
    st.just(float("nan")),
    st.just({}),
)


@given(st.dictionaries(st.sampled_from(Request.__struct_fields__), HOSTILE), st.integers(0, 50))
def test_any_request_has_an_answer(values: dict[str, Any], seed: int) -> None:
    decision = decide_request(policy_of(random.Random(seed)), changed(**values))
    assert isinstance(decision, Allow | Deny | NeedsApproval)


def test_what_fails_is_denied() -> None:
    rules = policy('[[rules]]\nid = "all"\neffect = "allow"\naction = "publish"')
    assert decide_request(rules, ORDINARY) == Allow("all")
    assert decide_request(rules, changed(level=[])) == Deny("error")
    assert decide_request(None, ORDINARY) == Deny("error")


def test_a_denial_without_a_matching_rule_explains_the_nearest_one() -> None:
    rules = policy("""
        [[rules]]
        id = "plan"
        effect = "allow"
        action = "publish"
        agents = "planner@svc"
        types = "task.*"
        [rules.when]
        trust_at_least = "user_request"
    """)
    assert decide_request(rules, ORDINARY) == Allow("plan")
    assert decide_request(rules, changed(level="model_generated")) == Deny("no-match", ("level",))
    assert decide_request(rules, changed(actor=None)) == Deny("no-match", ("actor",))
    assert decide_request(rules, changed(action="handle")) == Deny("no-match", ("action",))


def test_an_unsigned_message_is_allowed_only_by_a_rule_that_says_so() -> None:
    rules = policy("""
        [[rules]]
        id = "signed"
        effect = "allow"
        action = "publish"
        types = "task.*"
        [[rules]]
        id = "unsigned"
        effect = "allow"
        action = "publish"
        types = "status.*"
        when.signed = false
        [[rules]]
        id = "by-name"
        effect = "allow"
        action = "publish"
        agents = "planner@svc"
        types = "note.*"
        when.signed = false
    """)
    unsigned = {"signed": False, "algorithm": None, "actor": None}
    assert decide_request(rules, changed(**unsigned)) == Deny("no-match", ("signed",))
    assert decide_request(rules, changed(**unsigned, message_type="status.update")) == Allow("unsigned")
    assert decide_request(rules, changed(message_type="status.update")) == Deny("no-match", ("signed",))
    assert isinstance(decide_request(rules, changed(**unsigned, message_type="note.taken")), Deny)


def test_the_strictest_need_counts() -> None:
    rules = policy("""
        [[rules]]
        id = "any"
        effect = "need"
        action = "handle"
        require_approval = "agent"
        quorum = 3
        approvers = ["*@home", "bot@svc"]
        same_owner = true
        [[rules]]
        id = "human"
        effect = "need"
        action = "handle"
        types = "command.*"
        require_approval = "human"
        approvers = "ann@*"
        [[rules]]
        id = "nobody"
        effect = "need"
        action = "handle"
        types = "command.erase"
        require_approval = "human"
        approvers = "*@work"
    """)
    asked = changed(action="handle", message_type="command.request", group="g")
    decision = decide_request(rules, asked)
    assert decision == NeedsApproval("human", "human", (("*@home", "bot@svc"), ("ann@*",)), 3, False)
    assert isinstance(decision, NeedsApproval)
    assert decision.admits("ann@home")
    assert not decision.admits("bob@home")
    assert decide_request(rules, changed(action="handle", message_type="command.erase")) == Deny("no-approver")
    assert decide_request(rules, changed(action="handle")) == NeedsApproval(
        "any", "agent", (("*@home", "bot@svc"),), 3, True
    )


TABLE = """
    [[agents]]
    id = "ann@home"
    kind = "human"
    owner = "ann"
    clearance = "restricted"
    [[agents]]
    id = "*@svc"
    owner = "ops"
    capabilities = ["plan"]
    [[rules]]
    id = "all"
    effect = "allow"
    action = ["publish", "handle", "read", "approve", "erase"]
    [[rules]]
    id = "lift"
    effect = "allow"
    action = "lift"
    agents = "**"
    types = "**"
    lift_to = ["user_request", "trusted_tool_result"]
"""


def test_a_message_is_shown_only_where_the_clearance_reaches() -> None:
    rules = policy(TABLE)
    for action in ("handle", "read", "approve"):
        secret = changed(action=action, classification="restricted")
        assert decide_request(rules, secret) == Deny("clearance", ("classification",))
        assert decide_request(rules, msgspec.structs.replace(secret, actor="ann@home")) == Allow("all")
        assert decide_request(rules, msgspec.structs.replace(secret, actor=None)) == Deny(
            "clearance", ("classification",)
        )
    assert decide_request(rules, changed(classification="restricted")) == Allow("all")


def test_a_model_does_not_lift_to_what_instructs() -> None:
    rules = policy(TABLE)
    lift = changed(action="lift", level="untrusted_content", lift_to="trusted_tool_result")
    assert decide_request(rules, lift) == Allow("lift")
    assert decide_request(rules, msgspec.structs.replace(lift, lift_to="user_request")) == Deny(
        "lift-limit", ("lift_to",)
    )
    human = msgspec.structs.replace(lift, actor="ann@home", lift_to="user_request")
    assert decide_request(rules, human) == Deny("lift-limit", ("lift_to",))
    assert decide_request(rules, msgspec.structs.replace(human, level="model_generated")) == Allow("lift")


def test_an_interpreter_publishes_what_everybody_behind_it_may_publish() -> None:
    rules = policy("""
        [[rules]]
        id = "plan"
        effect = "allow"
        action = "publish"
        agents = ["planner@svc", "workflow@sealbus", "gateway@sealbus"]
        [[rules]]
        id = "own"
        effect = "allow"
        action = "publish"
        types = "workflow.finished"
        for_interpreter = true
    """)
    engine = changed(actor="workflow@sealbus")
    refused = Deny("interpreter", ("via",))
    assert decide_request(rules, engine) == refused
    assert decide_request(rules, msgspec.structs.replace(engine, risk="low")) == Allow("plan")
    assert decide_request(rules, msgspec.structs.replace(engine, via=("planner@svc",))) == Allow("plan")
    assert decide_request(rules, msgspec.structs.replace(engine, via=("planner@svc", "other@svc"))) == refused
    assert decide_request(rules, msgspec.structs.replace(engine, via=("planner@svc",), via_complete=False)) == refused
    assert decide_request(rules, msgspec.structs.replace(engine, via=("gateway@sealbus",))) == refused
    assert decide_request(rules, msgspec.structs.replace(engine, message_type="workflow.finished")) == Allow("own")
    assert decide_request(rules, changed(message_type="workflow.finished", actor="other@svc")) == Deny(
        "no-match", ("actor",)
    )


def test_a_rule_lowers_the_level_that_instructs() -> None:
    rules = policy("""
        [[rules]]
        id = "relay"
        effect = "allow"
        action = "handle"
        types = "task.*"
        groups = "relay"
        instructions_from = "model_generated"
        [[rules]]
        id = "other"
        effect = "allow"
        action = "handle"
        types = "task.*"
        groups = "relay"
        instructions_from = "untrusted_content"
        when.tags_all = "checked"
    """)
    asked = changed(action="handle", group="relay")
    assert instruction_level(rules, asked) == "model_generated"
    assert instruction_level(rules, changed(action="handle", group="relay", tags=frozenset({"checked"}))) == (
        "untrusted_content"
    )
    assert instruction_level(rules, changed(action="handle", group="other")) == "user_request"
    assert rules.instructions_from("task.request", "relay") == "model_generated"
    assert rules.instructions_from("task.request", "other") is None


def test_an_explanation_names_the_facts() -> None:
    rules = policy(TABLE + '\n[[rules]]\nid = "no"\neffect = "deny"\naction = "publish"\ngroups = "x"')
    verdicts = {verdict.rule: verdict for verdict in explain_decision(rules, ORDINARY)}
    assert verdicts["all"].matches
    assert verdicts["lift"].failed == ("action",)
    assert verdicts["lift"].unknown == ("lift_to",)
    assert (verdicts["no"].matches, verdicts["no"].unknown) == (True, ("group",))
    assert decide_request(rules, ORDINARY) == Deny("no", ("group",))


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from bus.trust.policy import decision as module

    monkeypatch.setattr(module, "_MAX_REMEMBERED", 10)
    rules = policy(TABLE)
    for number in range(50):
        assert decide_request(rules, changed(actor=f"a{number}@svc")) == Allow("all")
        assert decide_request(rules, changed(resource="x" * (300 + number))) == Allow("all")
    assert len(module._deciders_of(rules)._known) <= 10


def test_agents_of_the_cases_are_known() -> None:
    assert len(set(AGENTS)) == len(AGENTS)
