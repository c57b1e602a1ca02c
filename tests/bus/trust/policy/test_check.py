"""What is foolish in a policy is found, and what is found is so."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from policy_model import answered, matching, policy_of, request_of

from bus.trust.policy.check import FINDING_CODES, check_policy
from bus.trust.policy.decision import decide_request
from bus.trust.policy.file import parse_policy
from bus.trust.policy.rules import PolicyRules

POLICY = """
[[agents]]
id = "ann@home"
kind = "human"
owner = "ann"

[[agents]]
id = "*@svc"
capabilities = ["work"]

[[rules]]
id = "workers"
effect = "allow"
action = ["publish", "handle"]
capabilities = "work"
types = "task.**"

[[rules]]
id = "deploy"
effect = "need"
action = "handle"
types = "pr.create.request"
require_approval = "human"
approvers = "ann@home"

[[rules]]
id = "commands"
effect = "deny"
action = ["publish", "handle"]
types = "command.**"
"""


def policy(text: str) -> PolicyRules:
    return parse_policy(text, name="policy.toml")


def findings(text: str, types: tuple[str, ...] = ()) -> dict[str, str]:
    return {finding.code: f"{finding.place}: {finding.text}" for finding in check_policy(policy(text), types=types)}


def test_a_sound_policy_has_no_findings() -> None:
    assert findings(POLICY, ("task.request", "pr.create.request", "command.request")) == {}


@pytest.mark.parametrize(
    ("code", "more", "says"),
    [
        (
            "never",
            'effect = "allow"\naction = "read"\ncapabilities = "work"\nagents = "ann@home"',
            "exclude each other",
        ),
        ("never", 'effect = "deny"\naction = "read"\nwhen = { tags_all = "a", tags_none = "a" }', "exclude"),
        ("shadowed", 'effect = "allow"\naction = "publish"\ntypes = "command.x"', "commands come first"),
        (
            "shadowed",
            'effect = "need"\nrequire_approval = "human"\naction = "handle"\ntypes = ["command.x", "command.*.y"]',
            "commands come first",
        ),
        ("redundant", 'effect = "deny"\naction = "publish"\ntypes = "command.x"', "commands decide the same"),
        ("redundant", 'effect = "allow"\naction = "publish"\ncapabilities = "work"\ntypes = "task.x"', "workers"),
        ("contradiction", 'effect = "allow"\naction = ["handle", "publish"]\ntypes = "command.**"', "commands"),
        ("absent-fact", 'effect = "allow"\naction = ["read", "publish"]\ngroups = "main"\ntypes = "x"', "publish"),
        ("unknown-type", 'effect = "allow"\naction = "read"\ntypes = "task.requst"', "nearest is task.request"),
        ("unknown-agent", 'effect = "allow"\naction = "read"\nagents = "anne@home"', "nearest is ann@home"),
        ("unknown-name", 'effect = "allow"\naction = "read"\ncapabilities = "wrk"', "nearest is work"),
        (
            "nobody-approves",
            'effect = "need"\naction = "handle"\ntypes = "x"\nrequire_approval = "human"\nquorum = 2',
            "2 humans",
        ),
    ],
)
def test_findings(code: str, more: str, says: str) -> None:
    assert code in FINDING_CODES
    found = findings(f'{POLICY}\n[[rules]]\nid = "more"\n{more}\n', ("task.request",))
    assert says in found[code]
    assert "rule more" in found[code]


def test_rows_that_differ_on_one_agent() -> None:
    rules = policy(POLICY + '\n[[agents]]\nid = "bot*@*"\nclearance = "public"\ncapabilities = ["work", "more"]')
    assert {finding.code for finding in check_policy(rules)} == {"ambiguous-agent"}
    row = rules.agent("bot-1@svc")
    assert row.clearance == "public"
    assert row.capabilities == {"work"}


@pytest.mark.medium
def test_what_is_found_is_so_for_random_requests() -> None:
    pick = random.Random(7)
    found: Counter[str] = Counter()
    for _ in range(400):
        rules = policy_of(pick, 8)
        about = [(one.code, one.place.removeprefix("rule ")) for one in check_policy(rules)]
        requests = [request_of(pick) for _ in range(60)] if about else []
        for code, rule_id in about:
            (rule,) = [rule for rule in rules.rules if rule.id == rule_id] or [None]  # type: ignore[list-item]
            if rule is None or code not in {"never", "shadowed", "redundant", "contradiction"}:
                continue
            found[code] += 1
            without = PolicyRules(
                name="", sha256="", rows=rules.rows, rules=[one for one in rules.rules if one is not rule]
            )
            for request in requests:
                if code == "never":
                    assert rule not in matching(rules, request, request.actor)
                answer, rest = answered(decide_request(rules, request)), answered(decide_request(without, request))
                # Of a need that is shadowed nothing is left; which of two rules that say the same decides may change.
                assert answer[0] == rest[0], (code, rule, request)
    assert found["never"] > 5
    assert found["shadowed"] > 50
    assert found["redundant"] > 50


def test_a_rule_covered_only_by_several_others_is_not_reported() -> None:
    more = '[[rules]]\nid = "more"\neffect = "allow"\naction = "handle"\ntypes = ["command.x", "pr.create.request"]\n'
    assert findings(POLICY + more) == {}
