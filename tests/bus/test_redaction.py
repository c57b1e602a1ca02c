"""Secrets in foreign text are masked, ordinary sentences are left, and no text takes long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.redaction import cut, redacted

SECRET = "hunter2xyz"  # noqa: S105 - what is looked for


@pytest.mark.parametrize(
    "text",
    [
        f"cannot connect: password {SECRET} at db",
        f"postgresql://bob:{SECRET}@db:5432/agents",
        "postgresql://bob:hunter2xyz@x@db/agents",
        f"kafka.password={SECRET}",
        f"{{'password': '{SECRET} and more'}}",
        f'{{"api_key": "{SECRET}"}}',
        f"Authorization: Bearer {SECRET}",
        f"authorization=Basic {SECRET}",
        f"AWS_SECRET_ACCESS_KEY => {SECRET}",
        f"the token {SECRET} is not known",
        f"token: {SECRET}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
    ],
)
def test_a_secret_is_masked(text: str) -> None:
    assert SECRET not in redacted(text)
    assert "hunter2" not in redacted(text)
    assert "***" in redacted(text)


@pytest.mark.parametrize(
    "token",
    [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijklmnop",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "xoxb-123456789012-abcdef",
        "sk-proj-abcdefghijklmnopqrstuv",
    ],
)
def test_a_token_that_is_known_by_its_form_is_masked(token: str) -> None:
    assert redacted(f"refused: {token}, try again") == "refused: ***, try again"


@pytest.mark.parametrize(
    "text",
    [
        "token expired",
        "the password is wrong",
        "sqlite:///x.db",
        "kafka://a:9092,b:9093",
        "division by zero",
        "no such key: customer-3",
        "",
    ],
)
def test_an_ordinary_sentence_is_left(text: str) -> None:
    assert redacted(text) == text


@given(st.text(max_size=300))
def test_any_text_may_come_and_twice_is_as_once(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once or "***" in once


@pytest.mark.parametrize(
    "piece", ["a://b:", "password ", "password=", "-----BEGIN PRIVATE KEY-----", "eyJ", "x" * 7, "token token1 "]
)
def test_no_text_takes_long(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    started_s = time.process_time()
    redacted(text)
    assert time.process_time() - started_s < 1


def test_truncated_text_is_marked() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert cut("abcd", 4) == "abcd"
