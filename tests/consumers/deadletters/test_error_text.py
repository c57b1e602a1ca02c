"""Texts that differ by ids alone are one, sentences without ids stay as they are, hostile text is quickly read."""

from __future__ import annotations

import base64
import string
import time
import uuid
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.deadletters.error_text import without_ids

WORDS = st.lists(
    st.text(string.ascii_lowercase, min_size=1, max_size=12) | st.sampled_from(["KeyError:", "JPY", "can't", "and/or"]),
    min_size=1,
    max_size=8,
)
DIGITS, LETTERS, ALNUM = string.digits, string.ascii_letters, string.ascii_letters + string.digits


def with_a_digit(alphabet: str, size: int) -> st.SearchStrategy[str]:
    return st.tuples(
        st.text(alphabet, min_size=size, max_size=size), st.sampled_from(DIGITS), st.integers(0, size)
    ).map(lambda parts: parts[0][: parts[2]] + parts[1] + parts[0][parts[2] :])


NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=9)
FORMS = {
    "number": st.integers(0, 10**18).map(str),
    "decimal": st.decimals(0, 1000, places=2).map(str),
    "uuid": st.uuids().map(str),
    "uuid in capitals": st.uuids().map(lambda each: str(each).upper()),
    "uuid in braces": st.uuids().map(lambda each: f"{{{each}}}"),
    "urn": st.uuids().map(lambda each: f"urn:uuid:{each}"),
    "sha256": st.binary(min_size=32, max_size=32).map(bytes.hex).filter(lambda each: not each.isalpha()),
    "ulid": with_a_digit("0123456789ABCDEFGHJKMNPQRSTVWXYZ", 25),
    "short": with_a_digit(ALNUM, 4).map(lambda each: f"ord_{each}"),
    "with hyphens": with_a_digit(string.ascii_lowercase, 6).map(lambda each: f"{each[:3]}-{each[3:]}"),
    "mixed case": st.text(LETTERS, min_size=1, max_size=4).map(lambda each: f"x{each}Qz".replace("xx", "x")),
    "base64": st.binary(min_size=9, max_size=40)
    .map(lambda each: base64.b64encode(each).decode())
    .filter(lambda each: any(char.isdigit() for char in each)),
    "quoted": st.tuples(st.sampled_from(["'{}'", '"{}"', "`{}`", "“{}”"]), NAMES | st.just("Ann Lee")).map(
        lambda parts: parts[0].format(parts[1])
    ),
    "path": st.lists(NAMES, min_size=2, max_size=4).map(lambda each: "/" + "/".join(each) + ".json"),
    "windows path": NAMES.map(lambda each: rf"C:\data\{each}"),
    "e-mail": st.tuples(NAMES, NAMES).map(lambda each: f"{each[0]}@{each[1]}.example"),
    "url": NAMES.map(lambda each: f"https://example.org/{each}?a=b"),
    "ip": st.ip_addresses(v=4).map(str),
    "ip and port": st.ip_addresses(v=4).map(lambda each: f"{each}:8080"),
    "ipv6": st.ip_addresses(v=6, network="2001:db8::/32").map(str),
    "date": st.dates().map(str),
    "time": st.datetimes().map(lambda each: each.isoformat(timespec="milliseconds") + "Z"),
    "date in words": st.datetimes(
        min_value=datetime(1999, 1, 1)  # noqa: DTZ001 - shown without a zone
    ).map(lambda each: each.strftime("%a %b %d %H:%M:%S %Y")),
    "list": st.lists(st.integers(0, 99), min_size=1, max_size=5).map(lambda each: ", ".join(map(str, each))),
}


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_texts_that_differ_by_ids_of_one_form_are_one(form: str, data: st.DataObject) -> None:
    one, other = data.draw(FORMS[form]), data.draw(FORMS[form])
    for sentence in ("customer {} is unknown", "no rate for {}.", "order={}, too late", "({}) is gone"):
        assert without_ids(sentence.format(one)) == without_ids(sentence.format(other))


@given(WORDS, WORDS)
def test_two_sentences_without_ids_are_two(one: list[str], other: list[str]) -> None:
    assert (without_ids(" ".join(one)) == without_ids(" ".join(other))) == (one == other)


@given(WORDS)
def test_a_sentence_without_ids_stays_as_it_is(words: list[str]) -> None:
    assert without_ids(" ".join(words)) == " ".join(words)


@given(st.text(max_size=300))
def test_any_text_is_one_short_line(text: str) -> None:
    assert len(without_ids(text)) <= 160
    assert "\n" not in without_ids(text)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("order=17 of customer: ord_8fK2x", "order=# of customer: #"),
        ("KeyError: 'abc'", "KeyError: #"),
        ("file 'my report.pdf' can't be read", "file # can't be read"),
        ("customer 'O'Brien' unknown", "customer # unknown"),
        ("customer 17's book", "customer #'s book"),
        ("{'id': 'abc', 'n': 17}", "{#: #: #}"),
        ("text that was cut 'abc de…", "text that was cut #"),
        ("agents.job.run is lost", "agents.job.run is lost"),
        ("größe 3kg naïve", "größe # naïve"),
        ("first\nsecond 17", "first"),
        ("token=abcdefgh is refused", "token=*** is refused"),
    ],
)
def test_what_is_left_of_a_text(text: str, left: str) -> None:
    assert without_ids(text) == left


PIECES = ("a", "'", "a'", "a1", "#, ", "Jan ", "=a:", "a:", "Aa", "aA", "/", " 'a", "\x1b[1;", "token=", "://", "a.b@")


@pytest.mark.parametrize("piece", PIECES)
def test_a_megabyte_of_hostile_text_takes_milliseconds(piece: str) -> None:
    hostile = piece * (1_000_000 // len(piece))
    without_ids(hostile)
    began_s = time.process_time()
    for number in range(10):
        # Another text each time: nothing of it is known.
        without_ids(f"{number * piece}x {hostile}")
    assert time.process_time() - began_s < 0.5


def test_ids_of_any_size_are_one_text() -> None:
    assert {without_ids(f"no {uuid.uuid4().hex * size} here") for size in range(1, 20)} == {"no # here"}
