"""A policy file is read as it stands, or refused with what to write instead."""

from __future__ import annotations

import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import ConfigurationError
from bus.protocol.envelope import Authority
from bus.trust.policy.facts import INTERPRETERS, AgentFacts
from bus.trust.policy.file import MAX_RULES, parse_policy
from bus.trust.policy.rules import PolicyRule

RULE = '[[rules]]\nid = "one"\neffect = "allow"\naction = "publish"\n'
ROW = '[[agents]]\nid = "a@svc"\n'
NEED = '[[rules]]\nid = "one"\neffect = "need"\naction = "handle"\nrequire_approval = "human"\n'


def test_every_key() -> None:
    text = b"""
        [[agents]]
        id = "ann@home"
        kind = "human"
        owner = "ann"
        capabilities = "deploy"
        roles = ["lead"]
        groups = ["team"]
        trust_at_most = "user_request"
        classification_floor = "internal"
        clearance = "restricted"
        authority = { can_read = ["src/**"], can_write = [], max_side_effect = "write", decision_right = "merge" }

        [[rules]]
        id = "one"
        effect = "need"
        action = ["handle", "redrive"]
        agents = "*@svc"
        capabilities = ["deploy"]
        roles = "lead"
        actor_groups = "team"
        types = ["task.*", "command.**"]
        majors = 1
        groups = "main"
        resources = ["", "src/**"]
        performatives = ["request"]
        require_approval = "human"
        approvers = "ann@home"
        quorum = 2
        same_owner = true
        [rules.when]
        signed = true
        algorithm = "asymmetric"
        trust_at_least = "user_request"
        classification_at_most = "internal"
        max_side_effect = "write"
        tags_all = "eu"
        tags_none = ["pii"]
        namespace = "prod"
        via_all = ["*@home"]
        via_complete = true
        different_owner = true
        first = false
        not_before = 2026-01-01T00:00:00Z
        not_after = 2026-01-01T01:00:00+01:00
    """
    rules = parse_policy(text, name="p.toml")
    assert rules.name == "p.toml"
    assert rules.sha256 == hashlib.sha256(text).hexdigest()
    assert rules.rules == (
        PolicyRule(
            id="one",
            effect="need",
            actions=("handle", "redrive"),
            agents=("*@svc",),
            capabilities=("deploy",),
            roles=("lead",),
            actor_groups=("team",),
            types=("task.*", "command.**"),
            majors=(1,),
            groups=("main",),
            resources=("", "src/**"),
            performatives=("request",),
            by="human",
            approvers=("ann@home",),
            quorum=2,
            same_owner=True,
            signed=True,
            algorithm="asymmetric",
            trust_at_least="user_request",
            classification_at_most="internal",
            max_side_effect="write",
            tags_all=("eu",),
            tags_none=("pii",),
            namespace=("prod",),
            via_all=("*@home",),
            via_complete=True,
            different_owner=True,
            first=False,
            not_before_ms=1_767_225_600_000,
            not_after_ms=1_767_225_600_000,
        ),
    )
    ann = rules.agent("ann@home")
    assert (ann.kind, ann.model, ann.trust_ceiling, ann.clearance) == ("human", False, "user_request", "restricted")
    assert ann.authority == Authority(
        can_read=("src/**",), can_write=(), max_side_effect="write", decision_right="merge"
    )


def test_an_agent_that_is_not_listed() -> None:
    rules = parse_policy(ROW, name="p")
    assert rules.agent("other") == AgentFacts()
    assert AgentFacts().trust_ceiling == "model_generated"
    assert rules.agent("a@svc").listed


def test_an_exact_row_is_all_that_counts_and_of_globs_the_strictest() -> None:
    rules = parse_policy(
        """
        [[agents]]
        id = "a@svc"
        [[agents]]
        id = "*@svc"
        capabilities = ["x", "y"]
        roles = ["r"]
        owner = "ops"
        kind = "service"
        trust_ceiling = "user_request"
        clearance = "restricted"
        authority = { can_read = ["a", "b"], cannot_execute = ["x"], max_side_effect = "write", decision_right = "m" }
        [[agents]]
        id = "b**"
        capabilities = ["y"]
        owner = "dev"
        kind = "service"
        classification_floor = "confidential"
        authority = { can_read = ["b"], cannot_execute = ["y"], max_side_effect = "read" }
        """,
        name="p",
    )
    assert rules.agent("a@svc").capabilities == frozenset()
    assert rules.agent("c@svc").capabilities == {"x", "y"}
    both = rules.agent("b@svc")
    assert (both.capabilities, both.roles, both.owner, both.kind) == ({"y"}, frozenset(), None, "service")
    assert (both.trust_ceiling, both.clearance) == ("user_request", "internal")
    assert both.classification_floor == "confidential"
    assert both.authority == Authority(can_read=("b",), cannot_execute=("x", "y"), max_side_effect="read")


@pytest.mark.parametrize("agent", INTERPRETERS)
def test_the_interpreters_of_the_bus_are_ones_whatever_the_file_says(agent: str) -> None:
    assert parse_policy("", name="p").agent(agent).interpreter
    assert parse_policy('[[agents]]\nid = "*@sealbus"', name="p").agent(agent).interpreter
    assert parse_policy(f'[[agents]]\nid = "{agent}"', name="p").agent(agent).interpreter


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = ", "p.toml: not valid TOML"),
        ("rule = 1", "'rule'; the nearest is rules"),
        ("rules = 1", r"write \[\[rules\]\]"),
        (RULE + "typs = 'a'", "rule 'one': no key 'typs'; the nearest is types"),
        (RULE + "signed = true", "no key 'signed'"),
        (RULE + "when = { types = 'a' }", r"types belongs in the rule itself, above \[rules.when\]"),
        (
            RULE + "when = { trust_at_lest = 'a' }",
            "when: no key 'trust_at_lest'; the nearest is trust_at_least",
        ),
        (RULE + "when = 1", r"write \[rules.when\]"),
        (RULE + "types = []", "leave the key out"),
        (RULE + "types = ['a', 'a']", "each once"),
        (RULE + "types = 1", "a glob or a list of globs"),
        (RULE + "types = '***'", "three stars"),
        (RULE + "types = 'task.?'", "has no meaning here"),
        (RULE + "types = '!task.a'", "effect deny"),
        (RULE + "types = 'task.[ab]'", "has no meaning here"),
        (RULE + "types = 'a*b*c*d*e*'", "at most 4"),
        (RULE + "types = ''", "control and format"),
        (RULE + 'agents = "a\\u0000"', "control and format"),
        (RULE + "capabilities = 'a*'", "without stars"),
        (RULE + "majors = '1'", "major version"),
        (RULE + "majors = [true]", "major version"),
        (RULE + "performatives = 'ask'", "one or several of"),
        (RULE + "when.trust_at_least = 'high'", "one of platform_policy"),
        (RULE + "when.trust_at_least = 'user_requst'", "the nearest is user_request"),
        (RULE + "when.signed = 1", "true or false"),
        (RULE + "when.not_before = 2026-01-01T00:00:00", "with an offset"),
        (RULE + "when.not_before = '2026-01-01'", "without quotes"),
        (RULE + "when.not_before = 0001-01-01T00:00:00+01:00", "the years 1 to 9999"),
        (RULE + "when = { not_before = 2026-01-02T00:00:00Z, not_after = 2026-01-01T00:00:00Z }", "after not_before"),
        (RULE + "require_approval = 'human'", 'effect = "need"'),
        (RULE + "quorum = 2", "is only allowed in rules with effect need"),
        (RULE + "lift_to = 'user_request'", 'action = "lift" alone'),
        (RULE + "instructions_from = 'model_generated'", "allow handle and name types and groups"),
        (RULE.replace("allow", "deny") + "for_interpreter = true", "rules that allow publish"),
        (RULE.replace("publish", "publsh"), "the nearest is publish"),
        (RULE.replace("allow", "permit"), "one of allow, deny, need"),
        (RULE.replace('action = "publish"', ""), "action: found nothing"),
        (RULE.replace('id = "one"', ""), "rule number 1: id: found nothing"),
        (RULE.replace('"one"', '"no-match"'), "what the bus calls decisions"),
        (RULE.replace('"one"', '"a b"'), "letters, digits"),
        (RULE + RULE, "occurs twice"),
        (RULE.replace("publish", "lift"), "names agents, types and lift_to"),
        (RULE.replace('"publish"', '["publish", "lift"]'), "lift alone"),
        (NEED.replace("handle", "publish"), "handle or redrive"),
        (NEED.replace('"human"', '"none"'), "human or agent"),
        (NEED.replace('"human"', '"boss"'), "one of none, agent, human"),
        (NEED + "quorum = 0", "from 1 to 20"),
        (NEED + "same_owner = 'yes'", "true or false"),
        (ROW + "ownr = 'a'", "the nearest is owner"),
        (ROW + "kind = 'robot'", "human, agent, service"),
        (ROW + "trust_ceiling = 'user_request'\ntrust_at_most = 'user_request'", "another name"),
        (ROW + "authority = { can_reed = ['a'] }", "the nearest is can_read"),
        (ROW + "authority = { can_read = ['?'] }", "has no meaning here"),
        (ROW + "authority = { can_read = ['*a*b*c*d*e*f*g*h*'] }", "stars in 9 places, at most 8"),
        (ROW + "authority = { can_write = ['**a**b**c**'] }", "in 4 places, at most 3 are"),
        (ROW + f"authority = {{ can_execute = {[str(at) for at in range(257)]} }}", "at most 256 globs"),
        (ROW + "authority = { cannot_execute = ['*a*b*c*d*'] }", "at most 4 are allowed"),
        (ROW + "authority = 1", "a table"),
        (ROW.replace("a@svc", "*@svc") + "kind = 'human'", "without a star"),
        (ROW.replace("a@svc", "*@svc") + "interpreter = true", "without a star"),
        (ROW.replace("a@svc", "gateway@sealbus") + "interpreter = false", "leave the key out"),
        (ROW + ROW, "agent 'a@svc': this id occurs twice"),
        ("[[agents]]\nkind = 'agent'", "agent number 1: id: found nothing"),
    ],
)
def test_an_invalid_policy_is_refused_with_the_correction(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse_policy(text, name="p.toml")


VALUES = (
    "1",
    "-1",
    "true",
    "[]",
    "[1]",
    "[[]]",
    "{}",
    "'x'",
    "''",
    "['x', 1]",
    "nan",
    "2026-01-01",
    "10:00:00",
    "{a = 1}",
)
KEYS = (
    "id",
    "effect",
    "action",
    "agents",
    "types",
    "majors",
    "when",
    "quorum",
    "approvers",
    "authority",
    "kind",
    "model",
)
WHEN = ("signed", "level", "trust_at_least", "tags_all", "not_before", "first", "via_all")


@given(
    st.lists(
        st.tuples(st.sampled_from(("rules", "agents")), st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)))
    ),
    st.dictionaries(st.sampled_from(WHEN), st.sampled_from(VALUES)),
)
def test_a_strange_file_is_read_or_refused(tables: list[tuple[str, dict[str, str]]], when: dict[str, str]) -> None:
    lines = []
    for name, values in tables:
        lines += [f"[[{name}]]", *(f"{key} = {value}" for key, value in values.items())]
        if name == "rules" and "when" not in values:
            lines += ["[rules.when]", *(f"{key} = {value}" for key, value in when.items())]
    with contextlib.suppress(ConfigurationError):
        parse_policy("\n".join(lines), name="p")


def test_limits() -> None:
    many = "".join(RULE.replace("one", f"r{number}") for number in range(MAX_RULES + 1))
    with pytest.raises(ConfigurationError, match="at most 1000"):
        parse_policy(many, name="p")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        parse_policy(b"\xff", name="p")
    with pytest.raises(ConfigurationError, match="4 MiB"):
        parse_policy(b"#" * 5_000_000, name="p")
    assert parse_policy("", name="p").rules == ()
