"""Globs against a naive matcher."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import ConfigurationError
from bus.trust.policy import globs as module
from bus.trust.policy.globs import common_text, compile_globs, glob_fault

LETTERS = "ab./"
TEXTS = ["".join(letters) for length in range(6) for letters in itertools.product(LETTERS, repeat=length)]
GLOBS = (
    st.lists(st.sampled_from(["a", "b", ".", "/", "*", "**"]), max_size=5)
    .map("".join)
    .filter(lambda glob: glob_fault(glob) is None)
)


def naive(glob: str, text: str) -> bool:
    """The meaning, by trying everything."""
    if not glob:
        return not text
    if glob.startswith("**"):
        return any(naive(glob[2:], text[at:]) for at in range(len(text) + 1))
    if glob.startswith("*"):
        ends = itertools.takewhile(lambda at: not set(text[:at]) & set("/"), range(len(text) + 1))
        return any(naive(glob[1:], text[at:]) for at in ends)
    return text[:1] == glob[0] and naive(glob[1:], text[1:])


@pytest.mark.medium
@given(st.lists(GLOBS, max_size=6), st.text(LETTERS + "x:@*", max_size=12))
@settings(max_examples=500)
def test_a_matcher_finds_what_the_naive_one_finds(globs: list[str], text: str) -> None:
    assert compile_globs(globs).match(text) == {at for at, glob in enumerate(globs) if naive(glob, text)}


@pytest.mark.medium
@given(st.lists(st.lists(GLOBS, max_size=3), min_size=1, max_size=3))
@settings(max_examples=300)
def test_a_common_text_is_one(lists: list[list[str]]) -> None:
    text = common_text(lists)
    if text is not None:
        assert all(any(naive(glob, text) for glob in globs) for globs in lists)
    else:
        matchers = [compile_globs(globs) for globs in lists]
        assert not any(all(matcher.match(text) for matcher in matchers) for text in TEXTS)


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("*@svc", "a.planner@svc", "a/planner@svc"),
        ("**@svc", "a/planner@svc", "a.planner@svc2"),
        ("task.*", "task.request.old", "task"),
        ("task.**", "task.request.old", "task"),
        ("src/**/test_*", "src/a/b/test_x", "src/test_x"),
        ("a?[b]", "a?[b]", "axb"),
        ("", "", "a"),
    ],
)
def test_stars_stop_at_separators(glob: str, matching: str, other: str) -> None:
    assert compile_globs([glob]).match(matching)
    assert not compile_globs([glob]).match(other)


@pytest.mark.parametrize("glob", ["***", "*a*b*c*d*", "**a**b*", "a" * 257])
def test_strings_that_are_not_globs(glob: str) -> None:
    assert glob_fault(glob)
    with pytest.raises(ConfigurationError, match="glob"):
        compile_globs([glob])


@pytest.mark.medium
def test_hostile_globs_cost_little() -> None:
    globs = [f"**{chr(97 + at % 26)}{at}**" for at in range(500)]
    started = time.process_time()
    matcher = compile_globs(globs)
    for round_ in range(20):
        matcher.match("".join(chr(97 + (at * 7 + round_) % 26) for at in range(4000)))
    assert time.process_time() - started < 20


def test_the_matchers_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CELLS", 50)
    monkeypatch.setattr(module, "_MAX_REMEMBERED", 10)
    globs = ["**a**b", "**b*a", "*a.b*"]
    matcher = compile_globs(globs)
    for text in TEXTS[:2000]:
        assert matcher.match(text) == {at for at, glob in enumerate(globs) if naive(glob, text)}
    assert len(matcher._states) < 60
    assert len(matcher._known) <= 10
