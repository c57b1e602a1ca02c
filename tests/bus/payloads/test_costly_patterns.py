"""What a stranger's text can make a pattern cost is told from the pattern."""

from __future__ import annotations

import re
import time

import pytest

from bus.payloads.costly_patterns import find_pattern_fault

SEMVER = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?"
OCTET = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"

# Each with a text that it takes long for, if it does for any.
ORDINARY = {
    "^[a-z]*$": "a" * 4_000,
    r"^\d{4}-\d{2}-\d{2}$": "2026-01-01",
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$": "2026-12-31",
    r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:\d{2})$": "2026-01-01T00:00:00.123456789+00:00",
    r"^([01]\d|2[0-3]):[0-5]\d$": "23:59",
    "^(red|green|blue)$": "blue",
    "^(january|february|march|april|may|june|july|august|september|october|november|december)$": "december",
    r"^[^/]{1,63}\Z": "a" * 63,
    "^x?y{0,3}[a-f0-9]+$": "xyyy" + "a" * 4_000,
    "^[a-z0-9]+(-[a-z0-9]+)*$": "a-" * 2_000 + "a",
    r"^\w+(\s\w+)*$": "a " * 2_000 + "a",
    r"^\w+(\s*,\s*\w+)*$": "a , " * 1_000 + "a",
    r"^\S(.*\S)?$": "a " * 2_000 + "a",
    r"^[\w.+-]+@[\w-]+\.[\w.-]+$": "a" * 2_000 + "@a." + "a." * 900,
    r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$": "a@" + "ab." * 1_300 + "ab",
    r"^[^@\s]+@[^@\s.]+(\.[^@\s.]+)+$": "a@" + "a." * 1_900 + "a",
    rf"^{SEMVER}$": "1.0.0-" + "a." * 1_900 + "a",
    "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$": "0" * 8 + "-0000" * 3 + "-" + "0" * 12,
    "^sha256:[0-9a-f]{64}$": "sha256:" + "0" * 64,
    r"^(/[A-Za-z0-9._-]+)+/?$": "/a" * 2_000,
    r"^https?://[^\s/]+(/\S*)?$": "https://a/" + "a" * 4_000,
    "^[A-Z][a-z]+( [A-Z][a-z]+)*$": "Ab " * 1_300 + "Ab",
    r"^-?\d+(\.\d{1,2})?$": "1" * 4_000,
    r"^\+?[1-9]\d{1,14}$": "+" + "1" * 15,
    "^#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$": "#aaaaaa",
    rf"^({OCTET}\.){{3}}{OCTET}$": "1.1.1.1",
    rf"^{LABEL}(\.{LABEL})*$": "a." * 2_000 + "a",
    r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$": "a." * 2_000 + "a",
    r"^[\w.]+:\w+$": "a." * 1_000 + ":" + "a" * 2_000,
    "^[a-z]{1,200}[0-9]{1,200}$": "a" * 200 + "0" * 200,
    "^a*b*$": "a" * 2_000 + "b" * 2_000,
    "^(a*|b)$": "a" * 4_000,
    "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$": "abcd" * 1_000,
    "^[^\x00-\x1f]{0,4000}$": "a" * 4_000,
    r"^.*\.json$": "." * 4_000 + ".json",
}

COSTLY = [
    "^(a+)+$",
    "^([a-z]{1,9}){1,9}$",
    "^(a*)*$",
    "^(a|a)*$",
    "^(a|aa)+$",
    "^a*a*$",
    "^[a-z]+[a-z0-9]+$",
    "^" + "a?" * 30 + "b$",
    "^a{0,100}a{0,100}a*$",
    "^" + "(a?|b?)" * 12 + "c$",
    r"^(\w+\s?)*$",
    r"^.*a.*b$",
    r"^(.*,){5}x$",
    "^(.{0,30}a){10}$",
    "^[a-z]{0,30}x[a-z]{0,30}y[a-z]{0,30}$",
    "(?i)^[k]*\u212a*$",
    "^[a-z]*[\u00e9a]*$",
    "(?a)^\\W*[\u00e9]*$",
    "^(" + "|".join(f"{chr(a)}{chr(b)}" for a in range(97, 107) for b in range(97, 107)) + ")$",
]


@pytest.mark.parametrize("pattern", ORDINARY)
def test_an_ordinary_pattern_is_accepted_and_takes_time_in_proportion_to_the_text(pattern: str) -> None:
    assert find_pattern_fault(pattern) is None
    compiled, text = re.compile(pattern), ORDINARY[pattern]
    assert compiled.search(text)
    # That many of them are a megabyte of JSON.
    count = 1_048_576 // (len(text) + 3)
    taken_s = []
    for ending in ("", "\x00"):
        tried = [text + ending] * (count if not ending else 1)
        started_s = time.process_time()
        for one in tried:
            compiled.search(one)
        taken_s.append(time.process_time() - started_s)
    assert sum(taken_s) < 0.2


@pytest.mark.parametrize("pattern", COSTLY)
def test_a_pattern_that_some_text_fits_in_many_ways_is_refused(pattern: str) -> None:
    re.compile(pattern)
    started_s = time.process_time()
    assert find_pattern_fault(pattern) is not None
    assert time.process_time() - started_s < 1


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        ("[a-z]*", "write"),
        ("^[a-z]*", "write"),
        ("^a|b$", "write"),
        (r"^(a)\1$", "without references"),
        ("^(?=a)a$", "without references"),
        ("(?m)^a$", "no flags"),
        ("(?i)^a$", "[Aa]"),
        ("^(?i:a)b$", "references, flags"),
        ("^(a?)*$", "write"),
        ("^[a-z]{5000}$", "max_length"),
        ("^a?a*a*$", "begin with another character"),
    ],
)
def test_a_refused_pattern_names_its_replacement(pattern: str, instead: str) -> None:
    assert instead in (find_pattern_fault(pattern) or "")
