"""The file of credentials: what it says, what it may not say, and that a changed one counts within a second."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.clock import ManualClock
from bus.errors import ConfigurationError
from consumers.gateway.credentials import (
    Credential,
    CredentialFile,
    Credentials,
    DoorsFile,
    make_token,
    parse_credentials,
)
from consumers.gateway.dialect_form import dialect_of

GOOD: dict[str, Any] = {"agent": "ci@acme", "to": ("researcher@svc",)}


def written(folder: Path, *credentials: Credential) -> Path:
    path = folder / "doors.toml"
    DoorsFile(path).change(lambda _: credentials)
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    _, known = make_token(not_after=datetime(2027, 1, 1, tzinfo=UTC))
    made = Credential(name="ci", agent='odd "id" \\ ü', to=("a",), tokens=(known,), doors=("http", "mcp"), rate=2.5)
    path = written(tmp_path, made)
    assert DoorsFile(path).read().all == (made,)


def test_a_token_is_in_no_file(tmp_path: Path) -> None:
    token, known = make_token()
    path = written(tmp_path, Credential(name="ci", tokens=(known,), **GOOD))
    assert token not in path.read_text()


def test_two_tokens_count_until_each_ends() -> None:
    now = datetime.now(UTC)
    old, first = make_token(not_after=now + timedelta(hours=1))
    new, second = make_token()
    known = Credentials([Credential(name="ci", tokens=(first, second), **GOOD)])
    later_ms = (now + timedelta(hours=2)).timestamp() * 1000
    assert known.of_token(old, now.timestamp() * 1000) is not None
    assert known.of_token(old, later_ms) is None
    assert known.of_token(new, later_ms) is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('name = "a"', "required"),
        ('name = "a/b"\nagent = "x"\nto = ["y"]\ntokens = []', "name:"),
        ('name = "a"\nagent = "x"\nto = []\ntokens = []', "to:"),
        ('name = "a"\nagent = "x"\nto = ["y"]\ntokens = []\ntypo = 1', "no key 'typo'"),
        ('name = "a"\nagent = "x"\nto = ["y"]\ntokens = [{sha256 = "zz"}]', "64 hex digits"),
        ('name = "a"\nagent = "x"\nto = ["y"]\ntokens = []\ntrust_at_most = "platform_policy"', "user_request at most"),
        ('name = "a"\nagent = "x"\nto = ["y"]\ntokens = []\ndoors = ["window"]', "window"),
        ('name = "a"\nagent = "x"\nto = ["y"]\ntokens = []\nrate = 0', "rate"),
    ],
)
def test_what_is_wrong_is_named(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected.replace("[", "\\[")):
        parse_credentials(f"[[credentials]]\n{text}\n".encode(), name="doors.toml")


def test_a_changed_file_counts_within_a_second_and_a_broken_one_does_not(tmp_path: Path) -> None:
    token, known = make_token()
    path = written(tmp_path, Credential(name="ci", tokens=(known,), **GOOD))
    clock = ManualClock()
    file = CredentialFile(path, clock=clock)
    assert file.current().of_token(token, clock.now_ms()) is not None
    path.write_text("broken [")
    clock.advance(2)
    assert file.current().of_token(token, clock.now_ms()) is not None
    assert file.fault is not None
    DoorsFile(tmp_path / "other.toml").change(lambda _: [])
    (tmp_path / "other.toml").replace(path)
    clock.advance(2)
    assert file.current().of_token(token, clock.now_ms()) is None
    assert file.fault is None


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.chmod(0o666)
    with pytest.raises(ConfigurationError, match="may write"):
        CredentialFile(path, clock=ManualClock())


@given(st.dictionaries(st.text(max_size=12), st.none() | st.text(max_size=5) | st.dictionaries(st.text(), st.text())))
def test_any_object_has_one_form_or_none(value: dict[str, object]) -> None:
    assert dialect_of(value) is None or isinstance(dialect_of(value), str)
