"""The search is exact: what it finds is so, and what it does not find is nowhere."""

from __future__ import annotations

import random

import msgspec
import pytest
from policy_model import AGENTS, answered, expected, policy_of, request_of

from bus.protocol.identifiers import is_message_type, is_namespace
from bus.trust.decision import decide
from bus.trust.facts import ACTIONS
from bus.trust.globs import compile_globs
from bus.trust.policy_atoms import representatives
from bus.trust.policy_space import ANSWERS, RequestSpace


def search(seed: int, policies: int, requests: int) -> None:
    pick = random.Random(seed)
    found_none = 0
    for _ in range(policies):
        rules = policy_of(pick, pick.randint(1, 7), held_only=True)
        space = RequestSpace([rules])
        asked = [request_of(pick) for _ in range(requests)]
        answers = {(request.action, answered(decide(rules, request))[0]) for request in asked}
        for action in pick.sample(ACTIONS, 4):
            for answer in ANSWERS:
                found = space.find([action], [space.answers(0, [answer])])
                if found is None:
                    found_none += 1
                    assert (action, answer) not in answers, (rules.rules, action, answer)
                else:
                    assert found.action == action
                    assert answered(decide(rules, found))[0] == answer, (rules.rules, found)
                    assert expected(rules, found)[0] == answer
    assert found_none


@pytest.mark.medium
def test_what_is_found_is_so_and_what_is_not_found_is_nowhere() -> None:
    search(1, 60, 200)


@pytest.mark.slow  # hundreds of policies, hundreds of thousands of requests
def test_what_is_found_is_so_for_many_policies() -> None:
    search(2, 400, 400)


@pytest.mark.medium
def test_whoever_asks_after_whomever() -> None:
    """One request with the parties fixed: every answer that random facts have is found."""
    pick = random.Random(4)
    for _ in range(40):
        rules = policy_of(pick, 6, held_only=True)
        space = RequestSpace([rules])
        for _ in range(60):
            request = msgspec.structs.replace(request_of(pick), via=tuple(pick.sample(AGENTS, 3)))
            answer = answered(decide(rules, request))[0]
            found = space.find([request.action], [space.answers(0, [answer])])  # type: ignore[list-item]
            assert found is not None


@pytest.mark.parametrize("form", ["type", "segment", "id", "any"])
def test_representatives_are_of_their_form_and_each_says_something_else(form: str) -> None:
    globs = ["**", "task.*", "*.request", "dlq", "**.dlq", "a-*", "x*z", "*@svc", "9*", "planner"]
    texts = representatives(globs, form)  # type: ignore[arg-type]
    matcher = compile_globs(globs)
    assert len({matcher.match(text) for text in texts}) == len(texts)
    if form == "type":
        assert all(is_message_type(text) for text in texts)
    if form == "segment":
        assert all(is_namespace(text) for text in texts)
    assert ("" in texts) == (form == "any")


def test_every_text_has_a_representative() -> None:
    pick = random.Random(5)
    globs = ["**a**", "a.*", "*.b", "ab**", "**b"]
    matcher = compile_globs(globs)
    known = {matcher.match(text) for text in representatives(globs, "type")}
    for _ in range(5000):
        text = "".join(pick.choice("abc.-1") for _ in range(pick.randint(1, 8)))
        if is_message_type(text):
            assert matcher.match(text) in known, text


def test_preferred_texts_are_the_examples() -> None:
    assert "task.request" in representatives(["task.*"], "type", ["task.request"])
