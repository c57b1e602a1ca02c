"""What is proven holds for every request, what is shown is so; what is foolish is found; what changes is told."""

from __future__ import annotations

import random

import msgspec
import pytest
from policy_model import AGENTS, TYPES, answered, policy_of, request_of

from bus.errors import ConfigurationError
from bus.trust.decision import Allow, Deny, NeedsApproval, decide
from bus.trust.facts import ACTIONS, Request
from bus.trust.globs import compile_globs
from bus.trust.policy_check import FINDING_CODES, check_policy
from bus.trust.policy_claims import parse_claim, prove
from bus.trust.policy_difference import compare_policies
from bus.trust.policy_file import parse_policy
from bus.trust.policy_rules import PolicyRules

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


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        ("publish command.request by ** denied", True),
        ("publish,handle command.** denied", True),
        ("handle pr.create.request by ** needs human", True),
        ("handle pr.create.request by ** needs approval", True),
        ("handle pr.create.request needs agent", True),
        ("handle pr.create.request by ** denied", False),
        ("publish task.request by planner@svc allowed", True),
        ("publish task.request by ann@home allowed", False),
        ("publish task.request by planner@svc allowed when signed=false", False),
        ("publish task.request by planner@home denied", True),
        ("publish ** by unproven denied", True),
        ("publish task.request by planner@svc in prod denied", False),
        ("handle task.request by x@svc for main via ann@home allowed when classification=internal", True),
        ("handle task.request by x@svc allowed when classification=restricted", False),
    ],
)
def test_claims(claim: str, holds: bool) -> None:
    words, _, when = claim.partition(" when ")
    if when:
        head, _, ending = words.rpartition(" ")
        claim = f"{head} when {when} {ending}"
    rules = policy(POLICY)
    proof = prove(rules, claim)
    assert proof.holds is holds
    assert not proof.vacuous
    if not holds:
        assert proof.counterexample is not None
        assert proof.decision == decide(rules, proof.counterexample)


def test_a_claim_about_nothing_is_said_to_be_one() -> None:
    assert prove(policy(POLICY), "publish task.request by ann@home needs human").vacuous


def test_a_counterexample_takes_known_names() -> None:
    proof = prove(policy(POLICY), "publish task.* denied", types=["task.request"])
    assert proof.counterexample is not None
    assert proof.counterexample.message_type == "task.request"


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ("publish task.request", "ends with one of"),
        ("publsh task.request denied", "the nearest is publish"),
        ("denied", "begins with"),
        ("publish task.request with x denied", "none of by"),
        ("publish task.request by denied", "none of by"),
        ("publish *** denied", "three stars"),
        ("publish a by b when sgned=true denied", "the nearest is signed"),
        ("publish a by b when level=high denied", "user_request"),
        ("publish a by b when major=x denied", "a number"),
        ("", "ends with"),
    ],
)
def test_what_is_no_claim(claim: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        prove(policy(POLICY), claim)


def matches_claim(claim: str, request: Request) -> bool:
    asked = parse_claim(claim)
    by = asked.places["actor"]
    return (
        request.action in asked.actions
        and bool(compile_globs([asked.message_type]).match(request.message_type))
        and (by == "**" if request.actor is None else bool(compile_globs([by]).match(request.actor)))
    )


@pytest.mark.medium
def test_proofs_survive_random_requests() -> None:
    pick = random.Random(7)
    yes = no = 0
    for _ in range(60):
        rules = policy_of(pick, pick.randint(1, 8), held_only=True)
        requests = [request_of(pick) for _ in range(150)]
        for _ in range(5):
            by = pick.choice([*AGENTS, "**", "*@svc", "*@home"])
            ending = pick.choice(["denied", "needs human", "needs agent"])
            claim = f"{pick.choice(ACTIONS)} {pick.choice([*TYPES, '**', 'task.*'])} by {by} {ending}"
            proof = prove(rules, claim)
            kept = {"denied": {"deny"}, "needs human": {"deny", "human"}}.get(ending, {"deny", "human", "agent"})
            if proof.holds:
                yes += 1
                for request in requests:
                    if matches_claim(claim, request):
                        assert answered(decide(rules, request))[0] in kept
            else:
                no += 1
                assert proof.counterexample is not None
                assert matches_claim(claim, proof.counterexample)
                assert answered(decide(rules, proof.counterexample))[0] not in kept
    assert yes > 50
    assert no > 50


@pytest.mark.medium
def test_every_change_is_told_and_every_told_change_is_one() -> None:
    pick = random.Random(8)
    for _ in range(25):
        old = policy_of(pick, 4, held_only=True)
        new = PolicyRules(name="", sha256="", rows=old.rows, rules=old.rules[pick.randint(0, 2) :])
        difference = compare_policies(old, new)
        for change in difference.changes:
            assert answered(decide(old, change.example))[0] == change.before
            assert answered(decide(new, change.example))[0] == change.after
        told = {(change.example.action, change.before, change.after) for change in difference.changes}
        for _ in range(200):
            request = request_of(pick)
            pair = answered(decide(old, request))[0], answered(decide(new, request))[0]
            if pair[0] != pair[1] and difference.complete:
                assert (request.action, *pair) in told


def test_a_difference_names_classes_and_parts() -> None:
    new = POLICY.replace('"planner"', "").replace("task.**", "task.request*")
    new = new.replace('"ann@home"\nkind', '"ann@work"\nkind')
    difference = compare_policies(policy(POLICY), policy(new), types=["task.request", "task.plan.old"])
    assert difference.added == ("agent ann@work",)
    assert difference.removed == ("agent ann@home",)
    assert difference.edited == ("workers",)
    assert {(change.before, change.after) for change in difference.changes} == {("allow", "deny")}
    assert {change.example.message_type for change in difference.changes} == {"task.plan.old"}
    assert compare_policies(policy(POLICY), policy(POLICY + "\n# a comment")).changes == ()


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
            'effect = "allow"\naction = "handle"\ntypes = ["command.x", "pr.create.request"]',
            "several rules",
        ),
        ("redundant", 'effect = "deny"\naction = "publish"\ntypes = "command.x"', "commands say the same"),
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


def test_answers_have_the_kinds_that_the_tests_know() -> None:
    request = request_of(random.Random(1))
    rules = policy(POLICY)
    asked = msgspec.structs.replace(request, action="handle", message_type="pr.create.request", classification="public")
    assert isinstance(decide(rules, asked), NeedsApproval)
    assert isinstance(decide(rules, msgspec.structs.replace(asked, message_type="command.x")), Deny)
    handled = msgspec.structs.replace(asked, message_type="task.request", actor="web@svc", signed=True)
    assert isinstance(decide(rules, handled), Allow)
