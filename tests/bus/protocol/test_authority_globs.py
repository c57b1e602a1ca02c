"""Inclusion of the globs of an authority: exact against every short text, and quick whatever their form allows."""

from __future__ import annotations

import functools
import itertools
import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.protocol.authority_globs import MAX_CROSSING, MAX_GLOB_CHARS, MAX_RUNS, authority_glob_fault, first_outside

# Globs are of a, b and /; c is a letter that none has. Where small ones differ they do so in a short text.
TEXTS = ["".join(letters) for size in range(7) for letters in itertools.product("abc/", repeat=size)]
PIECES = ["a", "b", "/", "*", "**", "***"]
globs = (
    st.lists(st.sampled_from(PIECES), max_size=5).map("".join).filter(lambda glob: authority_glob_fault(glob) is None)
)
small = st.lists(st.sampled_from(PIECES), max_size=3).map("".join)


@functools.cache
def language(glob: str) -> frozenset[str]:
    """Every short text that *glob* means."""
    parts = re.split(r"(\*+)", glob)
    pattern = "".join("[abc]*" if part == "*" else "[abc/]*" if "*" in part else re.escape(part) for part in parts)
    compiled = re.compile(pattern)
    return frozenset(text for text in TEXTS if compiled.fullmatch(text))


def includes(outer: list[str], glob: str) -> bool:
    return first_outside([glob], outer) is None


@pytest.mark.medium
@settings(max_examples=400)
@given(small, st.lists(small, max_size=4))
def test_inclusion_is_that_of_the_texts(inner: str, outer: list[str]) -> None:
    every = frozenset().union(*(language(glob) for glob in outer))
    assert includes(outer, inner) == (language(inner) <= every)


@given(st.lists(globs, max_size=4), st.lists(globs, max_size=4))
def test_included_globs_match_nothing_outside(inner: list[str], outer: list[str]) -> None:
    outside = first_outside(inner, outer)
    at = len(inner) if outside is None else inner.index(outside)
    every = frozenset().union(*(language(glob) for glob in outer))
    assert all(language(glob) <= every for glob in inner[:at])


@given(globs, st.lists(globs, max_size=4))
def test_a_literally_listed_glob_is_included(glob: str, others: list[str]) -> None:
    assert includes([*others, glob], glob)


@given(globs, globs, globs)
def test_inclusion_is_transitive(first: str, second: str, third: str) -> None:
    if includes([second], first) and includes([third], second):
        assert includes([third], first)


@pytest.mark.parametrize(
    ("inner", "outer", "included"),
    [
        (["**/src/**/test_*.py"], ["**/src/**"], True),
        (["**/src/**"], ["**/src/**/test_*.py"], False),
        (["docs/*/*/*/*/*.md"], ["docs/**"], True),
        (["src/m1/*.py"], [f"src/m{at}/**" for at in range(14)], True),
        (["src/m14/*.py"], [f"src/m{at}/**" for at in range(14)], False),
        (["**"], ["*", "**/**"], True),
        (["**"], ["*", "*/*", "**/**/**"], True),
        (["**"], ["*", "*/*", "*/*/*", "**/*/*/**"], True),
        (["**"], ["*", "*/*/*", "**/*/*/**"], False),
        (["a**"], ["a", "a*b"], False),
        (["x" * MAX_GLOB_CHARS], ["x**"], True),
        ([], [], True),
        (["a"], [], False),
        ([""], ["*"], True),
    ],
)
def test_inclusion(inner: list[str], outer: list[str], included: bool) -> None:
    assert (first_outside(inner, outer) is None) == included


@pytest.mark.parametrize(
    ("glob", "fault"),
    [
        ("*a" * MAX_RUNS, None),
        ("*a" * (MAX_RUNS + 1), "stars in 9 places"),
        ("**a" * MAX_CROSSING, None),
        ("**a" * (MAX_CROSSING + 1), "** in 4 places"),
        ("*****", None),
        ("a" * MAX_GLOB_CHARS, None),
        ("a" * (MAX_GLOB_CHARS + 1), "1025 characters"),
    ],
)
def test_the_form_of_a_glob(glob: str, fault: str | None) -> None:
    found = authority_glob_fault(glob)
    assert found is None if fault is None else found is not None and fault in found


@pytest.mark.medium
def test_the_costliest_globs_of_a_kilobyte_cost_little() -> None:
    rng = random.Random(36)

    def made(length: int) -> str:
        glob = ""
        while len(glob) < length:
            longer = glob + rng.choice(["x", "y", "/", "*", "**", "*/"])
            glob = longer if authority_glob_fault(longer) is None else glob + rng.choice("xy/")
        return glob

    slowest = 0.0
    for size in (10, 30, 100, 300):
        for _ in range(20):
            inner, outer = [made(size) for _ in range(1000 // size)], [made(size) for _ in range(1000 // size)]
            started = time.process_time()
            for glob in inner:
                first_outside([glob], outer)
            slowest = max(slowest, time.process_time() - started)
    assert slowest < 2
