"""The table of error codes, against the contract's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bus.protocol.reasons import REASONS
from bus.vocabulary import error_codes
from bus.vocabulary.error_codes import ERROR_CODES, UNKNOWN, code_of_class, is_error_class, lookup

TABLE = Path(error_codes.__file__).with_name("VOCABULARY.md")


def rows() -> list[list[str]]:
    section = TABLE.read_text("utf-8").partition("## 17.")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:20])
def test_the_table_is_that_of_the_contract(row: list[str]) -> None:
    codes = re.findall(r"[A-Za-z_]+", row[0])
    assert codes
    for code in codes:
        found = lookup(code)
        assert found.error_class == re.findall(r"error\.[a-z_.]+[a-z]", row[1])[-1]
        assert (found.is_retryable, str(found.http_status), str(found.a2a)) == (row[2] == "yes", row[3], row[4])


def test_the_table_has_no_other_code() -> None:
    assert {code for row in rows() for code in re.findall(r"[A-Za-z_]+", row[0])} == set(ERROR_CODES)


def test_every_reason_of_the_bus_has_its_line() -> None:
    # The contract forgets one, which counts as an internal error.
    assert set(ERROR_CODES) >= REASONS


def test_any_other_code_is_an_internal_error() -> None:
    assert lookup("INSUFFICIENT_FUNDS") == UNKNOWN
    assert (UNKNOWN.error_class, UNKNOWN.is_retryable, UNKNOWN.http_status, UNKNOWN.a2a) == (
        "error.internal",
        False,
        500,
        -32603,
    )


def test_a_class_ends_with_its_code() -> None:
    assert code_of_class("error.transient.rate_limit") == "RATE_LIMIT"
    assert code_of_class("error.semantic") == "SEMANTIC"


@pytest.mark.parametrize(
    ("text", "is_class"),
    [
        ("error.transient", True),
        ("error.semantic.unknown_task", True),
        ("error.authz.a.b", True),
        ("error", False),
        ("error.other", False),
        ("error.transients", False),
        ("error.transient.", False),
        ("error.transient.Rate", False),
        ("error.transient\n", False),
        ("errorxtransient", False),
    ],
)
def test_classes_have_a_form(text: str, is_class: bool) -> None:
    assert is_error_class(text) == is_class
