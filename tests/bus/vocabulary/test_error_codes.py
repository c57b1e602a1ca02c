"""What error codes mean, and the form of their classes."""

from __future__ import annotations

import pytest

from bus.protocol.reasons import REASONS
from bus.vocabulary.error_codes import ERROR_CODES, UNKNOWN, code_of_class, is_error_class, lookup


def test_every_reason_of_the_bus_has_its_line() -> None:
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
